"""A program that was given GPUs and launched nothing on them is told so at its end, and no other is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, run_program
from server.test_host_memory import COMPILES

from gpuvirt.client.launch_record import IDLE, LaunchRecord, launch_record

pytestmark = pytest.mark.slow

COUNTS = """
import ctypes
cuda, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert not cuda.cuInit(0) and not cuda.cuDeviceGetCount(ctypes.byref(n))
print(n.value)
"""
COMPUTES = f"import sys; sys.argv[1:] = ['1']\n{COMPILES}"
BOTH = "import subprocess, sys\nfor code in sys.argv[1:]: subprocess.run([sys.executable, '-c', code])"
KILLED = f"{COUNTS}\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)"
CASES = {
    "no GPU": (["-c", "print(1)"], False),
    "counts": (["-c", COUNTS], True),
    "computes": (["-c", COMPUTES], False),
    "a process computes": (["-c", BOTH, COUNTS, COMPUTES], False),
    "two count": (["-c", BOTH, COUNTS, COUNTS], True),
    "one is killed": (["-c", BOTH, COUNTS, KILLED], False),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_told(pool: Server, case: str) -> None:
    program, told = CASES[case]
    done = run_program(pool, [sys.executable, *program])
    assert done.returncode == 0 and (IDLE in done.stderr) == told, done.stdout + done.stderr


def test_with_a_private_pool_and_quietly(tmp_path: Path) -> None:
    """The file goes with the program."""
    for options, told in (([], True), (["-q"], False)):
        line = [*GPUVIRT, "run", "--local", *options, "--", sys.executable, "-c", COUNTS]
        env = clean_environment(TMPDIR=str(tmp_path))
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, env=env, check=False)
        assert done.returncode == 0 and (IDLE in done.stderr) == told, done.stdout + done.stderr
    assert not list(tmp_path.glob("gpuvirt-launch-*"))


def test_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(prefix: str) -> tuple[int, str]:
        raise OSError("the disk is full")

    monkeypatch.setattr("tempfile.mkstemp", refuses)
    with launch_record() as record:
        assert record is None
    assert not LaunchRecord(tmp_path / "nowhere").idle()


def test_a_process_that_lives_longer_finds_no_file(pool: Server, tmp_path: Path) -> None:
    """And makes none."""
    gone = tmp_path / "gone"
    done = run_program(pool, [sys.executable, "-c", f"import os; os.environ['GPUVIRT_LAUNCH_RECORD'] = {str(gone)!r}\n{COUNTS}"])
    assert done.stdout == "1\n" and not gone.exists(), done.stderr
    assert os.listdir(tmp_path) == []
