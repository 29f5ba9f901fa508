"""Leases leave this host for others of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import ALIVE_EVERY, Alive, HostEntry, Message, parse
from gpuvirt.cluster.migration.messages import PART, PATIENCE, Abandon, Begin, Begun, Bring, Credit, Failed, ImagePart, Made, sessions_text
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import Lease
from gpuvirt.server.migration.carry import CARRY_LIMIT
from gpuvirt.server.migration.departure import Departure
from gpuvirt.server.sessions import Sessions
from gpuvirt.transport.pool import parse_pool

log = logging.getLogger("gpuvirt.server")

AT_ONCE = 4  # leases whose images leave at the same time


@dataclass(frozen=True)
class Keys:
    """By which hosts of a pool know each other, z85: `member` is the secret key of who connects, `server` the public one of who listens."""

    member: bytes
    server: bytes


class Source:
    """The migrations that leave this host.

    Args:
        keys: of the pool, as they are at the moment.
    """

    def __init__(self, sessions: Sessions, member: Member, keys: Callable[[], Keys]) -> None:
        self._sessions, self._member, self._keys = sessions, member, keys
        self._context = zmq.asyncio.Context()
        self._answers: dict[int, asyncio.Future[HostEntry]] = {}
        self._leaving = asyncio.Semaphore(AT_ONCE)
        member.destination = self._answered

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _answered(self, number: int, answer: HostEntry | str) -> None:
        future = self._answers.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, str):
            future.set_exception(GpuvirtError(answer))
        else:
            future.set_result(answer)

    async def migrate(self, lease: Lease, host: str, limit: float, wait: bool = False) -> dict[str, Any]:
        """Has a lease go to another host of the pool, with what works under it: its programs wait meanwhile, and notice nothing.

        Args:
            host: its name, "": any that has room.
            limit: seconds that each session has to come to rest.
            wait: until a host has room.

        Returns:
            Where it is, in how many seconds, with how many bytes of images.

        Raises:
            GpuvirtError: it stays where it is.
        """
        departure, began = Departure(self._sessions, lease), time.monotonic()
        departure.check()
        if lease.number in self._answers:
            raise GpuvirtError("it moves already")
        told = self._answers[lease.number] = asyncio.get_running_loop().create_future()
        decided = False
        try:
            self._member.migrate(lease.number, host, wait)
            entry = await told
            async with self._leaving, _Talk(self._context, entry, self._keys()) as talk:
                await departure.begin(limit)
                sent = await self._send_images(talk, departure, limit)
                if not self._sessions.table.lasts(lease):
                    raise GpuvirtError("it has ended")
                decided = True
                handing = asyncio.ensure_future(self._hand_over(talk, departure, entry.url))
                try:
                    await asyncio.shield(handing)
                except asyncio.CancelledError:  # what is half given away is nobody's
                    await handing
                    raise
                if not await talk.began():
                    log.error("lease %016x was given to %s, which does not say whether it works there", lease.number, entry.name)
                departure.send_on()
        except BaseException as error:
            if decided:
                departure.send_on()
            else:
                departure.stay()
                self._member.migrated(lease.number, False)
            if isinstance(error, OSError):
                raise GpuvirtError(str(error)) from None
            raise
        finally:
            del self._answers[lease.number]
        seconds = time.monotonic() - began
        log.info("lease %016x went to %s with %s in %.3f s", lease.number, entry.name, sessions_text(len(departure.leaving)), seconds)
        return {"host": entry.name, "url": entry.url, "sessions": len(departure.leaving), "seconds": seconds, "bytes": sent}

    async def _hand_over(self, talk: _Talk, departure: Departure, url: str) -> None:
        """What runs of the lease ends here, and then the other host lets it begin."""
        await departure.end_workers(url)
        talk.say(Begin())
        self._member.migrated(departure.lease.number, True)
        departure.go(url)

    async def _send_images(self, talk: _Talk, departure: Departure, limit: float) -> int:
        records = departure.records()
        talk.bring(Bring(departure.lease.number, tuple(records)))
        sent = 0
        for index in range(len(records)):
            out, into = socket.socketpair()
            with into:
                into.setblocking(False)
                saving = asyncio.ensure_future(departure.save(index, out.fileno(), limit))
                try:
                    await asyncio.sleep(0)  # it is sent
                    out.close()
                    async with asyncio.timeout(limit + CARRY_LIMIT):
                        sent += await talk.send_image(index, into)
                        await saving
                        await talk.end_image(index)
                except TimeoutError:
                    raise GpuvirtError(f"a session's image did not pass within {limit + CARRY_LIMIT:.0f} s") from None
                finally:
                    saving.cancel()
                    with contextlib.suppress(asyncio.CancelledError, GpuvirtError):
                        await saving
        await talk.made()
        return sent


class _Talk:
    """With the destination, while it is open."""

    def __init__(self, context: zmq.asyncio.Context, entry: HostEntry, keys: Keys) -> None:
        self._name = entry.name
        sock = self._socket = context.socket(zmq.DEALER)
        host = parse_pool(entry.url).host
        sock.ipv6 = ":" in host
        sock.curve_serverkey, sock.curve_secretkey = keys.server, keys.member
        sock.curve_publickey = zmq.curve_public(keys.member)
        sock.linger = round(1000 * PATIENCE)
        sock.connect(f"tcp://[{host}]:{entry.migration_port}" if ":" in host else f"tcp://{host}:{entry.migration_port}")
        self._credit, self._news = 0, asyncio.Event()
        self._made = self._begun = False
        self._why = ""
        self._heard: float | None = None  # when something came of it last; None: it has not been spoken to yet
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Talk:
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._be_alive())]
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if not self._begun:
            self.say(Abandon(str(error) if error else "it stays where it was"))  # to which, after `Begin`, nobody listens
        self._socket.close()

    def bring(self, message: Bring) -> None:
        """The first word."""
        self._heard = time.monotonic()
        self.say(message)

    def say(self, message: Message) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(message.packed(), zmq.DONTWAIT)

    async def _be_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_EVERY)
            self.say(Alive())
            if self._heard is not None and time.monotonic() - self._heard > PATIENCE:
                self._fail(f"{self._name} does not answer")

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        self._news.set()

    async def _hear(self) -> None:
        while True:
            try:
                message = parse(await self._socket.recv())
            except GpuvirtError as error:
                self._fail(str(error))
                return
            self._heard = time.monotonic()
            match message:
                case Credit():
                    self._credit += message.bytes
                case Made():
                    self._made = True
                case Begun():
                    self._begun = True
                case Failed():
                    self._fail(f"{self._name}: {message.text}")
                case _:
                    continue
            self._news.set()

    async def _until_news(self) -> None:
        """Until it has said something new.

        Raises:
            GpuvirtError: it has failed, or says nothing any more.
        """
        if self._why:
            raise GpuvirtError(self._why)
        self._news.clear()
        await self._news.wait()
        if self._why:
            raise GpuvirtError(self._why)

    async def send_image(self, index: int, source: socket.socket) -> int:
        """Sends all that comes from a socket until its end. Returns how many bytes that were.

        Raises:
            GpuvirtError: the destination does not take them.
        """
        loop, sent = asyncio.get_running_loop(), 0
        while True:
            data = await self._or_failure(loop.sock_recv(source, PART))
            if not data:
                return sent
            while self._credit < len(data):
                await self._until_news()
            self._credit -= len(data)
            self.say(ImagePart(index, data))
            sent += len(data)

    async def end_image(self, index: int) -> None:
        """What was sent of an image is all of it.

        Raises:
            GpuvirtError: the destination has given up.
        """
        while not self._credit:  # it has not said yet that it takes anything
            await self._until_news()
        self.say(ImagePart(index, b""))

    async def _or_failure(self, receiving: Any) -> bytes:
        """What is received, unless the destination fails meanwhile.

        Raises:
            GpuvirtError: it does.
        """
        reading = asyncio.ensure_future(receiving)
        try:
            while not reading.done():
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait([reading, news], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self._why:
                    raise GpuvirtError(self._why)
                if not reading.done():
                    self._news.clear()
            return bytes(reading.result())
        finally:
            reading.cancel()

    async def made(self) -> None:
        """Returns when the destination has made all of it.

        Raises:
            GpuvirtError: it cannot.
        """
        while not self._made:
            await self._until_news()

    async def began(self) -> bool:
        """Whether it says that it works."""
        with contextlib.suppress(TimeoutError, GpuvirtError):
            async with asyncio.timeout(PATIENCE):
                while not self._begun:
                    await self._until_news()
        return self._begun
