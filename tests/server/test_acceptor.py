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
from gpuvirt.server.rate_limited_log import LINES, RateLimitedLog
from gpuvirt.server.server_library import AcceptorConfig

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
