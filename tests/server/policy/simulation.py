"""Simulated time: users who ask, leases that last, a policy machine that decides. Seeded; no clock but the events'."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from server.policy.referee import Referee

from gpuvirt.server.policy.events import Asked, Event, Released
from gpuvirt.server.policy.instructions import Grant, Instruction, Lost, Queue
from gpuvirt.server.policy.machine import PolicyMachine

DAY = 86400.0


@dataclass(frozen=True)
class Job:
    """What a user wants, and for how long it then uses it, seconds."""

    user: str
    gpus: int
    lasts: float
    memory: int = 0
    compute: int = 0
    priority: int = 0


@dataclass
class Simulation:
    """Plays jobs on a pool.

    Attributes:
        waits: seconds from asking to the grant, of each granted lease, by its user.
        used: GPU-seconds by user, of whole GPUs.
        most_waiting: users with leases that waited at the same time.
        longest_job: seconds.
        lost: leases whose host has left.
    """

    machine: PolicyMachine
    referee: Referee | None = None
    check_every: int = 1
    now: float = 0.0
    waits: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    most_waiting: int = 0
    events: int = 0
    granted: int = 0
    longest_job: float = 0.0
    lost: int = 0
    waiting: dict[int, float] = field(default_factory=dict)
    _jobs: dict[int, Job] = field(default_factory=dict)
    _began: dict[int, float] = field(default_factory=dict)
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (when, self._number, do))

    def ask_for_gang(self, job: Job, size: int) -> None:
        """So many leases, all or none."""
        gang = self._number + 1
        for _ in range(size):
            self.ask(job, gang, size)

    def ask(self, job: Job, gang: int = 0, size: int = 1) -> None:
        self._number += 1
        lease = self._number
        self._jobs[lease] = job
        self.longest_job = max(self.longest_job, job.lasts)
        self.waiting[lease] = self.now
        self.take(Asked(self.now, lease, job.user, job.gpus, job.memory, job.compute, job.priority, gang=gang, gang_size=size))

    def take(self, event: Event) -> None:
        """Something happens."""
        self.events += 1
        out: list[Instruction]
        out = self.referee.handle(event, self.events % self.check_every == 0) if self.referee else self.machine.handle(event)
        for one in out:
            if isinstance(one, Grant):
                self._begin(one.lease)
            elif isinstance(one, Lost):
                self.lost += 1
                self._over(one.lease)
            elif isinstance(one, Queue):
                self.most_waiting = max(self.most_waiting, len(self.machine.waiting.accounts))

    def _begin(self, lease: int) -> None:
        job = self._jobs[lease]
        self.granted += 1
        self.waits.setdefault(job.user, []).append(self.now - self.waiting.pop(lease))
        self._began[lease] = self.now
        self.at(self.now + job.lasts, lambda: self._end(lease))

    def _end(self, lease: int) -> None:
        if lease in self._jobs:
            self.take(Released(self.now, lease))
            self._over(lease)

    def _over(self, lease: int) -> None:
        job = self._jobs.pop(lease)
        self.used[job.user] = self.used.get(job.user, 0.0) + job.gpus * (self.now - self._began.pop(lease))
        self.ended(job)

    def ended(self, job: Job) -> None:
        """A job is over."""

    def run(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        self.now = until
        for lease, began in self._began.items():
            job = self._jobs[lease]
            self.used[job.user] = self.used.get(job.user, 0.0) + job.gpus * (until - began)

    @property
    def longest_wait(self) -> float:
        """Of those who wait still, too."""
        granted = max((max(each) for each in self.waits.values()), default=0.0)
        return max(granted, max((self.now - since for since in self.waiting.values()), default=0.0))


def jain(shares: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
