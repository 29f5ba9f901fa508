"""Leases that give way: which of them are to, so that one of a higher priority has room. Their keepers have promised to give them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.room import Shape

PREEMPT_AFTER = 5.0  # s; what ends by itself in so short a time needs nobody to give way
PREEMPT_AGAIN = 1.0  # s between two looks that come to nothing, which may cost more than a decision
LOOK = 16  # hosts that are compared
NOTHING = 0, 0  # bytes and parts of compute that giving way makes free of a device


@dataclass(frozen=True)
class Choice:
    """The devices that a lease, or a gang, is to have, and the leases that give way for it."""

    devices: tuple[int, ...]
    leases: tuple[Lease, ...]


class _Promised:
    """The preemptible leases of one host that have one priority. gpus: theirs together."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.gpus = 0


class Preemption:
    """The preemptible leases of a pool that have devices, by host and priority: so a look costs a step for each host, and for few hosts more."""

    def __init__(self, room: Hosts, holdings: Holdings) -> None:
        self._room, self._holdings = room, holdings
        self._hosts: dict[int, dict[int, _Promised]] = {}
        self._where: dict[int, int] = {}  # the host of each lease
        self._priorities: Counter[int] = Counter()

    def add(self, lease: Lease) -> None:
        """A lease has its devices, or others than it had."""
        self.forget(lease)
        host = self._room.host(lease.devices[0])
        if not self.has_promised(lease) or host is None:
            return
        promised = self._hosts.setdefault(host, {}).setdefault(lease.asked.priority, _Promised())
        promised.leases[lease.id] = lease
        promised.gpus += lease.shape.gpus
        self._where[lease.id] = host
        self._priorities[lease.asked.priority] += 1

    def has_promised(self, lease: Lease) -> bool:
        return lease.asked.preemptible and lease.shape.reserves  # who has reserved nothing gives nobody room

    def forget(self, lease: Lease) -> None:
        """A lease is over."""
        host = self._where.pop(lease.id, None)
        if host is None:
            return
        priority = lease.asked.priority
        promised = self._hosts[host][priority]
        del promised.leases[lease.id]
        promised.gpus -= lease.shape.gpus
        if not promised.leases:
            del self._hosts[host][priority]
        if not self._hosts[host]:
            del self._hosts[host]
        self._priorities -= Counter((priority,))

    def any_below(self, priority: int) -> bool:
        return any(other < priority for other in self._priorities)

    def choose(self, shape: Shape, priority: int) -> Choice | None:
        """Of the `LOOK` hosts where the fewest devices are missing, that where the fewest leases of a lower priority have to give way, with the
        fewest GPUs; for a gang that none can have, several hosts. None: nowhere is that enough."""
        fitting = self._room.fitting(shape)
        below = self._below(priority)
        # More than that a host cannot have: of a device that several share it counts each of them.
        most = {host: fitting.get(host, 0) + sum(one.gpus for one in promised) for host, promised in below.items()}
        able = [host for host, devices in most.items() if devices >= shape.gpus]
        choices = list[Choice]()
        for host in sorted(able, key=lambda host: -fitting.get(host, 0)):
            choice = self._at(host, _leases(below[host]), shape)
            if choice is not None:
                choices.append(choice)
            if len(choices) == LOOK:
                break
        best = min(choices, key=lambda choice: (len(choice.leases), sum(lease.shape.gpus for lease in choice.leases)), default=None)
        return best or (self._on_several(fitting, most, below, shape) if shape.part else None)

    def _below(self, priority: int) -> dict[int, list[_Promised]]:
        """By host, those that may have to give way to this priority."""
        below: dict[int, list[_Promised]] = {}
        for host, priorities in self._hosts.items():
            found = [promised for other, promised in priorities.items() if other < priority]
            if found and not self._room.cordoned(host) and self._holdings.on(host) is None:
                below[host] = found
        return below

    def _on_several(self, fitting: dict[int, int], most: dict[int, int], below: dict[int, list[_Promised]], shape: Shape) -> Choice | None:
        """For a gang: what is free costs nobody anything; then those hosts where the fewest give way for each part of it.

        Args:
            fitting, most: devices with room for it, by host, now and at the most when all of `below` have given way.
        """
        left = shape.gpus // shape.part
        free = {host: count // shape.part for host, count in fitting.items() if self._holdings.on(host) is None}
        parts = dict[int, int]()  # that it is to have, by host
        for host in sorted(free, key=lambda host: -free[host]):
            parts[host] = min(left, free[host])
            left -= parts[host]
        gained = {host: devices // shape.part - free.get(host, 0) for host, devices in most.items()}
        able = [host for host, more in gained.items() if more > 0]
        for host in sorted(able, key=lambda host: sum(len(one.leases) for one in below[host]) / gained[host]):
            more = min(left, self._most_parts(host, _leases(below[host]), shape) - free.get(host, 0))
            parts[host] = parts.get(host, 0) + more
            left -= more
            if not left:
                break
        if left:
            return None
        wanted = {host: replace(shape, gpus=count * shape.part) for host, count in parts.items() if count}
        choices = [self._at(host, _leases(below.get(host, [])), share) for host, share in wanted.items()]
        found = [choice for choice in choices if choice is not None]
        assert len(found) == len(choices), "a host has fewer devices than were counted"
        return Choice(tuple(sorted(device for one in found for device in one.devices)), tuple(lease for one in found for lease in one.leases))

    def _most_parts(self, host: int, leases: Iterable[Lease], shape: Shape) -> int:
        """How many parts of a gang have room on a host when all of these have given way."""
        freed: dict[int, tuple[int, int]] = {}
        for lease in leases:
            _free(lease, freed)
        return sum(self._would_fit(device, freed.get(device, NOTHING), shape) for device in self._room.devices(host)) // shape.part

    def _at(self, host: int, leases: Iterable[Lease], shape: Shape) -> Choice | None:
        """The lowest priority gives way first, of equals what came last."""
        freed: dict[int, tuple[int, int]] = {}
        chosen: list[Lease] = []
        left = sorted(leases, key=lambda lease: (lease.preempted is True, -lease.asked.priority, lease.entry[1]))
        while True:
            devices = [device for device in self._room.devices(host) if self._would_fit(device, freed.get(device, NOTHING), shape)]
            if len(devices) >= shape.gpus:
                devices.sort(key=lambda device: (not self._room.fits(device, shape), device))  # what is free first
                taken = set(devices[: shape.gpus])
                return Choice(tuple(sorted(taken)), tuple(each for each in chosen if taken & set(each.devices)))
            if not left:
                return None
            chosen.append(left.pop())
            _free(chosen[-1], freed)

    def _would_fit(self, device: int, freed: tuple[int, int], shape: Shape) -> bool:
        memory, compute = self._room.free(device)
        return memory + freed[0] >= max(shape.memory, 1) and compute + freed[1] >= max(shape.compute, 1)


def _free(lease: Lease, freed: dict[int, tuple[int, int]]) -> None:
    """Adds what a lease gives back to what is made free, by device."""
    for device in lease.devices:
        memory, compute = freed.get(device, NOTHING)
        freed[device] = memory + lease.shape.memory, compute + lease.shape.compute


def _leases(promised: Iterable[_Promised]) -> list[Lease]:
    return [lease for one in promised for lease in one.leases.values()]
