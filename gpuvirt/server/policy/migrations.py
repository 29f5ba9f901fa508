"""Leases that are to have the devices of another host: until they have migrated they have those beside their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuvirt.server.policy.events import Migrate, Migrated
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.instructions import Destination, Instruction, NoDestination
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.reasons import count_text
from gpuvirt.server.policy.room import Shape

LOOK = 8  # leases that wait for room on another host, at which one pass looks


class Migrations:
    """All that migrate in a pool.

    Args:
        leases: by number, the caller's.
        give_back: takes devices back.
    """

    def __init__(self, room: Hosts, leases: Mapping[int, Lease], give_back: Callable[[Iterable[int], Shape], None]) -> None:
        self._room, self._leases, self._give_back = room, leases, give_back
        self._waiting: dict[int, Migrate] = {}  # for a destination

    def begin(self, event: Migrate, out: list[Instruction]) -> None:
        """Raises:
        ValueError: the lease has no devices, or migrates already.
        """
        lease = self._leases[event.lease]
        if not lease.devices or lease.destination:
            raise ValueError(f"lease {event.lease:x} has no devices, or migrates already")
        if lease.suspended is not None:
            out.append(NoDestination(lease.id, "it has given way, and moves when it has its GPUs again"))
            return
        self._waiting[event.lease] = event
        self.find_destination(lease, out)
        if not event.wait and event.lease in self._waiting:
            del self._waiting[event.lease]
            where = "no other host has" if event.host is None else "that host has not"
            out.append(NoDestination(lease.id, f"{where} {count_text(lease.shape.gpus)} of the same memory with room for it"))

    def serve(self, out: list[Instruction]) -> None:
        """There may be room now for those that wait; one that is suspended meanwhile goes on waiting."""
        for number in [number for number in self._waiting if self._leases[number].suspended is None][:LOOK]:
            self.find_destination(self._leases[number], out)

    def find_destination(self, lease: Lease, out: list[Instruction]) -> None:
        """Takes the devices of the host with the fewest leases, of equals one in the same rack, if there is one with room for a lease that waits."""
        wanted = self._waiting[lease.id].host
        sizes, own = [self._room.total[device] for device in lease.devices], self._room.host(lease.devices[0])
        rack = self._room.rack(lease.devices[0])
        best: tuple[tuple[float, bool], list[int]] | None = None
        for host in self._room if wanted is None else [wanted]:
            if host == own or not self._room.has(host):
                continue
            devices = sorted(self._room.find(lease.shape, host=host))
            rank = self._room.load(host), self._room.rack(self._room.devices(host).start) != rack
            if [self._room.total[device] for device in devices] == sizes and (best is None or rank < best[0]):
                best = rank, devices
        if best is None:
            return
        del self._waiting[lease.id]
        lease.destination = tuple(best[1])
        for device in lease.destination:
            self._room.take(device, lease.shape)
        out.append(Destination(lease.id, lease.destination))

    def end(self, event: Migrated) -> None:
        """A lease has its destination's devices only, or those that it had."""
        self.forget(event.lease)
        lease = self._leases.get(event.lease)
        if lease is None or not lease.destination:
            return
        former = lease.devices if event.done else lease.destination
        if event.done:
            lease.devices = lease.destination
        lease.destination = ()
        self._give_back(former, lease.shape)

    def forget(self, number: int) -> None:
        """A lease waits for no destination any more."""
        self._waiting.pop(number, None)

    def lose(self, host: int, out: list[Instruction]) -> None:
        """A host is not there any more, to which leases were to go."""
        for lease in [lease for lease in self._leases.values() if lease.destination and self._room.host(lease.destination[0]) == host]:
            lease.destination = ()
            out.append(NoDestination(lease.id, "the host that it was to go to is not there any more"))
