"""Copies from memory that the program lends to them, from near and from afar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, run_program

LINKS = ("tcp", "shm", "tcp(channels=3)", "delay(rtt=20ms,tcp)")


@pytest.mark.parametrize("link", LINKS)
def test_pinned_memory(pool: Server, build: Callable[..., Path], link: str) -> None:
    """Overwritten right after its event, given back while it is sent, written by what comes before, and past a kernel that waits for it."""
    assert_right(run_program(pool, [build("pinned")], "--link", link, timeout=120))


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_an_early_overwrite_is_noticed(pool: Server, build: Callable[..., Path], link: str) -> None:
    """The test of the test: memory that is sent from where it lies shows what the program does to it too early."""
    done = run_program(pool, [build("pinned"), "early"], "--link", link, timeout=120)
    assert (done.returncode, done.stdout) == (0, "noticed\n"), done.stderr


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_pinned_memory_on_a_device_out_of_reach(chained: Server, build: Callable[..., Path], link: str) -> None:
    """Device memory that only the device itself can copy, as a real one's."""
    assert_right(run_program(chained, [build("pinned")], "--link", link, timeout=240))
