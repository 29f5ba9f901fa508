"""Writes what the accounts have counted into the record: every few seconds, and soon after a session has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gpuvirt.server.observe.accounts import Accounts, Sums
from gpuvirt.server.observe.record import Record, RecordError

log = logging.getLogger("gpuvirt.server")

KEEP_EVERY = 10.0  # seconds
SOON = 0.5  # seconds from a session's end, so that many at once are written together


class Keeper:
    """Keeps the accounts of one server, until `close`. Within an event loop; the file is written in a thread."""

    def __init__(self, accounts: Accounts, record: Record) -> None:
        self._accounts, self.record = accounts, record
        self._wanted, self._writing, self._said = asyncio.Event(), asyncio.Lock(), ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def soon(self) -> None:
        """Something has ended: it is written before long."""
        self._wanted.set()

    async def keep(self) -> None:
        """Writes what is there now. What could not be written stays, and is said once."""
        async with self._writing:
            fresh = self._accounts.take_fresh()
            if not fresh:
                return
            text = await asyncio.shield(asyncio.to_thread(self._write, fresh))
            if text:
                self._accounts.put_back(fresh)
            if text and text != self._said:
                log.error("%s; what users have had is kept in memory meanwhile", text)
            self._said = text

    def _write(self, fresh: dict[tuple[str, str], Sums]) -> str:
        try:
            self.record.add(fresh)
        except RecordError as error:
            return str(error)
        return ""

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_EVERY):  # wait_for loses a cancellation that comes together with what it waits for
                    await self._wanted.wait()
                await asyncio.sleep(SOON)
            self._wanted.clear()
            await self.keep()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.keep()
        self.record.close()
