"""Leases that give way: which of them are to, so that one of a higher priority has room. Their keepers have promised to give them back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.room import Shape

PREEMPT_AFTER = 5.0  # s; what ends by itself in so short a time needs nobody to give way


@dataclass(frozen=True)
class Choice:
    """The devices that a lease is to have, all of one host, and the leases that give way for it."""

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
        """The host where the fewest leases of a lower priority have to give way, with the fewest GPUs; None: there is none where that is enough."""
        by_host: dict[int, list[Lease]] = {}
        for lease in self._leases.values():
            host = self._room.host(lease.devices[0])
            if lease.asked.priority < priority and host is not None and not self._room.cordoned(host) and self._holdings.on(host) is None:
                by_host.setdefault(host, []).append(lease)
        choices = [choice for host, leases in by_host.items() if (choice := self._at(host, leases, shape)) is not None]
        return min(choices, key=lambda choice: (len(choice.leases), sum(lease.shape.gpus for lease in choice.leases)), default=None)

    def _at(self, host: int, leases: Iterable[Lease], shape: Shape) -> Choice | None:
        """The lowest priority gives way first, of equals what came last."""
        freed: dict[int, tuple[int, int]] = {}
        chosen: list[Lease] = []
        for lease in sorted(leases, key=lambda lease: (lease.preempted is False, lease.asked.priority, -lease.entry[1])):
            chosen.append(lease)
            for device in lease.devices:
                memory, compute = freed.get(device, (0, 0))
                freed[device] = memory + lease.shape.memory, compute + lease.shape.compute
            devices = [device for device in self._room.devices(host) if self._would_fit(device, freed.get(device, (0, 0)), shape)]
            if len(devices) >= shape.gpus:
                devices.sort(key=lambda device: (not self._room.fits(device, shape), device))  # what is free first
                taken = set(devices[: shape.gpus])
                return Choice(tuple(sorted(taken)), tuple(each for each in chosen if taken & set(each.devices)))
        return None

    def _would_fit(self, device: int, freed: tuple[int, int], shape: Shape) -> bool:
        memory, compute = self._room.free(device)
        return memory + freed[0] >= max(shape.memory, 1) and compute + freed[1] >= max(shape.compute, 1)
