"""Accepts the connections of one listening socket, each in its turn (gpuvirt/server/admission.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from gpuvirt.server.admission import Admission, Place, address_group
from gpuvirt.server.rate_limited_log import RateLimitedLog

BATCH = 128  # connections accepted before other work has its turn
PAUSE_LEAST, PAUSE_MOST = 0.05, 1.0  # seconds without accepting after the system had no descriptor or memory for a connection

Handshake = Callable[[socket.socket, str, Place], Coroutine[Any, Any, None]]


class Acceptor:
    """Accepts from now on, until `close`.

    Args:
        listening: a listening socket that does not block; owned from now on.
        handshake: what to do with a connection: it gets the socket, which it closes, the peer's address as text, and the connection's place, which it
            leaves early when the peer has proved itself. It is cancelled when the connection has to go.
    """

    def __init__(self, listening: socket.socket, admission: Admission, handshake: Handshake, strangers: RateLimitedLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening, self._admission, self._handshake, self._strangers = listening, admission, handshake, strangers
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause = PAUSE_LEAST
        self._resume: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._readable)

    async def close(self) -> None:
        """Stops listening and ends all handshakes."""
        self._loop.remove_reader(self._listening)
        if self._resume is not None:
            self._resume.cancel()
        self._listening.close()
        while len(self._admission):
            self._admission.shed(self._loop.time())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _readable(self) -> None:
        for _ in range(BATCH):
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(error)
                return
            self._pause = PAUSE_LEAST
            client.setblocking(False)
            unix = client.family == socket.AF_UNIX
            self._admit(client, "this host" if unix else f"{address[0]}:{address[1]}", "" if unix else address_group(address[0]))

    def _rest(self, error: OSError) -> None:
        """No descriptor or no memory. Trying at once again would keep the processor busy; whoever hangs in a handshake gives his descriptor back."""
        self._strangers.info("a connection could not be accepted: %s", error.strerror)
        self._admission.shed(self._loop.time())
        self._loop.remove_reader(self._listening)
        self._resume = self._loop.call_later(self._pause, self._again)
        self._pause = min(self._pause * 2, PAUSE_MOST)

    def _again(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listening, self._readable)

    def _admit(self, client: socket.socket, peer: str, group: str) -> None:
        task: asyncio.Task[None] | None = None
        timer: asyncio.TimerHandle | None = None

        def drop() -> None:
            if task is not None:
                task.cancel()
            else:
                if timer is not None:
                    timer.cancel()
                client.close()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._admission.leave(place)
            client.close()  # a task that was cancelled before it began has not

        def begin() -> None:
            nonlocal task
            task = asyncio.create_task(self._handshake(client, peer, place))
            self._tasks.add(task)
            task.add_done_callback(ended)

        now = self._loop.time()
        place = self._admission.enter(group, now, drop)
        if place.start_at > now:
            timer = self._loop.call_at(place.start_at, begin)
        else:
            begin()
