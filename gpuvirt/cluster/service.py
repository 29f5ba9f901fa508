"""The scheduler of a pool at work: a ZeroMQ socket with CURVE for the other hosts' daemons, and a clock. Runs in the daemon of the head."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import zmq
import zmq.asyncio

from gpuvirt import paths
from gpuvirt.cluster.credentials import Credentials
from gpuvirt.cluster.messages import Join, Leave, Message, NotAMessage, NotWelcome, Tokens, parse
from gpuvirt.cluster.scheduler import PLACES_EVERY, Out, Scheduler
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.descriptors import for_strangers
from gpuvirt.server.policy.reasons import count_text
from gpuvirt.server.ports.control_proxy import EACH
from gpuvirt.server.ports.curve_port import CurveKeys, CurvePort
from gpuvirt.server.tokens import TokenStore

log = logging.getLogger("gpuvirt.server")

HOSTS_MOST = 4096
MAX_MESSAGE = 16 << 20  # bytes; a host that joins tells all of its leases


def next_epoch(folder: Path) -> int:
    """A number that no scheduler of this state folder has had.

    Raises:
        GpuvirtError: it cannot be read or written.
    """
    file = folder / "epoch"
    try:
        before = int(file.read_text()) if file.exists() else 0
        paths.write_private(file, f"{before + 1}\n")
    except (OSError, ValueError) as error:
        raise GpuvirtError(f"the pool's epoch in {file} cannot be used ({error}); write a number there that is higher than any before") from None
    return before + 1


class SchedulerService:
    """Serves the members of a pool, until `close`.

    Args:
        tokens: the pool's. In their folder it keeps which hosts there are, for the one after it.
        where: it is, for people.
        epoch: as `Scheduler` has it.
        name: of the host on which it runs, whose own messages come by `receive`, "": it is on none of them.
        deliver: takes what the scheduler says to that host.
        rebalance: as `PolicyMachine` has it.
        expected: hosts that there were, which is not known here.
    """

    def __init__(
        self,
        tokens: TokenStore,
        where: str,
        epoch: int,
        name: str = "",
        deliver: Callable[[Message], None] = lambda message: None,
        rebalance: int = 0,
        expected: Iterable[str] = (),
    ) -> None:
        self._name, self._tokens, self._deliver, self._where = name, tokens, deliver, where
        self._hosts_file = tokens.folder / "hosts.json"
        self.scheduler = Scheduler(epoch, time.monotonic(), {*self._former_hosts(), *expected}, rebalance)
        public, secret = zmq.curve_keypair()
        member_public, member_secret = zmq.curve_keypair()
        self._public, self._member_secret = public.decode(), member_secret.decode()
        self._port = CurvePort("scheduler", CurveKeys(public, secret), lambda key: key == member_public, MAX_MESSAGE)
        self._routes: dict[str, bytes] = {}  # of members, each the last by which it joined
        self._names: dict[bytes, str] = {}
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told = ""  # the tokens, as members know them
        self._news = asyncio.Event()  # something was said, so that there may be another time to look

    def _former_hosts(self) -> list[str]:
        """The hosts of the scheduler before this one."""
        try:
            found = json.loads(self._hosts_file.read_text())
        except (OSError, ValueError):
            return []
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def start(self, host: str, preferred: int, limit: int) -> None:
        """Listens, on the port `preferred` or another.

        Args:
            limit: the daemon's limit of open files.

        Raises:
            GpuvirtError: the address cannot be listened on.
        """
        sock = self._socket = self._port.open(host, preferred, for_strangers(limit, HOSTS_MOST, EACH), HOSTS_MOST)
        self._told = self._tokens.text()
        self._tasks = [asyncio.create_task(self._serve(sock)), asyncio.create_task(self._tick())]

    def credentials(self) -> Credentials:
        """What a host needs to join."""
        server = self._tokens.server_secret.decode()
        return Credentials("", self._port.port, self._public, self._member_secret, server, self._tokens.text(), self._where)

    def succeed(self, seen: int) -> None:
        """A host of the pool has seen a scheduler of this epoch; this one comes after it."""
        if seen > self.scheduler.epoch:
            self.scheduler.epoch = seen + 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._port.close()

    def receive(self, message: Message) -> None:
        """A message of this host's own member."""
        joined = {entry.name for entry in self.scheduler.hosts}
        self._say(self.scheduler.receive(self._name, message, time.monotonic()))
        self._log_hosts(joined)

    async def _serve(self, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart()
            if len(frames) != 2:
                continue
            route, raw = frames
            try:
                message = parse(raw)
            except NotAMessage as error:
                self._send(route, NotWelcome(str(error)))
                continue
            if isinstance(message, Join) and message.host.name != self._name:
                self._know(message.host.name, route)
            name = self._names.get(route)
            if name is None:
                self._send(route, NotWelcome("it has not said who it is, or its name is the head's; it is to join anew, with another --name"))
                continue
            joined = {entry.name for entry in self.scheduler.hosts}
            try:
                self._say(self.scheduler.receive(name, message, time.monotonic()))
            except Exception:
                log.exception("the scheduler failed at what the host %s says", name)
                self._send(route, NotWelcome("the scheduler failed at what it says; the head's log says why"))
            self._log_hosts(joined)
            if isinstance(message, Join):
                self._send(route, Tokens(self._told))
            elif isinstance(message, Leave):
                self._forget(name)

    def _know(self, name: str, route: bytes) -> None:
        self._forget(name)
        self._routes[name], self._names[route] = route, name

    def _forget(self, name: str) -> None:
        route = self._routes.pop(name, None)
        if route is not None:
            self._names.pop(route, None)

    def _say(self, out: Out) -> None:
        self._news.set()
        for name, message in out:
            if name == self._name:
                # Not at once: what it does about it may be a message for the scheduler, which is busy with the last one.
                asyncio.get_running_loop().call_soon(self._deliver, message)
            elif name in self._routes:
                self._send(self._routes[name], message)

    def _send(self, route: bytes, message: Message) -> None:
        assert self._socket is not None
        with contextlib.suppress(zmq.ZMQError):  # it is gone; it joins anew
            self._socket.send_multipart([route, message.packed()], zmq.DONTWAIT)

    async def _tick(self) -> None:
        while True:
            await self._until_next()
            joined = {entry.name for entry in self.scheduler.hosts}
            self._say(self.scheduler.passed(time.monotonic()))
            self._log_hosts(joined)
            for name in self._routes.keys() - {entry.name for entry in self.scheduler.hosts}:
                self._forget(name)
            with contextlib.suppress(GpuvirtError):  # who cannot read the tokens' file says so elsewhere
                if (text := self._tokens.text()) != self._told:
                    self._told = text
                    for route in self._routes.values():
                        self._send(route, Tokens(text))

    async def _until_next(self) -> None:
        """Until the scheduler is to look at the time: every second, and when a lease has waited for as long as it wanted to."""
        end = time.monotonic() + PLACES_EVERY
        while (left := min(end, self.scheduler.wake or end) - time.monotonic()) > 0:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _log_hosts(self, before: set[str]) -> None:
        now = {entry.name: entry for entry in self.scheduler.hosts}
        for name in now.keys() - before:
            log.info("host %s of the pool is there: %s, %s", name, count_text(len(now[name].memory)), now[name].url)
        if now.keys() != before:
            with contextlib.suppress(OSError, GpuvirtError):  # then the next scheduler waits for others than there were
                paths.write_private(self._hosts_file, json.dumps(sorted(now)) + "\n")
        for name in before - now.keys():
            log.warning("host %s of the pool is not there any more, with all that worked there", name)
