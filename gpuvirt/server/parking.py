"""Sessions that are idle are parked: their device memory goes to a file, and the next call of the program brings it back.

A session is idle while its program calls nothing and its GPU has nothing to do. One that has been so for `idle` seconds is parked, and earlier,
once it has been so for `YIELD`, when another one wants its memory back and there is no room. Those that want theirs back get it in the order in
which they asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.workers import WorkerProcess

log = logging.getLogger("gpuvirt.server")

YIELD = 0.25  # seconds without work, after which a session gives way to one that waits
LOOK_LEAST, LOOK_MOST = 0.1, 15.0  # seconds between two looks at who is idle
RETRY = 0.05  # seconds between two looks for room, while somebody waits for it
NOT_IDLE = "it is not idle"  # how a worker's refusal begins that another time may be none


class Parkable(Protocol):
    """What `Parking` knows of a session."""

    worker: WorkerProcess
    parking: ParkingState

    @property
    def label(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def moves(self) -> bool: ...


@dataclass
class ParkingState:
    """Of one session.

    Attributes:
        parked: bytes on each device (by ordinal) that are in its file, None: it has its memory.
        coming: its memory is on its way back: room for it is taken.
        commands: that it had executed when it was last looked at.
        idle_since: monotonic seconds, when it was first seen with that number.
        never: why it cannot be parked, "": it can, as far as is known.
        file: a descriptor of the file that its memory goes to, the same each time, so that a worker can fill no more than one; -1: none yet.
    """

    parked: list[int] | None = None
    coming: bool = False
    commands: int = -1
    idle_since: float = field(default_factory=time.monotonic)
    never: str = ""
    file: int = -1

    @property
    def bytes(self) -> int:
        """That are in its file."""
        return sum(self.parked or ())


class Parking:
    """Parks the sessions of one server.

    Args:
        sessions: all of them, at each look.
        total: bytes of each device.
        idle: seconds after which a session is parked, 0: none is but to make room.
        folder: where the files are.
    """

    def __init__(self, sessions: Iterable[Parkable], memory_usage: MemoryUsage, total: list[int], idle: float, folder: Path) -> None:
        self._sessions, self._memory_usage, self._total, self._idle, self._folder = sessions, memory_usage, total, idle, folder
        self._waiting: list[Parkable] = []
        self._server: asyncio.Task[None] | None = None
        self._watcher = asyncio.get_running_loop().create_task(self._watch()) if idle else None

    async def close(self) -> None:
        for task in (self._watcher, self._server):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def ended(self, session: Parkable) -> None:
        """The session is over: it waits no more."""
        if session in self._waiting:
            self._waiting.remove(session)
        if session.parking.file >= 0:
            os.close(session.parking.file)
            session.parking.file = -1

    async def park(self, session: Parkable) -> int:
        """Parks a session that is idle. Returns how many bytes it gave back.

        Raises:
            GpuvirtError: it is not idle, or cannot be parked.
        """
        state = session.parking
        if state.parked is not None:
            raise GpuvirtError("it is parked already")
        if session.moves:
            raise GpuvirtError("it is moving")
        used = self._memory_usage.row(session.slot)
        try:
            if state.file < 0:
                state.file = self._file()
        except OSError as error:
            raise GpuvirtError(f"no file for its memory in {self._folder}: {error.strerror}") from None
        try:
            why = await session.worker.park(
                state.file, lambda: self._has_parked(session, used), lambda: self._wants(session), lambda: self._is_back(session)
            )
        except OSError:
            raise GpuvirtError("it has ended") from None
        if why:
            if not why.startswith(NOT_IDLE):
                state.never = why
            raise GpuvirtError(why)
        log.info("%s is parked", session.label)
        return sum(used)

    def _file(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fd, name = tempfile.mkstemp(dir=self._folder)
        os.unlink(name)
        return fd

    def _has_parked(self, session: Parkable, used: list[int]) -> None:
        session.parking.parked, session.parking.coming = used, False

    def _wants(self, session: Parkable) -> None:
        session.parking.coming = False
        if session not in self._waiting:
            self._waiting.append(session)
        if self._server is None or self._server.done():
            self._server = asyncio.get_running_loop().create_task(self._serve())

    def _is_back(self, session: Parkable) -> None:
        state = session.parking
        state.parked, state.coming, state.commands, state.idle_since = None, False, -1, time.monotonic()
        os.ftruncate(state.file, 0)
        log.info("%s has its memory again", session.label)

    # ---- making room ----------------------------------------------------------------------------------------------------

    def _lacking(self, session: Parkable) -> set[int]:
        """The devices on which there is no room for what a session wants back."""
        need = session.parking.parked or []
        coming = [other.parking.parked or [] for other in self._sessions if other.parking.coming]
        lacking = set()
        for device, total in enumerate(self._total):
            promised = sum(bytes[device] for bytes in coming)
            if device < len(need) and need[device] and self._memory_usage.used(device) + promised + need[device] > total:
                lacking.add(device)
        return lacking

    async def _serve(self) -> None:
        """Gives those their memory back who wait for it, in their order: who asked later for the same device waits until they have it."""
        while self._waiting:
            taken: set[int] = set()
            for session in [*self._waiting]:
                devices = {device for device, bytes in enumerate(session.parking.parked or []) if bytes}
                lacking = self._lacking(session)
                if lacking and not devices & taken and await self._make_room(lacking):
                    lacking = self._lacking(session)
                if session in self._waiting and not lacking and not devices & taken:
                    self._waiting.remove(session)
                    session.parking.coming = True
                    session.worker.unpark()
                taken |= devices
            await asyncio.sleep(RETRY)

    async def _make_room(self, devices: set[int]) -> bool:
        """Parks the session that has been idle for longest and has memory on one of these devices. False: there is none."""
        await self._look()
        now = time.monotonic()
        idle = [s for s in self._sessions if self._may_park(s) and now - s.parking.idle_since >= YIELD and self._uses(s, devices)]
        for session in sorted(idle, key=lambda s: s.parking.idle_since):
            with contextlib.suppress(GpuvirtError):
                await self.park(session)
                return True
        return False

    def _uses(self, session: Parkable, devices: set[int]) -> bool:
        row = self._memory_usage.row(session.slot)
        return any(row[device] for device in devices)

    # ---- who is idle ----------------------------------------------------------------------------------------------------

    def _may_park(self, session: Parkable) -> bool:
        state = session.parking
        return state.parked is None and not state.never and not session.moves and any(self._memory_usage.row(session.slot))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(max(self._idle / 4, LOOK_LEAST), LOOK_MOST))
            await self._look()
            now = time.monotonic()
            for session in [*self._sessions]:
                if self._may_park(session) and now - session.parking.idle_since >= self._idle:
                    try:
                        await self.park(session)
                    except GpuvirtError as error:
                        session.parking.idle_since = time.monotonic()
                        if session.parking.never:
                            log.info("%s cannot be parked: %s", session.label, error)

    async def _look(self) -> None:
        """Notes which sessions have worked since the last look."""
        looked = [session for session in self._sessions if self._may_park(session)]
        for session, figures in zip(looked, await asyncio.gather(*(session.worker.figures() for session in looked)), strict=True):
            state, commands = session.parking, figures.get("commands", -1)
            if commands != state.commands:
                state.commands, state.idle_since = commands, time.monotonic()
