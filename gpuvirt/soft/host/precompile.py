"""Compiles the kernels of queued launches while the stream is busy with what was queued before them.

A program that launches asynchronously has dozens of launches queued before the first kernel is ready. Their kernels are translated by threads of this
process, as the front end is Python, and LLVM runs in forks of a helper (compile_helper.py), on as many cores as there are. A launch that comes to its
kernel earlier than these compiles it itself.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

import lz4.block

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.errors import SoftError
from gpuvirt.soft.host import jit
from gpuvirt.soft.host.compile_helper import CompileHelper

SETTING = "GPUVIRT_SOFT_PRECOMPILE"
MOST = 4  # threads: translation holds the interpreter's lock, and each compilation takes memory of the worker's bound


class NotCompiled(SoftError):
    """The launch has to compile it, and has its error told if there is one."""


def threads() -> int:
    """How many kernels are compiled at a time, 0: none ahead of its launch.

    Raises:
        GpuvirtError: the setting is neither "off" nor unset.
    """
    text = os.environ.get(SETTING, "")
    if text not in ("", "off"):
        raise GpuvirtError(f"{SETTING}={text}: it is 'off' or unset")
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST) if cores > 1 and not text else 0


class Precompiler:
    """Threads that translate kernels, and the helper that compiles them. One a process."""

    def __init__(self) -> None:
        self.helper = CompileHelper(priority=0)
        self._lock = threading.Lock()
        self._threads = 0
        self._queued: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def add(self, work: Callable[[], None]) -> None:
        """Has `work` done when those before it have been begun; it raises nothing."""
        with self._lock:
            if self._threads < threads():
                self._threads += 1
                threading.Thread(target=self._run, name="precompiler", daemon=True).start()
        self._queued.put(work)

    def _run(self) -> None:
        while True:
            self._queued.get()()

    def compile(self, text: str, level: int) -> bytes:
        """As jit.compile_object, in the helper.

        Raises:
            NotCompiled: the helper refuses it or is gone, or it may take a large part of the memory that the worker may have.
        """
        code = self.helper.compile(lz4.block.compress(text.encode()), level) if len(text) < jit.LARGE else None
        if code is None:
            raise NotCompiled
        return code
