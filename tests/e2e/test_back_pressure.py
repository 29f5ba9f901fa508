"""Back-pressure: memory of client and worker stays below bounds that follow from the limits, and results are right."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, running

pytestmark = pytest.mark.slow

MIB = 1 << 20
# The limits, as the sources have them. The client keeps sent records (64 MiB, in memory of up to twice that, beside the old while it grows) and a
# ring of them, copies of pageable memory (256 MiB), and posts so much behind a host function (64 MiB). The worker stages copies (256 MiB and one
# command's 64) and early payloads (64 MiB), sets records aside (16 MiB, or as many as a client may post behind a host function), and queues 16,384
# commands, here of 4 KiB each. SLACK is for allocators, thread stacks and measuring.
KEPT, COPIES, STAGED, EARLY, QUEUED, BEHIND_HOST, SLACK = 193 * MIB, 256 * MIB, 320 * MIB, 64 * MIB, 16384 * 5120, 64 * MIB, 64 * MIB
DEVICE = 24 * 8 * MIB  # the program's own, on a software GPU
BOUNDS = {
    "launches": (KEPT + SLACK, 16 * MIB + QUEUED + SLACK),
    "host": (KEPT + SLACK, BEHIND_HOST + QUEUED + SLACK),
    "copies": (COPIES + SLACK, DEVICE + STAGED + EARLY + SLACK),
}


def rss(pid: int) -> int:
    """Resident bytes of memory that is the process's own."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields.get("RssAnon", "0 kB").split()[0]) * 1024


def program_under(launcher: int) -> int:
    """The program that `gpuvirt run` started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


class Watch(threading.Thread):
    """Samples how much processes grow."""

    def __init__(self, **pids: int) -> None:
        super().__init__(daemon=True)
        self.pids, self.over = pids, threading.Event()
        self.first = {name: rss(pid) for name, pid in pids.items()}
        self.most = dict(self.first)
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.02):
            for name, pid in self.pids.items():
                self.most[name] = max(self.most[name], rss(pid))

    def growth(self) -> dict[str, int]:
        self.over.set()
        self.join()
        return {name: self.most[name] - self.first[name] for name in self.pids}


def finish(program: subprocess.Popen[str], seconds: float) -> int:
    """Waits for the program's end; the bytes it flooded."""
    out, err = program.communicate(timeout=seconds)
    lines = out.splitlines()
    assert program.returncode == 0 and lines[-1:] == ["right"], out + err
    return int(lines[0].split()[1])


@pytest.mark.parametrize(
    ("what", "link"),
    [("launches", "tcp"), ("copies", "shm"), *(pytest.param(*pair, marks=pytest.mark.wide) for pair in [("launches", "shm"), ("copies", "tcp")])]
    + [pytest.param("host", link, marks=pytest.mark.wide) for link in ("tcp", "shm")],
)
def test_a_flood(own_pool: Callable[..., Server], build: Callable[..., Path], what: str, link: str) -> None:
    """Far more launches or copies than the device can take, while it is busy with one kernel, or waits for a host function."""
    server = own_pool()
    with running(server, [build("pressure"), what, "3"], "--link", link) as program:
        (worker,) = server.worker_pids()
        watch = Watch(client=program_under(program.pid), worker=worker)
        flooded = finish(program, 100)
        growth = watch.growth()
    client, worker_bound = BOUNDS[what]
    assert flooded > 1.4 * max(client, worker_bound), "the flood was none"
    assert growth["client"] < client and growth["worker"] < worker_bound, {name: size // MIB for name, size in growth.items()}


@pytest.mark.parametrize("link", ["tcp", pytest.param("shm", marks=pytest.mark.wide)])
def test_a_flood_of_events(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    """Every event asks to be told of; behind a kernel that takes long, they are told of when it is over."""
    server = own_pool()
    with running(server, [build("pressure"), "events", "2"], "--link", link) as program:
        (worker,) = server.worker_pids()
        watch = Watch(client=program_under(program.pid), worker=worker)
        flooded = finish(program, 100)
        growth = watch.growth()
    assert flooded > 64 * MIB
    assert growth["client"] < KEPT + SLACK and growth["worker"] < 16 * MIB + 16384 * 1024 + SLACK, {
        name: size // MIB for name, size in growth.items()
    }


@pytest.mark.parametrize(
    ("what", "link"),
    [("results", "tcp"), *(pytest.param(*pair, marks=pytest.mark.wide) for pair in [("results", "shm"), ("events", "tcp"), ("events", "shm")])],
)
def test_a_client_that_stands_still(own_pool: Callable[..., Server], build: Callable[..., Path], what: str, link: str) -> None:
    """Stopped for longer than the kernel waits for a dead host, while data or completions flow to it: the worker piles up nothing, and it goes on."""
    server = own_pool()
    # The results flow for so long that the program is not over before a busy machine lets the test stop it; the time stopped is part of that.
    seconds = "10" if what == "results" else "2"
    with running(server, [build("pressure"), what, seconds], "--link", link) as program:
        (worker,) = server.worker_pids()
        pid = program_under(program.pid)
        watch = Watch(worker=worker)
        time.sleep(0.3)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(8)
        finally:
            os.kill(pid, signal.SIGCONT)
        finish(program, 60)
        growth = watch.growth()
    assert growth["worker"] < STAGED + SLACK, growth["worker"] // MIB


def test_a_worker_that_stands_still(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """The client's turn to wait, with no more memory than it may take."""
    server = own_pool()
    with running(server, [build("pressure"), "launches", "1"], "--link", "tcp") as program:
        (worker,) = server.worker_pids()
        watch = Watch(client=program_under(program.pid))
        os.kill(worker, signal.SIGSTOP)
        try:
            time.sleep(3)
        finally:
            os.kill(worker, signal.SIGCONT)
        finish(program, 60)
        assert watch.growth()["client"] < KEPT + SLACK
