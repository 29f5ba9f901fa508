"""Graphs that allocate, free, and write words; user objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, wait_until
from faults import fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("graph_memory")


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_everything(pool: Server, program: Path, link: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [program], "--link", link))
    assert wait_until(lambda: pool.memory_used() == 0)


def test_by_the_driver(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    assert_right(run_program(chained, [program]))


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program])
    assert done.returncode == 4 and "result() == 5 * i" in done.stdout, done.stdout + done.stderr
