"""Log lines that anybody can cause, without a token: at most a few a second, and one that counts the others."""

from __future__ import annotations

import asyncio
import logging

LINES = 5  # a second, in full


class RateLimitedLog:
    """Writes the first `LINES` lines of a second to `log` and, when the second is over, one that says how many others there were, and the last."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._written = self._kept_back = 0
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def info(self, text: str, *args: object, times: int = 1) -> None:
        """As `logging.Logger.info`, of what has happened so many times; within an event loop."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._summary)
        if self._written < LINES:
            self._written += 1
            self._log.info(text, *args)
            times -= 1
        if times:
            self._kept_back += times
            self._last = text % args

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._summary()

    def _summary(self) -> None:
        self._timer = None
        if self._kept_back:
            self._log.info("%d more lines such as: %s", self._kept_back, self._last)
        self._written = self._kept_back = 0
