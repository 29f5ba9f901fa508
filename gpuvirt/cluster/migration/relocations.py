"""Leases that the scheduler would have at another host, because they do better there."""

from __future__ import annotations

import asyncio
import logging

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.migration.source import Source
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.migration.carry import REST_LIMIT
from gpuvirt.server.sessions import Sessions

log = logging.getLogger("gpuvirt.server")


class Relocations:
    """Those of this host's leases, until `close`."""

    def __init__(self, sessions: Sessions, member: Member, source: Source) -> None:
        self._sessions, self._member, self._source = sessions, member, source
        self._tasks: set[asyncio.Task[None]] = set()
        member.relocate = self._begin

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, number: int, host: str) -> None:
        task = asyncio.create_task(self._relocate(number, host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relocate(self, number: int, host: str) -> None:
        try:
            lease = self._sessions.lease(number)
            if lease is None or not lease.devices:
                raise GpuvirtError("it is over")
            await self._source.migrate(lease, host, REST_LIMIT)
        except GpuvirtError as error:
            log.info("lease %016x, which was to go to %s, stays: %s", number, host, error)
            self._member.stays(number)
