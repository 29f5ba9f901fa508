"""The software GPU's engine and backend: C programs, built and run here, plain and under sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns

HERE = Path(__file__).parent
OLD_KERNEL = ("-DSOFT_DONTUNMAP=64",)  # a flag of mremap's that is refused, as a kernel before 5.7 does
LONG_SHORT = ("-DSHORT_CYCLES=20000000",)  # a grid of some milliseconds is a short one
PROGRAMS = {
    "test_exec": ("test_exec", "engine_fixture", "block_cases", "cluster_cases", "fault_cases", "grid_cases", "turn_cases"),
    "test_backend": ("test_backend", "backend_fixture", "memory_cases", "stream_cases"),
}
BACKEND_TESTS = [
    "devices",
    "memory_limits",
    "copies",
    "illegal_copies",
    "launch",
    "precompile",
    "compile_error",
    "modules",
    "legacy_stream",
    "events",
    "concurrency",
    "many_threads",
    "link_counts",
    "memory_operations",
    "strict",
    "memory_usage",
    "destroyed_context",
    "virtual_memory",
    "mapping_while_busy",
    "measure",
    "close_while_busy",
]


def run(program: Path, *arguments: str, **more: str) -> str:
    environment = {
        **ENVIRONMENT,
        **more,
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=560, env=environment)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert result.stdout.endswith("ok\n")
    return result.stdout


# Stopping what cannot be stopped leaves things behind on purpose, which the address sanitizer would call leaks; under the thread sanitizer a forked
# child cannot have threads.
NOT_UNDER = {"address": ("close_while_busy",), "thread": ("close_while_busy", "memory_usage")}
UNDER_SANITIZERS = [(variant, name) for variant, without in NOT_UNDER.items() for name in BACKEND_TESTS if name not in without]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConcurrentRuns]:
    folder = tmp_path_factory.mktemp("soft")

    def build(program: str, variant: str) -> Path:
        backend, flags = c_build.soft_backend()
        sources = [*(HERE / f"{name}.c" for name in PROGRAMS[program]), *backend]
        special = {"old-kernel": OLD_KERNEL, "short-grids": LONG_SHORT}
        how, flags = ("plain", [*flags, *special[variant]]) if variant in special else (variant, flags)
        return c_build.program(folder / f"{program}-{variant}", sources, variant=how, flags=flags, libraries=["-lm"])

    jobs = {
        "test_engine": lambda p: run(build("test_exec", p["variant"])),
        "test_engine_under_a_seed": lambda p: run(build("test_exec", "address"), GPUVIRT_SOFT_SCHEDULE=p["schedule"]),
        "test_backend_under_a_seed": lambda p: run(build("test_backend", p["variant"]), p["name"], GPUVIRT_SOFT_SCHEDULE="5"),
        "test_short_grids": lambda p: run(build("test_exec", "short-grids"), "short_grids"),
        "test_backend": lambda p: run(build("test_backend", "plain"), p["name"]),
        "test_backend_under_sanitizers": lambda p: run(build("test_backend", p["variant"]), p["name"]),
        "test_mapping_on_an_old_kernel": lambda p: run(build("test_backend", "old-kernel"), p["name"]),
    }
    with ConcurrentRuns(request, jobs) as started:
        yield started


@pytest.mark.parametrize("variant", ["plain", pytest.param("fortified", marks=pytest.mark.wide), pytest.param("address", marks=pytest.mark.slow)])
def test_engine(runs: ConcurrentRuns, request: pytest.FixtureRequest, variant: str) -> None:
    print(runs.result(request))


@pytest.mark.wide
@pytest.mark.parametrize("schedule", ["1", "2", "3", "4,cores"])
def test_engine_under_a_seed(runs: ConcurrentRuns, request: pytest.FixtureRequest, schedule: str) -> None:
    runs.result(request)


def test_short_grids(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """A grid that is over before another thread would be awake runs on the thread that brought it."""
    runs.result(request)


@pytest.mark.parametrize("name", BACKEND_TESTS)
def test_backend(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str) -> None:
    print(runs.result(request))


@pytest.mark.parametrize(
    ("variant", "name"),
    [pytest.param(variant, name, marks=pytest.mark.slow if variant == "address" else pytest.mark.wide) for variant, name in UNDER_SANITIZERS],
)
def test_backend_under_sanitizers(runs: ConcurrentRuns, request: pytest.FixtureRequest, variant: str, name: str) -> None:
    runs.result(request)


@pytest.mark.wide
@pytest.mark.parametrize(("variant", "name"), UNDER_SANITIZERS)
def test_backend_under_a_seed(runs: ConcurrentRuns, request: pytest.FixtureRequest, variant: str, name: str) -> None:
    """Streams begin and end their operations late."""
    runs.result(request)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["virtual_memory", "mapping_while_busy"])
def test_mapping_on_an_old_kernel(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str) -> None:
    runs.result(request)


def test_all_tests_are_listed() -> None:
    """The list above is the program's own."""
    source = (HERE / "test_backend.c").read_text()
    names = [line.split('"')[1] for line in source.splitlines() if line.startswith('    {"')]
    assert names == BACKEND_TESTS
