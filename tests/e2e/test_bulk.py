"""Copies from the program's memory that are sent by reference, over local and delayed links."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.cutter import Cutter
from e2e.harness import Server, assert_right, run_program
from e2e.test_resume import through

pytestmark = pytest.mark.slow

LINKS = ("tcp", "shm", "tcp(channels=3)", "delay(rtt=20ms,tcp)")


@pytest.mark.parametrize("link", LINKS)
def test_pinned_memory(pool: Server, build: Callable[..., Path], link: str) -> None:
    """Overwritten right after its event, given back while it is sent, written by what comes before, and past a kernel that waits for it."""
    assert_right(run_program(pool, [build("pinned")], "--link", link, timeout=120))


@pytest.mark.parametrize("link", ["tcp", pytest.param("shm", marks=pytest.mark.wide)])
def test_more_than_a_worker_keeps(pool: Server, build: Callable[..., Path], link: str) -> None:
    """What is sent late comes to a stream that takes it; nobody waits for one who waits for him."""
    assert_right(run_program(pool, [build("pinned"), "much"], "--link", link, timeout=240))


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_an_early_overwrite_is_noticed(pool: Server, build: Callable[..., Path], link: str) -> None:
    """The test of the test: memory that is sent from where it lies shows what the program does to it too early."""
    done = run_program(pool, [build("pinned"), "early"], "--link", link, timeout=120)
    assert (done.returncode, done.stdout) == (0, "noticed\n"), done.stderr


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_pinned_memory_on_a_device_out_of_reach(chained: Server, build: Callable[..., Path], link: str) -> None:
    """Device memory that only the device itself can copy, as a real one's."""
    assert_right(run_program(chained, [build("pinned")], "--link", link, timeout=240))


@pytest.mark.wide
@pytest.mark.parametrize("link", ["tcp", "tcp(channels=3)"])
def test_pinned_memory_through_cuts(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    """What is lent is sent again from where it lies, from the byte that is missing."""
    server = own_pool()
    cutter = Cutter(int(server.info["port"]))
    generator = random.Random(7)
    try:
        assert_right(through(server, cutter, [build("pinned")], link))
        recorded = list(cutter.carried)
        for _ in range(3):
            cutter.carried = [0, 0]
            for direction in (0, 1):
                cutter.plan[direction][:] = sorted(generator.randrange(recorded[direction]) for _ in range(8))
            assert_right(through(server, cutter, [build("pinned")], link))
        bulk = [cut for cut in cutter.cuts if cut.label == "channel" and cut.carried > 2000]
        assert len(bulk) >= 10 and {cut.direction for cut in bulk} == {0, 1}, cutter.cuts
    finally:
        cutter.close()
