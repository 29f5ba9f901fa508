"""Green contexts, device resources and events of whole contexts, by a CUDA program; and what such events wait for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, wait_until
from faults import fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("green_contexts")


@pytest.mark.parametrize("link", ["shm", "tcp", pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.wide)])
def test_everything(pool: Server, program: Path, link: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [program], "--gpus", "2", "--link", link))
    assert wait_until(lambda: pool.memory_used() == 0)


def test_by_the_driver(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    assert_right(run_program(chained, [program], "--gpus", "2"))


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program], "--gpus", "2")
    assert done.returncode == 4 and "first(v) == 3" in done.stdout, done.stdout + done.stderr
