"""What every engine promises to the scheduler (gpuvirt.server.workers.engine). An engine is a row of ENGINES."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import sessions
from gpuvirt.server.devices import Device, Inventory
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.workers.engine import EmbeddedEngine, Engine
from gpuvirt.server.workers.pool import WorkerPool
from gpuvirt.server.workers.template import Template
from gpuvirt.server.workers.worker_process import Process, WorkerProcess

STUB = [sys.executable, "-P", str(Path(__file__).with_name("fake_worker.py"))]
INVENTORY = Inventory("soft", (Device("one", 1 << 30), Device("two", 1 << 30)))
SOON = 60.0  # seconds within which a busy machine starts a worker, and sees one end

Engines = Callable[..., contextlib.AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def embedded(*options: str) -> AsyncIterator[Engine]:
    """options: of fake_worker.py."""
    pool = WorkerPool("soft", STUB, options)
    try:
        yield EmbeddedEngine(INVENTORY, pool)
    finally:
        await pool.close()


def lives(worker: WorkerProcess) -> bool:
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def a_worker_is_one_sessions_alone(engines: Engines) -> None:
    """Those of one moment, and those that come after others have ended."""
    async with engines() as engine:
        workers = await asyncio.gather(*(engine.take(SOON) for _ in range(3)))
        assert all(worker.ready.done() and lives(worker) for worker in workers)
        for worker in workers[:2]:
            worker.kill()
            async with asyncio.timeout(SOON):
                await worker.gone
        workers += [await engine.take(SOON)]
        assert len({worker.pid for worker in workers}) == 4


async def one_that_is_killed_is_gone(engines: Engines) -> None:
    async with engines() as engine:
        one, other = await engine.take(SOON), await engine.take(SOON)
        one.kill()
        async with asyncio.timeout(SOON):
            await one.gone
        assert not lives(one) and lives(other)


async def whoever_is_expected_anybody_gets_one(engines: Engines) -> None:
    async with engines() as engine:
        for name in ("a", "b", "a"):
            engine.expect(Tenant(name, bytes(32)))
            assert lives(await engine.take(SOON))


async def what_cannot_start_says_why(engines: Engines) -> None:
    async with engines("--die") as engine:
        with pytest.raises(GpuvirtError, match="told to fail"):
            await engine.take(SOON)


async def no_longer_than_the_limit(engines: Engines) -> None:
    async with engines("--slow", "1000") as engine:
        begin = asyncio.get_running_loop().time()
        with pytest.raises(GpuvirtError, match=r"did not start within 1 s"):
            await engine.take(1)
        assert asyncio.get_running_loop().time() - begin < SOON


async def the_gpus_do_not_change(engines: Engines) -> None:
    async with engines() as engine:
        before = engine.inventory
        await engine.take(SOON)
        assert engine.inventory == before and before.devices


async def another_daemons_worker_goes_on(engines: Engines) -> None:
    """With its session; its end is seen, though nobody can say how it ended."""
    forks = Template(STUB, "soft")
    process = await forks.fork()
    async with engines() as engine:
        passed = Process(process.pid, os.dup(process.pidfd), socket.socket(fileno=os.dup(process.socket.fileno())), None)
        worker = engine.adopt(passed, 5 << 20, "")
        assert worker.pid == process.pid and worker.memory_limit == 5 << 20 and worker.ready.done()
        assert (await engine.take(SOON)).pid != worker.pid
        worker.kill()
        async with asyncio.timeout(SOON):
            await worker.gone
        assert not lives(worker)
    forks.close()


Promise = Callable[[Engines], Awaitable[None]]
CONTRACT: list[Promise] = [
    a_worker_is_one_sessions_alone,
    one_that_is_killed_is_gone,
    whoever_is_expected_anybody_gets_one,
    what_cannot_start_says_why,
    no_longer_than_the_limit,
    the_gpus_do_not_change,
    another_daemons_worker_goes_on,
]
ENGINES: dict[str, Engines] = {"embedded": embedded}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("promise", CONTRACT, ids=[promise.__name__ for promise in CONTRACT])
def test_promise(promise: Promise, engine: str) -> None:
    asyncio.run(promise(ENGINES[engine]))


class Twice(EmbeddedEngine):
    """Gives one worker to two sessions."""

    _given: WorkerProcess | None = None

    async def take(self, limit: float) -> WorkerProcess:
        self._given = self._given or await super().take(limit)
        return self._given


class Impatient(EmbeddedEngine):
    """Gives a worker that is not ready."""

    async def take(self, limit: float) -> WorkerProcess:
        return WorkerProcess(await self._workers._fork(None), lambda _: None)


class Forgetful(EmbeddedEngine):
    """Forgets what an adopted worker may take."""

    def adopt(self, process: Process, memory_limit: int, cgroup: str) -> WorkerProcess:
        return super().adopt(process, 0, cgroup)


@pytest.mark.parametrize(
    ("faulty", "promise"),
    [(Twice, a_worker_is_one_sessions_alone), (Impatient, a_worker_is_one_sessions_alone), (Forgetful, another_daemons_worker_goes_on)],
)
def test_a_broken_promise_is_noticed(faulty: type[EmbeddedEngine], promise: Promise, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    if faulty is Impatient:  # however slow this process is, none is ready before it looks
        hold.touch()

    @asynccontextmanager
    async def engine(*options: str) -> AsyncIterator[Engine]:
        pool = WorkerPool("soft", STUB, [*options, "--hold", str(hold)])
        try:
            yield faulty(INVENTORY, pool)
        finally:
            hold.unlink(missing_ok=True)  # the pool does not know of Impatient's workers, which end by themselves
            await pool.close()

    with pytest.raises(AssertionError):
        asyncio.run(promise(engine))


def test_the_scheduler_asks_nothing_else() -> None:
    """Sessions know the engine by what it promises, and no pool of workers."""
    text = Path(sessions.__file__).read_text()
    assert set(re.findall(r"\bengine\.(\w+)", text.replace("_engine.", "engine."))) == {name for name in vars(Engine) if not name.startswith("_")}
    assert "workers.pool" not in text
