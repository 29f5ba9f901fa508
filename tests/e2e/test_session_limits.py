"""A client with a token that keeps to no rule: its worker's memory and threads stay below what native/worker/session_limits.h allows."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest
from e2e.harness import Server, clean_environment, start_server, wait_until
from e2e.test_back_pressure import Watch

from gpuvirt.transport.token import parse_token

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MIB = 1 << 20
SESSION = 64 * MIB
# What every attack may cost beside the session's own memory: allocators, thread stacks, measuring.
SLACK = 96 * MIB


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    native = c_build.NATIVE
    sources = [HERE / "limits/hostile_client.c", *native.glob("transport/**/*.c"), *native.glob("wire/*.c"), c_build.generated() / "gv_commands.c"]
    flags = [f"-I{native.parent}", f"-I{native}/wire", f"-I{c_build.generated()}"]
    return c_build.program(tmp_path_factory.mktemp("client") / "hostile_client", sources, flags=flags)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_server(tmp_path_factory.mktemp("server"), "--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "0")
    yield started
    started.stop()


def threads(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


def settled_threads(pid: int) -> int:
    """How many there are once their number has not changed for two seconds."""
    seen = [-1]
    while len(seen) < 120 and len(set(seen[-5:])) + (len(seen) < 6) > 1:
        time.sleep(0.5)
        seen.append(threads(pid))
    return seen[-1]


def attack(server: Server, client: Path, name: str, link: str = "tcp", session: int = SESSION) -> tuple[str, int, int, int]:
    """How the attack ended, its count, the bytes that the worker grew by at most, and where threads are attacked how many it has."""
    token = parse_token(server.token())
    line = [str(client), server.url, link, token.id.hex(), token.secret.hex(), str(session), name]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment())
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        (worker,) = server.worker_pids()
        watch = Watch(worker=worker)
        process.stdin.write("go\n")
        process.stdin.flush()
        ending, _, count = process.stdout.readline().partition(": ")
        running = settled_threads(worker) if name.startswith("streams") else 0
        return ending, int(count), watch.growth()["worker"], running
    finally:
        process.kill()
        process.communicate()
        assert wait_until(lambda: not server.sessions(), 60)


# Attack: how it ends (None: as it may), the most that it counts, and the bytes beside SLACK that the worker may grow by.
ATTACKS = {
    "overlap": ("over", None, 0),
    "huge_copy": ("over", None, 0),
    "contexts": ("stands", 64, SESSION),
    "events": ("stands", 1 << 18, 96 * MIB),
    "parameters": ("over", None, 288 * MIB),  # 256 of records read ahead
    "heaps": ("stands", SESSION // MIB, SESSION),
    "discards": ("over", None, 0),
    "empty_payloads": (None, None, 0),
    "textures": ("stands", 1 << 14, 0),
    "globals": ("stands", 3, SESSION),
}


WIDE = {"huge_copy", "events", "textures", "globals"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.wide) if name in WIDE else name for name in ATTACKS])
def test_memory_is_bounded(server: Server, client: Path, name: str) -> None:
    ending, most, more = ATTACKS[name]
    ended, count, grown, _ = attack(server, client, name)
    assert ending in (None, ended)
    assert most is None or count <= most
    assert grown < more + SLACK, f"{grown // MIB} MiB"


@pytest.mark.parametrize("name", ["streams_kept", "streams_destroyed"])
def test_threads_are_bounded(server: Server, client: Path, name: str) -> None:
    _, asked, grown, running = attack(server, client, name)
    assert asked > 4096, "the attack did not get far enough to show anything"
    assert 0 < running < 3072 + 64
    assert grown < 192 * MIB, f"{grown // MIB} MiB"
