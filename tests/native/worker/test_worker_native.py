"""The worker against a scripted client and a fake backend, over each transport, plain and under sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns
from softverbs import build as softverbs

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "native"


def build_worker(build: str, folder: Path) -> Path:
    generated = c_build.generated()
    sources = [
        *HERE.glob("*.c"),
        HERE.parent / "transport" / "pair.c",
        *(NATIVE / "worker").rglob("*.c"),
        NATIVE / "backend" / "turn_words.c",
        *(NATIVE / "transport").rglob("*.c"),
        *(NATIVE / "wire").glob("*.c"),
        generated / "gv_commands.c",
        generated / "gv_dispatch.c",
        generated / "gv_objects.c",
    ]
    includes = [f"-I{generated}", f"-I{NATIVE}", f"-I{NATIVE}/wire", f"-I{NATIVE}/worker"]
    limits = ["-DWORKER_MAX_STAGING=(8<<20)", "-DWORKER_MAX_EARLY=(3<<20)", "-DSTAGING_KEPT_PINNED=(2ull<<20)"]
    limits += ["-DSTUCK_NS=100000000ll", "-DSTUCK_STOPPING_NS=400000000ll", "-DVERBS_HELLO_NS=50000000000ll"]
    return c_build.program(folder / "test_worker", sources, variant=build, flags=[*limits, *includes], libraries=["-Wl,--wrap=pthread_mutex_lock"])


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConcurrentRuns]:
    env = {**ENVIRONMENT, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}

    def run(p: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("worker")
        program = build_worker(p["build"], folder)
        devices = {"GPUVIRT_IBVERBS": str(softverbs.library(folder, p["build"])), "SOFTVERBS_FABRIC": str(folder / "fabric"), "SOFTVERBS_DMABUF": "1"}
        return subprocess.run([program, p["transport"]], capture_output=True, text=True, timeout=480, env={**env, **devices}, check=False)

    with ConcurrentRuns(request, {"test_worker": run}) as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("transport", "cases"), [("tcp", 43), ("shm", 43), ("verbs", 47)])
@pytest.mark.parametrize("build", ["address", pytest.param("thread", marks=pytest.mark.wide)])
def test_worker(runs: ConcurrentRuns, request: pytest.FixtureRequest, build: str, transport: str, cases: int) -> None:
    ran = runs.result(request)
    assert ran.returncode == 0 and f"{cases} cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("build", ["plain", "address"])
def test_module_cache(build: str, tmp_path: Path) -> None:
    sources = [
        HERE / "cache/test_cache.c",
        NATIVE / "worker/module_cache.c",
        *(NATIVE / "wire" / f"{n}.c" for n in ("sha256", "module_known", "module_meta")),
    ]
    limits = ["-DMODULE_CACHE_BYTES=(1ull<<16)", "-DMODULE_CACHE_FILES=16u", "-DKEEP_OPEN=4u", "-DLOOK_AT_BYTES=(1ull<<16)", "-DLATE_BYTES=10000ull"]
    program = c_build.program(tmp_path / "test_cache", sources, variant=build, flags=limits)
    ran = subprocess.run([program, tmp_path], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0 and "10 cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"


def test_staging(tmp_path: Path) -> None:
    sources = [HERE / "staging/test_staging.c", NATIVE / "worker/staging.c"]
    flags = [f"-I{c_build.generated()}", f"-I{NATIVE}", f"-I{NATIVE}/wire", f"-I{NATIVE}/worker"]
    program = c_build.program(tmp_path / "test_staging", sources, variant="address", flags=flags)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0 and "4 cases passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
