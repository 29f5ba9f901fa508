"""A worker process, seen by the daemon: given one session, watched until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.printable import printable
from gpuvirt.server import descriptors, messages
from gpuvirt.server.limits import host_memory
from gpuvirt.server.limits.cgroups import WorkerCgroup
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.worker_library import May, RunEnding, SessionConfig, WorkerFigures

FIGURES_LIMIT = 0.5
FIGURES_BACKLOG = 1000  # answers that an earlier daemon has asked for and not read
FILES_BACKLOG = 1024  # files for exports that it had from an earlier daemon
GIVEN_BACKLOG = 16  # exports that an earlier daemon has asked for, and not read
GIVE_LIMIT = 20.0  # seconds: its session may stand still until its next turn
FIGURES = tuple(name for name, *_ in WorkerFigures._fields_)
TURN_WORDS = 8000  # that a worker may say of turns in a second: 16 devices, each with work and without it again and again
TEXT_MOST = 500  # characters of a worker's text that are kept

# For its client and the log. Short, as host_memory.reason says.
COMPILED_TOO_LONG = "device code took longer to compile than the server allows (GPUVIRT_SOFT_COMPILE_LIMIT of its environment)"


def _nothing() -> None:
    pass


def _text(message: dict[str, Any]) -> str:
    return printable(str(message.get("text", ""))[:TEXT_MOST])


def _exit_text(code: int | None) -> str:
    """How a process ended, by its exit code. None: nobody knows."""
    if code is None:
        return "ended"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended by itself with exit code {code}"


def _figures(message: dict[str, Any]) -> dict[str, int]:
    """Those of a worker's message that are numbers of 64 bits."""
    return {name: value for name in FIGURES if type(value := message.get(name)) is int and 0 <= value < 1 << 64}


@dataclass(frozen=True)
class Given:
    """What a session has exported under a name.

    Attributes:
        what: as another worker needs to hear it, empty: there is nothing.
        files: numbers of the files in which it lies, 0: one of the driver's.
        fds: those, which are to be closed.
    """

    what: bytes = b""
    files: tuple[int, ...] = ()
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Process:
    """A worker's process.

    Attributes:
        pidfd, socket: the `WorkerProcess`'s to close.
        exit_code: done soon after it has ended (negative: the signal that killed it). None, and a result of None: nobody can tell, because the
            template that had forked it ended before, or was another daemon's.
    """

    pid: int
    pidfd: int
    socket: socket.socket
    exit_code: asyncio.Future[int | None] | None


BEING_PARKED = "it is being parked already"  # why a session is not parked


