"""Recompiles kernels that run long, at the higher optimization level, in the background.

A large kernel first gets code that is made quickly. The engine counts the time it spends in it (struct soft_tier in native/backend/soft/compiler.h)
and says so on an event descriptor once that was much; then a helper process compiles the kernel's IR again, and the new entry is put where the engine
takes it from at its next block. The old code stays for those who are in it, until the module goes.

It is a process and not a thread because llvmlite holds one lock around every call of LLVM: a compilation in this process would hold up those that a
launch waits for. It runs at low priority, starts when first needed, ends when it has had nothing to do for a while, and when this process ends.

A worker in a box (gpuvirt/server/box) can start no process when that time comes. It forks a helper before its box is closed (`Improver.fork_helper`),
which waits for the whole session, costs little because it shares the worker's memory, and forks for each compilation.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import queue
import resource
import signal
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import lz4.block

from gpuvirt.soft.host import compile_time, jit

BUDGET_NS = 100_000_000  # time spent in a kernel's quick code after which good code is asked for
IDLE = 60.0  # seconds that the helper waits for more work
PRIORITY = 5  # added to the helper's nice value: kernels that run meanwhile keep most of the cores
ATTEMPTS = 3  # helpers that may die before nothing more is asked of any
_PR_SET_PDEATHSIG = 1
_SIZE = struct.Struct("<Q")
_RESULT = struct.Struct("<?Q")


class Tier(ctypes.Structure):
    """struct soft_tier"""

    _fields_ = (
        ("entry", ctypes.c_uint64),
        ("spent_ns", ctypes.c_uint64),
        ("budget_ns", ctypes.c_uint64),
        ("asked", ctypes.c_uint32),
        ("wake_fd", ctypes.c_int32),
    )


class Wish:
    """A kernel with quick code, and the function that takes the good code."""

    def __init__(self, owner: object, tier: Tier, ir: bytes, use: Callable[[bytes], None]) -> None:
        self.owner = weakref.ref(owner)  # when it is gone, the good code is not needed
        self.tier = tier
        self.ir = ir
        self.use = use


class Improver:
    """Waits for kernels to become hot and has them compiled again. One a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: list[Wish] = []
        self._fd = -1
        self._helper: subprocess.Popen[bytes] | _ForkedHelper | None = None
        self._forked: _ForkedHelper | None = None
        self._failures = 0

    def tier(self, entry: int) -> Tier:
        """The cell through which the engine finds the entry of a kernel that may get better code."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.eventfd(0, os.EFD_CLOEXEC)
                threading.Thread(target=self._run, name="improver", daemon=True).start()
                atexit.register(self.close)
        return Tier(entry, 0, BUDGET_NS, 0, self._fd)

    def wish(self, wish: Wish) -> None:
        """Remembers what to do when the engine says that a kernel is hot."""
        with self._lock:
            self._wishes = [w for w in self._wishes if w.owner() is not None]
            self._wishes.append(wish)

    def fork_helper(self, confine: Callable[[], None], confine_more: Callable[[], None]) -> None:
        """Forks the helper now, instead of starting one when it is needed. This process must have one thread.

        Args:
            confine: called in the helper before it reads anything.
            confine_more: called in each process that the helper forks for a compilation.
        """
        self._forked = _ForkedHelper(confine, confine_more)

    def close(self) -> None:
        """Ends the helper."""
        with self._lock:
            helper, self._helper = self._helper, None
            self._failures = ATTEMPTS
        if helper is not None:
            helper.kill()
            helper.wait()

    def _next(self) -> tuple[Wish, object] | None:
        with self._lock:
            for wish in self._wishes:
                owner = wish.owner()
                if owner is not None and wish.tier.asked:
                    self._wishes.remove(wish)
                    return wish, owner
        return None

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._fd)
            while (found := self._next()) is not None:
                wish, owner = found
                code = self._compile(wish.ir)
                if code is not None:
                    with contextlib.suppress(Exception):  # the quick code stays in use
                        wish.use(code)
                del found, wish, owner

    def _compile(self, ir: bytes) -> bytes | None:
        while True:
            with self._lock:
                if self._failures >= ATTEMPTS:
                    return None
                if self._helper is None:
                    self._helper = self._forked or _start()
                helper = self._helper
            assert helper.stdin is not None and helper.stdout is not None
            with contextlib.suppress(OSError, struct.error):
                helper.stdin.write(_SIZE.pack(len(ir)) + ir)
                helper.stdin.flush()
                good, size = _RESULT.unpack(helper.stdout.read(_RESULT.size))
                data = helper.stdout.read(size)
                if len(data) == size:
                    return data if good else None
            with self._lock:  # it is gone; if it only had nothing to do for long, the next one does it
                if self._helper is helper:
                    self._helper = None
                    if helper.wait() != 0:
                        self._failures += 1


def _start() -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[3]
    code = f"import sys; sys.path.append({str(root)!r}); from gpuvirt.soft.host import tiering; tiering.serve()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class _ForkedHelper:
    """A helper that is a fork of this process; what `Improver` uses of a Popen."""

    def __init__(self, confine: Callable[[], None], confine_more: Callable[[], None]) -> None:
        work, self_in = os.pipe()
        self_out, results = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                _keep_only(work, results)
                confine()
                _end_with(parent)
                _serve_by_forks(confine_more)
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
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return 1  # it ends by itself only when something is wrong


# ---- the helper ----


def _keep_only(work: int, results: int) -> None:
    """Keeps two descriptors of all that were inherited, as 0 and 1, and 2."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(PRIORITY)
    os.dup2(work, 0)
    os.dup2(results, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _end_with(parent: int) -> None:
    """Has this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)


def _serve_by_forks(confine_more: Callable[[], None]) -> None:
    """Reads IR and writes objects. Each is made in a process of its own: one that crashes on what it was given takes nothing along."""
    source, results, me = os.fdopen(0, "rb"), os.fdopen(1, "wb"), os.getpid()
    while len(head := source.read(_SIZE.size)) == _SIZE.size:
        ir = source.read(_SIZE.unpack(head)[0])
        answer, write = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.close(answer)
                _end_with(me)
                seconds = math.ceil(compile_time.limit())
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # the quick code stays in use then
                confine_more()
                good, data = _made(ir)
                with os.fdopen(write, "wb") as out:
                    out.write(bytes([good]) + data)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(answer, "rb") as made:
            found = made.read()
        _, status = os.waitpid(pid, 0)
        good = status == 0 and found[:1] == b"\1"
        results.write(_RESULT.pack(good, len(found[1:])) + found[1:])
        results.flush()


def _made(ir: bytes) -> tuple[bool, bytes]:
    """Whether it could be compiled, and the object or the reason."""
    try:
        return True, jit.compile_object(lz4.block.decompress(ir).decode(), jit.GOOD)
    except Exception as error:
        return False, str(error).encode()


def serve() -> None:
    """The helper process: reads IR and writes objects until its parent has ended or no work has come for IDLE seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(PRIORITY)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody else prints is no result
    work: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, work), daemon=True).start()
    while True:
        try:
            ir = work.get(timeout=IDLE)
        except queue.Empty:
            os._exit(0)
        good, data = _made(ir)
        results.write(_RESULT.pack(good, len(data)) + data)
        results.flush()


def _read(source: BinaryIO, work: queue.Queue[bytes]) -> None:
    """Ends the process with its parent, also in the middle of a compilation."""
    while len(head := source.read(_SIZE.size)) == _SIZE.size:
        work.put(source.read(_SIZE.unpack(head)[0]))
    os._exit(0)
