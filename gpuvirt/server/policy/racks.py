"""Racks: hosts of one name for their rack are near each other. A host without such a name is near nobody."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Racks:
    """The racks of a pool's hosts, which are numbered by row."""

    def __init__(self) -> None:
        import numpy

        self._np = numpy
        self._numbers: dict[str, int] = {}
        self._of = numpy.zeros(0, numpy.int64)  # by row: the rack's number, -1: it has none

    def set(self, row: int, name: str) -> None:
        """The rack of the host at a row, "": none. A new row is the one behind the last."""
        number = self._numbers.setdefault(name, len(self._numbers)) if name else -1
        if row == len(self._of):
            self._of = self._np.append(self._of, number)
        else:
            self._of[row] = number

    @property
    def matter(self) -> bool:
        """Whether there have ever been two."""
        return len(self._numbers) > 1

    def near(self, names: Collection[str]) -> Array:
        """By row: whether the host is in one of these racks."""
        wanted = self._np.zeros(len(self._numbers) + 1, bool)  # the last is that of hosts without a rack
        wanted[[self._numbers[name] for name in names if name in self._numbers]] = True
        return wanted[self._of]

    def in_order(self, parts: Array, wanted: int) -> Array:
        """The rows of hosts, in the order in which a gang is to take them that has no room on one: few hosts, and in few racks.

        If one rack has enough, the one with the fewest of those that have, and its hosts alone; else the largest racks first. In each the hosts
        with the most come first.

        Args:
            parts: by row: how many leases of the gang have room there.
            wanted: how many leases the gang has.
        """
        alone = self._of < 0
        racks = self._np.where(alone, len(self._numbers) + self._np.arange(len(self._of)), self._of)
        room = self._np.bincount(racks, weights=parts, minlength=len(self._numbers))
        enough = self._np.flatnonzero(room >= wanted)
        if len(enough):
            parts = self._np.where(racks == enough[room[enough].argmin()], parts, 0)
        rows: Array = self._np.lexsort((-parts, racks, -room[racks]))
        return rows[parts[rows] > 0]
