"""The descriptor store: what a daemon puts there is what the next one takes, and nothing is left when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import wait_until

from gpuvirt import paths
from gpuvirt.server import messages
from gpuvirt.server.fdstore.store import DescriptorStore


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "runtime_dirs", lambda: [tmp_path])
    return tmp_path


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def files(folder: Path) -> list[Path]:
    return [*folder.glob("fdstore-*")]


def heard(store: DescriptorStore) -> None:
    """Returns when the store has done what it was told."""
    sock = store._socket
    assert sock is not None
    sock.setblocking(True)
    for entry in store._take_all(sock):
        entry.close()
    sock.setblocking(False)


def test_what_is_put_is_there_for_the_next_daemon(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """The last of each name, with its descriptors, as often as daemons come; not what was dropped."""

    async def one() -> None:
        store = DescriptorStore("127.0.0.1", 7)
        assert store.take() == []
        reading, writing = os.pipe()
        pidfd = os.pidfd_open(process.pid)
        store.put("pipe", b"old", [pidfd])
        store.put("pipe", b"new", [pidfd, writing])
        store.put("table", b"\0" * 60_000, [reading], watched=False)
        store.put("gone", b"", [pidfd])
        store.drop("gone")
        store.drop("never there")
        os.write(writing, b"before")
        for fd in (reading, writing, pidfd):
            os.close(fd)
        store.close()

    async def next_one(said: bytes) -> None:
        store = DescriptorStore("127.0.0.1", 7)
        pipe, table = store.take()
        assert (pipe.name, pipe.record, table.name, table.record) == ("pipe", b"new", "table", b"\0" * 60_000)
        os.write(pipe.descriptors[1], b" after")
        assert os.read(table.descriptors[0], 100) == said + b" after"
        for entry in (pipe, table):
            entry.close()
        store.close()

    asyncio.run(one())
    asyncio.run(next_one(b"before"))
    asyncio.run(next_one(b""))
    assert len(files(folder)) == 1
    process.communicate(b"\n")
    assert wait_until(lambda: files(folder) == [])  # its last process has ended


def test_entries_go_with_their_processes(folder: Path, process: subprocess.Popen[bytes]) -> None:
    async def run() -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            store = DescriptorStore("127.0.0.1", 8)
            store.take()
            for name, pid in (("one", process.pid), ("two", other.pid)):
                fd = os.pidfd_open(pid)
                store.put(name, b"", [fd])
                os.close(fd)
            store.close()
            other.communicate(b"\n")
        assert wait_until(lambda: names() == ["one"])  # one that comes at once may find both

    def names() -> list[str]:
        again = DescriptorStore("127.0.0.1", 8)
        left = again.take()
        again.close()
        for entry in left:
            entry.close()
        return [entry.name for entry in left]

    asyncio.run(run())


def test_an_entry_is_replaced_while_its_process_ends(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """The store hears of both at once."""

    async def run() -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            store, pidfds = DescriptorStore("127.0.0.1", 12), [os.pidfd_open(other.pid), os.pidfd_open(process.pid)]
            store.take()
            assert store._process is not None
            store.put("one", b"old", pidfds[:1])
            heard(store)
            store._process.send_signal(signal.SIGSTOP)
            store.put("one", b"new", pidfds[1:])
            other.communicate(b"\n")
            store._process.send_signal(signal.SIGCONT)
            store.close()
        (entry,) = (again := DescriptorStore("127.0.0.1", 12)).take()
        assert entry.record == b"new"
        for fd in (*pidfds, *entry.descriptors):
            os.close(fd)
        again.close()

    asyncio.run(run())


def test_a_process_hears_that_its_daemon_has_gone(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """It gets its farewell, and goes on if it was stopped; one that was promised none hears nothing."""

    async def run() -> None:
        with open(os.pidfd_open(process.pid)) as pidfd:
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
            store = DescriptorStore("127.0.0.1", 13)
            store.take()
            for (ours, theirs), farewell in zip(pairs, ({"op": "alone"}, None, {"op": "alone"}), strict=True):
                store.put(str(ours.fileno()), b"", [pidfd.fileno(), ours.fileno()], farewell=farewell)
                theirs.settimeout(30)
            pairs[2][0].setblocking(False)
            with contextlib.suppress(BlockingIOError):  # this one takes nothing
                while True:
                    pairs[2][0].send(b"more")
            heard(store)
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: process_state(process.pid) == "T")
            store.close()
            assert messages.receive(pairs[0][1]) == ({"op": "alone"}, [])
            assert wait_until(lambda: process_state(process.pid) == "S")
            pairs[1][1].setblocking(False)
            with pytest.raises(BlockingIOError):
                messages.receive(pairs[1][1])
            for ours, theirs in pairs:
                ours.close()
                theirs.close()

    asyncio.run(run())


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_daemon_whose_end_is_not_seen_yet(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Something still has its descriptors."""

    async def run() -> None:
        store = DescriptorStore("127.0.0.1", 13)
        store.take()
        pidfd = os.pidfd_open(process.pid)
        store.put("one", b"", [pidfd])
        os.close(pidfd)
        assert store._socket is not None
        kept = store._socket.dup()
        store.close()
        (entry,) = (again := DescriptorStore("127.0.0.1", 13)).take()
        entry.close()
        again.close()
        kept.close()

    asyncio.run(run())


def test_without_anything_it_ends_with_the_daemon(folder: Path) -> None:
    async def run() -> None:
        store = DescriptorStore("::1", 9)
        store.take()
        null = os.open(os.devnull, os.O_RDONLY)
        store.put("table", b"", [null], watched=False)
        os.close(null)
        store.close()

    asyncio.run(run())
    assert wait_until(lambda: files(folder) == [])


def test_one_that_is_killed_is_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]) -> None:
    monkeypatch.setattr("gpuvirt.server.fdstore.store.START_PAUSE", 0.1)

    async def run() -> None:
        store, lost = DescriptorStore("127.0.0.1", 10), asyncio.Event()
        store.take()
        store.lost = lost.set
        assert store._process is not None
        store._process.kill()
        async with asyncio.timeout(60):
            await lost.wait()
        pidfd = os.pidfd_open(process.pid)
        store.put("again", b"", [pidfd])
        os.close(pidfd)
        store.close()
        (entry,) = (after := DescriptorStore("127.0.0.1", 10)).take()
        assert entry.name == "again"
        entry.close()
        after.close()

    asyncio.run(run())


def test_nowhere_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A server without a store serves; it says what that means."""
    monkeypatch.setattr(paths, "runtime_dirs", lambda: [tmp_path / ("x" * 120)])

    async def run() -> None:
        store = DescriptorStore("127.0.0.1", 11)
        assert store.take() == []
        store.put("one", b"", [0])
        store.drop("one")
        store.close()

    asyncio.run(run())
    assert "sessions do not outlive this server" in caplog.text
