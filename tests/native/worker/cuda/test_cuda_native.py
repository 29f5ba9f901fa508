"""The cuda backend on a driver of the tests' own, plain and under sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import c_build
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NATIVE = ROOT / "native"
CASES = {"test_cuda_backend": 12, "test_cuda_streams": 7, "test_cuda_memory": 13, "test_cuda_exports": 6, "test_cuda_device_views": 5}


# With words of the host's memory that the device writes and awaits, as real ones do, or with events and host functions.
@pytest.mark.parametrize("how", ["words", "events"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("build", ["plain", pytest.param("address", marks=pytest.mark.slow), pytest.param("thread", marks=pytest.mark.wide)])
def test_cuda_backend(name: str, build: str, how: str, tmp_path: Path) -> None:
    includes = ["-isystem", c_build.cuda_headers(), f"-I{c_build.generated()}", f"-I{NATIVE}", f"-I{NATIVE}/wire", f"-I{NATIVE}/worker"]
    wire = [NATIVE / "wire" / f"{part}.c" for part in ("module_meta", "link_inputs", "image_stream")]
    fixture = [] if name == "test_cuda_memory" else [HERE / "backend_fixture.c"]
    sources = [HERE / f"{name}.c", *fixture, *(NATIVE / "backend" / "cuda").glob("*.c"), *(NATIVE / "backend").glob("*.c"), *wire]
    fake = [HERE / f"{part}.c" for part in ("fake_driver", "fake_memory", "fake_defaults")]
    driver = c_build.library(tmp_path / "libfake.so", fake, variant=build, flags=includes)
    libraries = [str(driver), f"-Wl,-rpath,{tmp_path}", "-ldl"]
    program = c_build.program(tmp_path / name, sources, variant=build, flags=includes, libraries=libraries)
    env = {**os.environ, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"} | ({"WITHOUT_WORDS": "1"} if how == "events" else {})
    ran = subprocess.run([program, driver], capture_output=True, text=True, timeout=240, env=env, check=False)
    assert ran.returncode == 0 and f"{CASES[name]} cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
