"""Tells the user of a program that its kernels are being compiled, once that has taken a second, and again whenever it has taken twice as long.

The seconds are those in which at least one kernel was being compiled, from the session's start on: many short compilations are a long one to whoever
waits for them. Kernels that the cache has count for nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

FIRST = 1.0  # seconds of compiling after which it is said
NAME = 60  # characters of a kernel's name that are shown


class CompileProgress:
    """The kernels that are being compiled. One a process; says nothing before `start`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: list[str] = []  # kernels, the first to begin first
        self._since = 0.0  # when there was none of these last
        self._seconds = 0.0  # before that
        self._made = 0
        self._due = FIRST  # seconds after which the next line is due

    def start(self, say: Callable[[str], None]) -> None:
        """From here on lines go to `say`, which is called by a thread of its own and may take its time."""
        threading.Thread(target=self._run, args=(say,), name="compile-progress", daemon=True).start()

    @contextlib.contextmanager
    def compiling(self, kernel: str) -> Iterator[None]:
        """What is done in here is the compilation of a kernel."""
        with self._changed:
            if not self._under_way:
                self._since = time.monotonic()
                self._changed.notify()
            self._under_way.append(kernel)
        made = False
        try:
            yield
            made = True
        finally:
            with self._changed:
                self._under_way.remove(kernel)
                self._made += made
                if not self._under_way:
                    self._seconds += time.monotonic() - self._since

    def line(self) -> str | None:
        """What is to be said now, None: nothing."""
        with self._changed:
            seconds = self._so_far()
            if seconds < self._due or not self._under_way:
                return None
            while self._due <= seconds:
                self._due *= 2
            return f"compiling kernels for software GPUs: {self._made} are ready after {seconds:.0f} s, now {_short(self._under_way[0])}"

    def _so_far(self) -> float:
        return self._seconds + (time.monotonic() - self._since if self._under_way else 0)

    def _run(self, say: Callable[[str], None]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way)
                self._changed.wait(max(self._due - self._so_far(), 0))
            line = self.line()
            if line is not None:
                say(line)


def _short(kernel: str) -> str:
    return kernel if len(kernel) <= NAME else f"{kernel[: NAME - 3]}..."


PROGRESS = CompileProgress()
