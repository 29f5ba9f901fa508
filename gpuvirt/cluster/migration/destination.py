"""Leases of other hosts of the pool come to this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import ALIVE_EVERY, Alive, Message, NotAMessage, parse
from gpuvirt.cluster.migration.messages import (
    DECISION,
    MAX_MESSAGE,
    PATIENCE,
    WINDOW,
    Abandon,
    Begin,
    Begun,
    Bring,
    Credit,
    Failed,
    ImagePart,
    Made,
    sessions_text,
)
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.descriptors import for_strangers
from gpuvirt.server.migration.arrival import Arrival
from gpuvirt.server.migration.carry import CARRY_LIMIT
from gpuvirt.server.ports.control_proxy import EACH
from gpuvirt.server.ports.curve_port import CurveKeys, CurvePort
from gpuvirt.server.sessions import Sessions

log = logging.getLogger("gpuvirt.server")

GUESTS_MOST = 64  # leases that come at the same time


class Destination:
    """Listens for hosts of the pool, from `start` to `close`.

    Args:
        keys: of the control channels of all hosts of the pool.
        is_host: whether a public key, z85, is that of the pool's hosts.
    """

    def __init__(self, sessions: Sessions, member: Member, keys: CurveKeys, is_host: Callable[[bytes], bool]) -> None:
        self._sessions, self._member = sessions, member
        self._port = CurvePort("migration", keys, is_host, MAX_MESSAGE)
        self._socket: zmq.asyncio.Socket | None = None
        self._guests: dict[bytes, asyncio.Queue[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, host: str, preferred: int, limit: int) -> int:
        """Listens, on the port `preferred` or another, which it returns.

        Args:
            limit: the daemon's limit of open files.

        Raises:
            GpuvirtError: the address cannot be listened on.
        """
        self._socket = self._port.open(host, preferred, for_strangers(limit, GUESTS_MOST, EACH), GUESTS_MOST)
        for running in (self._serve(self._socket), self._be_alive()):
            self._tasks.add(asyncio.create_task(running))
        return self._port.port

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._port.close()

    def _say(self, route: bytes, message: Message) -> None:
        assert self._socket is not None
        with contextlib.suppress(zmq.ZMQError):  # it is gone, which is noticed by its silence
            self._socket.send_multipart([route, message.packed()], zmq.DONTWAIT)

    async def _be_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_EVERY)
            for route in self._guests:
                self._say(route, Alive())

    async def _serve(self, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart()
            if len(frames) != 2:
                continue
            route, raw = frames
            try:
                message = parse(raw)
            except NotAMessage as error:
                message = Abandon(str(error))
            guest = self._guests.get(route)
            if guest is not None:
                guest.put_nowait(message)  # bounded by the credit that it has
            elif isinstance(message, Bring) and len(self._guests) < GUESTS_MOST:
                self._guests[route] = asyncio.Queue()
                task = asyncio.create_task(self._host(route, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(message, Bring):
                self._say(route, Failed("too many leases come to it at the same time"))

    async def _host(self, route: bytes, bring: Bring) -> None:
        """One lease that comes, until it has begun or is given up."""
        arrival, why = None, "it was given up"
        try:
            lease = self._sessions.lease(bring.lease)
            if lease is None or not lease.arrives or lease.comes:
                raise GpuvirtError("it does not expect this lease (any more)")
            lease.comes = True
            arrival = Arrival(self._sessions, lease)
            await arrival.open(bring.sessions)
            await self._take_images(route, arrival, len(bring.sessions))
            await arrival.made(CARRY_LIMIT)
            self._say(route, Made())
            message = await self._next(route, DECISION)
            if not isinstance(message, Begin):
                raise GpuvirtError(message.why if isinstance(message, Abandon) else f"a {type(message).__name__} came, which makes no sense")
            if not self._sessions.table.lasts(lease):
                raise GpuvirtError("it has ended meanwhile")
            arrival.begin()
            self._member.arrived(lease)
            arrival = None
            self._say(route, Begun())
            came = sessions_text(len(bring.sessions))
            log.info("lease %016x came with %s, to GPU %s", lease.number, came, ",".join(map(str, lease.devices)))
        except GpuvirtError as error:
            why = str(error)
            log.warning("lease %016x does not come here: %s", bring.lease, why)
            self._say(route, Failed(why))
        except Exception:
            why = "the server failed at it; its log says why"
            log.exception("lease %016x does not come here", bring.lease)
            self._say(route, Failed(why))
        finally:
            self._guests.pop(route, None)
            if arrival is not None:
                await arrival.abandon(why)

    async def _take_images(self, route: bytes, arrival: Arrival, images: int) -> None:
        loop = asyncio.get_running_loop()
        self._say(route, Credit(WINDOW))
        for index in range(images):
            while True:
                message = await self._next(route, PATIENCE)
                if isinstance(message, Abandon):
                    raise GpuvirtError(message.why)
                if not isinstance(message, ImagePart) or message.session != index:
                    raise GpuvirtError(f"a {type(message).__name__} came, which makes no sense")
                if not message.data:
                    break
                try:
                    await loop.sock_sendall(arrival.images[index], message.data)
                except OSError:
                    raise GpuvirtError(await arrival.failed()) from None
                self._say(route, Credit(len(message.data)))
            arrival.end_image(index)

    async def _next(self, route: bytes, patience: float) -> Message:
        """What the source says next that is more than a sign of life.

        Raises:
            GpuvirtError: it has said nothing for so many seconds.
        """
        while True:
            try:
                async with asyncio.timeout(patience):
                    message = await self._guests[route].get()
            except TimeoutError:
                raise GpuvirtError(f"the host that it was to come from has said nothing for {patience:.0f} s") from None
            if not isinstance(message, Alive):
                return message
