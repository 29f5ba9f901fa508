"""A tenant finds nothing in a GPU's memory of what another's session has left there, however that one ended, or when it is parked or has moved."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, HERE, Server, clean_environment, wait_until

pytestmark = pytest.mark.slow
ENDS = ("client killed", "worker killed", "parked", "moved")  # others than a goodbye
MIB = 160  # more than half of the GPU: the second is given what the first had
WORDS = MIB << 18


@pytest.fixture
def tokens(tmp_path: Path) -> list[str]:
    """Of two users, for servers of this test only."""
    env = clean_environment(GPUVIRT_STATE=str(tmp_path / "state"))
    line = [*GPUVIRT, "token", "create"]
    return [subprocess.run([*line, name], env=env, capture_output=True, text=True, check=True).stdout.strip() for name in ("alice", "bob")]


def begin(server: Server, token: str, what: str, link: str) -> subprocess.Popen[str]:
    line = [*GPUVIRT, "run", "--pool", server.url, "-q", "--link", link, "--", sys.executable, str(HERE / "programs" / "leftover.py"), str(MIB), what]
    env = clean_environment(GPUVIRT_TOKEN=token)
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def found(line: str) -> tuple[int, int]:
    """Words that are not zero: of device memory, of shared memory."""
    match = re.search(r"memory=(\d+) shared=(\d+)", line)
    assert match, line
    return int(match[1]), int(match[2])


def finds_nothing(server: Server, token: str, link: str) -> None:
    said, _ = begin(server, token, "look", link).communicate(timeout=300)
    assert found(said) == (0, 0)


@pytest.mark.parametrize("end", ["goodbye", *(pytest.param(end, marks=pytest.mark.wide) for end in ENDS)])
@pytest.mark.parametrize("link", ["shm", pytest.param("tcp", marks=pytest.mark.wide)])
def test_nothing_is_found(own_pool: Callable[..., Server], tmp_path: Path, tokens: list[str], link: str, end: str) -> None:
    more = {"parked": ("--gpus", "1", "--idle", "1s"), "moved": ("--gpus", "2")}.get(end, ("--gpus", "1", "--grace", "0"))
    options = ("--backend", "soft", "--gpu-memory", "256m", *more)
    server = own_pool(*options, env=clean_environment(GPUVIRT_STATE=str(tmp_path / "state")))
    first = begin(server, tokens[0], "fill", link)
    assert first.stdin and first.stdout and found(first.stdout.readline()) == (0, 0)
    filled = found(first.stdout.readline())
    assert filled[0] == WORDS and filled[1] > 0, "it finds what it has written itself"
    (session,) = sessions(server, tokens[0])
    if end == "goodbye":
        first.stdin.write("\n")
        first.communicate(timeout=200)
    elif end.endswith("killed"):
        os.kill(session["pid"] if end == "client killed" else session["worker_pid"], 9)
        first.communicate(timeout=200)
    elif end == "parked":
        assert wait_until(lambda: sessions(server, tokens[0])[0]["state"] == "parked")
    else:
        here = session["devices"][0]
        line = [*GPUVIRT, "move", session["session"], "--gpu", str(1 - int(here)), "--pool", server.url]
        admin = clean_environment(GPUVIRT_STATE=str(tmp_path / "state"))
        done = subprocess.run(line, timeout=200, env=admin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    if end not in ("parked", "moved"):
        assert wait_until(lambda: not sessions(server, tokens[0]) and server.memory_used() == 0)
    finds_nothing(server, tokens[1], link)
    if end in ("parked", "moved"):
        first.stdin.write("\n")
        said, _ = first.communicate(timeout=200)
        assert found(said)[0] == WORDS, "the first has what it wrote"


def sessions(server: Server, token: str) -> list[dict[str, object]]:
    line = [*GPUVIRT, "ps", "--json", "--pool", server.url]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=100, env=clean_environment(GPUVIRT_TOKEN=token))
    return [session for lease in json.loads(done.stdout) for session in lease["sessions"]]
