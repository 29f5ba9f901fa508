"""What each user of a server has had: GPU-seconds, sessions, launches, bytes. Sums that only grow. No I/O, no clock of its own.

A lease's time is told by what it is at each look: `observe` counts the time since the last one for what the leases were then. It is called whenever
one of them becomes something else, so that the times are exact; a look that was missed is wrong by what lies between two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from gpuvirt.server.observe.facts import ATTACHED, FIGURES, IDLE, PARKED, WITHOUT_GPUS

DAY = 86400
ACCOUNTS_MOST = 1000  # of a day; what more there are is counted together: what is kept has a bound
OTHERS = "(others)"
OF_WORKER = ("answers", "cut_ns")  # figures that begin anew with each worker that has the session
ROUND_TRIP_MOST = 10**10  # ns; the client says it
FIGURE_MOST = 1 << 53  # of a session: a worker that lies cannot make a sum overflow, and a float holds it exactly


@dataclass
class Sums:
    """Of one account, over some time.

    Attributes:
        attached: GPU-seconds of leases of which a session had its memory.
        parked: those of leases whose sessions were all parked: the GPUs were given back.
        idle: those of leases with nothing under them.
        queued: seconds that leases waited for GPUs, or for theirs again.
        commands, launches: that workers carried out. answers: of the commands, those whose program waited for the answer.
        network: seconds that sessions lost to the network, by what is known: for each answer a round trip as the client measured it when it
            connected, and for as long as the connection was cut. That much a program was held up at most: several of its threads wait at once.
        bytes_in, bytes_out: over the link, towards the worker and away from it.
        peak_memory: bytes, the most that its sessions had together at a look.
    """

    attached: float = 0.0
    parked: float = 0.0
    idle: float = 0.0
    queued: float = 0.0
    sessions: int = 0
    network: float = 0.0
    commands: int = 0
    answers: int = 0
    launches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    peak_memory: int = 0

    @property
    def reserved(self) -> float:
        """GPU-seconds for which it had leases with GPUs, whatever ran."""
        return self.attached + self.parked + self.idle

    def add(self, other: Sums) -> None:
        """Of the same account, over another time."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_memory = max(self.peak_memory, other.peak_memory)


COUNTERS = tuple(field.name for field in fields(Sums) if field.name != "peak_memory")


@dataclass(frozen=True)
class Holding:
    """What a lease is at a look: whose, how many GPUs, one of `facts.LEASE_STATES`."""

    account: str
    gpus: int
    state: str


@dataclass
class _Session:
    account: str
    link: str
    figures: dict[str, int]
    worker: int = 0


class Accounts:
    """The sums of one server's users since it was started, and those that have not been kept yet.

    Attributes:
        totals: by account.
        links: bytes in and out by the name of the transport, all accounts together.
        reconnections: connections that were cut and made again, likewise.
        states: leases' GPU-seconds by state, of `facts.LEASE_STATES` but those without.
    """

    def __init__(self, reconnections: Mapping[str, int] | None = None) -> None:
        self.totals: dict[str, Sums] = {}
        self.links: dict[str, dict[str, int]] = {}
        self.reconnections: Mapping[str, int] = {} if reconnections is None else reconnections
        self.states: dict[str, float] = dict.fromkeys((IDLE, ATTACHED, PARKED), 0.0)
        self._fresh: dict[tuple[str, str], Sums] = {}  # by day and account
        self._sessions: dict[int, _Session] = {}
        self._held: Counter[tuple[str, str]] = Counter()  # by account and state: GPUs, of those that are queued leases
        self._at: float | None = None

    def observe(self, now: float, wall: float, holdings: Iterable[Holding], memory: Mapping[str, int]) -> None:
        """Looks at the leases.

        Args:
            now: seconds on a clock that never goes back.
            wall: seconds since the epoch, which say what day it is (in UTC).
            holdings: of all leases.
            memory: bytes that the accounts' sessions have.
        """
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now if self._at is None else max(now, self._at)
        for day, part in _by_day(wall, elapsed):
            for (account, state), count in self._held.items():
                self._count(day, account, state, count * part)
        self._held = Counter()
        for holding in holdings:
            self._held[holding.account, holding.state] += 1 if holding.state in WITHOUT_GPUS else holding.gpus
        for account, used in memory.items():
            self._add(_day(wall), account, Sums(peak_memory=used))

    def _count(self, day: str, account: str, state: str, time: float) -> None:
        if state not in WITHOUT_GPUS:
            self.states[state] += time
        of_state = {ATTACHED: Sums(attached=time), PARKED: Sums(parked=time), IDLE: Sums(idle=time)}
        self._add(day, account, of_state.get(state) or Sums(queued=time))

    def figures(self, session: int, account: str, link: str, wall: float, figures: Mapping[str, int], worker: int = 0, adopted: bool = False) -> None:
        """A session's worker has counted so far; a session that is not known begins. What becomes less is a worker's lie, and counts for nothing.

        Args:
            worker: which; another one begins anew with `OF_WORKER`, and goes on with the session's other figures.
            adopted: it began under an earlier server, which has counted what its worker says first.
        """
        known = self._sessions.get(session)
        grown = Sums()
        if known is None and adopted:
            if figures:
                so_far = {name: min(figures.get(name, 0), FIGURE_MOST) for name in (*FIGURES, *OF_WORKER)}
                self._sessions[session] = _Session(account, link, so_far, worker)
            return
        if known is None:
            known = self._sessions[session] = _Session(account, link, dict.fromkeys((*FIGURES, *OF_WORKER), 0), worker)
            grown.sessions = 1
        if worker != known.worker:
            known.figures |= dict.fromkeys(OF_WORKER, 0)
            known.worker = worker
        more = {}
        for name, before in known.figures.items():
            more[name] = max(0, min(figures.get(name, 0), FIGURE_MOST) - before)
            known.figures[name] += more[name]
        for name in (*FIGURES, "answers"):
            setattr(grown, name, more[name])
        grown.network = (more["answers"] * min(figures.get("rtt_ns", 0), ROUND_TRIP_MOST) + more["cut_ns"]) / 1e9
        of_link = self.links.setdefault(known.link, {"in": 0, "out": 0})
        of_link["in"] += grown.bytes_in
        of_link["out"] += grown.bytes_out
        if grown != Sums():
            self._add(_day(wall), known.account, grown)

    def ended(self, session: int) -> None:
        """The session is over; what it had stays counted."""
        self._sessions.pop(session, None)

    def take_fresh(self) -> dict[tuple[str, str], Sums]:
        """What has come since the last call, by day (YYYY-MM-DD) and account, for whoever keeps it; `put_back` if that failed."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def put_back(self, fresh: Mapping[tuple[str, str], Sums]) -> None:
        for (day, account), sums in fresh.items():
            self._fresh.setdefault((day, account), Sums()).add(sums)

    def _add(self, day: str, account: str, sums: Sums) -> None:
        if account not in self.totals and len(self.totals) >= ACCOUNTS_MOST:
            account = OTHERS
        self.totals.setdefault(account, Sums()).add(sums)
        self._fresh.setdefault((day, account), Sums()).add(sums)


def _day(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d")


def _by_day(wall: float, elapsed: float) -> Iterable[tuple[str, float]]:
    """Shares out the seconds before `wall` to the days in which they were; the latest first."""
    while elapsed > 0:
        part = min(elapsed, wall % DAY or DAY)
        yield _day(wall - part / 2), part
        wall, elapsed = wall - part, elapsed - part
