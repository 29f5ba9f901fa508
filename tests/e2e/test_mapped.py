"""Host memory that kernels use, also while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, wait_until
from e2e.test_managed import PAGERS
from faults import fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("mapped")


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("link", ["shm", "tcp", pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.wide)])
def test_everything(pool: Server, program: Path, link: str, pager: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [program], "--link", link, GPUVIRT_PAGER=pager))
    assert wait_until(lambda: pool.memory_used() == 0)


@pytest.mark.parametrize("link", ["shm", "tcp", pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.long)])
def test_registered(pool: Server, build: Callable[..., Path], link: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [build("registered")], "--link", link))
    assert wait_until(lambda: pool.memory_used() == 0)


def test_registered_by_the_driver(chained: Server, build: Callable[..., Path]) -> None:
    assert_right(run_program(chained, [build("registered")]))


@pytest.mark.parametrize("case", ["released", "served", "by_a_host_function", "elsewhere"])
def test_by_the_driver(chained: Server, program: Path, case: str) -> None:
    """Only what was allocated for it: where the driver places memory, other host memory cannot be mapped."""
    assert_right(run_program(chained, [program, case, "allocated"]))


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program, "asked_for"])
    assert done.returncode == 4 and "v[i] == 2 * round - 1" in done.stdout, done.stdout + done.stderr
