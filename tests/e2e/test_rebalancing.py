"""A host that joins a pool takes programs from GPUs that several share: as many as may move, and they notice nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.test_many_hosts import SOON, STAYS, Pool, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Whose head has one GPU, and lets three leases move to a host that joins."""
    pool = Pool(tmp_path)
    pool.start("alder", 1, "--rebalance", "3", "--rack", "r1")
    yield pool
    pool.stop()


def log(pool: Pool, name: str) -> str:
    return (pool.folder / name / "serve.log").read_text()


def start(pool: Pool, programs: ExitStack, folder: Path, links: list[str]) -> list[Any]:
    """One after another: the last is the youngest."""
    return [programs.enter_context(pool.running("alder", [*STAYS, folder / "end"], "--link", link)) for link in links]


def end(started: list[Any], folder: Path) -> None:
    (folder / "end").touch()
    for program in started:
        assert program.communicate(timeout=SOON)[0] == "right\n" and program.returncode == 0


def test_programs_move_to_a_host_that_joins(pool: Pool, tmp_path: Path) -> None:
    """Of five on one GPU; the youngest is asked first, and stays, for shared memory does not leave the host."""
    with ExitStack() as programs:
        started = start(pool, programs, tmp_path, ["tcp", "tcp", "tcp", "tcp", "shm"])
        assert Counter(pool.placed("alder")) == {"alder": 5}
        pool.start("birch", 1, "--rack", "r2")
        wait_until(lambda: Counter(pool.placed("alder")) == {"alder": 3, "birch": 2}, lambda: pool.placed("alder"))
        assert re.search("which was to go to birch, stays: .*its link is shm", log(pool, "alder"))
        assert {device["rack"] for device in pool.json("birch", "devices")} == {"r1", "r2"}
        shown = " ".join(pool.shown("birch", "devices", COLUMNS="200").split())
        assert "alder (soft, rack r1)" in shown and "birch (soft, rack r2)" in shown
        end(started, tmp_path)
    wait_until(lambda: not pool.json("alder", "ps"))


@pytest.mark.wide
def test_no_more_than_may(pool: Pool, tmp_path: Path) -> None:
    """Three of nine; a host that comes after it takes from both."""
    with ExitStack() as programs:
        started = start(pool, programs, tmp_path, ["tcp"] * 9)
        pool.start("birch", 1)
        wait_until(lambda: Counter(pool.placed("alder")) == {"alder": 6, "birch": 3}, lambda: pool.placed("alder"))
        pool.start("cedar", 1)
        wait_until(lambda: Counter(pool.placed("alder")) == {"alder": 3, "birch": 3, "cedar": 3}, lambda: pool.placed("alder"))
        end(started, tmp_path)
        assert log(pool, "alder").count("went to") == 6 and "went to" not in log(pool, "birch")
