"""The worker process (gpuvirt/server/worker.py) with a library that only echoes: what it hands over, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from server.harness import build_echo_worker, environment

from gpuvirt.server import messages
from gpuvirt.server.worker_library import SessionConfig

CONFIG = SessionConfig(
    session=0xABC, backend="cuda", driver="/d/libcuda.so.1", devices=[3, 1], memory=5, device_memory=6, capability=130, strict=True,
    slot=17, transport="tcp", descriptors=0, blob=b"blob", server_name="box", grace=44,
)  # fmt: skip
FIGURES = {"commands": 11, "launches": 12, "bytes_in": 13, "bytes_out": 14, "answers": 0, "cut_ns": 0, "rtt_ns": 0}  # beside memory_used


@pytest.fixture(scope="module")
def lib_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    build_echo_worker(folder)
    return folder


class Running:
    """A worker process, seen from the daemon's side."""

    def __init__(self, lib_dir: Path, folder: Path) -> None:
        self.template, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.template.settimeout(100)
        env = environment(folder) | {"GPUVIRT_LIB_DIR": str(lib_dir)}
        line = [sys.executable, "-m", "gpuvirt.server.worker", "--fd", str(theirs.fileno()), "--backend", "cuda"]
        self.process = subprocess.Popen(line, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        self.daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.settimeout(100)
        messages.send(self.template, {"op": "fork"}, (theirs.fileno(),))
        theirs.close()

    @functools.cached_property
    def pid(self) -> int:
        """The worker's."""
        received = messages.receive(self.template)
        assert received is not None and received[0]["op"] == "forked", received
        os.close(received[1][0])
        pid: int = received[0]["pid"]
        return pid

    def exit_code(self) -> int:
        """The worker's, when it has ended."""
        pid = self.pid
        received = messages.receive(self.template)
        assert received is not None and (received[0]["op"], received[0]["pid"]) == ("exited", pid), received
        code: int = received[0]["code"]
        return code


    def expect(self, op: str) -> dict[str, Any]:
        received = messages.receive(self.daemon)
        assert received is not None and received[0]["op"] == op, received
        return received[0]

    def session(self, *passed: int, **changes: Any) -> socket.socket:
        """Gives it a session, and descriptors behind its connection; returns the client's end."""
        self.expect("ready")
        ours, theirs = socket.socketpair()
        ours.settimeout(100)
        messages.send(self.daemon, {"op": "session", **asdict(CONFIG), **changes}, (theirs.fileno(), *passed))
        theirs.close()
        return ours

    def restored(self) -> None:
        """Gives it a session that another worker had; its client is not connected."""
        with open(os.devnull) as image:
            self.expect("ready")
            messages.send(self.daemon, {"op": "session", **asdict(CONFIG), "restored": True, "passed": ["image"]}, (image.fileno(),))
        self.expect("opened")


@pytest.fixture
def worker(lib_dir: Path, tmp_path: Path) -> Iterator[Running]:
    running = Running(lib_dir, tmp_path)
    yield running
    running.process.kill()
    running.process.wait()


def test_everything_arrives(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    client.sendall(b"?")
    assert client.recv(1000).decode() == "cuda /d/libcuda.so.1 2:3,1 5 6 130 1 17 tcp 0 blob abc box 0 44"
    ours, theirs = socket.socketpair()
    messages.send(worker.daemon, {"op": "connection", "which": 2, "epoch": 0}, (theirs.fileno(),))
    assert ours.recv(10) == b"c"
    messages.send(worker.daemon, {"op": "connection", "which": 2, "epoch": 1}, (theirs.fileno(),))
    assert ours.recv(40) == b"again 2 1"
    messages.send(worker.daemon, {"op": "connection", "which": -1, "epoch": 5}, (theirs.fileno(),))
    assert ours.recv(40) == b"again -1 5"
    theirs.close()
    messages.send(worker.daemon, {"op": "gone"})
    assert client.recv(10) == b"gone"
    messages.send(worker.daemon, {"op": "figures", "id": 5})
    assert worker.expect("figures") == {"op": "figures", "id": 5, "memory_used": 2, **FIGURES}
    client.sendall(b"bye")
    assert worker.expect("ended") == {"op": "ended", "code": 0, "text": "", "memory_used": 2, **FIGURES}
    assert worker.exit_code() == 0
    assert client.recv(10) == b""


def test_client_lost(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    client.close()
    assert worker.expect("ended") == {"op": "ended", "code": 1, "text": "end of file", "memory_used": 0, **FIGURES}
    worker.exit_code()


def test_a_close_that_hangs_does_not_keep_the_process(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    began = time.monotonic()
    client.sendall(b"hang")
    worker.expect("ended")
    worker.exit_code()
    assert time.monotonic() - began > 0.5


def test_the_daemon_may_go(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    worker.daemon.close()
    time.sleep(0.1)
    client.sendall(b"?")
    assert client.recv(1000).startswith(b"cuda ")
    client.close()
    assert worker.exit_code() == 0


def test_a_restored_session_waits_for_its_begin(worker: Running) -> None:
    """The daemon may ask it for figures meanwhile, and say that its program has ended. It finds its connection cut when it begins."""
    worker.restored()
    messages.send(worker.daemon, {"op": "figures", "id": 6})
    assert worker.expect("figures")["id"] == 6
    messages.send(worker.daemon, {"op": "gone"})
    assert not select.select([worker.daemon], [], [], 0.1)[0]  # it has not begun
    messages.send(worker.daemon, {"op": "begin"})
    assert worker.expect("ended")["text"] == "end of file"
    assert worker.exit_code() == 0


def test_a_restored_session_that_never_begins(worker: Running) -> None:
    worker.restored()
    worker.daemon.close()
    assert worker.exit_code() == 1


def test_an_idle_worker_goes_with_the_daemon(worker: Running) -> None:
    worker.expect("ready")
    worker.daemon.close()
    assert worker.exit_code() == 0


def test_open_fails(worker: Running) -> None:
    worker.session(server_name="bad")
    assert worker.expect("failed")["text"] == "no such backend"
    assert worker.exit_code() == 1


def test_library_missing(tmp_path: Path) -> None:
    running = Running(tmp_path / "nowhere", tmp_path)
    with contextlib.suppress(ConnectionResetError):  # it has not read that it was to fork
        running.process.wait(100)
        running.template.recv(1, socket.MSG_PEEK)
    received = messages.receive(running.template)
    assert received is not None and "libgpuvirt_worker.so is not in" in received[0]["text"]
    assert running.process.wait(100) == 1


def test_an_interrupt_is_the_daemons_business(worker: Running) -> None:
    import signal

    client = worker.session()
    worker.expect("opened")
    os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.1)
    client.sendall(b"?")
    assert client.recv(1000).startswith(b"cuda ")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.exit_code() == -signal.SIGTERM
