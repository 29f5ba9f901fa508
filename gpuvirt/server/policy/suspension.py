"""Leases that have given way and kept all but their devices: those are others' until they are free again.

A suspended lease has its devices again before anybody of its own priority or a lower one gets them, and behind those of a higher one. It takes no
others: what works under it is parked beside them. While it waits for them they are not kept free, unless it has waited for as long as the first of
those that wait for GPUs has to, and none of those has a higher priority. Its GPUs count for its user's quota, and not for its share.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.instructions import Hold, Instruction, Resume
from gpuvirt.server.policy.lease import Lease

SETTLE = 5.0  # s after a lease was restored as suspended: whoever had its devices may not have been restored yet


class Suspension:
    """The suspended leases of a pool.

    Args:
        hold_after: seconds after which devices are held for one.
        take: gives a lease its devices.
    """

    def __init__(self, room: Hosts, holdings: Holdings, hold_after: float, take: Callable[[Lease], None]) -> None:
        self._room, self._holdings, self._hold_after, self._take = room, holdings, hold_after, take
        self._leases: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease, at: float) -> None:
        """A lease has its devices no more. at: since when it waits for them; it may be later than now."""
        lease.suspended = at
        self._leases[lease.id] = lease

    def forget(self, lease: Lease) -> None:
        """It has its devices again, or is over."""
        lease.suspended = None
        del self._leases[lease.id]
        if self._holdings.of(lease.id):
            self._holdings.let_go(lease.id)

    def in_order(self) -> list[Lease]:
        """All of them, those first that are resumed last."""
        return sorted(self._leases.values(), key=lambda lease: (lease.asked.priority, -(lease.suspended or 0.0), -lease.entry[1]))

    def may_resume(self, lease: Lease, at: float) -> bool:
        """Whether its devices have room for it, and are not held for another."""
        if lease.suspended is None or at < lease.suspended:
            return False
        own = self._holdings.of(lease.id) is not None
        return all(self._room.fits(device, lease.shape) and (own or not self._room.held(device)) for device in lease.devices)

    def let_go_below(self, priority: int) -> None:
        """Somebody of this priority waits for GPUs: nothing is held for suspended leases of a lower one."""
        for holding in [*self._holdings] if self._leases else []:
            lease = self._leases.get(holding.lease)
            if lease is not None and lease.asked.priority < priority:
                self._holdings.let_go(holding.lease)

    def resume(self, suspended: list[Lease], priority: int, first: int, at: float, out: list[Instruction]) -> bool:
        """Those of this priority or a higher one have their devices again where these are free. Returns whether some of them had held them.

        Args:
            suspended: in the order, from behind; they are taken out.
            first: the priority of the first that waits for GPUs.
        """
        held = False
        while suspended and suspended[-1].asked.priority >= priority:
            lease = suspended.pop()
            if self.may_resume(lease, at):
                held = held or self._holdings.of(lease.id) is not None
                self.forget(lease)
                lease.preempted = False
                self._take(lease)
                out.append(Resume(lease.id))
            elif lease.asked.priority >= first and self.hold(lease, at):
                out.append(Hold(lease.id, lease.devices, "it is the first in the order, and has given way"))
        return held

    def hold(self, lease: Lease, at: float) -> bool:
        """Holds its devices for a lease that is the first in the order, if it has waited for long enough and nothing else is held there."""
        if lease.suspended is None or at < lease.suspended + self._hold_after or self._holdings.full or self._holdings.of(lease.id):
            return False
        host = self._room.host(lease.devices[0])
        if host is None or self._room.cordoned(host) or self._holdings.on(host) is not None:
            return False
        self._holdings.begin_on(lease.id, lease.shape, lease.devices, at)
        return True
