"""Sessions share memory that is not enough for all: one is parked, its device memory goes to a file, and its program's next call brings it back.

A session is idle while its program calls nothing and its GPU has nothing to do. One that has been so for `idle` seconds is parked, and earlier,
once it has been so for `YIELD`, when another one wants room: its memory back, or an allocation that does not fit. Where nobody is idle those that
work are parked in turns, whoever has had its memory for longest and for a `QUANTUM` at least. Room is given in the order in which it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.memory_usage import DEVICES, MemoryUsage
from gpuvirt.server.workers.worker_process import BEING_PARKED, WorkerProcess
from gpuvirt.sizes import format_size

log = logging.getLogger("gpuvirt.server")

YIELD = 0.25  # seconds without work, after which a session gives way to one that waits
QUANTUM = 1.0  # seconds that a session has its memory before it has to give way although it works
QUANTUM_OF_PARKING = 4  # and so many times what parking it took last
FINISH = 20.0  # seconds that its GPU then has to finish what has been queued
ALLOCATION_LIMIT = 60.0  # seconds that an allocation waits for room
PROMISE = 2.0  # seconds for which room is kept for whom it was granted to
LOOK_LEAST, LOOK_MOST = 0.1, 15.0  # seconds between two looks at who is idle
QUIET, QUIET_LOOKS = 0.5, 10  # seconds without a command, after which a session is parked whose program has left its block; looks at it
RETRY = 0.05  # seconds between two looks for room, while somebody waits for it
DISK_PART = 0.5  # of what is free on the disk, the most that one session's memory may take
NOT_IDLE = "it is not idle"  # how a worker's refusal begins that another time may be none
MOVES = "it is moving"


class Parkable(Protocol):
    """What `Parking` knows of a session."""

    worker: WorkerProcess
    parking: ParkingState

    @property
    def id(self) -> int: ...
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
        kept: bytes of each device that it has had since it was parked: what a real GPU's driver has for it.
        asked: bytes on each device that it allocates and for which there is no room, None: nothing.
        asked_at: monotonic seconds, since when it waits for that or for its memory.
        promised: bytes that it will use of each device once it has taken what it was granted; None, or older than `PROMISE`: it has.
        had_since: monotonic seconds, since when it has its memory.
        took: seconds that parking it took last.
        commands: that it had executed when it was last looked at.
        idle_since: monotonic seconds, when it was first seen with that number.
        never: why it cannot be parked, "": it can, as far as is known.
        suspended: its lease has given way: it is parked, or about to be, and gets nothing until its lease has its GPUs again.
        file: a descriptor of the file that its memory goes to, the same each time, so that a worker can fill no more than one; -1: none yet.
    """

    parked: list[int] | None = None
    kept: list[int] = field(default_factory=lambda: [0] * DEVICES)
    asked: list[int] | None = None
    asked_at: float = 0.0
    promised: list[int] | None = None
    had_since: float = field(default_factory=time.monotonic)
    took: float = 0.0
    commands: int = -1
    idle_since: float = field(default_factory=time.monotonic)
    never: str = ""
    suspended: bool = False
    file: int = -1

    @property
    def bytes(self) -> int:
        """That are in its file."""
        return sum(self.parked or ())

    def need(self, device: int) -> int:
        """Bytes of one device that it waits for."""
        return sum(wanted[device] for wanted in (self.parked, self.asked) if wanted is not None)


