"""Strangers at the doors: floods of both ports, from other addresses, do not keep honest clients out and use up nothing."""

from __future__ import annotations

import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from server.harness import HERE, FakeServer, wait_until
from server.test_sessions import children, template_of

from gpuvirt.server.listener import PENDING_TOTAL
from gpuvirt.server.ports.control_proxy import EACH
from gpuvirt.server.ports.control_proxy import PENDING_TOTAL as CONTROL_TOTAL
from gpuvirt.server.rate_limited_log import LINES
from gpuvirt.transport import handshake as hs

DEADLINE = 30.0  # seconds within which an honest client is let in, on a machine that is busy with other things


def silent(port: int, count: int, address: str) -> list[socket.socket]:
    """Connections that say nothing."""
    made = []
    for _ in range(count):
        sock = socket.socket()
        sock.settimeout(10)
        sock.bind((address, 0))
        sock.connect(("127.0.0.1", port))
        made.append(sock)
    return made


def close(socks: list[socket.socket]) -> None:
    for sock in socks:
        sock.close()


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"at most {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(server: FakeServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def memory(server: FakeServer) -> int:
    """Bytes of the daemon that are in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_others_do_not_end_a_handshake(own_server: Callable[..., FakeServer], descriptors: None) -> None:
    """A client that takes its time between greeting and hello, while somebody else connects 400 times."""
    server = own_server(hello_limit=100)  # which it would be over on a busy machine
    with server.connect() as honest:
        others = silent(server.port, 400, "127.0.0.2")
        wait_until(lambda: open_files(server) > 100)
        others += silent(server.port, 100, "127.0.0.2")
        others[-1].recv(1)  # greeted, and so all before it have been accepted
        assert honest.shake(server.token)[0].status == hs.WELCOME_OK
    close(others)


def test_silence_on_the_control_port(own_server: Callable[..., FakeServer], descriptors: None) -> None:
    """1,100 silent connections to the control port, with 600 descriptors for the daemon: both ports answer, and the silent ones are closed."""
    server = own_server()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (600, 600))
    before = open_files(server)
    others = silent(int(server.ready["control_port"]), 1100, "127.0.0.2")
    began = time.monotonic()
    sock, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_OK
    assert len(server.ask("ps")["sessions"]) == 1
    assert time.monotonic() - began < 20
    sock.close()
    wait_until(lambda: open_files(server) <= before + CONTROL_TOTAL * EACH + 10)
    for other in others:
        assert other.recv(100)[:0] == b""  # ZeroMQ's greeting or nothing
    others[-1].settimeout(20)
    while others[-1].recv(100):
        pass
    close(others)
    wait_until(lambda: open_files(server) <= before + 10)


def test_no_descriptors_left(own_server: Callable[..., FakeServer], descriptors: None) -> None:
    """A daemon whose descriptors are all in use does not spin, drops who says nothing, and goes on."""
    server = own_server()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (open_files(server) + 20, open_files(server) + 20))
    others = silent(server.port, 60, "127.0.0.2")
    wait_until(lambda: readable(others[-1]), 20)
    close(others)
    sock, welcome, _ = server.attach()
    sock.close()
    assert welcome.status in (hs.WELCOME_OK, hs.WELCOME_FAILED)
    log = server.stop().splitlines()
    assert 0 < sum("could not be accepted" in line for line in log) <= 60


def readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def test_strangers_do_not_fill_the_log(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    began = time.monotonic()
    for _ in range(400):
        with server.connect() as connection:
            connection.sock.sendall(b"x" * 16)
            connection.sock.recv(1)
    took = time.monotonic() - began
    time.sleep(1.2)  # until the last summary is written
    lines = [line for line in server.stop().splitlines() if "handshake" in line]
    assert 0 < len(lines) <= (LINES + 1) * (took + 2)
    counted = sum(int(line.split("gpuvirt serve: ")[1].split()[0]) for line in lines if "more lines" in line)
    assert counted + sum("more lines" not in line for line in lines) == 400


# ---- all at once -----------------------------------------------------------------------------------------------------------------


@contextmanager
def flood(server: FakeServer, share: float) -> Iterator[list[int]]:
    """Strangers at work meanwhile, from the first on; their number of connections is in the list afterwards."""
    begun = Path(server.env["XDG_RUNTIME_DIR"]).parent / "flood"
    line = [sys.executable, str(HERE / "flooder.py"), str(server.port), str(server.ready["control_port"]), str(share), str(begun)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=server.env)
    made: list[int] = []
    try:
        wait_until(lambda: begun.exists() or process.poll() is not None)
        yield made
    finally:
        made.append(int(process.communicate(timeout=60)[0]))


@dataclass
class Seen:
    """What was seen of a server over some time."""

    attached: list[float] = field(default_factory=list)  # seconds each
    asked: list[float] = field(default_factory=list)  # seconds of each request of the control channel, connecting included
    files: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else seconds[0]


def attach_for(server: FakeServer, seconds: float) -> Seen:
    """Attaches one client after the other, each to a worker that has been started before, as programs that come now and then do."""
    seen = Seen()
    deadline = time.monotonic() + seconds
    gone: set[int] = set()
    template = template_of(server)
    while time.monotonic() < deadline:
        wait_until(lambda known=frozenset(gone): bool(children(template) - known))  # type: ignore[misc]
        time.sleep(0.2)  # it has started when it exists, and is ready a little later
        gone |= children(template)
        began = time.monotonic()
        sock, welcome, _ = server.attach()
        seen.attached.append(time.monotonic() - began)
        assert welcome.status == hs.WELCOME_OK
        seen.files.append(open_files(server))
        seen.memory.append(memory(server))
        sock.close()
        began = time.monotonic()
        assert server.ask("devices")["devices"]
        seen.asked.append(time.monotonic() - began)
    return seen


def drain(server: FakeServer, lines: list[str]) -> threading.Thread:
    """Reads the log, so that its pipe does not fill."""

    def read() -> None:
        assert server.process.stderr is not None
        lines.extend(server.process.stderr)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def under_flood(server: FakeServer, seconds: float) -> tuple[Seen, Seen, int]:
    lines: list[str] = []
    began = time.monotonic()
    reading = drain(server, lines)
    quiet = attach_for(server, seconds / 4)
    with flood(server, 0.25) as made:
        busy = attach_for(server, seconds)
        assert len(server.ask("ps")["sessions"]) <= len(busy.attached)
    server.process.terminate()
    server.process.wait(100)
    took = time.monotonic() - began
    reading.join(10)
    assert made[0] > 100 * seconds, "this was no flood"
    assert max(busy.attached) < DEADLINE and max(busy.asked) < DEADLINE
    assert max(busy.files) <= max(quiet.files) + PENDING_TOTAL + (CONTROL_TOTAL + 10) * EACH
    strange = [line for line in lines if "handshake" in line or "refused" in line or "control port" in line or "accepted" in line]
    assert len(strange) <= 3 * (LINES + 1) * (took + 2)
    return quiet, busy, made[0]


def test_a_short_flood(own_server: Callable[..., FakeServer]) -> None:
    under_flood(own_server(), 3)


@pytest.mark.long
def test_a_minute_of_flood(own_server: Callable[..., FakeServer], capsys: pytest.CaptureFixture[str]) -> None:
    quiet, busy, made = under_flood(own_server(), 60)
    half = len(busy.memory) // 2
    with capsys.disabled():
        print(
            f"\n{made} connections of strangers in 60 s; {len(busy.attached)} attaches and requests, quiet {len(quiet.attached)}; "
            f"attach p99 {p99(busy.attached) * 1e3:.1f} ms, quiet {p99(quiet.attached) * 1e3:.1f} ms: {p99(busy.attached) / p99(quiet.attached):.1f} "
            f"times; request p99 {p99(busy.asked) * 1e3:.1f} ms, quiet {p99(quiet.asked) * 1e3:.1f} ms: {p99(busy.asked) / p99(quiet.asked):.1f} "
            f"times; attach median {statistics.median(busy.attached) * 1e3:.1f} ms, quiet {statistics.median(quiet.attached) * 1e3:.1f} ms; "
            f"load {os.getloadavg()[0]:.1f}; descriptors at most {max(busy.files)}, "
            f"quiet {max(quiet.files)}; memory {max(busy.memory[:half]) >> 20} MiB in the first half, "
            f"{max(busy.memory[half:]) >> 20} MiB in the second"
        )
    assert max(busy.memory[half:]) < max(busy.memory[:half]) + (16 << 20)
