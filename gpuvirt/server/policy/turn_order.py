"""Whose turn it is on one device whose compute is shared. No I/O, no clock: times come in as arguments, seconds that never go back.

Each session has a *weight*: the part of the compute that its lease has reserved, divided among the lease's sessions that are active. Leases that
have reserved none have what is left, and together at least `LEAST_REST`, in equal parts. A session's *virtual time* is the time of its turns divided
by its weight: sessions that always want the device have it in proportion to their weights when their virtual times are equal. Whoever is `LEAD`
ahead of one that waits gives way to the one that is furthest behind. Who wants nothing saves nothing up: when it wants something again it stands
`LEAD` behind the others, and has its turn at once.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAD = 0.1  # virtual seconds: two equal sessions have turns of so many seconds
LEAST_TURN = 0.01  # seconds: below that the change from one to the next would cost more than it is worth
LEAST_REST = 0.05  # of a device, for all together who have reserved nothing
ACTIVE = 0.5  # seconds for which a session counts that wants nothing: between two kernels its lease's other sessions get no more


@dataclass
class _Member:
    """share: of the lease, 0: none. time: virtual seconds. spent: seconds of its turns. worked: when it wanted something last."""

    session: int
    lease: int
    share: float
    time: float
    worked: float
    spent: float = 0.0
    wants: bool = False


class TurnOrder:
    """The sessions of one device.

    Attributes:
        holder: the session whose turn it is, None: nobody's.
    """

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}
        self.holder: int | None = None
        self._began = 0.0  # the holder's turn
        self._counted = 0.0  # until when it is counted
        self._stopping = False  # the holder was told to stop
        self._clock = 0.0  # virtual seconds: nobody who wants the device is behind that

    # ---- who there is ---------------------------------------------------------------------------------------------------

    def join(self, session: int, lease: int, share: float, now: float) -> None:
        """share: the part of the device that its lease has reserved, 0: none."""
        self._members[session] = _Member(session, lease, share, self._clock, now)

    def leave(self, session: int, now: float) -> float:
        """Returns the seconds of its turns."""
        if self.holder == session:
            self.end(session, False, now)
        return self._members.pop(session).spent

    @property
    def shared(self) -> bool:
        """Whether anybody has reserved a part of the device: else there are no turns."""
        return any(member.share for member in self._members.values())

    def spent(self, session: int, now: float) -> float:
        """The seconds of its turns, during which it had something to run, or did not stop."""
        self._count(now)
        return self._members[session].spent

    # ---- what they say --------------------------------------------------------------------------------------------------

    def wants(self, session: int, now: float) -> None:
        """It has something to run."""
        self._count(now)
        member = self._members[session]
        if not member.wants:
            member.wants, member.worked = True, now
            member.time = max(member.time, self._clock - LEAD)

    def idle(self, session: int, now: float) -> None:
        """It has nothing to run. Its turn goes on until somebody wants one."""
        self._count(now)
        self._members[session].wants = False

    def begin(self, session: int, now: float) -> None:
        """Its turn begins; it has wanted one."""
        self.holder, self._began, self._counted, self._stopping = session, now, now, False

    def stop(self, now: float) -> None:
        """The holder is told to stop. The time until it has is its own, also of one that says it has nothing to run."""
        self._count(now)
        self._stopping = True

    def end(self, session: int, wants: bool, now: float) -> None:
        """It does not run any more. Of one that was not the holder only what it wants is noted.

        Args:
            wants: it has more to run.
        """
        self._count(now)
        if self.holder == session:
            self.holder = None
        self._members[session].wants = wants

    # ---- what follows ---------------------------------------------------------------------------------------------------

    def next(self, without: set[int]) -> int | None:
        """Whose turn is next, None: nobody wants one. without: sessions that cannot have it."""
        waiting = self._waiting(without)
        return min(waiting, key=lambda member: (member.time, member.session)).session if waiting else None

    def others_wait(self, session: int) -> bool:
        """Whether another one wants the device."""
        return any(member.wants for number, member in self._members.items() if number != session)

    def gives_way(self, without: set[int], now: float) -> float | None:
        """In how many seconds the holder's turn ends, at the latest 0; None: nobody waits for it. without: as for `next`."""
        assert self.holder is not None
        self._count(now)
        holder, waiting = self._members[self.holder], self._waiting(without)
        if not waiting:
            return None
        if not holder.wants:
            return 0.0
        ahead = holder.time - min(member.time for member in waiting)
        return max((LEAD - ahead) * self._weight(holder, now), self._began + LEAST_TURN - now, 0.0)

    def _waiting(self, without: set[int]) -> list[_Member]:
        return [m for m in self._members.values() if m.wants and m.session != self.holder and m.session not in without]

    def _count(self, now: float) -> None:
        """Adds what the holder has had since it was counted last."""
        if self.holder is not None:
            member = self._members[self.holder]
            if member.wants or self._stopping:
                member.spent += now - self._counted
                member.time += (now - self._counted) / self._weight(member, now)
                member.worked = now
            self._counted = now
        wanting = [member.time for member in self._members.values() if member.wants]
        if wanting:
            self._clock = max(self._clock, min(wanting))

    def _weight(self, of: _Member, now: float) -> float:
        active = [m for m in self._members.values() if m is of or m.wants or now - m.worked < ACTIVE]
        if of.share:
            return of.share / sum(member.lease == of.lease for member in active)
        reserved = {member.lease: member.share for member in self._members.values() if member.share}
        rest = max(1 - sum(reserved.values()), LEAST_REST)
        others = {member.lease for member in active if not member.share}
        return rest / len(others) / sum(member.lease == of.lease for member in active)
