"""The server's RDMA devices, for clients that ask which link leads to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from gpuvirt.transport.fabric import Fabric

LOOKED_FOR = 5.0  # seconds; clients that ask more often are told the same


class HostFabric:
    """What workers of this server can use.

    Args:
        inspect: looks at the host; called in a thread, one call at a time.
        clock: seconds.
    """

    def __init__(self, inspect: Callable[[], Fabric], clock: Callable[[], float] = time.monotonic) -> None:
        self._inspect, self._clock = inspect, clock
        self._lock = asyncio.Lock()
        self._told: dict[str, Any] = {}
        self._until = 0.0

    async def told(self) -> dict[str, Any]:
        """As `Fabric.to_dict`, at most `LOOKED_FOR` seconds old."""
        async with self._lock:
            if self._clock() >= self._until:
                self._told = (await asyncio.to_thread(self._inspect)).to_dict()
                self._until = self._clock() + LOOKED_FOR
            return self._told
