"""The worker against a scripted client and a fake backend, over both transports, plain and under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "native"
BUILDS = {
    "plain": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O1", "-fsanitize=thread"],
}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    subprocess.run([sys.executable, str(NATIVE / "api" / "generate.py"), "--out", str(folder)], check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("build", ["plain", pytest.param("address", marks=pytest.mark.slow), pytest.param("thread", marks=pytest.mark.slow)])
def test_worker(build: str, generated: Path, tmp_path: Path) -> None:
    program = tmp_path / "test_worker"
    sources = [
        *HERE.glob("*.c"),
        HERE.parent / "transport" / "pair.c",
        *(p for p in (NATIVE / "worker").glob("*.c") if p.name != "ledger_release.c"),
        *(NATIVE / "transport").glob("*.c"),
        *(NATIVE / "wire").glob("*.c"),
        generated / "gv_commands.c",
        generated / "gv_dispatch.c",
    ]
    includes = [f"-I{generated}", f"-I{NATIVE}", f"-I{NATIVE}/wire", f"-I{NATIVE}/worker"]
    limits = ["-DWORKER_MAX_STAGING=(8<<20)", "-DWORKER_MAX_EARLY=(3<<20)"]
    flags = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", *BUILDS[build], *limits, *includes]
    done = subprocess.run(["gcc", *flags, *map(str, sources), "-o", str(program), "-lpthread"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for transport in ("tcp", "shm"):
        env = {**os.environ, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
        ran = subprocess.run([program, transport], capture_output=True, text=True, timeout=480, env=env, check=False)
        assert ran.returncode == 0 and "28 cases passed" in ran.stdout, f"{transport}\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("build", ["plain", "address"])
def test_module_cache(build: str, tmp_path: Path) -> None:
    program = tmp_path / "test_cache"
    sources = [
        HERE / "cache/test_cache.c",
        NATIVE / "worker/module_cache.c",
        *(NATIVE / "wire" / f"{n}.c" for n in ("sha256", "module_known", "module_meta")),
    ]
    limits = ["-DMODULE_CACHE_BYTES=(1ull<<16)", "-DMODULE_CACHE_FILES=16u", "-DKEEP_OPEN=4u", "-DLOOK_AT_BYTES=(1ull<<16)", "-DLATE_BYTES=10000ull"]
    flags = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", *BUILDS[build], *limits]
    done = subprocess.run(["gcc", *flags, *map(str, sources), "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([program, tmp_path], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0 and "7 cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
