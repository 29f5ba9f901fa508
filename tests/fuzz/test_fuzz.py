"""The decoders on bytes of chance, briefly and repeatably; and the proof that this would notice a missing check."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import c_build
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/fuzz"
RUNS, SECONDS = "200000", "15"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the list of the generated command decoders, which is what driver.c goes through."""
    folder = tmp_path_factory.mktemp("generated")
    names = re.findall(r"^int (\w+)_decode\(", (c_build.generated() / "gv_commands.h").read_text(), re.MULTILINE)
    assert len(names) > 20
    (folder / "decoders.inc").write_text("".join(f"DECODER({name})\n" for name in names))
    return folder


def build(folder: Path, generated: Path, *flags: str) -> Path:
    sources = [HERE / "decode.c", HERE / "driver.c", *sorted((ROOT / "native/wire").glob("*.c")), c_build.generated() / "gv_commands.c"]
    include = [f"-I{generated}", f"-I{c_build.generated()}", f"-I{ROOT / 'native/wire'}", "-DFUZZ_COMMANDS"]
    return c_build.program(folder / "fuzz", sources, variant="address", flags=[*include, *flags])


def fuzz(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # An ASan report ends the program by abort, so that the driver keeps the input.
    env = {**os.environ, "ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1"}
    return subprocess.run([str(program), *args], capture_output=True, text=True, timeout=120, cwd=program.parent, env=env)


def test_decoders_hold(tmp_path: Path, generated: Path) -> None:
    done = fuzz(build(tmp_path, generated), RUNS, SECONDS, "7")
    assert done.returncode == 0, done.stderr[-6000:]
    inputs, decoders = map(int, re.findall(r"\d+", done.stdout))
    assert inputs >= 2000 and decoders > 20


def test_a_missing_check_is_noticed(tmp_path: Path, generated: Path) -> None:
    """GV_BREAK_DECODER leaves out the comparison of a record's size with the reader's room."""
    program = build(tmp_path, generated, "-DGV_BREAK_DECODER")
    done = fuzz(program, RUNS, SECONDS, "7")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    again = fuzz(program, "crash-input")
    assert again.returncode != 0 and "heap-buffer-overflow" in again.stderr
