"""The connections of one listening socket: accepted, shared out and read by a thread of the server library (native/server/acceptor.h).

What comes here is a whole hello with its connection, and what is to be logged.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import Callable

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import server_library
from gpuvirt.server.rate_limited_log import RateLimitedLog
from gpuvirt.server.server_library import AcceptorConfig, AcceptorEvent, AdmissionLimits
from gpuvirt.transport.handshake import NONCE_SIZE

AT_ONCE = 4  # hellos that are answered before other work has its turn

Hello = Callable[[socket.socket, str, bytes, bytes], None]


class Acceptor:
    """Accepts from now on, until `close`.

    Args:
        listening: a listening socket that does not block; owned from now on.
        config: without `listening` and the greeting.
        strangers: where to log what they do.
        late: the line, with %s for the peer, of a connection that was too slow.
        greeting: what every client is sent, with a nonce of its own.
        nonce_at: where in it that is.
        hello: takes a connection, which is its own from then on, the peer's address as text, the greeting that the client was sent, and its hello, or
            the first bytes of what is none.

    Raises:
        GpuvirtError: the system has no thread or descriptor for it.
    """

    def __init__(
        self,
        listening: socket.socket,
        config: AcceptorConfig,
        strangers: RateLimitedLog,
        late: str,
        greeting: bytes = b"",
        nonce_at: int = 0,
        hello: Hello | None = None,
    ) -> None:
        self._lib = server_library.server_library()
        self._strangers, self._late, self._hello = strangers, late, hello
        self._greeting = greeting
        self._nonce_at = nonce_at
        config.greeting, config.greeting_size, config.nonce_at = greeting, len(greeting), nonce_at
        self._event = AcceptorEvent()
        config.struct_size = ctypes.sizeof(AcceptorConfig)
        config.listening = listening.fileno()
        self._handle = self._lib.acceptor_open(ctypes.byref(config))
        if not self._handle:
            listening.close()
            raise GpuvirtError(f"connections cannot be accepted: {os.strerror(ctypes.get_errno())}")
        listening.detach()
        self._descriptor = self._lib.acceptor_descriptor(self._handle)
        asyncio.get_running_loop().add_reader(self._descriptor, self._readable)

    def close(self) -> None:
        """Stops listening and ends all connections that have not come here."""
        if self._handle:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._lib.acceptor_close(self._handle)
            self._handle = None

    def _readable(self) -> None:
        event = self._event
        for _ in range(AT_ONCE):
            if not self._handle or not self._lib.acceptor_take(self._handle, ctypes.byref(event)):
                return
            peer = event.peer.decode()
            if event.kind == server_library.HELLO:
                raw = ctypes.string_at(ctypes.addressof(event) + AcceptorEvent.hello.offset, event.size)
                greeting = self._greeting[: self._nonce_at] + bytes(event.nonce) + self._greeting[self._nonce_at + NONCE_SIZE :]
                client = socket.socket(fileno=event.fd)
                assert self._hello is not None
                self._hello(client, peer, greeting, raw)
            elif event.kind == server_library.LATE:
                self._strangers.info(self._late, peer, times=event.count)
            else:
                self._strangers.info("a connection could not be accepted: %s", os.strerror(event.error), times=event.count)


def limits(share: int, total: int, rate: int = 0, burst: int = 0) -> AdmissionLimits:
    """Of one port.

    Args:
        share: connections of one address.
        total: of all together.
        rate: handshakes that one address may begin in a second, 0: any number.
        burst: how many it may begin at once after a rest.
    """
    return AdmissionLimits(min(share, total), total, rate, burst)
