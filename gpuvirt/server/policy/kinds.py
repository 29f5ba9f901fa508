"""The kinds of what waits, and for which of them a host may have room.

Where a kind was looked for in vain there is no room for it until something becomes free. So a pass over what waits looks only at kinds for which a
host where that has happened has room, for gangs room for a part. Kinds are sorted by what they want of one host: so to find those costs, for each
such host, a search for each number of devices and compute that some of them want, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.room import Room, Shape

NEW = -1  # in the place of a row
FEW = 8  # kinds, of each of which it is asked who waits for it


@dataclass(eq=False)
class Kind:
    """What some leases that wait want.

    Attributes:
        number: of the kind.
        users: the names of those who wait for leases of it.
        rows: of the hosts that may have room for it, or `NEW`: it was not looked for yet. None other has, for all that is known.
    """

    shape: Shape
    number: int
    users: set[str] = field(default_factory=set)
    rows: set[int] = field(default_factory=lambda: {NEW})


class Kinds:
    """The kinds of what waits in a pool.

    Args:
        room: of which nobody else asks what has changed.
    """

    def __init__(self, room: Hosts) -> None:
        self._room = room
        self._kinds: dict[Shape, Kind] = {}
        self._count = 0
        self._sorted: dict[tuple[int, int], list[tuple[int, int, Kind]]] = {}  # (devices, compute) -> (memory, number, kind), ascending
        self._able: set[Kind] = set()  # those that have rows
        self._rows: dict[int, set[Kind]] = {}  # for which kinds they had room at the last look
        self._unfit: list[Shape] = []  # since the last look there is no room for these, nor for what wants at least as much

    def add(self, shape: Shape, user: str) -> Kind:
        """A user waits for a lease."""
        kind = self._kinds.get(shape)
        if kind is None:
            self._count += 1
            kind = self._kinds[shape] = Kind(shape, self._count)
            insort(self._sorted.setdefault(_key(shape), []), (max(shape.memory, 1), self._count, kind))
            self._able.add(kind)
        kind.users.add(user)
        return kind

    def remove(self, kind: Kind, user: str) -> None:
        """A user waits for none of a kind any more."""
        kind.users.discard(user)
        if kind.users:
            return
        del self._kinds[kind.shape]
        self._able.discard(kind)
        key = _key(kind.shape)
        others = self._sorted[key]
        del others[bisect_left(others, (max(kind.shape.memory, 1), kind.number))]
        if not others:
            del self._sorted[key]

    def look(self) -> None:
        """Looks where devices are free to another degree than at the last look."""
        for row, room, gained in self._room.changed():
            had = self._rows.pop(row, set())
            if not gained and not had:
                continue
            has = set(self._with_room(room)) if room is not None else set()
            for kind in had - has:
                kind.rows.discard(row)
                if not kind.rows:
                    self._able.discard(kind)
            if has:
                self._rows[row] = has
            if gained:
                self._unfit.clear()
                self._able |= has
                for kind in has:
                    kind.rows.add(row)

    def _with_room(self, room: Room) -> Iterator[Kind]:
        """Those of which, or of a part of which, a host has room."""
        computes, free = room.computes(), dict[int, list[int]]()
        largest = max((devices for devices, _ in self._sorted), default=0)
        for (devices, compute), kinds in self._sorted.items():
            place = bisect_left(computes, compute)
            if place == len(computes):
                continue
            memory = free.get(place)
            if memory is None:
                memory = free[place] = room.most_memory(computes[place], largest)
            if devices <= len(memory) and kinds[0][0] <= memory[devices - 1]:
                yield from (kind for _, _, kind in kinds[: bisect_right(kinds, (memory[devices - 1], self._count + 1))])

    def able(self, kind: Kind) -> bool:
        """Whether there may be room for it, for all that is known."""
        if kind not in self._able:
            return False
        if any(kind.shape.wants_at_least(unfit) for unfit in self._unfit):
            self._forget_rows(kind)
            return False
        return True

    def in_vain(self, kind: Kind) -> None:
        """It was looked for, and there is no room for it."""
        self._forget_rows(kind)
        self._unfit = [other for other in self._unfit if not other.wants_at_least(kind.shape)]
        self._unfit.append(kind.shape)

    def _forget_rows(self, kind: Kind) -> None:
        kind.rows.clear()
        self._able.discard(kind)

    @property
    def any_able(self) -> bool:
        """Whether there may be room for any, for all that is known."""
        return bool(self._able)

    def any_of(self, user: str) -> bool:
        """Whether there may be room for any that a user waits for; True also where it costs too much to know."""
        return len(self._able) > FEW or any(user in kind.users for kind in self._able)


def _key(shape: Shape) -> tuple[int, int]:
    return shape.together, max(shape.compute, 1)
