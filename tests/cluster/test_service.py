"""The scheduler's service, and a host's way to it: how they begin and end."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.cluster import credentials
from gpuvirt.cluster.credentials import Credentials
from gpuvirt.cluster.host import PoolHost
from gpuvirt.cluster.member import LATE
from gpuvirt.cluster.messages import VERSION, HostEntry, Join
from gpuvirt.cluster.rendezvous import ByHost, Found
from gpuvirt.cluster.service import SchedulerService
from gpuvirt.server.lease import Asked
from gpuvirt.server.leases import Leases
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.tokens import TokenStore
from gpuvirt.transport.pool import NoServer, find_token, parse_pool


@pytest.mark.parametrize("turns", range(6))
def test_ends_though_messages_come(tmp_path: Path, turns: int) -> None:
    """A message some turns of the event loop after the service is told to end does not keep it from ending."""

    async def run() -> bool:
        service = SchedulerService(TokenStore(tmp_path), "tcp://127.0.0.1:7070", 1, "here")
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


def test_a_limit_of_waiting_holds_without_a_scheduler(tmp_path: Path) -> None:
    """Whoever wants to wait for ten seconds at most does not wait for the head to come back."""
    host = PoolHost("oak", "tcp://oak:7070", TokenStore(tmp_path))
    table = Leases(host.policy(PolicyMachine([1 << 30])), 8, expiry=60.0, pooled=True)
    sessions: Any = SimpleNamespace(lease=table.get, leases=table, place_here=None, finish=None, launch_ended_elsewhere=None)
    host.serve(sessions)
    decided = list[str]()
    table.decided = lambda lease: decided.append(lease.refused)
    short, long = (table.open(id * 16, Asked(b"o" * 16, 1, wait=wait), {}, 100.0) for id, wait in ((b"s", 10.0), (b"l", 0.0)))
    assert table.next_expiry() == 110.0 + LATE
    table.expire(110.0)
    assert short.waits and not decided
    table.expire(110.1 + LATE)
    assert len(decided) == 1 and "it has waited 14 s" in decided[0] and "scheduler" in decided[0]
    assert [*table] == [long] and long.waits and host.member is not None
    assert [wanted.lease for wanted in host.member.join().wanted] == [long.number]


def test_a_host_begins_with_what_it_has_of_its_own_pool_only(tmp_path: Path) -> None:
    """Where nobody answers. The token tells which pool's it is."""
    nobody, folder = parse_pool("tcp://127.0.0.1:9"), tmp_path / "joined"
    pool, other = TokenStore(tmp_path / "pool"), TokenStore(tmp_path / "other")
    own, others = (store.token(store.entries()[0]).text() for store in (pool, other))


    def learn(token: str) -> tuple[TokenStore, Found | None]:
        known = partial(credentials.kept, folder, find_token(nobody, False, token))
        return credentials.learn(partial(ByHost(nobody, token).ask, 0, ()), known, folder)

    with pytest.raises(NoServer):
        learn(own)
    credentials.keep(folder, Credentials("", 1, "", "", pool.server_secret.decode(), pool.text(), ""))
    tokens, told = learn(own)
    assert told is None and tokens.entries() == pool.entries()
    with pytest.raises(NoServer):
        learn(others)
