"""A session has of a GPU's memory what it may have, to the byte, by every way to allocate; and not a byte more by any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, run_program, wait_until

pytestmark = pytest.mark.slow
LIMIT = 98 << 20  # bytes: 49 units in which device memory is had


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_to_the_byte(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    """It has the whole units of 2 MiB in what it asks for. The server's figure of the GPU's memory in use never says more either."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g")
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.01):
            most = max(most, server.memory_used())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        done = run_program(server, [build("memory_limit"), str(LIMIT)], "--memory", str(LIMIT + 1000), "--link", link)
    finally:
        over.set()
        looking.join()
    assert_right(done)
    assert 0 < most <= LIMIT
    assert wait_until(lambda: server.memory_used() == 0)


def test_what_the_server_allows(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """Whatever a program asks for, and if it asks for nothing."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--memory-per-session", str(LIMIT + 1000))
    assert_right(run_program(server, [build("memory_limit"), str(LIMIT)]))
