"""A bound on the processor time that one piece of device code may take to be read, linked or compiled.

LLVM cannot be interrupted, and a thread in it cannot be ended: what takes longer ends the process, which is one session's worker. It is the processor
time of the thread that counts, so a busy machine makes no compilation too long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from gpuvirt.errors import GpuvirtError

SETTING = "GPUVIRT_SOFT_COMPILE_LIMIT"
DEFAULT = 1800.0  # seconds; the largest kernels of NVIDIA's libraries take less than a minute
LOOK = 0.5  # seconds between looks


def limit() -> float:
    """Seconds of processor time.

    Raises:
        GpuvirtError: the setting is no number of seconds.
    """
    text = os.environ.get(SETTING, "")
    try:
        seconds = float(text) if text else DEFAULT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise GpuvirtError(f"{SETTING}={text}: it is the seconds of processor time that one compilation may take, more than 0")
    return seconds


class Watch:
    """Looks at the compilations that are under way, from a thread of its own, once it has been told whom to call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}  # by clock of a thread: what it may show
        self._too_long: Callable[[], None] | None = None
        self._limit = DEFAULT

    def start(self, too_long: Callable[[], None]) -> None:
        """From here on `too_long` is called when a compilation has taken more than the limit."""
        self._too_long, self._limit = too_long, limit()
        threading.Thread(target=self._look, name="compile-time", daemon=True).start()

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """What is done in here, by this thread, is a compilation."""
        clock = time.pthread_getcpuclockid(threading.get_ident())
        with self._lock:
            self._until[clock] = time.clock_gettime(clock) + self._limit
        try:
            yield
        finally:
            with self._lock:
                del self._until[clock]

    def _look(self) -> None:
        while self._too_long is not None:
            time.sleep(LOOK)
            with self._lock:  # nobody leaves meanwhile: the clocks are those of threads that live
                late = any(time.clock_gettime(clock) > until for clock, until in self._until.items())
            if late:
                self._too_long()
                return


WATCH = Watch()
