"""Programs whose token is revoked, or expires, while they compute."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, HERE, Server, clean_environment, read_line, run_line, wait_until

from gpuvirt import paths
from gpuvirt.transport.pool import NoServer, PoolAddress, greet

HOLD = [sys.executable, str(HERE / "programs" / "each_gpu.py"), "hold"]

pytestmark = pytest.mark.slow


@pytest.fixture
def own_tokens(tmp_path: Path) -> Callable[..., str]:
    """`gpuvirt token`, for servers of this test only."""

    def token(*words: str) -> str:
        return subprocess.run(
            [*GPUVIRT, "token", *words], env=clean_environment(GPUVIRT_STATE=str(tmp_path / "state")), capture_output=True, text=True, check=True
        ).stdout.strip()

    return token


@pytest.fixture
def server(own_pool: Callable[..., Server], tmp_path: Path) -> Server:
    env = clean_environment(GPUVIRT_STATE=str(tmp_path / "state"))
    return own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--grace", "10m", env=env)


def start(server: Server, token: str, *options: str) -> subprocess.Popen[str]:
    """A program that computes, and goes on until it fails."""
    line = [*run_line(server, "-q", *options), *HOLD]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_environment(GPUVIRT_TOKEN=token))


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_revoked(server: Server, own_tokens: Callable[..., str], link: str) -> None:
    """The program fails at its next call and is told why; another token's goes on, and nothing of the first is left."""
    one, two = (start(server, own_tokens("create", name), "--link", link) for name in ("one", "two"))
    for process in (one, two):
        assert "right" in read_line(process)
    own_tokens("revoke", "one")
    said, _ = one.communicate(timeout=200)
    assert re.search(r"^lost: .*the token has been revoked; ask the server's owner for another", said, re.M), said
    wait_until(lambda: len(server.leases()) == 1)
    assert two.poll() is None and len(server.sessions()) == 1
    own_tokens("revoke", "two")
    two.communicate(timeout=200)
    wait_until(lambda: server.leases() == [])
    assert server.memory_used() == 0


def test_expires(server: Server, own_tokens: Callable[..., str]) -> None:
    process = start(server, own_tokens("create", "short", "--expires", "8s"))
    said, _ = process.communicate(timeout=200)
    assert "this token has expired, at 2" in said, said  # an error of the program's call, or of its launcher on a machine that is slow
    wait_until(lambda: server.leases() == [])


def test_a_servers_own_user_needs_no_token_from_its_first_answer_on(tmp_path: Path) -> None:
    """Whoever asks while it starts is answered when the file with its token is there, not before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [*GPUVIRT, "serve", "--listen", f"127.0.0.1:{port}", "--backend", "soft", "--gpu-memory", "256m"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment()) as server:
        try:
            until = time.monotonic() + 100
            while True:
                try:
                    greeted = greet(PoolAddress("127.0.0.1", port), 100.0)
                    break
                except NoServer:
                    assert time.monotonic() < until and server.poll() is None
                    time.sleep(0.01)
            assert paths.find_local_token(port) is not None
            greeted.sock.close()
        finally:
            server.terminate()
