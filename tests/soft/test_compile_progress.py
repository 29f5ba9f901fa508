"""When the user is told that kernels are being compiled, and what."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from gpuvirt.soft.host import compile_progress
from gpuvirt.soft.host.compile_progress import CompileProgress


class Clock:
    """In the place of time.monotonic: `now` says what it is."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    own = Clock()
    monkeypatch.setattr(compile_progress, "time", own)
    return own


def test_after_a_second_and_each_time_after_twice_as_long(clock: Clock) -> None:
    """Seconds in which nothing is compiled do not count, and those in which several kernels are count once."""
    progress = CompileProgress()
    for begin, kernel, seconds, wanted in (
        (100, "first", 0.4, None),
        (200, "second", 0.4, None),
        (300, "third", 0.4, "5 are ready after 1 s, now third"),
        (400, "fourth", 0.4, None),
        (500, "fifth", 3.0, "9 are ready after 5 s, now fifth"),
        (600, "sixth", 2.0, None),
        (700, "seventh", 2.0, "13 are ready after 9 s, now seventh"),
    ):
        clock.now = begin
        with progress.compiling(kernel):
            assert progress.line() is None
            with progress.compiling("one beside it"):
                clock.now += seconds
            line = f"compiling kernels for software GPUs: {wanted}" if wanted else None
            assert progress.line() == line and progress.line() is None
    assert progress.line() is None


def test_what_fails_is_not_ready(clock: Clock) -> None:
    progress = CompileProgress()
    with pytest.raises(ValueError), progress.compiling("bad"):
        raise ValueError
    with progress.compiling("_Z" + "n" * 100):
        clock.now += 1
        assert progress.line() == f"compiling kernels for software GPUs: 0 are ready after 1 s, now _Z{'n' * 55}..."


def test_a_thread_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the compilation goes on, however long it was quiet before."""
    monkeypatch.setattr(compile_progress, "FIRST", 0.01)
    progress, said = CompileProgress(), queue.SimpleQueue[str]()
    progress.start(said.put)
    for name in ("one", "other"):
        with progress.compiling(name):
            while name not in said.get(timeout=100):
                pass
    assert not [thread for thread in threading.enumerate() if thread.name == "compile-progress" and not thread.daemon]
