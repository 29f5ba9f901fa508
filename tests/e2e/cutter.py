"""A proxy between clients and a server that resets both ends of a connection after a given number of bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuvirt.transport import handshake as hs

UP, DOWN = 0, 1


@dataclass
class Cut:
    """One that happened. label: session, resume, channel; fresh: its connection had carried little more than its handshake; again: it was one that
    takes the place of another."""

    label: str
    direction: int
    carried: int
    again: bool


@dataclass
class Cutter:
    """Listens in front of `port`. Cuts happen where the plan says; `reconnect` says at which byte of its own each connection that takes another's
    place is cut, the first entry for the first. `rewrite` changes what is carried: direction and bytes to as many bytes."""

    port: int
    plan: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    reconnect: list[int] = field(default_factory=list)
    refuse: bool = False
    hole: bool = False
    reset: bool = False
    rewrite: Callable[[int, bytes], bytes] | None = None
    carried: list[int] = field(default_factory=lambda: [0, 0])
    cuts: list[Cut] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._live: set[_Way] = set()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.own_port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.own_port}"

    def cut_all(self) -> None:
        for way in list(self._live):
            way.cut(UP)

    def close(self) -> None:
        """Nobody listens any more, and all is cut."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut_all()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            way = _Way(self, client, server)
            self._live.add(way)
            way.start()

    def allowed(self, way: _Way, direction: int, size: int) -> tuple[int, bool]:
        """How many of `size` bytes may go through, and whether that is the end."""
        with self._lock:
            go, cut = size, False
            plan, at = self.plan[direction], self.carried[direction]
            while plan and plan[0] < at:
                plan.pop(0)
            if plan and plan[0] < at + size:
                go, cut = plan.pop(0) - at, True
            if way.limit is not None and way.total + go >= way.limit:
                go, cut = max(0, way.limit - way.total), True
                way.limit = None
            self.carried[direction] += go
            way.total += go
            return go, cut


class _Way:
    """One connection through the proxy."""

    def __init__(self, cutter: Cutter, client: socket.socket, server: socket.socket) -> None:
        self.cutter, self.socks = cutter, (client, server)
        self.total, self.limit = 0, None  # type: int, int | None
        self.label, self.again = "?", False
        self._head = b""
        self._gone = threading.Lock()

    def start(self) -> None:
        for direction in (UP, DOWN):
            threading.Thread(target=self._carry, args=(direction,), daemon=True).start()

    def _look(self, data: bytes) -> None:
        """What kind of connection it is, from the client's hello."""
        if self.label != "?":
            return
        self._head += data
        if len(self._head) >= hs.HEAD_SIZE and len(self._head) >= (size := hs.message_size(self._head)):
            hello = hs.Hello.unpack(self._head[:size])
            self.label = {hs.HELLO_SESSION: "session", hs.HELLO_CHANNEL: "channel", hs.HELLO_RESUME: "resume"}.get(hello.purpose, "other")
            self.again = self.label == "resume" or (self.label == "channel" and hello.epoch > 0)
            with self.cutter._lock:
                if self.again and self.cutter.reconnect:
                    self.limit = self.cutter.reconnect.pop(0)

    def _carry(self, direction: int) -> None:
        source, target = self.socks[direction], self.socks[1 - direction]
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while self.cutter.hole:
                    threading.Event().wait(0.02)
                if direction == UP:
                    self._look(data)
                if self.cutter.rewrite:
                    data = self.cutter.rewrite(direction, data)
                go, cut = self.cutter.allowed(self, direction, len(data))
                target.sendall(data[:go])
                if cut:
                    self.cut(direction)
                    return
            target.shutdown(socket.SHUT_WR)
            return
        self.cut(direction, counted=False)

    def cut(self, direction: int, counted: bool = True) -> None:
        if not self._gone.acquire(blocking=False):
            return
        self.cutter._live.discard(self)
        if counted:
            self.cutter.cuts.append(Cut(self.label, direction, self.total, self.again))
        for sock in self.socks:
            with contextlib.suppress(OSError):
                if self.cutter.reset:  # closing sends a reset; who reads there must let go of it first
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RD if self.cutter.reset else socket.SHUT_RDWR)
                sock.close()
