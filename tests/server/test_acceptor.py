"""The daemon's side of the acceptor (its own tests: tests/native/server): what cannot be had is said, what happened often is counted."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server import server_library
from gpuvirt.server.acceptor import Acceptor, limits
from gpuvirt.server.listener import Listener
from gpuvirt.server.rate_limited_log import LINES, RateLimitedLog
from gpuvirt.server.server_library import AcceptorConfig
from gpuvirt.transport import handshake as hs

LOG = logging.getLogger("gpuvirt.server.test")


def test_a_socket_that_is_none() -> None:
    async def main() -> None:
        closed = socket.socket()
        closed.close()
        Acceptor(closed, AcceptorConfig(pending=limits(1, 1), behind=b"/nowhere"), RateLimitedLog(LOG), "%s")

    with pytest.raises(GpuvirtError, match="connections cannot be accepted: Bad file descriptor"):
        asyncio.run(main())


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / paths.SERVER
    text.write_text("this is no library")
    monkeypatch.setattr(paths, "program", lambda name: text)
    with pytest.raises(GpuvirtError, match=r"cannot be loaded.*build it anew: make setup"):
        server_library.server_library.__wrapped__()


def test_what_happened_often_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = RateLimitedLog(LOG)
        log.info("late: %s", "a", times=3)
        for _ in range(LINES):
            log.info("late: %s", "b", times=2)
        log.close()

    with caplog.at_level(logging.INFO, LOG.name):
        asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES + 1
    assert lines[-1] == f"{3 + 2 * LINES - LINES} more lines such as: late: b"


def test_a_mistake_of_ours_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """It is closed, the log has all of it, and the next one is answered."""

    class Broken:
        def find(self, token_id: bytes) -> None:
            raise RuntimeError("a mistake")

    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        port = listening.getsockname()[1]
        greeting = hs.Greeting(b"n" * 32)
        listener = Listener(Broken(), None, greeting, ())  # type: ignore[arg-type]
        listener.serve(listening)
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            transcript = hs.Transcript(await reader.readexactly(len(greeting.pack())))
            writer.write(transcript.prove_hello(hs.Hello(b"m" * 32), b"k" * 32))
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
        await listener.close()

    asyncio.run(main())
    failed = [record for record in caplog.records if "the handshake failed" in record.getMessage()]
    assert len(failed) == 2 and all(record.exc_info and str(record.exc_info[1]) == "a mistake" for record in failed)
