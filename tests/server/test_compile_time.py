"""A kernel that takes too long to compile ends its session, its client hears why, and nobody else notices."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from e2e.harness import clean_environment, run_program, start_server
from server.test_host_memory import COMPILES

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.host import compile_time


@pytest.mark.slow
def test_a_compilation_without_an_end_ends_its_session_alone(tmp_path: Path) -> None:
    """It has an end here, but far beyond the limit. The server finds nothing that was compiled before."""
    environment = clean_environment(GPUVIRT_SOFT_COMPILE_LIMIT="2", XDG_CACHE_HOME=str(tmp_path / "cache"))
    server = start_server(tmp_path, "--backend", "soft", "--gpu-memory", "16m", env=environment)
    try:
        large = run_program(server, [sys.executable, "-c", COMPILES, "80000"])
        assert large.stdout != "0\n", large.stdout + large.stderr
        assert "took longer to compile" in large.stderr and "GPUVIRT_SOFT_COMPILE_LIMIT" in large.stderr, large.stderr
        small = run_program(server, [sys.executable, "-c", COMPILES, "10"])
        assert small.stdout == "0\n", small.stdout + small.stderr
    finally:
        server.stop()


def test_processor_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compilation that waits for a processor takes no time of it, one that computes does; one that is over is forgotten."""
    monkeypatch.setenv(compile_time.SETTING, "0.3")
    monkeypatch.setattr(compile_time, "LOOK", 0.02)
    watch, called = compile_time.Watch(), threading.Event()
    watch.start(called.set)
    with watch.bounded():
        time.sleep(0.6)
    until = time.thread_time() + 0.4
    while time.thread_time() < until:  # what a thread does outside is no compilation
        pass
    assert not called.is_set()
    with watch.bounded():
        while not called.is_set() and time.thread_time() < until + 20:
            pass
    assert called.is_set()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(compile_time.SETTING, text)
    with pytest.raises(GpuvirtError, match=f"{compile_time.SETTING}={text}: it is the seconds"):
        compile_time.limit()
