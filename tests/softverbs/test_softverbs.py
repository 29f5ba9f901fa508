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
@pytest.mark.parametrize("name", ["test_softverbs", "test_faults"])
def test_program(name: str, variant: str, tmp_path: Path) -> None:
    done = run(build.program(tmp_path, name, variant))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "cases passed" in done.stdout


# What is broken in the library, and the case that notices.
BREAKS = {
    "SOFTVERBS_BREAK_BOUNDS": ("test_faults", "access_rights"),
    "SOFTVERBS_BREAK_ORDER": ("test_faults", "late_completions"),
    "SOFTVERBS_BREAK_FLUSH": ("test_faults", "nobody_answers"),
    "SOFTVERBS_BREAK_RETRY": ("test_faults", "dead_process"),
    "SOFTVERBS_BREAK_TEARING": ("test_softverbs", "counters_in_memory"),
    "SOFTVERBS_BREAK_FREEING": ("test_softverbs", "full_queues"),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_what_is_broken_is_noticed(fault: str, tmp_path: Path) -> None:
    name, case = BREAKS[fault]
    done = run(build.program(tmp_path, name, "plain", (f"-D{fault}", "-DPATIENCE_NS=3000000000ull")), case)
    assert done.returncode != 0 and "not true" in done.stderr, done.stderr
