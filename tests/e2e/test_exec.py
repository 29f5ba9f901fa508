"""A program that replaces itself (exec) gets its GPU's memory anew, over each link."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, run_program

PROGRAM = Path(__file__).with_name("programs") / "replaced.py"


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_exec(own_pool: Callable[..., Server], link: str) -> None:
    """Over tcp the session of the first life waits out its grace period; it must not hold the memory meanwhile."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m")
    done = run_program(server, [sys.executable, PROGRAM, str(160 << 20)], "--link", link)
    assert (done.returncode, done.stdout) == (0, "life 1: 0\nlife 2: 0\n"), done.stderr
