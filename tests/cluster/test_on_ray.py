"""The scheduler as an actor of Ray, without Ray: what hosts are told, who begins the pool, and what it knows when it is somewhere else.

With Ray: e2e/test_on_ray.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.cluster import joining
from gpuvirt.cluster.credentials import keep, kept
from gpuvirt.cluster.host import PoolHost
from gpuvirt.cluster.messages import VERSION
from gpuvirt.cluster.on_ray import rendezvous
from gpuvirt.cluster.on_ray.actor import SchedulerActor
from gpuvirt.cluster.on_ray.rendezvous import ByRay, NoScheduler, NotYet
from gpuvirt.cluster.rendezvous import Found
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.options import ServeOptions
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.tokens import TokenEntry, TokenStore, parse_tokens

SOON = 60.0  # seconds


class Ray:
    """A cluster with nodes, each with a state folder, and the actor on one of them. What a query does is done here, in one event loop.

    Attributes:
        ended: the actor has ended by itself.
    """

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self._folder, self._environment = folder, environment
        self._key = ""
        self._loop = asyncio.get_running_loop()
        self.actor: SchedulerActor | None = None
        self.ended = asyncio.Event()

    def begin(self, node: str) -> None:
        self._environment.setenv("GPUVIRT_STATE", str(self._folder / node))
        self.actor = SchedulerActor(self._key, alone=1000.0, address=lambda: "127.0.0.1", end=self.ended.set)

    async def killed(self) -> None:
        """With its process."""
        if self.actor is not None and self.actor._service is not None and self.actor._watch is not None:
            self.actor._watch.cancel()
            await self.actor._service.close()
        self.actor = None

    async def _call(self, asked: dict[str, Any]) -> dict[str, Any]:
        said = asked["said"]
        if asked["method"] == "join":
            if not self._key:
                self._key = asked["key"]
                self.begin("node")
            if self._key == asked["key"]:
                said = [{**said[0], "secret": asked["secret"], "tokens": asked["tokens"]}]
        if self.actor is None:
            raise NoScheduler("there is no actor")
        answer: dict[str, Any] = await getattr(self.actor, asked["method"])(*said)
        if "answer" not in answer:
            raise (NotYet if answer.get("later") else GpuvirtError)(answer["error"])
        found: dict[str, Any] = answer["answer"]
        return found

    def host(self, name: str, monkeypatch: pytest.MonkeyPatch) -> Host:
        return Host(name, self._folder / name, self.call, monkeypatch)

    def call(self, asked: dict[str, Any]) -> dict[str, Any]:
        """In the place of a query. From other threads than the loop's."""
        return asyncio.run_coroutine_threadsafe(self._call(asked), self._loop).result(SOON)


class Host:
    """A host of the cluster. Its tokens, until it is told of a pool's, are its user's."""

    def __init__(self, name: str, state: Path, call: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.state, self.folder = name, state, state / "ray"
        self._by_ray = ByRay("auto", self.folder, call=call)
        self._environment = monkeypatch

    def own(self) -> TokenStore:
        return TokenStore(self.state)

    async def ask(self, epoch: int = 0, hosts: tuple[str, ...] = ()) -> Found:
        """Asks, and keeps what it is told."""
        self._environment.setenv("GPUVIRT_STATE", str(self.state))
        found = await asyncio.to_thread(self._by_ray.ask, epoch, hosts)
        keep(self.folder, found[0])
        return found

    async def forward(self, sender: TokenEntry, op: str, **said: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._by_ray.forward, sender, op, said)

    @contextlib.asynccontextmanager
    async def member(self, found: Found) -> AsyncIterator[PoolHost]:
        """A member of the pool, once it is one."""
        host = PoolHost(self.name, f"tcp://{self.name}:7070", TokenStore(self.folder), found, self._by_ray)
        member = host.policy(PolicyMachine([1 << 30]))
        sessions: Any = SimpleNamespace(
            lease=None, leases=(), place_here=None, finish=None, launch_ended_elsewhere=None, carry_out=lambda _: None, migrating={}, departed={}
        )
        host.serve(sessions)
        await host.start(sessions, 1, "127.0.0.1", 0, 1024)
        try:
            async with asyncio.timeout(SOON):
                while not member.up:
                    await asyncio.sleep(0.02)
            yield host
        finally:
            await host.close()


@contextlib.asynccontextmanager
async def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ray]:
    ray = Ray(folder, monkeypatch)
    try:
        yield ray
    finally:
        await ray.killed()


