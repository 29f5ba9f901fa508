"""What a program and its user see of the compilation of its kernels: they are compiled while the stream is busy, and what takes long is said."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, clean_environment, run_program, start_server
from server.test_host_memory import COMPILES

pytestmark = pytest.mark.slow

BEHIND = Path(__file__).parent / "programs/launches_behind.py"
LINE = r"gpuvirt: compiling kernels for software GPUs: 0 are ready after \d+ s, now k"
LARGE = "120000"  # instructions of COMPILES: five seconds here, quiet


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that finds nothing compiled."""
    folder = tmp_path_factory.mktemp("cold")
    server = start_server(folder, "--backend", "soft", "--gpu-memory", "64m", env=clean_environment(XDG_CACHE_HOME=str(folder / "cache")))
    yield server
    server.stop()


@pytest.mark.parametrize("precompile", ["", "off"])
def test_launches_behind_others_are_compiled_before_their_turn(tmp_path: Path, precompile: str) -> None:
    """All ten are ready to run while the first still waits; without it none is, when the server has them all."""
    log, several = tmp_path / "log", len(os.sched_getaffinity(0)) > 1
    env = clean_environment(XDG_CACHE_HOME=str(tmp_path / "cache"), GPUVIRT_SOFT_LOG=str(log), GPUVIRT_SOFT_PRECOMPILE=precompile)
    server = start_server(tmp_path, "--backend", "soft", "--gpu-memory", "64m", env=env)
    try:
        wanted = 10 if several and not precompile else 0
        done = run_program(server, [sys.executable, BEHIND, log, wanted], "-q")
    finally:
        server.stop()
    assert done.stdout == ("held until they were ready right\n" if wanted else "0 right\n"), done.stdout + done.stderr
    assert len(log.read_text().splitlines()) == 10


def test_what_takes_long_to_compile_is_said(cold: Server) -> None:
    """From a second on, and no more once it is in the cache; the program's output stays its own."""
    first = run_program(cold, [sys.executable, "-c", COMPILES, LARGE])
    assert first.stdout == "0\n" and len(re.findall(LINE, first.stderr)) >= 1, first.stderr
    again = run_program(cold, [sys.executable, "-c", COMPILES, LARGE])
    assert again.stdout == "0\n" and "compiling" not in again.stderr, again.stderr


@pytest.mark.parametrize("how", ["-q", "GPUVIRT_QUIET"])
def test_not_to_who_wants_to_hear_nothing(cold: Server, how: str) -> None:
    options, env = (["-q"], {}) if how == "-q" else ([], {how: "yes"})
    size = str(int(LARGE) + 1 + (how == "-q"))  # a kernel that nobody has compiled
    done = run_program(cold, [sys.executable, "-c", COMPILES, size], *options, **env)
    assert done.stdout == "0\n" and "gpuvirt" not in done.stderr, done.stderr
