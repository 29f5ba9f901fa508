"""Builds and runs the C tests of the shim's objects, with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
SHIM = ROOT / "native" / "shim"
WIRE = ROOT / "native" / "wire"
OBJECTS = [
    "allocator",
    "context",
    "context_state",
    "copy",
    "copy_calls",
    "device",
    "event",
    "function",
    "host_memory",
    "image",
    "launch",
    "library",
    "link",
    "memory",
    "module",
    "module_cache",
    "module_calls",
    "objects",
    "occupancy",
    "pointer",
    "pool",
    "stream",
    "stream_calls",
    "treap",
    "virtual",
]
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g"]
MEMORY = "-fsanitize=address,undefined"
RACES = "-fsanitize=thread"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The generated sources and the folder of cuda.h."""
    found = subprocess.run([sys.executable, ROOT / "tools" / "find_headers.py"], capture_output=True, text=True, check=True).stdout.strip()
    cuda13, cuda12, nvml = found.split(";")
    out = tmp_path_factory.mktemp("generated")
    generator = ROOT / "native" / "api" / "generate.py"
    command = [sys.executable, str(generator), "--headers", cuda13, "--headers", cuda12, "--nvml", nvml, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out, cuda13


def build_and_run(program: Path, sources: list[Path], includes: list[str], sanitizer: str = MEMORY, args: tuple[str, ...] = ()) -> None:
    """Compiles a test and runs it; its complaints are the assertion's text."""
    compiled = subprocess.run(
        ["gcc", *FLAGS, sanitizer, "-fno-sanitize-recover=all", *includes, *map(str, sources), "-lpthread", "-ldl", "-o", str(program)],
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([program, *args], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr


def test_allocator(tmp_path: Path) -> None:
    sources = [HERE / "test_allocator.c", SHIM / "allocator.c", SHIM / "treap.c"]
    build_and_run(tmp_path / "allocator", sources, [f"-I{SHIM}", f"-I{HERE}"])


def test_image(tmp_path: Path) -> None:
    build_and_run(tmp_path / "image", [HERE / "test_image.c", SHIM / "image.c"], [f"-I{SHIM}", f"-I{HERE}"])


def calls(name: str, tmp_path: Path, generated: tuple[Path, str], sanitizer: str, flags: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> None:
    """A test of the driver's calls with a fake worker behind them."""
    out, cuda = generated
    sources = [
        HERE / f"{name}.c",
        HERE / "fake_session.c",
        out / "gv_commands.c",
        WIRE / "sha256.c",
        WIRE / "module_meta.c",
        WIRE / "module_known.c",
        WIRE / "lz4.c",
        WIRE / "link_inputs.c",
    ]
    sources += [SHIM / f"{source}.c" for source in OBJECTS]
    build_and_run(tmp_path / name, sources, ["-isystem", cuda, f"-I{out}", f"-I{SHIM}", f"-I{WIRE}", f"-I{HERE}", *flags], sanitizer, args)


def test_calls(tmp_path: Path, generated: tuple[Path, str]) -> None:
    calls("test_calls", tmp_path, generated, MEMORY)


def test_threads(tmp_path: Path, generated: tuple[Path, str]) -> None:
    calls("test_threads", tmp_path, generated, RACES)


def test_module_cache(tmp_path: Path, generated: tuple[Path, str]) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    limits = ("-DMETA_CACHE_BYTES=(1ull<<20)", "-DMETA_CACHE_FILES=16u", "-DLEARNED_MAX=64u")
    calls("test_module_cache", tmp_path, generated, MEMORY, limits, (str(folder),))
