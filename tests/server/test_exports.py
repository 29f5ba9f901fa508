"""What the daemon decides about memory and events that sessions share: for whom they are, and how many files a session has for them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.server import descriptors
from gpuvirt.server.workers import exports as exports_module
from gpuvirt.server.workers.exports import Exports
from gpuvirt.server.workers.worker_process import Given

MIB = 1 << 20
NAME = bytes(range(16))


class FakeWorker:
    """A session's worker: what it was answered (bytes, and what the descriptors stand for), and what it says of its exports."""

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, list[tuple[int, int]]]] = []
        self.numbers: list[int] = []  # of its files
        self.gone: list[int] = []
        self.gives: Callable[[bytes], Given] = lambda name: Given(b"what", tuple(self.numbers)) if name == NAME else Given()
        self.asks_file: Any = None
        self.file_over: Any = None
        self.asks_export: Any = None

    def answer_export(self, what: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        self.answers.append((what, [(os.fstat(fd).st_ino, os.fstat(fd).st_size) for fd in fds]))
        if len(what) == 24:
            self.numbers.append(int.from_bytes(what[16:], "little"))

    def gave_file(self) -> None:
        pass

    async def give_export(self, name: bytes) -> Given:
        return self.gives(name)

    def exporter_gone(self, session: int) -> None:
        self.gone.append(session)


def sessions(*leases: Any) -> dict[int, Any]:
    """From 1 on, each under the lease that is named."""
    every = {}
    for i, lease in enumerate(leases, 1):
        every[i] = SimpleNamespace(id=i, label=f"session {i}", membership=SimpleNamespace(lease=lease), worker=FakeWorker())
    return every


def story(coroutine: Callable[[Exports, dict[int, Any]], Coroutine[Any, Any, None]], *leases: Any) -> None:
    async def run() -> None:
        all_sessions = sessions(*leases)
        exports = Exports(all_sessions.get, lambda membership: 8 * MIB)
        for session in all_sessions.values():
            exports.serve(session)
        await coroutine(exports, all_sessions)
        for session in [*all_sessions.values()]:
            del all_sessions[session.id]
            exports.ended(session)

    before = open_files()
    asyncio.run(run())
    deadline = time.monotonic() + 20
    while open_files() - before:  # some are closed on a thread, as may be those of the test before
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_files() -> set[tuple[str, str]]:
    """This process's: each one's number and what it is."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own, closed by now
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_only_sessions_of_the_lease_open_it() -> None:
    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        one, two, other = (all_sessions[i].worker for i in (1, 2, 3))
        one.asks_file(MIB)
        ((_, file),) = one.answers
        two.asks_export(1, NAME)
        other.asks_export(1, NAME)
        two.asks_export(1, bytes(16))  # no such name
        two.asks_export(99, NAME)  # no such session
        await settle()
        assert sorted(two.answers) == [(b"", []), (b"", []), (b"what", file)]
        assert other.answers == [(b"", [])]

    story(tell, "lease", "lease", "another")


def test_a_worker_hands_on_its_own_files_only() -> None:
    """Whatever number it says."""

    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        one, two, three = (all_sessions[i].worker for i in (1, 2, 3))
        three.asks_file(MIB)
        one.asks_file(MIB)
        one.numbers = three.numbers
        two.asks_export(1, NAME)
        await settle()
        assert two.answers == [(b"", [])]

    story(tell, "lease", "lease", "another")


def test_a_drivers_file_is_handed_on() -> None:
    """And closed here, whether anybody got it or not."""

    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        one, two = all_sessions[1].worker, all_sessions[2].worker
        made: list[int] = []

        def gives(name: bytes) -> Given:
            made.append(os.memfd_create("driver's"))
            os.ftruncate(made[-1], len(made))
            return Given(b"what", (0, 0) if len(made) == 2 else (0,), (made[-1],) if len(made) != 2 else (made[-1], os.dup(made[-1])))

        one.gives = gives
        for _ in range(2):
            two.asks_export(1, NAME)
            await settle()
        assert [(what, [size for _, size in files]) for what, files in two.answers] == [(b"what", [1]), (b"what", [2, 2])]
        one.gives = lambda name: Given(b"what", (5,), ())
        two.asks_export(1, NAME)
        await settle()
        assert two.answers[-1] == (b"", [])
        one.gives = lambda name: Given(b"event")  # which lies in no file
        two.asks_export(1, NAME)
        await settle()
        assert two.answers[-1] == (b"event", [])

    story(tell, "lease", "lease")


def test_closing_what_a_worker_has_sent_takes_no_time() -> None:
    """A socket that waits until its bytes are sent, to somebody who does not read."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 20))
    begin = time.monotonic()
    descriptors.discard([ours.detach()])
    assert time.monotonic() - begin < 5
    theirs.close()  # which ends it
    listener.close()


def test_who_has_opened_it_is_told_of_the_end() -> None:
    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        one, two, three = (all_sessions[i] for i in (1, 2, 3))
        one.worker.asks_file(MIB)
        two.worker.asks_export(1, NAME)
        await settle()
        del all_sessions[1]
        exports.ended(one)
        assert (two.worker.gone, three.worker.gone) == ([1], [])
        two.worker.asks_export(1, NAME)
        await settle()
        assert two.worker.answers[-1] == (b"", [])

    story(tell, "lease", "lease", "lease")


def test_an_exporter_that_ends_while_it_is_asked_gives_nothing() -> None:
    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        one, two = all_sessions[1], all_sessions[2]
        one.worker.asks_file(MIB)

        def ends(name: bytes) -> Given:
            exports.ended(all_sessions.pop(1))
            return Given(b"what", tuple(one.worker.numbers))

        one.worker.gives = ends
        two.worker.asks_export(1, NAME)
        await settle()
        assert two.worker.answers == [(b"", [])]

    story(tell, "lease", "lease")


def test_files_are_sealed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports_module, "FILES", 3)

    async def tell(exports: Exports, all_sessions: dict[int, Any]) -> None:
        worker = all_sessions[1].worker
        worker.asks_file(6 * MIB)
        worker.asks_file(3 * MIB)  # with the other one more than the 8 MiB that it may have
        worker.asks_file(2 * MIB)
        assert [[size for _, size in files] for _, files in worker.answers] == [[6 * MIB], [], [2 * MIB]]
        worker.file_over(worker.numbers[0])
        worker.file_over(worker.numbers[0])
        worker.asks_file(MIB)
        worker.asks_file(MIB)
        worker.asks_file(MIB)
        assert [len(files) for _, files in worker.answers[3:]] == [1, 1, 0]
        exports.all_files = 4
        all_sessions[2].worker.asks_file(MIB)
        all_sessions[2].worker.asks_file(MIB)
        assert [len(files) for _, files in all_sessions[2].worker.answers] == [1, 0]
        fd = exports._files[1][worker.numbers[1]].fd
        for size in (1, 4 * MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)

    story(tell, "lease", "another")
