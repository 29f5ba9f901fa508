"""Waits of a training loop are those of its reads: counted at 30 ms, and doubling the steps adds only the reads.

The speeds are measured by `make bench` (tests/bench/slope.py); here only counts and a deadline, and that a loop which reads in every step is caught.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import Server, run_program

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parents[1] / "bench" / "programs" / "cupy_training.py"
READ_EVERY = 50


def train(pool: Server, link: str, steps: int, *more: str, timeout: float = 120) -> dict[str, Any]:
    command = [sys.executable, PROGRAM, "--steps", str(steps), "--read-every", str(READ_EVERY), *more]
    done = run_program(pool, command, "--link", link, timeout=timeout)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["right"], figures
    return figures


def only_reads_wait(short: dict[str, Any], long: dict[str, Any]) -> bool:
    """The check itself: no more waits than reads, in both runs. Fewer where a read's answer is there before the program waits for it."""
    return all(run["waits"] <= run["reads"] for run in (short, long))


@pytest.mark.parametrize("link", ["delay(rtt=30ms,tcp)", *(pytest.param(link, marks=pytest.mark.wide) for link in ("shm", "tcp"))])
def test_a_training_loop_waits_for_what_it_reads(pool: Server, link: str) -> None:
    short, long = (train(pool, link, steps) for steps in (100, 200))
    assert (short["reads"], long["reads"]) == (2, 4)
    assert only_reads_wait(short, long), (short, long)
    if link.startswith("delay"):  # few answers are there before 30 ms have passed: reads are counted
        assert short["waits"] >= 1 and long["waits"] >= 2


def test_a_read_in_every_step_is_caught(pool: Server) -> None:
    short, long = (train(pool, "tcp", steps, "--extra-reads") for steps in (100, 200))
    assert not only_reads_wait(short, long), (short, long)
    assert long["waits"] >= 150  # of 200: on a busy machine an answer may be there before the program waits for it


def test_a_warm_start_from_afar(pool: Server) -> None:
    """From nothing to the first result, modules and caches known to both sides: at most 12 waits."""
    train(pool, "tcp", 50)
    assert train(pool, "delay(rtt=30ms,tcp)", 50)["waits_first"] <= 12
