"""Leases that give way: which of them are to, so that one of a higher priority has room. Their keepers have promised to give them back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.room import Shape

PREEMPT_AFTER = 5.0  # s; what ends by itself in so short a time needs nobody to give way
NOTHING = 0, 0  # bytes and parts of compute that giving way makes free of a device


@dataclass(frozen=True)
class Choice:
    """The devices that a lease, or a gang, is to have, and the leases that give way for it."""

    devices: tuple[int, ...]
    leases: tuple[Lease, ...]


class Preemption:
    """The preemptible leases of a pool that have devices."""

    def __init__(self, room: Hosts, holdings: Holdings) -> None:
        self._room, self._holdings = room, holdings
        self._leases: dict[int, Lease] = {}

    def add(self, lease: Lease) -> None:
        """A lease has its devices."""
        if lease.asked.preemptible:
            self._leases[lease.id] = lease

    def forget(self, number: int) -> None:
        """A lease is over."""
        self._leases.pop(number, None)

    def any_below(self, priority: int) -> bool:
        return any(lease.asked.priority < priority for lease in self._leases.values())

    def choose(self, shape: Shape, priority: int) -> Choice | None:
        """The host where the fewest leases of a lower priority have to give way, with the fewest GPUs; for a gang that none can have, several hosts.
        None: nowhere is that enough."""
        below = self._below(priority)
        choices = [choice for host, leases in below.items() if (choice := self._at(host, leases, shape)) is not None]
        best = min(choices, key=lambda choice: (len(choice.leases), sum(lease.shape.gpus for lease in choice.leases)), default=None)
        return best or (self._on_several(below, shape) if shape.part else None)

    def _below(self, priority: int) -> dict[int, list[Lease]]:
        """By host, those that may have to give way to this priority."""
        below: dict[int, list[Lease]] = {}
        for lease in self._leases.values():
            host = self._room.host(lease.devices[0])
            if lease.asked.priority < priority and host is not None and not self._room.cordoned(host) and self._holdings.on(host) is None:
                below.setdefault(host, []).append(lease)
        return below

    def _on_several(self, below: dict[int, list[Lease]], shape: Shape) -> Choice | None:
        """For a gang: what is free costs nobody anything; then those hosts where the fewest give way for each part of it."""
        left = shape.gpus // shape.part
        free = {host: parts for host, parts in self._room.parts(shape).items() if self._holdings.on(host) is None}
        parts = dict[int, int]()  # that it is to have, by host
        for host in sorted(free, key=lambda host: -free[host]):
            parts[host] = min(left, free[host])
            left -= parts[host]
        gained = {host: self._most_parts(host, leases, shape) - free.get(host, 0) for host, leases in below.items()}
        able = [host for host, more in gained.items() if more > 0]
        for host in sorted(able, key=lambda host: len(below[host]) / gained[host]):
            more = min(left, gained[host])
            parts[host] = parts.get(host, 0) + more
            left -= more
        if left:
            return None
        wanted = {host: replace(shape, gpus=count * shape.part) for host, count in parts.items() if count}
        choices = [self._at(host, below.get(host, ()), share) for host, share in wanted.items()]
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
