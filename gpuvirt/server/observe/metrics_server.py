"""Answers Prometheus: /metrics is of this server, /metrics/pool of all hosts of its pool. Whoever reaches the port may ask, so nothing that a
stranger does may cost the daemon, or the pool, much.

The port is another of the server's front doors (native/server/acceptor.h): a thread accepts, gives each address a share of the places and a rate,
closes what is too slow, and connects to a unix socket here when the client has said something. One request a connection, and one collection for
all that ask within `FRESH`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gpuvirt import __version__
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.acceptor import Acceptor, limits
from gpuvirt.server.descriptors import for_strangers
from gpuvirt.server.observe.metrics import CONTENT_TYPE, families, metrics_text, pool_text
from gpuvirt.server.observe.observer import Observer
from gpuvirt.server.rate_limited_log import RateLimitedLog
from gpuvirt.server.server_library import AcceptorConfig
from gpuvirt.server.sockets import remove_files, socket_paths

log = logging.getLogger("gpuvirt.server")

EACH = 3  # descriptors of one connection: the client's, the carrier's towards here, the one here
SHARE, TOTAL = 4, 16  # connections of one address, of all
RATE, BURST = 5, 10  # connections of one address that are taken up in a second, and at once
LIMIT = 5.0  # seconds that a connection lasts at most
REQUEST_MOST = 4096  # bytes
FRESH = 1.0  # seconds for which an answer is good enough


class MetricsServer:
    """Serves ``GET /metrics`` and ``GET /metrics/pool`` from `start` until `close`.

    Args:
        pool: answers for the whole pool, as `pool_text` takes it.
    """

    def __init__(self, observer: Observer, pool: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._observer, self._pool = observer, pool
        self._pages = {b"/metrics": _Page(self._own), b"/metrics/pool": _Page(self._of_pool)}
        self._strangers = RateLimitedLog(log)
        self._undo = contextlib.AsyncExitStack()

    async def start(self, listening: socket.socket, limit: int) -> None:
        """Listens.

        Args:
            listening: the port; owned from now on.
            limit: the daemon's limit of open files.

        Raises:
            GpuvirtError: no folder can hold the unix socket behind the port, or the system has no thread for it.
        """
        path = socket_paths(f"metrics.{os.getpid()}")[0]
        remove_files([path])
        try:
            behind = await asyncio.start_unix_server(self._client, path, limit=REQUEST_MOST)
        except OSError as error:
            raise GpuvirtError(f"the metrics cannot use {path}: {error.strerror}") from None
        self._undo.callback(remove_files, [path])
        self._undo.callback(behind.close)
        self._undo.callback(self._strangers.close)
        config = AcceptorConfig(
            pending=limits(SHARE, for_strangers(limit, TOTAL, EACH), RATE, BURST),
            head_ms=int(LIMIT * 1000),
            behind=os.fsencode(path),
            proved=limits(1, 1),
            unproved_bytes=(1 << 64) - 1,  # nobody proves anything here
        )
        acceptor = Acceptor(listening, config, self._strangers, "%s was too slow for the metrics")
        self._undo.callback(acceptor.close)

    async def close(self) -> None:
        await self._undo.aclose()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it is too slow, says too much, or went away
        except Exception:
            log.exception("the metrics failed")
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", b"this is no request\n")
        if words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n")
        page = self._pages.get(words[1].split(b"?")[0])
        if page is None:
            return _response("404 Not Found", b"the metrics are at /metrics, those of the whole pool at /metrics/pool\n")
        try:
            text = await page.text()
        except GpuvirtError as error:
            return _response("503 Service Unavailable", f"{error}\n".encode())
        return _response("200 OK", text, words[0] == b"HEAD")

    async def _own(self) -> bytes:
        return metrics_text(families(await self._observer.facts(), self._observer.accounts))

    async def _of_pool(self) -> bytes:
        return pool_text(await self._pool())


class _Page:
    """A text that is made anew when it is asked for and older than `FRESH`."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._text, self._at = b"", -FRESH

    async def text(self) -> bytes:
        async with self._lock:  # who asks meanwhile gets the same
            if time.monotonic() - self._at >= FRESH:
                self._text = await self._make()
                self._at = time.monotonic()
            return self._text


def _response(status: str, text: bytes, head_only: bool = False) -> bytes:
    kind = CONTENT_TYPE if status.startswith("200") else "text/plain"
    head = f"HTTP/1.1 {status}\r\nServer: gpuvirt/{__version__}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if head_only else text)
