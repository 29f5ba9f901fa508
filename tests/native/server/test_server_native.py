"""The server library's C, under the sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
SOURCES = [*sorted((ROOT / "native/server").glob("*.c")), ROOT / "native/wire/handshake.c"]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConcurrentRuns]:
    folder = tmp_path_factory.mktemp("server_native")

    def run(name: str, sanitizer: str) -> subprocess.CompletedProcess[str]:
        program = c_build.program(folder / f"{name}.{sanitizer}", [*SOURCES, HERE / f"{name}.c"], variant=sanitizer, flags=(f"-I{ROOT}/native/wire",))
        env = {**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
        return subprocess.run([str(program)], capture_output=True, text=True, timeout=500, env=env)

    with ConcurrentRuns(request, {"test_server": lambda p: run(**p)}) as started:
        yield started


@pytest.mark.parametrize("sanitizer", ["address", pytest.param("thread", marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", ["test_admission", "test_acceptor"])
def test_server(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, sanitizer: str) -> None:
    done = runs.result(request)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "cases passed" in done.stdout
