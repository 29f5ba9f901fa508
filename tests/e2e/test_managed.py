"""Managed memory, by a CUDA program that reads and writes it on both sides; pages watched by userfaultfd and by signals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, wait_until
from faults import fault

from gpuvirt.client.userfault import may_watch_pages

pytestmark = pytest.mark.slow

PAGERS = ["signal", pytest.param("userfault", marks=pytest.mark.skipif(not may_watch_pages(), reason="this user may not use userfaultfd"))]


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("managed")


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("link", ["shm", "tcp", pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.wide)])
def test_everything(pool: Server, program: Path, link: str, pager: str) -> None:
    assert wait_until(lambda: pool.memory_used() == 0)
    assert_right(run_program(pool, [program], "--link", link, GPUVIRT_PAGER=pager))
    assert wait_until(lambda: pool.memory_used() == 0)


def test_by_the_driver(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver, which places memory itself.

    It may choose addresses that the program uses already, both being random: then loading the program's managed variable is refused with that reason.
    """
    for _ in range(3):
        done = run_program(chained, [program])
        if "where the server's driver placed it" not in done.stderr:
            break
    assert_right(done)


def test_touches_in_order_take_more_at_a_time(pool: Server, program: Path) -> None:
    """36 MiB are written, and fetched, three times: by pages it would be 28,000 waits."""
    done = run_program(pool, [program, "in_turn"], "--link", "delay(rtt=5ms,tcp)", "--stats")
    assert_right(done)
    assert json.loads(done.stderr.splitlines()[-1].removeprefix("gpuvirt: "))["waits"] <= 100


def test_what_was_prefetched_needs_no_wait(pool: Server, program: Path) -> None:
    """A wait for each of twenty rounds, and not a second one for what the host then reads."""
    done = run_program(pool, [program, "prefetched"], "--link", "delay(rtt=5ms,tcp)", "--stats")
    assert_right(done)
    assert json.loads(done.stderr.splitlines()[-1].removeprefix("gpuvirt: "))["waits"] <= 35


def test_without_the_preload_system_calls_say_so(pool: Server, program: Path) -> None:
    """As in a process that `gpuvirt run` did not start."""
    done = run_program(pool, ["env", "-u", "LD_PRELOAD", program, "system_calls"], GPUVIRT_PAGER="signal")
    assert done.returncode == 4 and "start it with gpuvirt run" in done.stderr, done.stdout + done.stderr


def test_a_server_that_is_lost_ends_the_program_that_reads(own_pool: Callable[..., Server], program: Path) -> None:
    """What only the GPU had is gone: as with a GPU that is gone, the access is a bus error, and the reason is told."""
    lost = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "1s")
    done = run_program(lost, [program, "lost", str(lost.process.pid)])
    assert done.returncode == -7 or done.returncode == 128 + 7, done.stdout + done.stderr
    assert "cannot be fetched: lost the GPU server" in done.stderr, done.stderr


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    done = run_program(broken, [program])
    assert done.returncode == 4 and "v[i] == (round + 1)" in done.stdout, done.stdout + done.stderr