class Parking:
    """Parks the sessions of one server.

    Args:
        sessions: all of them, at each look.
        total: bytes of each device.
        idle: seconds after which a session is parked, 0: none is but to make room.
        folder: where the files are.

    Attributes:
        changed: is called with a session that is parked, has its memory again, or has a file for it.
    """

    def __init__(self, sessions: Iterable[Parkable], memory_usage: MemoryUsage, total: list[int], idle: float, folder: Path) -> None:
        self._sessions, self._memory_usage, self._total, self._idle, self._folder = sessions, memory_usage, total, idle, folder
        self._waiting: list[Parkable] = []
        self.changed: Callable[[Parkable], None] = lambda session: None
        self._finishing: dict[int, tuple[Parkable, asyncio.Task[None]]] = {}  # by slot: work, and are parked when their GPUs have finished it
        self._leaving: dict[int, asyncio.Task[None]] = {}  # by session: programs that have left their blocks
        self._server: asyncio.Task[None] | None = None
        self._watcher = asyncio.get_running_loop().create_task(self._watch()) if idle else None

    async def close(self) -> None:
        for task in (self._watcher, self._server, *(task for _, task in self._finishing.values()), *self._leaving.values()):
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

    def serve(self, session: Parkable) -> None:
        """From now on the session's worker can ask for room."""
        session.worker.asks_room = lambda device, bytes: self._asks(session, device, bytes)

    def adopt(self, session: Parkable, parked: list[int] | None, used: list[int], file: int) -> None:
        """A session of an earlier daemon, which may have missed what its worker has said last.

        Args:
            parked: bytes on each device that are in its file, as far as that daemon knew; None: it had its memory.
            used: bytes that it has of each device when it has its memory.
            file: -1: it has none.
        """
        state, row = session.parking, self._memory_usage.row(session.slot)
        state.file = file
        if parked is not None and all(now <= had - gone for now, had, gone in zip(row, used, parked, strict=False)):  # else it is back since
            state.parked, state.kept = parked, row
        session.worker.on_park_said(*self._handlers(session, used))

    async def park(self, session: Parkable, finish: float = 0.0) -> int:
        """Parks a session. Returns how many bytes it gave back.

        Args:
            finish: seconds that its GPU has to finish what it does; 0: the session has to be idle.

        Raises:
            GpuvirtError: it is not idle, or cannot be parked.
        """
        state = session.parking
        if state.parked is not None:
            raise GpuvirtError("it is parked already")
        if session.moves:
            raise GpuvirtError(MOVES)
        used, began = self._memory_usage.row(session.slot), time.monotonic()
        try:
            if state.file < 0:
                state.file = self._file()
                self.changed(session)
            free = os.statvfs(self._folder).f_bavail * os.statvfs(self._folder).f_frsize
        except OSError as error:
            raise GpuvirtError(f"no file for its memory in {self._folder}: {error.strerror}") from None
        if sum(used) > free * DISK_PART:
            sizes = f"{format_size(sum(used))} and {format_size(free)}"
            raise GpuvirtError(f"its memory might take more than half of what is free in {self._folder} ({sizes}); GPUVIRT_CACHE names another place")
        try:
            why = await session.worker.park(state.file, finish, *self._handlers(session, used))
        except OSError:
            raise GpuvirtError("it has ended") from None
        if why:
            if not why.startswith((NOT_IDLE, BEING_PARKED)):
                state.never = why
            raise GpuvirtError(why)
        state.took = time.monotonic() - began
        log.info("%s is parked", session.label)
        return state.bytes

    async def suspend(self, session: Parkable) -> None:
        """Parks a session, whatever it does, until `resume`. To be cancelled when that takes too long.

        Raises:
            GpuvirtError: it has ended, or cannot be parked.
        """
        state = session.parking
        state.suspended = True
        while state.parked is None or state.promised is not None:  # it has its memory, or is about to take it
            if state.parked is None:
                try:
                    await self.park(session, FINISH)
                except GpuvirtError as error:
                    if not str(error).startswith((NOT_IDLE, BEING_PARKED, MOVES)):
                        raise
            await asyncio.sleep(RETRY)

    def resume(self, session: Parkable) -> None:
        """It has its memory again when it wants it, as other sessions that are parked."""
        session.parking.suspended, session.parking.asked_at = False, time.monotonic()

    def park_when_quiet(self, session: Parkable) -> None:
        """Its program needs nothing for a while: it is parked, although nobody waits, once it calls nothing any more."""
        if session.id not in self._leaving:
            task = self._leaving[session.id] = asyncio.get_running_loop().create_task(self._park_when_quiet(session))
            task.add_done_callback(lambda _: self._leaving.pop(session.id))

    async def _park_when_quiet(self, session: Parkable) -> None:
        before = -1
        for _ in range(QUIET_LOOKS):
            await asyncio.sleep(QUIET)
            commands = (await session.worker.figures()).get("commands", -1)
            if commands == before >= 0:
                with contextlib.suppress(GpuvirtError):  # it has ended, or is parked or works again
                    await self.park(session, FINISH)
                return
            before = commands

    def _file(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fd, name = tempfile.mkstemp(dir=self._folder)
        os.unlink(name)
        return fd

    def _handlers(self, session: Parkable, used: list[int]) -> tuple[Callable[[], None], ...]:
        """What the worker says: that it has parked, wants its memory back, has it."""
        return lambda: self._has_parked(session, used), lambda: self._wants(session, used), lambda: self._is_back(session)

    def _has_parked(self, session: Parkable, used: list[int]) -> None:
        session.parking.parked, session.parking.promised = self._given_back(session, used), None
        self.changed(session)

    def _given_back(self, session: Parkable, used: list[int]) -> list[int]:
        """Of what it used, now that it is parked: a real GPU's driver keeps contexts and modules."""
        session.parking.kept = self._memory_usage.row(session.slot)
        return [max(0, before - now) for before, now in zip(used, session.parking.kept, strict=True)]

    def _is_back(self, session: Parkable) -> None:
        state = session.parking
        state.parked, state.promised, state.commands = None, None, -1
        state.idle_since = state.had_since = time.monotonic()
        os.ftruncate(state.file, 0)
        self.changed(session)
        log.info("%s has its memory again", session.label)

    def place(self, session: Parkable) -> tuple[int, int]:
        """Of a session that waits for room: its place, from 1, and how many wait; zeros when it does not."""
        return (self._waiting.index(session) + 1, len(self._waiting)) if session in self._waiting else (0, 0)

    # ---- who wants room -------------------------------------------------------------------------------------------------

    def _wants(self, session: Parkable, used: list[int]) -> None:
        """Its memory back. used: bytes of each device, for a session whose earlier daemon had not noted yet that it was parked."""
        session.parking.asked, session.parking.parked = None, session.parking.parked or self._given_back(session, used)
        self._wait(session)

    def _asks(self, session: Parkable, device: int, bytes: int) -> None:
        """For what it allocates."""
        if not (0 <= device < len(self._total) and 0 < bytes <= self._total[device]):
            session.worker.answer_room(False)
            return
        session.parking.asked = [bytes if device == other else 0 for other in range(DEVICES)]
        self._wait(session)

    def _wait(self, session: Parkable) -> None:
        session.parking.promised, session.parking.asked_at = None, time.monotonic()
        if session not in self._waiting:
            self._waiting.append(session)
        if self._server is None or self._server.done():
            self._server = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Grants room in the order in which it was asked for: who asked later for the same device waits until the earlier one has it."""
        while self._waiting:
            taken: set[int] = set()
            for session in [session for session in self._waiting if not session.parking.suspended]:
                devices = {device for device in range(len(self._total)) if session.parking.need(device)}
                if not devices & taken:
                    lacking = self._lacking(session)
                    if lacking and await self._make_room(session, lacking):
                        lacking = self._lacking(session)
                    if session in self._waiting and (not lacking or self._hopeless(session)):
                        self._answer(session, not lacking)
                taken |= devices
            await asyncio.sleep(RETRY)

    def _answer(self, session: Parkable, granted: bool) -> None:
        state, row = session.parking, self._memory_usage.row(session.slot)
        self._waiting.remove(session)
        if granted:
            state.promised, state.asked_at = [row[device] + state.need(device) for device in range(DEVICES)], time.monotonic()
        else:
            log.info("%s is out of memory: the other sessions cannot be parked", session.label)
        state.asked = None
        session.worker.answer_room(granted)

    def _lacking(self, session: Parkable) -> set[int]:
        """The devices on which there is no room for what a session waits for."""
        need = [session.parking.need(device) for device in range(len(self._total))]
        promised = [sum(self._promised(other, device) for other in self._sessions if other is not session) for device in range(len(self._total))]
        return {
            device
            for device, total in enumerate(self._total)
            if need[device] and self._memory_usage.used(device) + promised[device] + need[device] > total
        }

    def _promised(self, session: Parkable, device: int) -> int:
        """Bytes that it was granted and has not taken yet."""
        state = session.parking
        if state.promised is None or time.monotonic() - state.asked_at > PROMISE:
            return 0
        return max(0, state.promised[device] - self._memory_usage.row(session.slot)[device])

    def _hopeless(self, session: Parkable) -> bool:
        """Whether an allocation need not wait: what cannot be parked leaves no room for it, or it has waited for too long."""
        state = session.parking
        if state.asked is None:
            return False
        stay = [self._stays(other, other is session) for other in self._sessions]
        for device, total in enumerate(self._total):
            if state.asked[device] and sum(row[device] for row in stay) + state.need(device) > total:
                return True
        return time.monotonic() - state.asked_at > ALLOCATION_LIMIT

    def _stays(self, session: Parkable, asks: bool) -> list[int]:
        """Bytes of each device that it has whatever is parked. One that is just taking its memory back has more in its row."""
        state = session.parking
        if state.parked is not None:
            return state.kept
        return self._memory_usage.row(session.slot) if asks or state.never else [0] * DEVICES

    # ---- making room ----------------------------------------------------------------------------------------------------

    async def _make_room(self, session: Parkable, devices: set[int]) -> bool:
        """Parks another session that has memory on one of these devices, the one that has been idle for longest. Where none is idle, one that
        works is told to give way."""
        await self._look()
        now = time.monotonic()
        others = [other for other in self._sessions if other is not session and self._may_park(other) and self._uses(other, devices)]
        for other in sorted(others, key=lambda other: other.parking.idle_since):
            if now - other.parking.idle_since >= YIELD:
                with contextlib.suppress(GpuvirtError):
                    await self.park(other)
                    return True
        if not any(self._uses(other, devices) for other, _ in self._finishing.values()):
            due = [other for other in others if not other.parking.never and now - other.parking.had_since >= self._quantum(other)]
            if due:
                self._end_turn(min(due, key=lambda other: other.parking.had_since))
        return False

    def _quantum(self, session: Parkable) -> float:
        return max(QUANTUM, QUANTUM_OF_PARKING * session.parking.took)

    def _end_turn(self, session: Parkable) -> None:
        async def park() -> None:
            try:
                await self.park(session, FINISH)
            except GpuvirtError:
                session.parking.had_since = time.monotonic()  # others are tried first, next time
            finally:
                del self._finishing[session.slot]

        self._finishing[session.slot] = session, asyncio.get_running_loop().create_task(park())

    def _uses(self, session: Parkable, devices: set[int]) -> bool:
        row = self._memory_usage.row(session.slot)
        return any(row[device] for device in devices)

    # ---- who is idle ----------------------------------------------------------------------------------------------------

    def _may_park(self, session: Parkable) -> bool:
        state = session.parking
        finishing = session.slot in self._finishing or state.suspended
        return state.parked is None and not state.never and not finishing and not session.moves and any(self._memory_usage.row(session.slot))

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
