"""The software libibverbs: its operations and its faults, as C programs, also under the sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from softverbs import build

VARIANTS = ("plain", "address", "thread")


def run(program: Path, *cases: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run([str(program), *cases], capture_output=True, text=True, timeout=300, env=env, check=False)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["test_softverbs"])
def test_program(name: str, variant: str, tmp_path: Path) -> None:
    done = run(build.program(tmp_path, name, variant))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "cases passed" in done.stdout