def names(store: TokenStore | None) -> list[str]:
    assert store is not None
    return [entry.name for entry in store.entries()]


def test_the_first_host_begins_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are the pool's; another one's stay its user's, and are told to nobody."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak, elm = ray.host("oak", monkeypatch), ray.host("elm", monkeypatch)
            (first, where), (second, _) = await oak.ask(), await elm.ask()
            assert where == first.host == "127.0.0.1" and first == second
            assert first.server.encode() == oak.own().server_secret != elm.own().server_secret
            assert kept(elm.folder) is not None and parse_tokens(first.tokens)[1] == oak.own().entries()
            assert elm.own().server_secret not in b"".join(f.read_bytes() for f in (tmp_path / "node").rglob("*") if f.is_file())
            async with oak.member(await oak.ask()) as one, elm.member(await elm.ask()) as other:
                assert one.member is not None and other.member is not None
                async with asyncio.timeout(SOON):
                    while {entry.name for entry in one.member.hosts} != {"oak", "elm"} != {entry.name for entry in other.member.hosts}:
                        await asyncio.sleep(0.02)

    asyncio.run(run())


def test_a_scheduler_on_another_node_begins_with_what_hosts_of_the_pool_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with what another host has. Its epoch is higher; a token that has been revoked meanwhile stays so, whoever asks first."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak, elm, ash = (ray.host(name, monkeypatch) for name in ("oak", "elm", "ash"))
            before = await oak.ask()
            await elm.ask()
            admin = oak.own().entries()[0]
            await elm.forward(admin, "token_create", name="guest")
            assert names(kept(elm.folder)) == ["default", "guest"] and names(kept(oak.folder)) == ["default"]
            await ray.killed()
            with pytest.raises(NoScheduler):
                await oak.ask()
            ray.begin("other")
            with pytest.raises(NotYet, match="first a host has to join that has been of it"):
                await ash.ask()
            await oak.ask(epoch=7)
            assert names(kept(oak.folder)) == ["default"], "what it has itself is all that is known there yet"
            for host in (elm, oak, ash):
                after = await host.ask()
                assert names(kept(host.folder)) == ["default", "guest"]
            assert after[0].server == before[0].server and after[0].key != before[0].key
            await ash.forward(admin, "token_revoke", which="guest")
            await oak.ask()
            await ray.killed()
            ray.begin("node")  # where it has been, which has the guest
            for host in (elm, oak, elm):
                await host.ask()
            assert names(kept(elm.folder)) == ["default"]

    asyncio.run(run())


def test_each_scheduler_is_later_than_what_a_host_has_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the clock of its node is behind, or it has begun before it hears of it."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak = ray.host("oak", monkeypatch)

            def epoch() -> int:
                assert ray.actor is not None and ray.actor._service is not None
                return ray.actor._service.scheduler.epoch

            now = time.time_ns() // 1_000_000
            await oak.ask()
            first = epoch()
            assert first >= now
            await oak.ask(epoch=first)
            assert epoch() == first, "it is this one that the host has seen"
            await oak.ask(epoch=first + 10**9)
            assert epoch() == first + 10**9 + 1
            await ray.killed()
            ray.begin("node")
            await oak.ask(epoch=first + 10**9 + 1)
            assert epoch() == first + 10**9 + 2

    asyncio.run(run())


def test_nothing_is_decided_until_the_hosts_that_were_there_have_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node that knows of none the host that asks first tells which."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak = ray.host("oak", monkeypatch)
            await oak.ask(hosts=("oak", "elm"))
            assert ray.actor is not None and ray.actor._service is not None
            assert ray.actor._service.scheduler._expected == {"oak", "elm"}

    asyncio.run(run())


def test_requests_about_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are the actor's, wherever they are asked: an admin's only, and of a token that is still one."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak, elm = ray.host("oak", monkeypatch), ray.host("elm", monkeypatch)
            admin = oak.own().entries()[0]
            await oak.ask()
            await elm.ask()
            await elm.forward(admin, "token_create", name="guest", memory=1 << 30)
            store = kept(elm.folder)
            assert store is not None
            guest = next(entry for entry in store.entries() if entry.name == "guest")
            assert guest.memory == 1 << 30
            with pytest.raises(GpuvirtError, match="'guest' may use GPUs but not manage tokens"):
                await oak.forward(guest, "token_create", name="another")
            assert [entry["name"] for entry in (await oak.forward(admin, "token_list"))["tokens"]] == ["default", "guest"]
            await oak.forward(admin, "token_revoke", which="guest")
            with pytest.raises(GpuvirtError, match="revoked"):
                await oak.forward(guest, "token_list")

    asyncio.run(run())


