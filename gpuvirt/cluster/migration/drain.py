"""A host is drained: nothing new comes to it, and what it has goes to others."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.migration.source import Source
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import Lease
from gpuvirt.server.migration.carry import REST_LIMIT
from gpuvirt.server.sessions import Sessions

log = logging.getLogger("gpuvirt.server")

AGAIN_AFTER = 3.0  # seconds before one that could not leave is tried again
LOOK = 0.1  # seconds
FOLLOW_LIMIT = 15.0  # seconds in which the client of a session that has left must have asked where it is; a link that was cut is made anew at once


class Drain:
    """From `begin` to `undo`.

    Attributes:
        moved: how many leases have left.
    """

    def __init__(self, sessions: Sessions, member: Member, source: Source) -> None:
        self._sessions, self._member, self._source = sessions, member, source
        self._task: asyncio.Task[None] | None = None
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._stays: dict[int, tuple[str, float]] = {}  # why, and when it is tried again
        self.moved = 0

    @property
    def under_way(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        if self._task is None:
            self.moved = 0
            self._member.cordon(True)
            self._task = asyncio.create_task(self._run())
            log.info("this host is drained: its leases go to other hosts, and it takes no more")

    async def undo(self) -> None:
        """It takes leases again."""
        if self._task is None:
            return
        tasks, self._task = [self._task, *self._leaving.values()], None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leaving.clear()
        self._stays.clear()
        self._member.cordon(False)
        log.info("this host takes leases again")

    async def close(self) -> None:
        tasks = [*([self._task] if self._task else []), *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """How many leases have ``left`` and, in ``leases``, which are here; ``following``: sessions that have left, whose clients do not know yet."""
        here = [lease for lease in self._sessions.leases if lease.devices]
        return {
            "drained": self.under_way,
            "left": self.moved,
            "leases": [
                {
                    "number": f"{lease.number:016x}",
                    "program": lease.holder.get("program") or "",
                    "user": lease.holder.get("user") or "",
                    "devices": [*lease.devices],
                    "why": self._stays.get(lease.number, ("", 0.0))[0],
                }
                for lease in here
            ],
            "following": self._sessions.following(FOLLOW_LIMIT),
        }

    async def _run(self) -> None:
        while True:
            now = time.monotonic()
            here = {lease.number: lease for lease in self._sessions.leases if lease.devices and not lease.arrives}
            for number in self._stays.keys() - here.keys():
                del self._stays[number]
            for number, lease in here.items():
                due = self._stays.get(number, ("", 0.0))[1]
                if number not in self._leaving and due <= now:
                    self._leaving[number] = asyncio.create_task(self._leave(lease))
            await asyncio.sleep(LOOK)

    async def _leave(self, lease: Lease) -> None:
        self._stays.setdefault(lease.number, ("it waits for a host that has room", 0.0))
        try:
            await self._source.migrate(lease, "", REST_LIMIT, wait=True)
            self._stays.pop(lease.number, None)
            self.moved += 1
        except GpuvirtError as error:
            self._stays[lease.number] = str(error), time.monotonic() + AGAIN_AFTER
        finally:
            self._leaving.pop(lease.number, None)
