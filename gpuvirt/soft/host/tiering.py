"""Recompiles kernels that run long, at the higher optimization level, in the background.

A large kernel first gets code that is made quickly. The engine counts the time it spends in it (struct soft_tier in native/backend/soft/compiler.h)
and says so on an event descriptor once that was much; then a helper process of low priority (compile_helper.py) compiles the kernel's IR again, and
the new entry is put where the engine takes it from at its next block. The old code stays for those who are in it, until the module goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable

from gpuvirt.soft.host import jit
from gpuvirt.soft.host.compile_helper import CompileHelper

BUDGET_NS = 100_000_000  # time spent in a kernel's quick code after which good code is asked for
PRIORITY = 5  # added to the helper's nice value: kernels that run meanwhile keep most of the cores


class Tier(ctypes.Structure):
    """struct soft_tier"""

    _fields_ = (
        ("entry", ctypes.c_uint64),
        ("spent_ns", ctypes.c_uint64),
        ("budget_ns", ctypes.c_uint64),
        ("asked", ctypes.c_uint32),
        ("wake_fd", ctypes.c_int32),
    )


class Wish:
    """A kernel with quick code, and the function that takes the good code."""

    def __init__(self, owner: object, tier: Tier, ir: bytes, use: Callable[[bytes], None]) -> None:
        self.owner = weakref.ref(owner)  # when it is gone, the good code is not needed
        self.tier = tier
        self.ir = ir
        self.use = use


class Improver:
    """Waits for kernels to become hot and has them compiled again. One a process."""

    def __init__(self) -> None:
        self.helper = CompileHelper(PRIORITY)
        self._lock = threading.Lock()
        self._wishes: list[Wish] = []
        self._fd = -1

    def tier(self, entry: int) -> Tier:
        """The cell through which the engine finds the entry of a kernel that may get better code."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.eventfd(0, os.EFD_CLOEXEC)
                threading.Thread(target=self._run, name="improver", daemon=True).start()
        return Tier(entry, 0, BUDGET_NS, 0, self._fd)

    def wish(self, wish: Wish) -> None:
        """Remembers what to do when the engine says that a kernel is hot."""
        with self._lock:
            self._wishes = [w for w in self._wishes if w.owner() is not None]
            self._wishes.append(wish)

    def _next(self) -> tuple[Wish, object] | None:
        with self._lock:
            for wish in self._wishes:
                owner = wish.owner()
                if owner is not None and wish.tier.asked:
                    self._wishes.remove(wish)
                    return wish, owner
        return None

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._fd)
            while (found := self._next()) is not None:
                wish, owner = found
                code = self.helper.compile(wish.ir, jit.GOOD)
                if code is not None:
                    with contextlib.suppress(Exception):  # the quick code stays in use
                        wish.use(code)
                del found, wish, owner
