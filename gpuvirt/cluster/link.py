"""A member's connection to the scheduler of its pool: made, and made again for as long as the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

import zmq
import zmq.asyncio

from gpuvirt.cluster.credentials import Credentials
from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import ALIVE_EVERY, SILENCE, Leave, Message, NotAMessage, NotWelcome, parse
from gpuvirt.cluster.rendezvous import Found, Rendezvous
from gpuvirt.errors import GpuvirtError

log = logging.getLogger("gpuvirt.server")

LEAVE_MS = 200  # for the word that the host leaves to go out
AGAIN_AFTER = 1.0  # seconds before a scheduler that could not be reached is tried again


class Link:
    """The connection, from `start` to `close`.

    Args:
        rendezvous: says where the scheduler is.
        known: its first answer.
        handle: takes what the scheduler says.
        learned: takes what a later answer says: of another scheduler's keys, or of other tokens.
    """

    def __init__(
        self,
        member: Member,
        rendezvous: Rendezvous,
        known: Found | None,
        handle: Callable[[Message], None],
        learned: Callable[[Credentials, str], None],
    ) -> None:
        self._member, self._rendezvous = member, rendezvous
        self._known = known
        self._handle, self._learned = handle, learned
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def send(self, message: Message) -> None:
        """To the scheduler, if there is a connection."""
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send(message.packed(), zmq.DONTWAIT)

    async def close(self) -> None:
        """Says that the host leaves."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        said = ""
        while True:
            try:
                why = await self._session()
            except GpuvirtError as error:
                why = str(error)
            self._member.lost(why)
            if why != said:
                log.warning("this host is no member of its pool: %s; trying again", why)
                said = why
            await asyncio.sleep(AGAIN_AFTER)

    async def _session(self) -> str:
        """One connection, for as long as it lasts. Returns why it does not any more.

        Raises:
            GpuvirtError: nobody tells where the scheduler is.
        """
        known, self._known = self._known, None
        if known is None:
            known = await self._ask()
            self._learned(*known)
        told, peer = known
        sock = self._socket = self._context.socket(zmq.DEALER)
        sock.linger = 0
        try:
            sock.ipv6 = ":" in peer
            sock.curve_serverkey = told.key.encode()
            sock.curve_secretkey = told.member.encode()
            sock.curve_publickey = zmq.curve_public(told.member.encode())
            host = told.host or peer
            sock.connect(f"tcp://[{host}]:{told.port}" if ":" in host else f"tcp://{host}:{told.port}")
            sock.send(self._member.join().packed(), zmq.DONTWAIT)
            return await self._talk(sock)
        except zmq.ZMQError as error:
            return f"the connection to its scheduler failed: {error}"
        except asyncio.CancelledError:
            with contextlib.suppress(zmq.ZMQError):
                sock.linger = LEAVE_MS
                sock.send(Leave().packed(), zmq.DONTWAIT)
            raise
        finally:
            self._socket = None
            sock.close()

    async def _ask(self) -> Found:
        """In a thread of its own, for which the end of the daemon does not wait: a host that hangs takes its time.

        Raises:
            GpuvirtError: nobody tells where the scheduler is.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Found] = loop.create_future()
        epoch, hosts = self._member.epoch, [entry.name for entry in self._member.hosts]

        def give(found: Found | Exception) -> None:
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def ask() -> None:
            found: Found | Exception
            try:
                found = self._rendezvous.ask(epoch, hosts)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the daemon has ended
                loop.call_soon_threadsafe(give, found)

        threading.Thread(target=ask, name="gpuvirt-join", daemon=True).start()
        return await answer

    async def _talk(self, sock: zmq.asyncio.Socket) -> str:
        begun = next_word = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_word:
                self._member.alive()
                next_word = now + ALIVE_EVERY
            heard = max(self._member.heard, begun) if self._member.up else begun
            if now - heard > SILENCE:
                return f"the scheduler of {self._rendezvous.where} does not answer"
            if not await sock.poll(round(1000 * max(0.0, next_word - now))):
                continue
            try:
                message = parse(await sock.recv())
            except NotAMessage as error:
                return str(error)
            was_up = self._member.up
            self._handle(message)
            if isinstance(message, NotWelcome):
                return message.why
            if self._member.up and not was_up:
                log.info("this host is a member of the pool of %s", self._rendezvous.where)
