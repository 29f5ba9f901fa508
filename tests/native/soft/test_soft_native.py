"""The software GPU's engine and backend: C programs, built and run here, plain and under sanitizers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import c_build
import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "native"
Build = Callable[[str, str], Path]
OLD_KERNEL = ("-DSOFT_DONTUNMAP=64",)  # a flag of mremap's that is refused, as a kernel before 5.7 does
BACKEND_TESTS = [
    "devices",
    "memory_limits",
    "copies",
    "illegal_copies",
    "launch",
    "compile_error",
    "modules",
    "legacy_stream",
    "events",
    "concurrency",
    "many_threads",
    "drop_launches",
    "link_counts",
    "strict",
    "ledger",
    "destroyed_context",
    "virtual_memory",
    "mapping_while_busy",
    "measure",
    "close_while_busy",
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a test program in one of the variants, once."""
    folder = tmp_path_factory.mktemp("soft")
    done: dict[tuple[str, str], Path] = {}

    def make(program: str, variant: str) -> Path:
        key = (program, variant)
        if key not in done:
            sources = [HERE / f"{program}.c", *sorted((NATIVE / "backend/soft").rglob("*.c")), NATIVE / "wire/module_meta.c"]
            flags = ["-fvisibility=hidden", *(f"-I{NATIVE / part}" for part in ("backend/soft", "worker", "wire"))]
            how, flags = ("plain", [*flags, *OLD_KERNEL]) if variant == "old-kernel" else (variant, flags)
            done[key] = c_build.program(folder / f"{program}-{variant}", sources, variant=how, flags=flags, libraries=["-lm"])
        return done[key]

    return make


def run(program: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=280, env=environment)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert result.stdout.endswith("ok\n")
    return result.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ["plain", "fortified", "address"])
def test_engine(build: Build, variant: str) -> None:
    print(run(build("test_exec", variant)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BACKEND_TESTS)
def test_backend(build: Build, name: str) -> None:
    print(run(build("test_backend", "plain"), name))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ["address", "thread"])
def test_backend_under_sanitizers(build: Build, variant: str) -> None:
    program = build("test_backend", variant)
    for name in BACKEND_TESTS:
        # Stopping what cannot be stopped leaves things behind on purpose, which the address sanitizer would call leaks;
        # under the thread sanitizer a forked child cannot have threads.
        if name == "close_while_busy" or (variant == "thread" and name == "ledger"):
            continue
        run(program, name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["virtual_memory", "mapping_while_busy"])
def test_mapping_on_an_old_kernel(build: Build, name: str) -> None:
    run(build("test_backend", "old-kernel"), name)


def test_all_tests_are_listed() -> None:
    """The list above is the program's own."""
    source = (HERE / "test_backend.c").read_text()
    names = [line.split('"')[1] for line in source.splitlines() if line.startswith('    {"')]
    assert names == BACKEND_TESTS
