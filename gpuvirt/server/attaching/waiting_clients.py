"""What a client is told until it has a session: that it waits, for its GPUs or a worker, and the welcome."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from gpuvirt.server.attaching.sealing import Exchange
from gpuvirt.server.lease import Lease
from gpuvirt.server.leases import Leases
from gpuvirt.server.refusals import Moved, Refused
from gpuvirt.server.session import Session
from gpuvirt.transport.handshake import STATE_EVERY, WELCOME_BUSY, WELCOME_UNKNOWN, Hello, State, Transcript, Welcome

log = logging.getLogger("gpuvirt.server")

ANSWER_LIMIT = 0.5  # seconds that a pool's scheduler has for its answer before the client is told that it waits
ANSWER_LOOK = 0.003  # seconds between two looks whether it has come


async def tell_while(
    client: socket.socket, transcript: Transcript, until: asyncio.Future[Any], state: Callable[[], State], patience: float = 0
) -> None:
    """Returns when `until` is done. Until then the client is told every few seconds, at first after `patience` seconds, that it waits.

    Raises:
        ConnectionError: the client went away.
    """
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()
    client.setblocking(False)

    def went_away() -> None:  # it says nothing before it is welcomed
        if not closed.done():
            closed.set_result(None)

    loop.add_reader(client.fileno(), went_away)
    try:
        await asyncio.wait([until, closed], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        while not until.done():
            if closed.done():
                raise ConnectionResetError("the client went away")
            raw = state().pack()
            transcript.add(raw)
            if client.send(raw) != len(raw):
                raise ConnectionResetError("the client takes nothing")
            await asyncio.wait([until, closed], timeout=STATE_EVERY, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(client.fileno())


def send_welcome(client: socket.socket, session: Session, secret: bytes, transcript: Transcript, exchange: Exchange | None, grace_s: int) -> None:
    """Tells a client that it has a session, and agrees with it on the session's keys.

    Args:
        grace_s: seconds for which the session outlives its connection.

    Raises:
        OSError: the client went away, or takes nothing.
    """
    transport, end = session.transport, session.end
    welcome = Welcome(
        session=session.id,
        transport=transport.offer,
        descriptors=len(end.descriptors),
        connections=transport.connections,
        blob=end.blob,
        grace_s=grace_s,
        key_exchange=exchange.said if exchange else b"",
    )
    raw = transcript.prove_welcome(welcome, secret)
    if exchange:
        session.key, link_secret = transcript.sealed_session_keys(secret, exchange.shared)
        session.seal = link_secret + bytes([exchange.cipher])
    else:
        session.key = transcript.session_key(secret)
    # A fresh socket's buffer takes a whole welcome; one that does not is no client to wait for.
    sent = socket.send_fds(client, [raw], list(end.descriptors)) if end.descriptors else client.send(raw)
    if sent != len(raw):
        raise OSError("the client takes nothing")


class WaitingClients:
    """The clients whose leases wait for GPUs.

    Args:
        table: of the leases.
        pooled: in a pool of many hosts, whose scheduler decides.
        begins: is called when one begins to wait.
    """

    def __init__(self, table: Leases, pooled: bool, begins: Callable[[], None]) -> None:
        self._table, self._pooled, self._begins = table, pooled, begins
        self._futures: dict[int, set[asyncio.Future[None]]] = {}  # by lease: its sessions

    async def wait(self, client: socket.socket, hello: Hello, lease: Lease, transcript: Transcript) -> None:
        """Returns when the lease has its GPUs. The client is told every few seconds that it waits.

        Raises:
            Refused: it gets none.
            ConnectionError: the client went away.
        """
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(lease.number, set()).add(decided)
        self._begins()

        def state() -> State:
            place, queued = self._table.place(lease)
            return State(place=place, queued=queued, text=self._table.why(lease))

        try:
            await self.answered_within(lease, ANSWER_LIMIT)
            if lease.waits:
                place, queued = self._table.place(lease)
                text = "%s (pid %d) waits for %s, place %d of %d: %s"
                log.info(text, hello.program, hello.pid, lease.gpus, place, queued, self._table.why(lease))
            await tell_while(client, transcript, decided, state)
        finally:
            self._futures[lease.number].discard(decided)
            if not self._futures[lease.number]:
                del self._futures[lease.number]
        if lease.elsewhere:
            raise Moved(lease.elsewhere)
        if lease.refused:
            raise Refused(WELCOME_UNKNOWN if lease.seeks else WELCOME_BUSY, lease.refused)

    async def answered_within(self, lease: Lease, seconds: float) -> None:
        """In a pool of many hosts: waits, so long at most, until its scheduler has said what becomes of a lease, or at which place it waits."""
        end = time.monotonic() + seconds
        while self._pooled and lease.waits and self._table.place(lease) == (0, 0) and time.monotonic() < end:
            await asyncio.sleep(ANSWER_LOOK)

    def decided(self, lease: Lease) -> None:
        """Something has been decided of a lease: those that wait for it look."""
        for waiting in self._futures.get(lease.number, ()):
            if not waiting.done():
                waiting.set_result(None)
