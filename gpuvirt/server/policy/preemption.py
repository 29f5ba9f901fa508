"""Leases that give way: which of them are to, so that one of a higher priority has room. Their keepers have promised to give them back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
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


class _Priority:
    """The preemptible leases that have one priority.

    Attributes:
        leases: by the row of their host.
        counts, gpus: how many they are, and how many GPUs they have, by row.
    """

    def __init__(self) -> None:
        self.leases: dict[int, dict[int, Lease]] = {}
        self.counts, self.gpus = array("q"), array("q")

    def add(self, row: int, lease: Lease) -> None:
        self.leases.setdefault(row, {})[lease.id] = lease
        more = row + 1 - len(self.counts)
        for each in (self.counts, self.gpus):
            each.extend([0] * more)
        self._tally(row, lease, 1)

    def remove(self, row: int, lease: Lease) -> None:
        del self.leases[row][lease.id]
        if not self.leases[row]:
            del self.leases[row]
        self._tally(row, lease, -1)

    def _tally(self, row: int, lease: Lease, sign: int) -> None:
        self.counts[row] += sign
        self.gpus[row] += sign * lease.shape.gpus


class Preemption:
    """The preemptible leases of a pool that have devices, by priority and host. So a look costs a pass over an array for each priority, and more for
    few hosts only."""

    def __init__(self, room: Hosts, holdings: Holdings) -> None:
        self._room, self._holdings = room, holdings
        self._priorities: dict[int, _Priority] = {}
        self._rows: dict[int, int] = {}  # of each lease's host

    def add(self, lease: Lease) -> None:
        """A lease has its devices, or others than it had."""
        self.forget(lease)
        host = self._room.host(lease.devices[0])
        if not self.has_promised(lease) or host is None:
            return
        row = self._rows[lease.id] = self._room.row(host)
        self._priorities.setdefault(lease.asked.priority, _Priority()).add(row, lease)

    def has_promised(self, lease: Lease) -> bool:
        return lease.asked.preemptible and lease.shape.reserves  # who has reserved nothing gives nobody room

    def forget(self, lease: Lease) -> None:
        """A lease is over."""
        row = self._rows.pop(lease.id, None)
        if row is None:
            return
        priority = self._priorities[lease.asked.priority]
        priority.remove(row, lease)
        if not priority.leases:
            del self._priorities[lease.asked.priority]

    def any_below(self, priority: int) -> bool:
        return any(other < priority for other in self._priorities)

    def choose(self, shape: Shape, priority: int) -> Choice | None:
        """Of the `LOOK` hosts where the fewest devices are missing, that where the fewest leases of a lower priority have to give way, with the
        fewest GPUs; for a gang that none can have, several hosts. None: nowhere is that enough."""
        priorities = [promised for other, promised in self._priorities.items() if other < priority]
        if self._room.alone:
            leases = [] if self._room.cordoned_rows or len(self._holdings) else _leases(priorities, 0)
            return self._at(0, leases, shape) if leases else None
        below = _Below(priorities, self._room, self._holdings, shape)
        choices = list[Choice]()
        for row in below.able():
            choice = self._at(row, below.leases(row), shape)
            if choice is not None:
                choices.append(choice)
            if len(choices) == LOOK:
                break
        best = min(choices, key=lambda choice: (len(choice.leases), sum(lease.shape.gpus for lease in choice.leases)), default=None)
        return best or (self._on_several(below, shape) if shape.part else None)

    def _on_several(self, below: _Below, shape: Shape) -> Choice | None:
        """For a gang: what is free costs nobody anything; then those hosts where the fewest give way for each part of it."""
        left = shape.gpus // shape.part
        parts = dict[int, int]()  # that it is to have, by row
        for row, free in below.free_parts():
            parts[row] = min(left, free)
            left -= parts[row]
            if not left:
                break
        for row, free in below.gained_parts() if left else ():
            more = min(left, self._most_parts(row, below.leases(row), shape) - free)
            parts[row] = parts.get(row, 0) + more
            left -= more
            if not left:
                break
        if left:
            return None
        wanted = {row: replace(shape, gpus=count * shape.part) for row, count in parts.items() if count}
        choices = [self._at(row, below.leases(row), share) for row, share in wanted.items()]
        found = [choice for choice in choices if choice is not None]
        assert len(found) == len(choices), "a host has fewer devices than were counted"
        return Choice(tuple(sorted(device for one in found for device in one.devices)), tuple(lease for one in found for lease in one.leases))

    def _most_parts(self, row: int, leases: Iterable[Lease], shape: Shape) -> int:
        """How many parts of a gang have room on a host when all of these have given way."""
        freed: dict[int, tuple[int, int]] = {}
        for lease in leases:
            _free(lease, freed)
        return sum(self._would_fit(device, freed.get(device, NOTHING), shape) for device in self._room.devices_at(row)) // shape.part

    def _at(self, row: int, leases: Iterable[Lease], shape: Shape) -> Choice | None:
        """The lowest priority gives way first, of equals what came last."""
        freed: dict[int, tuple[int, int]] = {}
        chosen: list[Lease] = []
        left = sorted(leases, key=lambda lease: (lease.preempted is True, -lease.asked.priority, lease.entry[1]))
        free = [device for device in self._room.devices_at(row) if self._room.fits(device, shape)]
        gained = set[int]()
        while len(free) + len(gained) < shape.gpus:
            if not left:
                return None
            chosen.append(left.pop())
            _free(chosen[-1], freed)
            gained.update(device for device in chosen[-1].devices if device not in free and self._would_fit(device, freed[device], shape))
        taken = set([*free, *sorted(gained)][: shape.gpus])
        return Choice(tuple(sorted(taken)), tuple(each for each in chosen if taken & set(each.devices)))

    def _would_fit(self, device: int, freed: tuple[int, int], shape: Shape) -> bool:
        memory, compute = self._room.free(device)
        return memory + freed[0] >= max(shape.memory, 1) and compute + freed[1] >= max(shape.compute, 1)


class _Below:
    """The leases that may have to give way, by the rows of their hosts; of a host whose devices nobody gets, or that has some that are held, none.

    Args:
        priorities: which are lower than that of who wants `shape`.
    """

    def __init__(self, priorities: Sequence[_Priority], room: Hosts, holdings: Holdings, shape: Shape) -> None:
        import numpy

        self._priorities, self._shape = priorities, shape
        self._fitting = room.fitting(shape)
        self._counts, self._gpus = numpy.zeros_like(self._fitting), numpy.zeros_like(self._fitting)
        for each in priorities:
            self._counts[: len(each.counts)] += each.counts
            self._gpus[: len(each.gpus)] += each.gpus
        self._held = [room.row(host) for holding in holdings for host in holding.hosts]
        closed = [*self._held, *room.cordoned_rows]
        self._counts[closed] = self._gpus[closed] = 0
        # More than that a host cannot have: of a device that several share it counts each of them.
        self._most = self._fitting + self._gpus

    def leases(self, row: int) -> list[Lease]:
        return _leases(self._priorities, row) if self._counts[row] else []

    def able(self) -> Iterator[int]:
        """Hosts that may have room for all of it, those with most free devices first."""
        rows = ((self._counts > 0) & (self._most >= self._shape.gpus)).nonzero()[0]
        return map(int, rows[(-self._fitting[rows]).argsort(kind="stable")])

    def free_parts(self) -> Iterator[tuple[int, int]]:
        """Hosts that have room for parts of a gang, and for how many, the largest first."""
        free = self._fitting // self._shape.part
        free[self._held] = 0
        return ((int(row), int(free[row])) for row in (-free).argsort(kind="stable") if free[row])

    def gained_parts(self) -> Iterator[tuple[int, int]]:
        """Hosts that may have room for more parts of a gang than they have, and for how many they have: first where the fewest leases give way for
        each."""
        free = self._fitting // self._shape.part
        free[self._held] = 0
        gained = self._most // self._shape.part - free
        rows = ((gained > 0) & (self._counts > 0)).nonzero()[0]
        return ((int(row), int(free[row])) for row in rows[(self._counts[rows] / gained[rows]).argsort(kind="stable")])


def _leases(priorities: Iterable[_Priority], row: int) -> list[Lease]:
    return [lease for each in priorities for lease in each.leases.get(row, {}).values()]


def _free(lease: Lease, freed: dict[int, tuple[int, int]]) -> None:
    """Adds what a lease gives back to what is made free, by device."""
    for device in lease.devices:
        memory, compute = freed.get(device, NOTHING)
        freed[device] = memory + lease.shape.memory, compute + lease.shape.compute
