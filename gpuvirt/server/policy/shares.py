"""Each user's use of the pool over time, which fades: the fair order among users.

A user's use is the sum of its GPU-seconds, each counted less by half for every `HALF_LIFE` that has passed. All fade alike, so instead of fading what
has been, later GPU-seconds are counted for more: at the time t one counts 2^(t / HALF_LIFE). Then nothing has to be brought up to date while time
passes, and the use of a user with leases is a straight line over one number that all users share (`Clock.ahead`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpuvirt.server.policy.kinds import Kind

Entry = tuple[int, int, int]

# After a day what was used counts half: who computed through the night stands behind who begins in the morning, but not for all the week.
HALF_LIFE = 86400.0
# What a user has now counts as if it had had it for this long already: users who begin at the same time get GPUs in turns, not all for the first.
AHEAD = 600.0
_REBASE = 512.0  # powers of two after which the numbers are made smaller


class Clock:
    """How much a GPU-second counts. It is told the time before it is asked."""

    def __init__(self) -> None:
        self._began = 0.0
        self.factor = 1.0

    @property
    def until_now(self) -> float:
        """What one GPU counts for that has been used since ever."""
        return self.factor * HALF_LIFE / math.log(2)

    @property
    def ahead(self) -> float:
        """The same, and `AHEAD` seconds more."""
        return self.factor * (HALF_LIFE / math.log(2) + AHEAD)

    def set(self, at: float) -> float:
        """Sets the time; returns the factor by which all earlier numbers are to be multiplied, almost always 1."""
        powers = (at - self._began) / HALF_LIFE
        if powers < _REBASE:
            self.factor = 2.0**powers
            return 1.0
        whole = math.floor(powers)
        self._began += whole * HALF_LIFE
        self.factor = 2.0 ** ((at - self._began) / HALF_LIFE)
        return 2.0**-whole


@dataclass
class Account:
    """One user.

    Attributes:
        weight, quota, priority, memory, placement: as in `events.UserSet` (there the quota is called gpus).
        revoked: it gets nothing.
        gpus: that its leases have.
        rate: GPUs whose use counts now.
        queue: its waiting leases as (-priority, arrival, lease), in its own order.
        kinds: the same by what they want.
        first_since: when the first of them became the first.
    """

    name: str
    weight: float = 1.0
    quota: int = 0
    priority: int = 0
    memory: int = 0
    placement: str = ""
    revoked: bool = False
    gpus: int = 0
    rate: float = 0.0
    queue: list[Entry] = field(default_factory=list)
    kinds: dict[Kind, list[Entry]] = field(default_factory=dict)
    first_since: float = 0.0
    leases: set[int] = field(default_factory=set)
    _past: float = 0.0

    def begin(self, clock: Clock, rate: float) -> None:
        """A lease begins to count, for so many GPUs."""
        self._past -= rate * clock.until_now
        self.rate += rate

    def end(self, clock: Clock, rate: float) -> None:
        """A lease counts no more."""
        self._past += rate * clock.until_now
        self.rate = self.rate - rate if self.gpus else 0.0  # nothing is left of rounding

    def fade(self, factor: float) -> None:
        self._past *= factor

    def key(self, ahead: float) -> float:
        """Where it stands: who has the least goes first. ahead: of the clock, the same for all that are compared."""
        return (self._past + self.rate * ahead) / self.weight

    def use(self, clock: Clock) -> float:
        """Its use, GPU-seconds, faded."""
        return (self._past + self.rate * clock.until_now) / clock.factor

    def queue_up(self, at: float, entry: Entry, kind: Kind) -> None:
        first = self.queue[0] if self.queue else None
        insort(self.queue, entry)
        insort(self.kinds.setdefault(kind, []), entry)
        if self.queue[0] is not first:
            self.first_since = at

    def leave(self, at: float, entry: Entry, kind: Kind) -> None:
        """Takes an entry out of the queue."""
        alike = self.kinds[kind]
        del alike[bisect_left(alike, entry)]
        if not alike:
            del self.kinds[kind]
        index = bisect_left(self.queue, entry)
        del self.queue[index]
        if index == 0:
            self.first_since = at

    def ahead_of(self, rank: tuple[int, float, int], ahead: float) -> int:
        """How many of its waiting leases are ahead of a rank (-priority, key, arrival)."""
        key = self.key(ahead)
        if key > rank[1]:
            return bisect_left(self.queue, (rank[0],))
        return bisect_left(self.queue, (rank[0], rank[2]) if key == rank[1] else (rank[0] + 1,))
