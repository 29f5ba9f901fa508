"""The scheduler's service: what its tasks do when they are ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.cluster.host import PoolHost
from gpuvirt.cluster.messages import VERSION, HostEntry, Join
from gpuvirt.cluster.service import SchedulerService
from gpuvirt.server.lease import Asked
from gpuvirt.server.leases import Leases
from gpuvirt.server.policy.machine import PolicyMachine
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


def test_what_is_asked_before_the_pool_is_joined_waits(tmp_path: Path) -> None:
    """A host's control channel is there before it is a member; its first word to the scheduler has what was asked for."""
    host = PoolHost("oak", "tcp://oak:7070", TokenStore(tmp_path))
    table = Leases(host.policy(PolicyMachine([1 << 30])), 8, pooled=True)
    sessions: Any = SimpleNamespace(lease=table.get, leases=table, place_here=None, finish=None, launch_ended_elsewhere=None)
    host.serve(sessions)
    lease = table.open(b"l" * 16, Asked(b"o" * 16, 1), {}, 0.0)
    assert lease.waits and host.member is not None and "scheduler" in table.why(lease)
    assert [wanted.lease for wanted in host.member.join().wanted] == [lease.number]
