"""A lease leaves for another server of its pool, with all sessions that work under it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import Lease
from gpuvirt.server.session import Session

if TYPE_CHECKING:
    from gpuvirt.server.sessions import Sessions

LOOK = 0.02  # seconds between two looks whether a session that was being attached is


@dataclass(frozen=True)
class SessionRecord:
    """What a server needs of a session that comes from another one, beside its image.

    Attributes:
        id, peer, started, key, seal: as in `Session`.
        hello: packed. transport: its name.
        epochs: pairs.
        memory: as in `Membership`.
    """

    id: int
    hello: bytes
    transport: str
    peer: str
    started: float
    key: bytes
    seal: bytes
    epochs: list[Any]
    memory: int

    @classmethod
    def of(cls, s: Session) -> SessionRecord:
        named = s.transport.name, s.peer, s.started, s.key, s.seal
        return cls(s.id, s.hello.pack(), *named, [list(pair) for pair in s.epochs.items()], s.membership.memory)


class Departure:
    """From `begin` to `send_on`, or to `stay`. New sessions of the lease wait meanwhile."""

    def __init__(self, sessions: Sessions, lease: Lease) -> None:
        self._sessions, self.lease = sessions, lease
        self.leaving: list[Session] = []
        self._done: asyncio.Future[None] | None = None

    def check(self) -> None:
        """Raises:
        GpuvirtError: it cannot leave.
        """
        if self.lease.leaving is not None or self.lease.arrives:
            raise GpuvirtError("it moves already")
        if self.lease.suspends:
            raise GpuvirtError("it has given way to a lease of a higher priority, and moves when it has its GPUs again")
        self._check_able()

    def _check_able(self) -> None:
        """Raises:
        GpuvirtError: something of it cannot leave.
        """
        if self._sessions.inventory.backend != "soft" or self._sessions.inventory.strict:
            raise GpuvirtError("only sessions on software GPUs can move")
        for session in self._own():
            if session.moves:
                raise GpuvirtError("it moves already")
            if not self._sessions.handovers.grace_of(session):
                raise GpuvirtError("its client could not connect again (the server was started with --grace 0)")
            if not session.transport.travels:
                raise GpuvirtError(f"its link is {session.transport.name}, which does not leave the host; run the program with --link tcp")

    def _own(self) -> list[Session]:
        return [session for session in self._sessions if session.membership.lease is self.lease]

    async def begin(self, limit: float) -> None:
        """From now on nobody comes under the lease; returns when whoever had begun to is there.

        Raises:
            GpuvirtError: it cannot leave.
        """
        self.check()
        self._done = self.lease.leaving = asyncio.get_running_loop().create_future()
        end = time.monotonic() + limit
        while {session.id for session in self._own()} != self.lease.sessions:
            if time.monotonic() > end:
                raise GpuvirtError("a program under its lease has been attaching for too long")
            await asyncio.sleep(LOOK)
        self._check_able()
        self.leaving = self._own()
        for session in self.leaving:
            session.moves = True

    def records(self) -> list[SessionRecord]:
        """In the order in which their images are to be saved."""
        return [SessionRecord.of(session) for session in self.leaving]

    async def save(self, index: int, fd: int, limit: float) -> None:
        """Has a session come to rest, within so many seconds, and its image written.

        Raises:
            GpuvirtError: that is not possible.
        """
        session = self.leaving[index]

        def at_rest() -> None:
            session.moving = self._done

        try:
            why = await session.worker.save(fd, limit, at_rest)
        except OSError as error:
            why = f"its worker has ended: {error}"
        if why:
            raise GpuvirtError(why)

    async def end_workers(self, url: str) -> None:
        """From here on the lease is at the other server, `url`, or lost."""
        for session in self.leaving:
            await session.worker.figures()  # what it has counted, for the last time
        for session in self.leaving:
            session.url = url  # so that its worker's end is not its own
            session.worker.kill()
        await asyncio.gather(*(asyncio.shield(session.worker.gone) for session in self.leaving))

    def go(self, url: str) -> None:
        """The lease is at another server, `url`."""
        for session in self.leaving:
            self._sessions.departed(session, url)
        self._sessions.table.departed(self.lease, url, time.monotonic())
        self._sessions.changed()

    def send_on(self) -> None:
        """After `go`: it works there, so that clients, which have waited until now, are sent there."""
        self._release()

    def stay(self) -> None:
        """It stays where it is, and goes on."""
        for session in self.leaving:
            session.worker.go_on()
        self._release()

    def _release(self) -> None:
        for session in self.leaving:
            session.moves, session.moving = False, None
        self.lease.leaving = None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
