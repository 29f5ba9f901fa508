"""Leases that have given way and kept all but their devices: those are others' until they are free again.

A suspended lease has its devices again before anybody of its own priority or a lower one gets them, and behind those of a higher one. It takes no
others: what works under it is parked beside them. While it waits for them they are not kept free, unless it has waited for as long as the first of
those that wait for GPUs has to, and none of those has a higher priority. Its GPUs count for its user's quota, and not for its share.

Those of a gang that give way have their devices again together: one without the others could only wait for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gpuvirt.server.policy.holding import Holding, Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.instructions import Hold, Instruction, Resume
from gpuvirt.server.policy.lease import Lease

SETTLE = 5.0  # s after a lease was restored as suspended: whoever had its devices may not have been restored yet


class Suspension:
    """The suspended leases of a pool.

    Args:
        leases: all of the pool, by their numbers.
        hold_after: seconds after which devices are held for one, and a gang waits no more for those of it that have not given way.
        take: gives a lease its devices.
    """

    def __init__(self, room: Hosts, holdings: Holdings, leases: Mapping[int, Lease], hold_after: float, take: Callable[[Lease], None]) -> None:
        self._room, self._holdings, self._all, self._hold_after, self._take = room, holdings, leases, hold_after, take
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
        if holding := self._holding(lease):
            self._holdings.let_go(holding.lease)

    def in_order(self) -> list[Lease]:
        """All of them, those first that are resumed last."""
        return sorted(self._leases.values(), key=lambda lease: (lease.asked.priority, -(lease.suspended or 0.0), -lease.entry[1]))

    def may_resume(self, lease: Lease, at: float) -> bool:
        """Whether its devices have room for it, and are not held for another."""
        if lease.suspended is None or at < lease.suspended:
            return False
        own = self._holding(lease) is not None
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
            if lease.suspended is None:
                continue  # it was resumed with others of its gang
            gang = self._gang(lease)
            if self._may_resume_together(gang, at):
                held = held or self._holding(lease) is not None
                for each in gang:
                    self.forget(each)
                    each.preempted = False
                    self._take(each)
                    out.append(Resume(each.id))
            elif lease.asked.priority >= first and self.hold(gang, at):
                out += [Hold(each.id, each.devices, "it is the first in the order, and has given way") for each in gang]
        return held

    def hold(self, gang: list[Lease], at: float) -> bool:
        """Holds their devices for a lease, or for those of a gang, that are the first in the order, if they have waited for long enough and nothing
        else is held there."""
        if at < _since(gang) + self._hold_after or self._holdings.full or self._holding(gang[0]):
            return False
        hosts = {self._room.host(lease.devices[0]) for lease in gang}
        if any(host is None or self._room.cordoned(host) or self._holdings.on(host) is not None for host in hosts):
            return False
        self._holdings.begin_on(gang[0].id, gang[0].shape, sorted({device for lease in gang for device in lease.devices}), at)
        return True

    def _gang(self, lease: Lease) -> list[Lease]:
        """The suspended leases of its gang; of a lease that is of none itself."""
        return [self._leases[number] for number in lease.numbers if number in self._leases]

    def _holding(self, lease: Lease) -> Holding | None:
        """What is held for it, or for its gang."""
        return next((held for number in (lease.id, *lease.numbers) if (held := self._holdings.of(number))), None)

    def _may_resume_together(self, gang: list[Lease], at: float) -> bool:
        """Whether all of them have room, and those beside them that were asked to give way have done so, or have had the time for it: else some
        would have their devices again and wait for the others."""
        asked = [self._all[number] for number in gang[0].numbers if self._all[number].preempted and self._all[number].suspended is None]
        if (asked and at < _since(gang) + self._hold_after) or not all(self.may_resume(lease, at) for lease in gang):
            return False
        shape, wanted = gang[0].shape, Counter(device for lease in gang for device in lease.devices)
        free = {device: self._room.free(device) for device, count in wanted.items() if count > 1}
        return all(memory >= wanted[d] * shape.memory and compute >= wanted[d] * shape.compute for d, (memory, compute) in free.items())


def _since(gang: list[Lease]) -> float:
    """When the last of them began to wait."""
    return max(lease.suspended or 0.0 for lease in gang)
