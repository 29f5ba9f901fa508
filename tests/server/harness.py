"""Servers with a stand-in worker, so that these tests need nothing of the worker's."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import table
from gpuvirt.transport.control import request
from gpuvirt.transport.token import Token, parse_token

HERE = Path(__file__).parent
PATIENCE = 100.0  # seconds that an answer may take on a machine that is busy with other things


@dataclass
class FakeServer:
    """A real daemon whose workers are fake_worker.py."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    token: Token
    env: dict[str, str]

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        return str(self.ready["pool"])

    def connect(self) -> Connection:
        return Connection(socket.create_connection(("127.0.0.1", self.port), timeout=100))

    def attach(self, token: Token | None = None, **hello: Any) -> tuple[socket.socket, hs.Welcome, bytes]:
        """Shakes hands; returns the socket, the welcome and the session key."""
        connection = self.connect()
        return connection.sock, *connection.shake(token or self.token, **hello)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return request("127.0.0.1", int(self.ready["control_port"]), self.token, op, limit=PATIENCE, **arguments)

    def stop(self) -> str:
        self.process.terminate()
        return self.process.communicate(timeout=100)[1]


def receive(sock: socket.socket, size: int) -> bytes:
    raw = b""
    while len(raw) < size:
        part = sock.recv(size - len(raw))
        assert part, f"the connection ended after {len(raw)} of {size} bytes"
        raw += part
    return raw


class Connection:
    """A client's connection that has been greeted."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        raw = receive(sock, hs.HEAD_SIZE)
        raw += receive(sock, hs.greeting_size(raw) - hs.HEAD_SIZE)
        self.greeting = hs.Greeting.unpack(raw)
        self.transcript = hs.Transcript(raw)
        self.states: list[hs.State] = []
        self.fds: list[int] = []  # that came with the welcome

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def say(self, key: bytes, hello: hs.Hello) -> None:
        self.sock.sendall(self.transcript.prove_hello(hello, key))

    def message(self) -> bytes:
        head, fds, _, _ = socket.recv_fds(self.sock, hs.HEAD_SIZE, 4)
        self.fds += fds
        assert len(head) == hs.HEAD_SIZE, "the connection ended"
        return head + receive(self.sock, hs.message_size(head) - hs.HEAD_SIZE)

    def welcome(self, key: bytes) -> hs.Welcome:
        """Reads states, then a welcome, and checks its proof."""
        while True:
            raw = self.message()
            try:
                self.states.append(hs.State.unpack(raw))
            except hs.HandshakeError:
                break
            self.transcript.add(raw)
        welcome = hs.Welcome.unpack(raw)
        if welcome.status in (hs.WELCOME_OK, hs.WELCOME_MOVED):
            assert self.transcript.welcome_proved(raw, key)
        else:
            assert raw[-32:] == bytes(32)
        return welcome

    def shake(self, token: Token, nonce: bytes | None = None, transports: tuple[str, ...] = ("tcp",), **hello: Any) -> tuple[hs.Welcome, bytes]:
        """A hello with the token's proof: the welcome and the session key."""
        offers = tuple(offer(name) for name in transports)
        self.say(token.secret, hs.Hello(nonce or secrets.token_bytes(32), token_id=token.id, transports=offers, **hello))
        welcome = self.welcome(token.secret)
        return welcome, self.transcript.session_key(token.secret)


def offer(name: str) -> hs.Offer:
    row = table.named(name)
    return row.offer if row else hs.Offer(name)


def has_ended(pid: int) -> bool:
    """Also one that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 100) -> None:
    """The limit is for what never happens: a machine that is busy with other things is given time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def environment(folder: Path) -> dict[str, str]:
    """An environment in which gpuvirt keeps everything below `folder`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_")}
    root = str(HERE.parent.parent)
    env["PYTHONPATH"] = f"{root}:{env['PYTHONPATH']}" if env.get("PYTHONPATH") else root
    runtime = folder / "run"
    runtime.mkdir(parents=True, exist_ok=True)
    own = {"GPUVIRT_STATE": str(folder / "state"), "GPUVIRT_CACHE": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
    return env | {"XDG_RUNTIME_DIR": str(runtime)} | own


# For fixtures of servers: one that is a pool by itself, and one that is the first host of a pool of many, whose leases a scheduler grants.
EACH_POOL = [pytest.param(False, id="alone"), pytest.param(True, id="head", marks=pytest.mark.wide)]


def start_fake(folder: Path, **options: Any) -> FakeServer:
    """Starts a server; options are `ServeOptions` (plain links are allowed unless they say otherwise), worker_options for the
    stand-in, prefix: what the server's command line begins with, and libraries: the folder of the built ones."""
    folder.mkdir(parents=True, exist_ok=True)
    ready, env = folder / "ready.json", environment(folder)
    if "libraries" in options:
        env["GPUVIRT_LIB_DIR"] = str(options.pop("libraries"))
    prefix = options.pop("prefix", [])
    line = [*prefix, sys.executable, str(HERE / "fake_server.py"), json.dumps({"ready_file": str(ready), "plain": True, **options})]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 100
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(process.communicate()[1])
        time.sleep(0.01)
    found = json.loads(ready.read_text())
    text = (folder / "run" / "gpuvirt" / f"{found['port']}.token").read_text()
    return FakeServer(process, found, parse_token(text), env)


def build_echo_worker(folder: Path, source: str = "echo_worker.c") -> None:
    """Builds a stand-in of the worker library in `folder`, with the functions that a worker looks up for compiled kernels (never called here)."""
    from gpuvirt.soft.host.jit import HELPERS

    helpers = folder / "helpers.c"
    helpers.write_text("".join(f"void {name}(void) {{}}\n" for name in HELPERS))
    sources = [str(HERE / "workers" / source), str(HERE / "workers" / "not_used.c"), str(helpers)]
    line = ["gcc", "-std=gnu11", "-shared", "-fPIC", f"-I{HERE.parent.parent}", *sources, "-o", "libgpuvirt_worker.so"]
    subprocess.run(line, cwd=folder, check=True)
