"""The worker process (gpuvirt/server/worker.py) with a library that only echoes: what it hands over, and how it ends."""

from __future__ import annotations

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
        self.daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.settimeout(100)
        env = environment(folder) | {"GPUVIRT_LIB_DIR": str(lib_dir)}
        line = [sys.executable, "-m", "gpuvirt.server.worker", "--fd", str(theirs.fileno()), "--backend", "cuda"]
        self.process = subprocess.Popen(line, pass_fds=[theirs.fileno()], env=env)
        theirs.close()

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

    def restored(self) -> socket.socket:
        """Gives it a session that another worker had."""
        with open(os.devnull) as image:
            client = self.session(image.fileno(), restored=True, passed=["image"])
        self.expect("opened")
        return client


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
    assert worker.process.wait(100) == 0
    assert client.recv(10) == b""


def test_client_lost(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    client.close()
    assert worker.expect("ended") == {"op": "ended", "code": 1, "text": "end of file", "memory_used": 0, **FIGURES}
    worker.process.wait(100)


def test_a_close_that_hangs_does_not_keep_the_process(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    began = time.monotonic()
    client.sendall(b"hang")
    worker.expect("ended")
    worker.process.wait(100)
    assert time.monotonic() - began > 0.5


def test_the_daemon_may_go(worker: Running) -> None:
    client = worker.session()
    worker.expect("opened")
    worker.daemon.close()
    time.sleep(0.1)
    client.sendall(b"?")
    assert client.recv(1000).startswith(b"cuda ")
    client.close()
    assert worker.process.wait(100) == 0


def test_a_restored_session_waits_for_its_begin(worker: Running) -> None:
    """The daemon may ask it for figures meanwhile, and say that its program has ended."""
    client = worker.restored()
    client.sendall(b"?")
    messages.send(worker.daemon, {"op": "figures", "id": 6})
    assert worker.expect("figures")["id"] == 6
    messages.send(worker.daemon, {"op": "gone"})
    assert client.recv(10) == b"gone"
    assert not select.select([client], [], [], 0.1)[0]  # it has not begun
    messages.send(worker.daemon, {"op": "begin"})
    assert client.recv(1000).startswith(b"cuda ")
    client.sendall(b"bye")
    worker.expect("ended")
    assert worker.process.wait(100) == 0


def test_a_restored_session_that_never_begins(worker: Running) -> None:
    client = worker.restored()
    worker.daemon.close()
    assert worker.process.wait(100) == 1
    assert client.recv(10) == b""


def test_an_idle_worker_goes_with_the_daemon(worker: Running) -> None:
    worker.expect("ready")
    worker.daemon.close()
    assert worker.process.wait(100) == 0


def test_open_fails(worker: Running) -> None:
    worker.session(server_name="bad")
    assert worker.expect("failed")["text"] == "no such backend"
    assert worker.process.wait(100) == 1


def test_library_missing(tmp_path: Path) -> None:
    running = Running(tmp_path / "nowhere", tmp_path)
    assert "libgpuvirt_worker.so is not in" in running.expect("failed")["text"]
    assert running.process.wait(100) == 1


def test_an_interrupt_is_the_daemons_business(worker: Running) -> None:
    import signal

    client = worker.session()
    worker.expect("opened")
    worker.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    client.sendall(b"?")
    assert client.recv(1000).startswith(b"cuda ")
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.process.wait(100) == -signal.SIGTERM
