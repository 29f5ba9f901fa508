"""Sessions that together want more memory than their GPU has: whoever is idle gives way, and where nobody is they take turns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e.harness import HERE, Server, clean_environment, run_program, running, wait_until
from faults import fault

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve

ALL = 256 << 20  # bytes of the GPU
BY_HAND = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", "--idle", "0")


def right(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0 and out.startswith("right"), out + err


@pytest.mark.slow
def test_an_allocation_makes_room(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Memory that an idle session has is no reason to refuse any."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    with running(server, [build("moved"), end, "holds", "150"]) as first:
        with running(server, [build("turns"), "150", "0"]) as second:
            right(second)
        assert server.sessions()[0]["parked"] >= 150 << 20
        end.touch()
        right(first)


@pytest.mark.slow
def test_only_what_is_needed_makes_room(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A client asks for more memory than it needs, and ahead of need: nobody has to give way for that."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    with running(server, [build("moved"), end, "holds", "180"]) as holder:
        free = (256 << 20) - server.memory_used()
        for fits in (True, False):
            pieces = (free >> 20) // 10 + (-1 if fits else 1)
            with running(server, [build("turns"), str(10 * pieces), "0"]) as other:
                right(other)
            assert server.log.read_text().count("is parked") == (0 if fits else 1), free
        end.touch()
        right(holder)


@pytest.mark.slow
def test_each_waits_for_the_other(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Two that have half of what they want, and all of the memory together: the one that waits gives way too."""
    server, go = own_pool(*BY_HAND), tmp_path / "go"
    with running(server, [build("turns"), "240", "0.5", "half", go]) as first, running(server, [build("turns"), "240", "0.5", "half", go]) as second:
        go.touch()
        right(first)
        right(second)
    assert "is out of memory" not in server.log.read_text()


@pytest.mark.wide
def test_nobody_is_idle(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Programs that never stop computing have the memory in turns."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    program: list[str | Path] = [build("turns"), "150", "0", "until", end]
    with running(server, program) as first, running(server, program) as second, running(server, program) as third:
        assert server.memory_used() <= 256 << 20
        assert wait_until(lambda: server.log.read_text().count("has its memory again") >= 2)
        end.touch()
        for process in (first, second, third):
            right(process)


@pytest.mark.wide
def test_no_room(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Who cannot be parked keeps its memory, and an allocation that does not fit beside it is refused, at once."""
    server, end = own_pool(*BY_HAND, env=clean_environment(**fault("full_disk"))), tmp_path / "end"
    with running(server, [build("turns"), "150", "0", "until", end]) as first:
        began = time.monotonic()
        done = run_program(server, [build("turns"), "150", "0"])
        assert (done.returncode, done.stdout) == (3, "out of memory\n") and time.monotonic() - began < 60, done.stderr
        assert first.poll() is None
        end.touch()
        right(first)


@pytest.mark.long
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_notebooks(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Ten notebooks with two fifths of the memory each, and one program that never stops computing: all finish, with no more memory than there is."""
    server, notebook = own_pool(*BY_HAND), HERE / "programs" / "notebook.py"
    pool = resolve({"pool": server.url})
    with ExitStack() as open_ones:
        started = [open_ones.enter_context(running(server, [build("turns"), "110", "20"], "--link", link))]
        for seed in range(10):
            line: list[str | Path] = [sys.executable, notebook, "104", "3", str(seed), tmp_path / f"{seed}"]
            started.append(open_ones.enter_context(running(server, line, "--link", link)))
        while any(process.poll() is None for process in started):
            (device,) = ask_pool(pool, "devices")["devices"]
            assert device["memory_used"] <= ALL
            time.sleep(0.2)
        for process in started:
            right(process)
