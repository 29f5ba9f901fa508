"""Looks at a server's leases and sessions, whenever they change and every few seconds, and keeps the accounts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from gpuvirt.server.devices import Inventory
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.observe.accounts import Accounts, Holding
from gpuvirt.server.observe.facts import Facts, Source, collect, lease_state
from gpuvirt.server.session import Session
from gpuvirt.server.sessions import Sessions

LOOK_EVERY = 5.0  # seconds; by so much a killed worker's figures, and a killed daemon's sums, are too small at most
NAMES_MOST = 4096


class Observer:
    """The facts about one server's sessions, at any time, and its accounts.

    Args:
        account_of: the account of a token, by its id.

    Attributes:
        accounts: their sums since the server was started.
        counted: is called when a session has ended and is counted.
    """

    def __init__(
        self, name: str, inventory: Inventory, memory_usage: MemoryUsage | None, sessions: Sessions, account_of: Callable[[bytes], str]
    ) -> None:
        self.accounts = Accounts(sessions.reconnections)
        self._sessions, self._memory_usage, self._account_of = sessions, memory_usage, account_of
        self.counted: Callable[[], None] = lambda: None
        self._names: dict[bytes, str] = {}
        queue, room, turns = sessions.named.waiting, sessions.room_place, sessions.turn_seconds
        self._source = Source(name, inventory.backend, inventory.devices, memory_usage, queue, room, turns, self._account)
        sessions.changed, sessions.on_end = self.look, self._ended
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher
        await self._ask()

    async def facts(self, ask: bool = True) -> Facts:
        """Of this moment.

        Args:
            ask: have the workers say what they have counted; one that does not answer in time is shown as it was.
        """
        if ask:
            await self._ask()
        sessions = [*self._sessions]
        return collect(self._source, self._sessions.leases, sessions, {s.id: s.worker.last_figures for s in sessions}, time.time())

    def look(self) -> None:
        """Takes the leases' time until now into the accounts, and what they are from now on. Called at each change: no I/O, nothing slow."""
        self._observe({})

    def _observe(self, memory: dict[str, int]) -> None:
        parked = {session.id for session in self._sessions if session.parking.parked is not None}
        holdings = [Holding(self._account(lease.owner), lease.wanted, lease_state(lease, parked)) for lease in self._sessions.leases]
        self.accounts.observe(time.monotonic(), time.time(), holdings, memory)

    def _count(self, session: Session) -> str:
        account = self._account(session.hello.token_id)
        worker, link = session.worker, session.transport.name
        self.accounts.figures(session.id, account, link, time.time(), worker.last_figures, worker.pid, session.adopted)
        return account

    def _memory(self, session: Session) -> int:
        if self._memory_usage is None:
            return session.worker.last_figures.get("memory_used", 0)
        return self._memory_usage.slot_used(session.slot)

    def _ended(self, session: Session) -> None:
        self._count(session)
        self.accounts.ended(session.id)
        self.counted()

    def _account(self, token_id: bytes) -> str:
        """Remembered: what a token has is not counted for another account when the token is revoked meanwhile."""
        found = self._names.get(token_id)
        if found is None:
            if len(self._names) >= NAMES_MOST:
                self._names.clear()
            found = self._names[token_id] = self._account_of(token_id)
        return found

    async def _ask(self) -> None:
        await asyncio.gather(*(session.worker.figures() for session in self._sessions))
        memory: dict[str, int] = {}
        for session in self._sessions:
            account = self._count(session)
            memory[account] = memory.get(account, 0) + self._memory(session)
        self._observe(memory)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._ask()