def test_a_host_of_another_pool_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has sessions of that one, perhaps; nothing of it is overwritten."""

    async def run() -> None:
        async with cluster(tmp_path / "one", monkeypatch) as ray, cluster(tmp_path / "two", monkeypatch) as other:
            await ray.host("oak", monkeypatch).ask()
            elm = other.host("elm", monkeypatch)
            before = await elm.ask()
            moved = Host("elm", elm.state, ray.call, monkeypatch)
            with pytest.raises(GpuvirtError, match=r"another pool than the one of which this host has been; .* remove "):
                await moved.ask()
            store = kept(elm.folder)
            assert store is not None and store.server_secret == before[0].server.encode()

    asyncio.run(run())


def test_another_pools_key_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a host says whose it is."""

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak, elm = ray.host("oak", monkeypatch), ray.host("elm", monkeypatch)
            await oak.ask()
            elm.own().create("newer")
            said = {"version": VERSION, "epoch": 0, "hosts": [], "secret": elm.own().server_secret.decode(), "tokens": elm.own().text()}
            assert ray.actor is not None
            answer = await ray.actor.join(said)
            assert answer["error"] == "the host's key is not the one of this pool"
            assert (await oak.ask())[0].server.encode() == oak.own().server_secret

    asyncio.run(run())


def test_another_version_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak = ray.host("oak", monkeypatch)
            await oak.ask()
            monkeypatch.setattr(rendezvous, "VERSION", 1)
            with pytest.raises(GpuvirtError, match=r"install the same gpuvirt on all hosts\. It ends 1000 s after the last host"):
                await oak.ask()

    asyncio.run(run())


def test_it_ends_when_no_host_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while there is one."""
    monkeypatch.setattr("gpuvirt.cluster.on_ray.actor.LOOK_EVERY", 0.05)

    async def run() -> None:
        async with cluster(tmp_path, monkeypatch) as ray:
            oak = ray.host("oak", monkeypatch)
            found = await oak.ask()
            async with oak.member(found):
                assert ray.actor is not None
                ray.actor._alone = 0.5  # not before: the host may take longer than that to join
                await asyncio.sleep(1.5)
                assert not ray.ended.is_set()
            async with asyncio.timeout(SOON):
                await ray.ended.wait()

    asyncio.run(run())


def test_a_host_that_begins_waits_for_one_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are started at the same moment: the actor has the key of one, and the other asks first. Where there is no actor nobody waits."""
    monkeypatch.setenv("GPUVIRT_STATE", str(tmp_path))
    answers: list[GpuvirtError] = []
    asked = 0

    def call(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        raise answers.pop(0)

    def first(*told: GpuvirtError) -> int:
        nonlocal asked
        answers[:], asked = told, 0
        with pytest.raises(type(told[-1]), match="the last"):
            ByRay("auto", tmp_path / "ray", call=call).first()
        return asked

    assert first(NotYet("no"), NotYet("no"), GpuvirtError("the last")) == 3
    assert first(NoScheduler("the last")) == 1
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.0)
    assert first(NotYet("the last")) == 1


FAKE = "class exceptions:\n class RayError(Exception): pass\n"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("raise ImportError", r"Ray is not installed here: pip install 'gpuvirt\[cluster\]'"),
        (FAKE + "def init(**_): raise ConnectionError", r"no node of a Ray cluster that can be reached \(auto\): run `ray start"),
        (FAKE + "def init(**_): raise exceptions.RayError('who?')", "cannot be reached: RayError: who.$"),
        (FAKE + "def init(**_): raise RuntimeError('no\\nyes')", "cannot be reached: RuntimeError: no$"),
        ("import os; os._exit(3)", "cannot be asked: exit code 3"),
        ("import sys; print('died'); sys.exit(3)", "cannot be asked: died"),
        ("import time; time.sleep(1000)", "does not answer within 5 s"),
    ],
)
def test_what_a_query_finds_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> None:
    """Of a `ray` that is not there, or has no cluster, or dies."""
    (tmp_path / "ray.py").write_text(module + "\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GPUVIRT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(rendezvous, "LIMIT", 5.0 if "sleep" in module else SOON)
    with pytest.raises(GpuvirtError, match=text):
        asyncio.run(joining.join_pool(ServeOptions(ray="auto", port=0), 1))
