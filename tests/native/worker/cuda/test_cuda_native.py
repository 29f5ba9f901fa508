"""The cuda backend on a driver of the tests' own, plain and under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NATIVE = ROOT / "native"
BUILDS = {
    "plain": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O1", "-fsanitize=thread"],
}


@pytest.fixture(scope="module")
def headers() -> str:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "find_headers.py")], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split(";")[0]


@pytest.mark.parametrize("build", ["plain", pytest.param("address", marks=pytest.mark.slow), pytest.param("thread", marks=pytest.mark.slow)])
def test_cuda_backend(build: str, headers: str, tmp_path: Path) -> None:
    driver, program = tmp_path / "libfake.so", tmp_path / "test_cuda_backend"
    includes = ["-isystem", headers, f"-I{NATIVE}", f"-I{NATIVE}/wire", f"-I{NATIVE}/worker"]
    flags = ["gcc", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", *BUILDS[build], *includes]
    wire = [NATIVE / "wire" / f"{name}.c" for name in ("module_meta", "link_inputs")]
    sources = [HERE / "test_cuda_backend.c", *(NATIVE / "backend" / "cuda").glob("*.c"), *wire]
    lines: list[list[str | Path]] = [
        [*flags, "-fPIC", "-shared", HERE / "fake_driver.c", HERE / "fake_defaults.c", "-o", driver, "-lpthread"],
        [*flags, *sources, driver, f"-Wl,-rpath,{tmp_path}", "-o", program, "-lpthread", "-ldl"],
    ]
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    env = {**os.environ, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run([program, driver], capture_output=True, text=True, timeout=240, env=env, check=False)
    assert ran.returncode == 0 and "10 cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
