"""What is free on each device of a host, and which of them a lease gets.

Devices that differ in nothing but their free memory are a *level*: a sorted list, in which one search finds those with enough memory. So to find
devices costs a search for each level, not a look at each device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuvirt.server.policy.events import COMPUTE, PACK


@dataclass(frozen=True)
class Shape:
    """What a lease, or a gang of leases, wants: so many GPUs, and on each what is reserved (bytes, parts of `COMPUTE`), 0: nothing.

    Attributes:
        part: how many of them are on one host together, for each lease of a gang; 0: all.
        placement: one of `events.PLACEMENTS`.
    """

    gpus: int
    memory: int = 0
    compute: int = 0
    part: int = 0
    placement: str = ""

    @property
    def packed(self) -> bool:
        """Whether it goes where most is taken already. Who reserves compute has the same of it anywhere; who does not shares it with others there."""
        return self.placement == PACK or (not self.placement and self.compute > 0)

    @property
    def together(self) -> int:
        """How many are to be on one host."""
        return self.part or self.gpus

    @property
    def reserves(self) -> bool:
        return bool(self.memory or self.compute)

    def wants_at_least(self, other: Shape) -> bool:
        """Whether this one cannot be placed where the other cannot."""
        if self.memory < other.memory or self.compute < other.compute:
            return False
        together, others = self.together, other.together
        return together >= others and self.gpus // together >= other.gpus // others


@dataclass
class _Device:
    memory: int  # free
    compute: int  # free
    leases: int = 0
    held: bool = False


class Room:
    """The devices of a host.

    Args:
        memory: bytes of each device.
    """

    def __init__(self, memory: Sequence[int]) -> None:
        self.total = tuple(memory)
        self._devices = [_Device(size, COMPUTE) for size in memory]
        self._leases = 0  # of all devices
        self._levels: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (leases, free compute) -> (free memory, device), ascending
        self._spread: list[tuple[int, int]] = []  # the levels: fewest leases first, then the least free compute
        self._packed: list[tuple[int, int]] = []  # the levels as (free compute, leases), ascending
        for device in range(len(memory)):
            self._insert(device)

    # ---- reading ------------------------------------------------------------------------------------------------------

    def leases(self, device: int) -> int:
        """How many leases have the device."""
        return self._devices[device].leases

    def free(self, device: int) -> tuple[int, int]:
        """Bytes and parts of compute that nobody has reserved."""
        return self._devices[device].memory, self._devices[device].compute

    def held(self, device: int) -> bool:
        """Whether `find` leaves it out."""
        return self._devices[device].held

    @property
    def load(self) -> float:
        """How many leases a device has, on average."""
        return self._leases / len(self._devices)

    def fits(self, device: int, shape: Shape) -> bool:
        """Whether there is room on this device, held or not. Who reserves nothing wants something that is not reserved."""
        found = self._devices[device]
        return found.memory >= max(shape.memory, 1) and found.compute >= max(shape.compute, 1)

    def find(self, shape: Shape, most: int | None = None) -> list[int]:
        """Devices with room for a lease, the best first: as many as it wants (`most` if given), or fewer when there are no more.

        A lease that is packed goes where the least is left, which keeps whole devices for those who want them; any other where the fewest leases
        are. Of equals it gets the one with the least free.
        """
        wanted, found = shape.gpus if most is None else most, list[int]()
        room = (max(shape.memory, 1), -1)
        for key in self._levels_for(shape):
            level = self._levels[key]
            first = bisect_left(level, room)
            found += [device for _, device in level[first : first + wanted - len(found)]]
            if len(found) == wanted:
                break
        return found

    def _levels_for(self, shape: Shape) -> Iterator[tuple[int, int]]:
        if not shape.packed:
            yield from (key for key in self._spread if key[1] >= max(shape.compute, 1))
        elif shape.compute:
            for compute, leases in self._packed[bisect_left(self._packed, (shape.compute, 0)) :]:
                yield leases, compute
        else:
            yield from (key for key in reversed(self._spread) if key[1])

    def computes(self) -> list[int]:
        """How much compute is free of devices that `find` looks at, each amount once, ascending."""
        return [*dict.fromkeys(compute for compute, _ in self._packed)]

    def most_memory(self, compute: int, most: int) -> list[int]:
        """The free memory of devices that `find` looks at and that have so much compute free, the most first; of so many of them at least, if there
        are more."""
        found = [memory for (_, free), level in self._levels.items() if free >= compute for memory, _ in level[-most:]]
        found.sort(reverse=True)
        return found

    def emptiest(self, shape: Shape) -> list[int]:
        """As many devices as the lease wants that are large enough for it, those with the fewest leases first; fewer when too many are held."""
        found = list[int]()
        for key in self._spread:
            for _, device in reversed(self._levels[key]):
                if self.total[device] >= shape.memory:
                    found.append(device)
                    if len(found) == shape.gpus:
                        return found
        return found

    # ---- changing -----------------------------------------------------------------------------------------------------

    def take(self, device: int, shape: Shape) -> None:
        """A lease gets the device."""
        self._change(device, -shape.memory, -shape.compute, 1)

    def give_back(self, device: int, shape: Shape) -> None:
        """A lease does not have the device any more."""
        self._change(device, shape.memory, shape.compute, -1)

    def hold(self, device: int, held: bool) -> None:
        """Whether `find` leaves the device out from now on."""
        found = self._devices[device]
        if held != found.held:
            (self._remove if held else self._insert)(device)
            found.held = held

    def _change(self, device: int, memory: int, compute: int, leases: int) -> None:
        found = self._devices[device]
        if not found.held:
            self._remove(device)
        found.memory += memory
        found.compute += compute
        found.leases += leases
        self._leases += leases
        if not found.held:
            self._insert(device)

    def _insert(self, device: int) -> None:
        found = self._devices[device]
        key = found.leases, found.compute
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = []
            insort(self._spread, key)
            insort(self._packed, (found.compute, found.leases))
        insort(level, (found.memory, device))

    def _remove(self, device: int) -> None:
        found = self._devices[device]
        key = found.leases, found.compute
        level = self._levels[key]
        del level[bisect_left(level, (found.memory, device))]
        if not level:
            del self._levels[key]
            del self._spread[bisect_left(self._spread, key)]
            del self._packed[bisect_left(self._packed, (found.compute, found.leases))]
