"""An event loop whose clock goes on only when nothing is left to do, and then at once: what is to happen after a time happens then,
however busy the machine is."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

TICK = 1e-6  # seconds that a turn of the loop takes: a timer that is early by a rounding error is not set for the same moment again and again


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: what it would have waited is passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is to happen any more, and something waits for it")
        self.waited += max(TICK, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For one thread that waits for timers alone: not for sockets, processes or other threads."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.waited
