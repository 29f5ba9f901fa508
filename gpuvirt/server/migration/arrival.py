"""A lease comes from another server of its pool, with the sessions that work under it there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import Lease, NotGranted
from gpuvirt.server.migration.carry import WORKER_LIMIT, give_image
from gpuvirt.server.migration.departure import SessionRecord
from gpuvirt.server.session import Session
from gpuvirt.transport import table
from gpuvirt.transport.handshake import HandshakeError, Hello
from gpuvirt.transport.transport import Transport

if TYPE_CHECKING:
    from gpuvirt.server.sessions import Sessions


class Arrival:
    """From `open` to `begin`, or to `abandon`.

    Args:
        lease: which `Lease.arrives`.

    Attributes:
        images: the sockets into which the sessions' images are to be written, in the order of their records.
    """

    def __init__(self, sessions: Sessions, lease: Lease) -> None:
        self._sessions, self.lease = sessions, lease
        self._coming: list[Session] = []
        self.images: list[socket.socket] = []

    async def open(self, records: Sequence[SessionRecord]) -> None:
        """Gives each session to a worker, which waits for its image.

        Raises:
            GpuvirtError: they cannot come.
        """
        for record in records:
            try:
                await self._open(record)
            except (NotGranted, HandshakeError, ValueError) as error:
                raise GpuvirtError(str(error)) from None

    async def _open(self, record: SessionRecord) -> None:
        sessions, hello = self._sessions, Hello.unpack(record.hello)
        transport = self._transport(record.transport)
        if sessions.get(record.id) is not None:
            raise GpuvirtError("the session is here already")
        tenant = sessions.tenant_of(hello.token_id)
        sessions.engine.expect(tenant)
        worker = await sessions.engine.take(WORKER_LIMIT)
        try:
            membership = sessions.table.arrive(record.id, self.lease, record.memory)
        except NotGranted:
            worker.kill()
            raise
        session = Session(record.id, membership, transport, hello, record.peer, worker, tenant, record.key, record.seal)
        self._coming.append(session)
        sessions.arriving.add(session.id)
        session.started, session.adopted, session.end = record.started, True, transport.open()
        session.epochs = {int(which): int(epoch) for which, epoch in record.epochs}
        image = give_image(worker, sessions.handovers.of(session, membership))
        image.setblocking(False)
        self.images.append(image)

    @staticmethod
    def _transport(name: str) -> Transport:
        transport = table.named(name)
        if transport is None or not transport.travels:
            raise GpuvirtError(f"a session over {name!r} cannot come here")
        if why := transport.missing():
            raise GpuvirtError(f"its link is {name}, and here {why}")
        return transport

    def end_image(self, index: int) -> None:
        """The image of a session has been written whole."""
        self.images[index].close()

    async def made(self, limit: float) -> None:
        """Returns when all of them have been made from their images.

        Raises:
            GpuvirtError: one cannot be.
        """
        try:
            async with asyncio.timeout(limit):
                for session in self._coming:
                    await asyncio.shield(session.worker.opened)
        except TimeoutError:
            raise GpuvirtError(f"a session was not made from its image within {limit:.0f} s") from None

    async def failed(self) -> str:
        """Why a worker does not want more of an image than it has: in a moment it says so, or has ended."""
        with contextlib.suppress(GpuvirtError):
            await self.made(5.0)
        return next((session.worker.ending for session in self._coming if session.worker.ending), "a worker does not take its image")

    def begin(self) -> None:
        """The other server has given it away: it is this one's."""
        sessions = self._sessions
        sessions.arrived(self.lease)
        for session in self._coming:
            sessions.arriving.discard(session.id)
            sessions.goes_on(session, session.worker)
            sessions.keep(session)
            with contextlib.suppress(OSError):  # it has ended, and what follows of that is under way
                session.worker.begin()
            if sessions.table.launch_has_ended(session.hello.launch, session.hello.token_id):
                session.worker.client_gone()

    async def abandon(self, why: str) -> None:
        """It stays where it was."""
        for image in self.images:
            image.close()
        for session in self._coming:
            session.worker.kill()
        await asyncio.gather(*(asyncio.shield(session.worker.gone) for session in self._coming))
        for session in self._coming:
            self._sessions.arriving.discard(session.id)
            session.end.close()
            if self._sessions.memory_usage:
                self._sessions.memory_usage.free_slot(session.slot)
            self._sessions.table.leave(session.id, time.monotonic())
        self._sessions.finish(self.lease.number, why)
