"""Each headline test, once with a deliberate fault that it must catch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, running, wait_until
from faults import fault

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("program", ["vector_add", "threads", "host_functions"])
def test_programs_notice_lost_launches(own_pool: Callable[..., Server], build: Callable[..., Path], program: str) -> None:
    server = own_pool("--backend", "soft", "--gpus", "2", env=clean_environment(**fault("launches")))
    with pytest.raises(AssertionError):
        assert_right(run_program(server, [build(program)], "--gpus", "2"))


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_a_silent_worker_is_not_taken_for_a_dead_one(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    """test_worker_killed would see a hang: a worker that is stopped, not dead, leaves the program waiting."""
    server = own_pool()
    with running(server, [build("busy"), "wait"], "--link", link) as program:
        (worker,) = server.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                program.communicate(timeout=2)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert program.poll() is None


def test_a_worker_that_lingers_is_noticed(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """test_client_killed would see it: a stopped worker cannot go when its client does, and its memory stays taken."""
    server = own_pool()
    before = server.memory_used()
    with running(server, [build("busy"), "sleep"]):
        (session,) = server.sessions()
        worker = int(session["worker_pid"])
        os.kill(worker, signal.SIGSTOP)
        os.kill(int(session["pid"]), signal.SIGKILL)
        time.sleep(0.5)
        assert Path(f"/proc/{worker}").exists() and server.memory_used() > before
        os.kill(worker, signal.SIGCONT)
        assert wait_until(lambda: server.memory_used() == before)