class WorkerProcess:
    """One worker. `ready` is done when it can take a session, `gone` when the process has ended and its exit code is known.

    Args:
        cgroup: in which it is, None: there is none.

    Attributes:
        memory_limit: bytes of the host's memory that it may take, 0: it has no session yet.
        last_figures: of its session, as it has said last; at the session's end as they are then.
        told: whether its client is to read in its error why it ended (`ending`).
        asks_room: called with the device and the bytes of an allocation that does not fit because other sessions have the memory; `answer_room` has
            to follow.
        asks_file, asks_export: called with the bytes of a file for what it exports, and with another session and the name of its export;
            `answer_export` has to follow.
        file_over: called with the number of such a file that it does not use any more.
        says_turn: called with what it says of a turn: the device, what (`TurnSaid`), the number of the word that it answers.
    """

    def __init__(self, process: Process, on_gone: Callable[[WorkerProcess], None], cgroup: WorkerCgroup | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._loop, self._on_gone = loop, on_gone
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.opened: asyncio.Future[None] = loop.create_future()  # done when its session can begin
        self._saved: asyncio.Future[str] | None = None
        self._parked: asyncio.Future[str] | None = None
        self._park_said: dict[str, Callable[[], None]] = {}
        self._at_rest: Callable[[], None] = lambda: None
        self.asks_room: Callable[[int, int], None] = lambda device, bytes: self.answer_room(False)
        self.says_turn: Callable[[int, int, int], None] = lambda device, what, number: None
        self.asks_file: Callable[[int], None] = lambda bytes: self.answer_export()
        self.asks_export: Callable[[int, bytes], None] = lambda session, name: self.answer_export()
        self.file_over: Callable[[int], None] = lambda bytes: None
        self._giving: dict[int, asyncio.Future[Given]] = {}
        self._next_give = 1
        self._turn_words, self._turn_heard = float(TURN_WORDS), loop.time()
        self.cgroup = cgroup
        self.memory_limit, self.told = 0, False
        self.ending = ""  # why it ended, for people
        self.run_ending: RunEnding | None = None  # how its session ended, None when the worker did not say so
        self.last_figures: dict[str, int] = {}
        self._figures: dict[int, asyncio.Future[dict[str, int]]] = {}
        self._next_figures = 1
        self._may_say = Counter({"ready": 1, "opened": 1, "failed": 1, "ended": 1, "room": 1, "file": 1, "open": 1})  # how often each may come yet
        self.pid, self._process = process.pid, process
        self._pidfd, self._socket = process.pidfd, process.socket
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._readable)
        loop.add_reader(self._pidfd, self._ended)

    @property
    def descriptors(self) -> tuple[int, int]:
        """By which another daemon can have this worker (`Process`): the process's and the socket's. -1: it has ended."""
        return self._pidfd, self._socket.fileno()

    def adopt(self, memory_limit: int) -> None:
        """It has a session, from an earlier daemon; what that has asked it, and was told, nobody knows.

        Args:
            memory_limit: bytes of the host's memory that it may take, 0: there is no bound.
        """
        self.memory_limit = memory_limit
        for done in (self.ready, self.opened):
            done.set_result(None)
        # What it has said to the earlier daemon may come yet, and what it wants comes once more.
        self._may_say.update({"file": 1, "open": 1, "file_over": FILES_BACKLOG, "given": GIVEN_BACKLOG})
        self._may_say.update({"room": 1, "wants": 2, "back": 1, "parked": 1, "rests": 1, "saved": 1, "figures": FIGURES_BACKLOG})
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "adopted"})

    def expect(self, tenant: Tenant) -> None:
        """Says whose session probably comes: what its tenant keeps is then looked at before."""
        if tenant.folder >= 0:
            with contextlib.suppress(OSError):
                messages.send(self._socket, {"op": "expect", "tenant": tenant.name}, (tenant.folder,))

    def give(self, config: SessionConfig, fds: tuple[int, ...]) -> None:
        """Sends a session and its descriptors, which stay open here.

        Raises:
            OSError: the worker is gone, or its memory cannot be bounded.
        """
        self.memory_limit = config.host_memory
        if self.cgroup is not None and self.memory_limit:
            self.cgroup.bound(self.memory_limit)
        messages.send(self._socket, {"op": "session", **asdict(config)}, fds)

    def add_connection(self, which: int, fd: int, epoch: int) -> None:
        """Sends a bulk channel's connection or, with which = -1, one that replaces the main connection; the descriptor stays open here."""
        messages.send(self._socket, {"op": "connection", "which": which, "epoch": epoch}, (fd,))

    def client_gone(self) -> None:
        """Tells the worker that the client's program has ended: the session ends as soon as it is not connected."""
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "gone"})

    async def figures(self) -> dict[str, int]:
        """The session's present figures; empty when the worker does not answer within `FIGURES_LIMIT`."""
        number, self._next_figures = self._next_figures, self._next_figures + 1
        answer: asyncio.Future[dict[str, int]] = self._loop.create_future()
        self._figures[number] = answer
        try:
            messages.send(self._socket, {"op": "figures", "id": number})
            self._may_say["figures"] += 1
            async with asyncio.timeout(FIGURES_LIMIT):
                return await answer
        except (TimeoutError, OSError):
            return {}
        finally:
            del self._figures[number]

    async def save(self, fd: int, limit: float, at_rest: Callable[[], None]) -> str:
        """Has the session's image written to a descriptor, which stays open here, once the session is at rest, for which there are `limit` seconds.

        Args:
            at_rest: called then; a connection that is given to this worker afterwards is closed.

        Returns:
            Why that was not possible, and the session goes on; empty: it stands still until `go_on`.

        Raises:
            OSError: the worker is gone.
        """
        self._saved, self._at_rest = self._loop.create_future(), at_rest
        self._may_say.update({"saved": 1, "rests": 1})
        messages.send(self._socket, {"op": "save", "limit": limit}, (fd,))
        return await self._saved

    async def park(self, fd: int, finish: float, parked: Callable[[], None], wants: Callable[[], None], back: Callable[[], None]) -> str:
        """Has the session write its device memory to a file, whose descriptor stays open here, and give it back.

        Args:
            finish: seconds that its GPU has to finish what it does, whatever the program wants next; 0: only if it is idle.
            parked: called when it has.
            wants: called when the program has called something: the session waits for `answer_room`. Called again if there was no room after all.
            back: called when it has its memory again.

        Returns:
            Why it was not parked; empty: it was.

        Raises:
            OSError: the worker is gone.
        """
        if self._parked is not None and not self._parked.done():
            return BEING_PARKED
        self._parked = self._loop.create_future()
        self.on_park_said(parked, wants, back)
        self._may_say["parked"] += 1
        messages.send(self._socket, {"op": "park", "finish": finish}, (fd,))
        said = self._parked
        either: set[asyncio.Future[Any]] = {said, self.gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            raise ConnectionResetError("the worker is gone")
        return said.result()

    def on_park_said(self, parked: Callable[[], None], wants: Callable[[], None], back: Callable[[], None]) -> None:
        """What is to be called from now on, as for `park`."""
        self._park_said = {"parked": parked, "wants": wants, "back": back}

    def answer_room(self, granted: bool) -> None:
        """There is room for what it waits for, its memory or an allocation; or there is none for the allocation."""
        self._may_say.update({"wants": 1, "back": 1, "room": 1})
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "room", "granted": granted})

    def answer_export(self, what: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """What it has asked for: a file, or what another session has exported; nothing: it is refused. The descriptors stay open here."""
        self._may_say.update({"file": 1, "open": 1})
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "export", "what": what}, fds)

    def gave_file(self) -> None:
        """It may say once that a file is not used any more."""
        self._may_say["file_over"] += 1

    async def give_export(self, name: bytes) -> Given:
        """What its session has exported under a name; nothing: there is no such export, or it does not answer."""
        number, self._next_give = self._next_give, self._next_give + 1
        answer: asyncio.Future[Given] = self._loop.create_future()
        self._giving[number] = answer
        descriptors.take_from(self._socket, True)
        try:
            messages.send(self._socket, {"op": "give", "id": number, "name": name})
            self._may_say["given"] += 1
            either: set[asyncio.Future[Any]] = {answer, self.gone}
            await asyncio.wait(either, timeout=GIVE_LIMIT, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else Given()
        except OSError:
            return Given()
        finally:
            del self._giving[number]
            if not self._giving:
                descriptors.take_from(self._socket, False)

    def exporter_gone(self, session: int) -> None:
        """A session whose exports this one may have opened has ended."""
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "exporter_gone", "session": session})

    def _given(self, message: dict[str, Any], fds: list[int]) -> None:
        number, what, files = message.get("id"), message.get("what"), message.get("files")
        answer = self._giving.get(number) if isinstance(number, int) else None
        asked = answer is not None and not answer.done()
        numbers = tuple(files) if isinstance(files, list) and len(files) <= messages.MAX_FDS else ()
        sound = isinstance(what, bytes) and all(type(file) is int for file in numbers) and numbers.count(0) == len(fds)
        if not asked or not sound:
            descriptors.discard(fds)
        if answer is not None and asked:
            answer.set_result(Given(what, numbers, tuple(fds)) if isinstance(what, bytes) and sound else Given())

    def turn(self, device: int, may: May, number: int) -> None:
        """Whether its kernels may run on a device from now on, by a word of that number."""
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "turn", "device": device, "may": int(may), "number": number})

    def _may_say_turn(self) -> bool:
        """A worker says of itself when it has work and when it has none; at what rate is bounded."""
        now = self._loop.time()
        self._turn_words = min(TURN_WORDS, self._turn_words + (now - self._turn_heard) * TURN_WORDS) - 1
        self._turn_heard = now
        return self._turn_words >= 0

    def go_on(self) -> None:
        """After `save`: the session stays with this worker."""
        with contextlib.suppress(OSError):
            messages.send(self._socket, {"op": "go_on"})

    def begin(self) -> None:
        """Lets a session begin that came from another worker, which is dead.

        Raises:
            OSError: the worker is gone.
        """
        messages.send(self._socket, {"op": "begin"})

    def kill(self, sig: int = signal.SIGKILL) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def end(self, text: str) -> None:
        """Ends it, and its client is told why."""
        self.ending, self.told = text, True
        self.kill()

    def _readable(self) -> None:
        try:
            received = messages.receive(self._socket)
        except BlockingIOError:
            return
        except OSError:
            received = None
        except ValueError:
            self._loop.remove_reader(self._socket)
            self.ending = self.ending or "what it said was no message"
            self.kill()
            return
        if received is None:
            self._loop.remove_reader(self._socket)
            return
        message, fds = received
        # A worker runs strangers' code: whatever its messages hold must not raise here, or the session's slot would stay taken. And it has little to
        # say: one that says more keeps the daemon from others.
        op = message.get("op")
        self._may_say[op if isinstance(op, str) else ""] -= 1
        too_much = not self._may_say_turn() if op == "turn" else self._may_say[op if isinstance(op, str) else ""] < 0
        if op != "given" or too_much:  # nothing else has any
            descriptors.discard(fds)
        if too_much:
            self._loop.remove_reader(self._socket)
            self.ending = self.ending or "it said what nobody had asked for"
            self.kill()
            return
        match op:
            case "ready":
                if not self.ready.done():
                    self.ready.set_result(None)
            case "opened":
                if not self.opened.done():
                    self.opened.set_result(None)
            case "rests":
                if self._saved is not None and not self._saved.done():
                    self._at_rest()
            case "parked":
                text = _text(message)
                if not text:
                    self._may_say["wants"] += 1
                    self._park_said.get("parked", _nothing)()
                if self._parked is not None and not self._parked.done():
                    self._parked.set_result(text)
            case "wants" | "back":
                self._park_said.get(op, _nothing)()
            case "room":
                device, size = message.get("device"), message.get("bytes")
                if isinstance(device, int) and isinstance(size, int):
                    self.asks_room(device, size)
            case "file":
                size = message.get("bytes")
                if type(size) is int and size > 0:
                    self.asks_file(size)
            case "file_over":
                number = message.get("file")
                if type(number) is int:
                    self.file_over(number)
            case "given":
                self._given(message, fds)
            case "open":
                session, name = message.get("session"), message.get("name")
                if type(session) is int and isinstance(name, bytes):
                    self.asks_export(session, name)
            case "turn":
                device, what, number = (message.get(name) for name in ("device", "what", "number"))
                if type(device) is int and type(what) is int and type(number) is int:
                    self.says_turn(device, what, number)
            case "saved":
                if self._saved is not None and not self._saved.done():
                    self._saved.set_result(_text(message))
            case "failed":
                self.ending = _text(message)
                for future in (self.ready, self.opened):
                    if not future.done():
                        future.set_exception(GpuvirtError(self.ending))
            case "ended":
                code, text = message.get("code"), _text(message)
                self.last_figures = {**self.last_figures, **_figures(message)}
                self.run_ending = RunEnding(code) if isinstance(code, int) and code in list(RunEnding) else None
                if self.run_ending is RunEnding.COMPILED_TOO_LONG:
                    self.end(COMPILED_TOO_LONG)
                    return
                ending = self.run_ending.text if self.run_ending is not None else "ended"
                self.ending = f"{ending}: {text}" if text else ending
            case "figures":
                number = message.get("id")
                answer = self._figures.get(number) if isinstance(number, int) else None
                if answer is not None and not answer.done():
                    if self.run_ending is None:  # an answer that was under way when the session ended is older than what was said then
                        self.last_figures = _figures(message)
                    answer.set_result(self.last_figures)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        while self._socket.fileno() >= 0 and not self._drained():
            pass
        self._loop.remove_reader(self._socket)
        os.close(self._pidfd)
        self._socket.close()
        self._pidfd = -1
        if self._process.exit_code is None:
            self._gone(None)
        else:
            self._process.exit_code.add_done_callback(lambda code: self._gone(code.result()))

    def _gone(self, code: int | None) -> None:
        if code in (-signal.SIGKILL, None) and self.cgroup is not None and self.cgroup.oom_killed():
            self.ending, self.told = host_memory.reason(self.memory_limit), True
        self.ending = self.ending or _exit_text(code)
        if not self.ready.done():
            self.ready.set_exception(GpuvirtError(f"a worker did not start: {self.ending}"))
        if not self.opened.done():
            self.opened.set_exception(GpuvirtError(self.ending))
        if self._saved is not None and not self._saved.done():
            self._saved.set_result(f"its worker ended: {self.ending}")
        for future in (self.ready, self.opened):
            future.exception()  # marks it as retrieved: asyncio logs exceptions that nobody retrieves
        self.gone.set_result(None)
        self._on_gone(self)

    def _drained(self) -> bool:
        """Reads one remaining message of a worker that has ended; true when there is none."""
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                return True
        except ConnectionResetError:
            return False
        except OSError:
            return True
        self._readable()
        return False
