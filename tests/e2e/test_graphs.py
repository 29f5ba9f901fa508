"""Stream capture and graphs, by a CUDA program; and what a launch waits for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import HERE, Server, assert_right, clean_environment, run_program
from faults import fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("graphs")


@pytest.mark.parametrize("link", ["shm", "tcp", "delay(rtt=5ms,tcp)"])
def test_everything(pool: Server, program: Path, link: str) -> None:
    assert_right(run_program(pool, [program], "--link", link))


def test_by_the_driver(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    assert_right(run_program(chained, [program]))


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program])
    assert done.returncode == 4 and "pinned[i] == 3 * round" in done.stdout, done.stdout + done.stderr


def test_a_launch_waits_for_nothing(pool: Server, tmp_path: Path) -> None:
    """CuPy's graphs, 3 kernels each: a thousand launches are three thousand kernels, but no wait."""
    figures = []
    for more in (0, 1000):
        stats = tmp_path / "stats"
        line = [sys.executable, HERE / "programs" / "graphs.py", str(more)]
        assert_right(run_program(pool, line, "--link", "delay(rtt=5ms,tcp)", f"--stats={stats}"))
        figures.append(json.loads(stats.read_text()))
    few, many = figures
    assert many["launches"] == few["launches"] + 3000
    assert many["waits"] <= few["waits"] + 2  # for what is still under way at the end, and what a cache had the one time only
