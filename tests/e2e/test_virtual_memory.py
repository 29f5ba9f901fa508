"""Virtual memory management by a CUDA program: addresses set aside, memory mapped there, side by side and twice, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, wait_until
from faults import fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("virtual_memory")


@pytest.mark.parametrize("link", ["shm", "tcp", pytest.param("tcp(channels=2)", marks=pytest.mark.long)])
def test_everything(pool: Server, program: Path, link: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [program], "--gpus", "2", "--link", link))
    assert wait_until(lambda: pool.memory_used() == 0)


def test_where_the_driver_places_memory(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    assert_right(run_program(chained, [program], "--gpus", "2"))


@pytest.mark.long
def test_a_limit_of_its_own(pool: Server, program: Path) -> None:
    assert_right(run_program(pool, [program], "--gpus", "1", "--memory", "512m"))


@pytest.mark.parametrize("case", ["no-access", "read-only", "unmapped", "taken-away", "over-the-end"])
def test_what_may_not_be_used_is_a_fault(pool: Server, program: Path, case: str) -> None:
    """In that session alone: the next one works."""
    done = run_program(pool, [program, case])
    assert (done.returncode, done.stdout) == (0, "cudaErrorIllegalAddress\n"), done.stdout + done.stderr
    assert "illegal address" in done.stderr


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program])
    assert done.returncode == 4 and "host[i] == base" in done.stdout, done.stdout + done.stderr
    assert run_program(broken, [program, "unmapped"]).stdout == "cudaSuccess\n"
