"""The scheduler's service: what its tasks do when they are ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuvirt.cluster.messages import VERSION, HostEntry, Join
from gpuvirt.cluster.service import SchedulerService
from gpuvirt.server.tokens import TokenStore


@pytest.mark.parametrize("turns", range(6))
def test_ends_though_messages_come(tmp_path: Path, turns: int) -> None:
    """A message some turns of the event loop after the service is told to end does not keep it from ending."""

    async def run() -> bool:
        service = SchedulerService("here", TokenStore(tmp_path), lambda message: None, "tcp://127.0.0.1:7070")
        service.start("127.0.0.1", 0, 1024)
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(service.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        service.receive(Join(VERSION, HostEntry("here", "tcp://127.0.0.1:7070", (1 << 30,)), 0, (), ()))
        done, _ = await asyncio.wait([closing], timeout=10)
        return bool(done)

    assert asyncio.run(run())
