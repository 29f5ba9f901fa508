"""A process that compiles IR for this one.

It is a process because llvmlite holds one lock around every call of LLVM: of two threads that compile, one waits. A helper forks processes
that compile, as many as are asked at the same time, so that one that crashes on what it was given takes nothing along. It starts when first needed,
ends when it has had nothing to do for a while, and when this process ends.

A worker in a box (gpuvirt/server/box) can start no process when that time comes. It forks its helpers before its box is closed
(`CompileHelper.fork`); they wait for the whole session and cost little because they share the worker's memory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import lz4.block

from gpuvirt.soft.codegen import target
from gpuvirt.soft.host import compile_time, jit

IDLE = 60.0  # seconds that a helper waits for more work
LINGER = 2.0  # seconds that a helper keeps the processes that compile, and what memory LLVM has taken in them
ATTEMPTS = 3  # helpers that may die before nothing more is asked of any
PIECE = 1 << 20  # bytes read at once
_PR_SET_PDEATHSIG = 1
_REQUEST = struct.Struct("<QIQ")  # number, level, bytes of IR
_ANSWER = struct.Struct("<Q?Q")  # number, whether it was compiled, bytes of the object, or of the reason


class _Gone(Exception):
    """The helper has ended."""


class CompileHelper:
    """Compiles IR elsewhere. Threads may ask at the same time."""

    def __init__(self, priority: int) -> None:
        """priority: added to the nice value of the process and of those that it forks."""
        self.priority = priority
        self._lock = threading.Lock()
        self._forked: _ForkedProcess | None = None
        self._running: _Running | None = None
        self._failures = 0

    def fork(self, confine: Callable[[], None], confine_more: Callable[[], None]) -> None:
        """Forks the helper now, instead of starting one when it is needed. This process must have one thread.

        Args:
            confine: called in the helper before it reads anything.
            confine_more: called in each process that the helper forks.
        """
        self._forked = _ForkedProcess(self.priority, confine, confine_more)

    def compile(self, ir: bytes, level: int) -> bytes | None:
        """Waits for the object code of IR (UTF-8, compressed by lz4); None: it was not compiled, or there is no helper to be had."""
        while True:
            with self._lock:
                if self._failures >= ATTEMPTS:
                    return None
                running = self._running = self._running or self._start()
            try:
                return running.ask(ir, level).result()
            except _Gone:
                self._ended(running)  # if it only had nothing to do for long, the next one does it

    def close(self) -> None:
        """Ends the helper; nothing is asked of another."""
        with self._lock:
            running, self._running = self._running, None
            self._failures = ATTEMPTS
        if running is not None:
            running.process.kill()
            running.process.wait()

    def _start(self) -> _Running:
        atexit.register(self.close)
        return _Running(self._forked or _start(self.priority))

    def _ended(self, running: _Running) -> None:
        with self._lock:
            if self._running is running:
                self._running = None
                running.process.kill()  # one that has ended by itself keeps its exit code
                if running.process.wait() != 0:
                    self._failures = self._failures + 1 if self._forked is None else ATTEMPTS


class _Running:
    """A helper that was started, and what has been asked of it."""

    def __init__(self, process: subprocess.Popen[bytes] | _ForkedProcess) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._requests, self._answers = process, process.stdin, process.stdout
        self._lock = threading.Lock()
        self._asked: dict[int, Future[bytes | None]] = {}
        self._last = 0
        self._gone = False
        threading.Thread(target=self._read, name="compile-helper", daemon=True).start()

    def ask(self, ir: bytes, level: int) -> Future[bytes | None]:
        """The object code to come, None: it was not compiled.

        Raises:
            _Gone: also by what is returned.
        """
        asked: Future[bytes | None] = Future()
        with self._lock:
            if self._gone:
                raise _Gone
            self._last += 1
            self._asked[self._last] = asked
            with contextlib.suppress(OSError):  # then `_read` says that it is gone
                self._requests.write(_REQUEST.pack(self._last, level, len(ir)) + ir)
                self._requests.flush()
        return asked

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # also what makes no sense is its end
            while len(head := self._answers.read(_ANSWER.size)) == _ANSWER.size:
                number, good, size = _ANSWER.unpack(head)
                data = self._answers.read(size)
                if len(data) < size:
                    break
                with self._lock:
                    asked = self._asked.pop(number)  # a helper that answers what nobody asked is no use
                asked.set_result(data if good else None)
        with self._lock:
            self._gone, left = True, list(self._asked.values())
        for asked in left:
            asked.set_exception(_Gone())


def _start(priority: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[3]
    code = f"import sys; sys.path.append({str(root)!r}); from gpuvirt.soft.host import compile_helper; compile_helper.serve({priority})"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class _ForkedProcess:
    """A helper that is a fork of this process; what `_Running` uses of a Popen."""

    def __init__(self, priority: int, confine: Callable[[], None], confine_more: Callable[[], None]) -> None:
        work, self_in = os.pipe()
        self_out, results = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                _keep_only(work, results)
                _yield_cores(priority)
                confine()
                _end_with(parent)
                _Server(confine_more, None, 1).run()
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        os.close(work)
        os.close(results)
        self.stdin: BinaryIO = os.fdopen(self_in, "wb")
        self.stdout: BinaryIO = os.fdopen(self_out, "rb")

    def kill(self) -> None:
        """It ends when nobody can ask it any more; a worker in a box may not send it signals."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def wait(self) -> int:
        """Not for what may not end: it was not killed, and is when this process ends."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return 1  # it ends by itself only when something is wrong


# ---- the helper ----


def serve(priority: int) -> None:
    """The helper process that `_start` starts."""
    _yield_cores(priority)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results = os.dup(1)
    os.dup2(2, 1)  # what anybody else prints is no result
    target.host()  # once, not in every fork
    _Server(lambda: None, IDLE, results).run()


def _keep_only(work: int, results: int) -> None:
    """Keeps two descriptors of all that were inherited, as 0 and 1, and 2."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(work, 0)
    os.dup2(results, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _yield_cores(priority: int) -> None:
    if priority:
        with contextlib.suppress(OSError):
            os.nice(priority)


def _end_with(parent: int) -> None:
    """Has this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)


@dataclass
class _Child:
    """A process that compiles: where it reads requests, where its answers come from, and what of its answer is there."""

    pid: int
    requests: int
    answers: int
    number: int = 0  # of what it was asked for, 0: nothing
    made: bytearray = field(default_factory=bytearray)

    def whole(self) -> bool:
        return len(self.made) >= _ANSWER.size and len(self.made) == _ANSWER.size + _ANSWER.unpack_from(self.made)[2]


class _Server:
    """Hands requests on to children that have nothing to do, or to new ones, and their answers back."""

    def __init__(self, confine_more: Callable[[], None], idle: float | None, results: int) -> None:
        self._confine_more, self._idle, self._results = confine_more, idle, results
        self._children: dict[int, _Child] = {}  # by where their answers come from
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def run(self) -> None:
        """Until nobody can ask any more or nothing has come for `idle` seconds."""
        while True:
            ready = self._poll.poll(self._patience())
            if not ready and not self._children:
                return
            if not ready:
                self._end_children()
            for fd, _ in ready:
                if fd != 0:
                    self._hear(self._children[fd])
                elif not self._ask():
                    return

    def _patience(self) -> float | None:
        """Milliseconds, None: for ever."""
        if any(child.number for child in self._children.values()):
            return None
        seconds = LINGER if self._children else self._idle
        return None if seconds is None else seconds * 1000

    def _ask(self) -> bool:
        head = _read_whole(0, _REQUEST.size)
        if len(head) < _REQUEST.size:
            return False
        number, _, size = _REQUEST.unpack(head)
        request = head + _read_whole(0, size)
        child = next((child for child in self._children.values() if not child.number), None) or self._fork()
        child.number = number
        with contextlib.suppress(BrokenPipeError):  # `_hear` finds it gone
            _write_whole(child.requests, request)
        return True

    def _hear(self, child: _Child) -> None:
        piece = os.read(child.answers, PIECE)
        child.made += piece
        if not piece:
            self._forget(child)
            if child.number:
                _write_whole(self._results, _ANSWER.pack(child.number, False, 0))
        elif child.whole():
            _write_whole(self._results, child.made)
            child.number, child.made = 0, bytearray()

    def _end_children(self) -> None:
        for child in list(self._children.values()):
            self._forget(child)

    def _forget(self, child: _Child) -> None:
        """Ends it; it has nothing to do, or has ended."""
        self._poll.unregister(child.answers)
        del self._children[child.answers]
        os.close(child.requests)
        os.close(child.answers)
        os.waitpid(child.pid, 0)

    def _fork(self) -> _Child:
        me = os.getpid()
        requests, ask = os.pipe()
        answers, tell = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for other in self._children.values():
                    os.close(other.requests)
                os.close(ask)
                _end_with(me)
                self._confine_more()
                _compile_all(requests, tell)
                status = 0
            finally:
                os._exit(status)
        os.close(requests)
        os.close(tell)
        child = self._children[answers] = _Child(pid, ask, answers)
        self._poll.register(answers, select.POLLIN)
        return child


def _compile_all(requests: int, answers: int) -> None:
    """A child's life."""
    _, bound = resource.getrlimit(resource.RLIMIT_CPU)
    while len(head := _read_whole(requests, _REQUEST.size)) == _REQUEST.size:
        number, level, size = _REQUEST.unpack(head)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + compile_time.limit()), bound))
        good, data = _made(_read_whole(requests, size), level)
        _write_whole(answers, _ANSWER.pack(number, good, len(data)) + data)


def _made(ir: bytes, level: int) -> tuple[bool, bytes]:
    """Whether it could be compiled, and the object or the reason."""
    try:
        return True, jit.compile_object(lz4.block.decompress(ir).decode(), level)
    except Exception as error:
        return False, str(error).encode()


def _read_whole(fd: int, size: int) -> bytes:
    """`size` bytes, less at the end of the file."""
    found = bytearray()
    while len(found) < size and (piece := os.read(fd, min(size - len(found), PIECE))):
        found += piece
    return bytes(found)


def _write_whole(fd: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
