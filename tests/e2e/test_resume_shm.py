"""Sessions over shared memory whose socket is cut: the program goes on; a client that is dead is told from one that was cut."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, kill_worker, run_program, running, wait_until

pytestmark = pytest.mark.slow

PIDFD_GETFD = 438  # the system call's number, the same everywhere


def cut(pid: int) -> int:
    """Shuts down a worker's connected unix sockets that have a name, its client's among them. Returns how many."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    found = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                fd = libc.syscall(PIDFD_GETFD, process, int(name), 0)
                if fd < 0:
                    continue
                with socket.socket(fileno=fd) as sock:
                    if sock.family == socket.AF_UNIX and sock.getsockname():
                        sock.shutdown(socket.SHUT_RDWR)
                        found += 1
    finally:
        os.close(process)
    return found


def stopped(pid: int) -> bool:
    """Whether all of a process's threads are."""
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def test_cuts(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Copies, launches and host functions while the socket is cut: each is done once, and the program says what it says uncut."""
    server = own_pool()
    before = server.memory_used()
    begin = tmp_path / "begin"
    begin.touch()
    program: list[str | Path] = [build("once"), "4000", begin]
    reference = run_program(server, program, "--link", "shm")
    assert reference.returncode == 0, reference.stderr
    begin.unlink()
    cuts = 0
    with running(server, program, "--link", "shm") as process:
        (worker,) = server.worker_pids()
        begin.touch()
        while process.poll() is None and cuts < 30:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                cuts += cut(worker)
            time.sleep(0.03)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), err
    assert cuts >= 5 and server.url in err and "was lost" in err, err
    assert wait_until(lambda: server.sessions() == [] and server.memory_used() == before)


def test_killed(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """The worker knows its client's process: its session does not wait for the grace period, which is a minute."""
    server = own_pool()
    before = server.memory_used()
    with running(server, [build("busy"), "wait"], "--link", "shm") as process:
        (session,) = server.sessions()
        assert session["link"] == "shm"
        os.kill(int(session["pid"]), signal.SIGKILL)
        process.communicate(timeout=60)
        assert wait_until(lambda: server.sessions() == [] and server.memory_used() == before, 30)


def test_away_for_too_long(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """A cut while the client is stopped: its process lives, so the session waits, and no longer than the grace period."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "5s")
    with running(server, [build("busy"), "wait"], "--link", "shm") as process:
        (session,) = server.sessions()
        os.kill(int(session["pid"]), signal.SIGSTOP)
        try:
            assert wait_until(lambda: stopped(int(session["pid"]))), "or it comes back at once"
            assert cut(int(session["worker_pid"])) == 1
            time.sleep(0.7)
            assert Path(f"/proc/{session['worker_pid']}").exists(), "it waits for its client"
            assert wait_until(lambda: server.sessions() == [], 30)
        finally:
            os.kill(int(session["pid"]), signal.SIGCONT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 3 and "cuda error" in out, out + err
    assert "no such session" in err or "grace period" in err, err


def test_worker_killed(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """The client asks the server, who knows no such session any more: an error at once, not a wait."""
    err = kill_worker(own_pool(), build("busy"), "wait", "shm")
    assert "no such session" in err, err
