"""A program that repeats the same work does not grow, and neither does its worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, running
from e2e.test_back_pressure import MIB, Watch, program_under

pytestmark = pytest.mark.slow

# What allocators keep, and what caches are filled with.
SLACK = 24 * MIB
SHORT = {"memory": 40_000, "events": 120_000, "modules": 400, "copies": 300}
LONG = {"memory": 1_000_000, "events": 1_000_000, "modules": 10_000, "copies": 5_000}


def stays_flat(server: Server, program: Path, what: str, count: int, link: str, go: Path, seconds: float) -> None:
    """Watches the program and its worker from the first tenth on, where the program waits until that is so."""
    with running(server, [program, what, str(count), go], "--link", link) as launcher:
        (worker,) = server.worker_pids()
        watch = Watch(client=program_under(launcher.pid), worker=worker)
        go.touch()
        out, err = launcher.communicate(timeout=seconds)
        grown = watch.growth()
    assert (launcher.returncode, out) == (0, "right\n"), out + err
    assert max(grown.values()) < SLACK, {name: size // MIB for name, size in grown.items()}


@pytest.mark.parametrize("link", [pytest.param("tcp", marks=pytest.mark.wide), "shm"])
@pytest.mark.parametrize("what", SHORT)
def test_short(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, what: str, link: str) -> None:
    stays_flat(own_pool(), build("flat"), what, SHORT[what], link, tmp_path / "go", 60)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("link", ["tcp", "shm"])
@pytest.mark.parametrize("what", LONG)
def test_long(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, what: str, link: str) -> None:
    stays_flat(own_pool(), build("flat"), what, LONG[what], link, tmp_path / "go", 800)
