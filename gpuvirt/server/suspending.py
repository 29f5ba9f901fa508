"""Leases that give way to one of a higher priority: what works under them is parked, their GPUs are others', and later they go on.

Programs notice nothing but the time: a session is parked as an idle one is (parking.py), works or not, and its memory stays in its file until the
policy resumes the lease. New programs of the lease wait before they are welcomed. What cannot be parked makes the lease one that its keeper is asked
to give back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import Lease
from gpuvirt.server.leases import Leases
from gpuvirt.server.parking import Parking
from gpuvirt.server.policy.instructions import Preempt, Resume
from gpuvirt.server.session import Session

log = logging.getLogger("gpuvirt.server")

LIMIT = 30.0  # seconds in which all that works under a lease is parked, or its keeper is asked to give it back
LOOK = 0.02  # seconds


class Suspending:
    """The leases of one daemon that are suspended, and those that become so.

    Args:
        table: of the leases.
        sessions: all that run.
        parking: None: no session here can be parked.
        changed: is called with a session whose lease is suspended from now on, or is not any more, and with None after all of them.
    """

    def __init__(self, table: Leases, sessions: Iterable[Session], parking: Parking | None, changed: Callable[[Session | None], None]) -> None:
        self._table, self._sessions, self._parking, self._changed = table, sessions, parking, changed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        table.gives_way = self._gives_way

    async def close(self) -> None:
        for task in [*self._tasks.values()]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def adopt(self, session: Session) -> None:
        """A session of an earlier daemon, whose lease may be suspended."""
        if session.membership.lease.suspended:
            session.parking.suspended = True

    def _gives_way(self, lease: Lease, said: Preempt | Resume) -> None:
        if isinstance(said, Resume):
            self._resume(lease)
            log.info("lease %016x has its GPUs again", lease.number)
        elif lease.number not in self._tasks:
            lease.suspends = said.text
            task = self._tasks[lease.number] = asyncio.get_running_loop().create_task(self._suspend(lease))
            task.add_done_callback(lambda _: self._tasks.pop(lease.number))
            self._changed(None)

    async def _suspend(self, lease: Lease) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT):
                if lease.leaving is not None:
                    await asyncio.wait([lease.leaving])
                while {session.id for session in self._own(lease)} != lease.sessions:  # one is attaching
                    await asyncio.sleep(LOOK)
                await self._park_all(self._own(lease))
        except (GpuvirtError, TimeoutError) as error:
            why = str(error) or f"its GPUs have not finished within {LIMIT:.0f} s"
            log.info("lease %016x is to be given back, because it cannot be suspended: %s", lease.number, why)
            lease.preempted = f"{lease.suspends}, and it cannot be suspended: {why}"
            self._resume(lease)
            return
        if not self._table.lasts(lease):
            return
        log.info("lease %016x is suspended after %.3f s: %s", lease.number, time.monotonic() - began, lease.suspends)
        self._table.suspended(lease, time.monotonic())
        self._tell(lease)

    async def _park_all(self, sessions: list[Session]) -> None:
        """Raises:
        GpuvirtError: one of them cannot be parked; whatever has been begun for the others is given up.
        """
        parks = [asyncio.ensure_future(self._park(session)) for session in sessions]
        try:
            await asyncio.gather(*parks)
        finally:
            for park in parks:
                park.cancel()

    async def _park(self, session: Session) -> None:
        """Raises:
        GpuvirtError: it cannot be parked, and has not ended.
        """
        if self._parking is None:
            raise GpuvirtError("no session of this server can be parked")
        try:
            await self._parking.suspend(session)
        except GpuvirtError:
            if session in self._own(session.membership.lease):
                raise

    def _resume(self, lease: Lease) -> None:
        """It has its GPUs, again or still."""
        lease.suspends, lease.suspended = "", False
        for session in self._own(lease):
            if self._parking is not None:
                self._parking.resume(session)
        if lease.away is not None and not lease.away.done():
            lease.away.set_result(None)
        lease.away = None
        self._table.note(lease)
        self._tell(lease)

    def _tell(self, lease: Lease) -> None:
        for session in self._own(lease):
            self._changed(session)
        self._changed(None)

    def _own(self, lease: Lease) -> list[Session]:
        return [session for session in self._sessions if session.membership.lease is lease]
