"""Builds and runs the C tests of the shim's objects, with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import c_build
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
NATIVE = ROOT / "native"
SHIM, WIRE = NATIVE / "shim", NATIVE / "wire"
OBJECTS = sorted((SHIM / "objects").rglob("*.c"))
MEMORY, RACES = "address", "thread"


def build_and_run(program: Path, sources: list[Path], includes: list[str], sanitizer: str = MEMORY, args: tuple[str, ...] = ()) -> None:
    """Compiles a test and runs it; its complaints are the assertion's text."""
    c_build.program(program, sources, variant=sanitizer, flags=includes, libraries=["-ldl"])
    ran = subprocess.run([program, *args], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr


def test_allocator(tmp_path: Path) -> None:
    sources = [HERE / "test_allocator.c", *(SHIM / "objects/memory" / name for name in ("allocator.c", "treap.c"))]
    build_and_run(tmp_path / "allocator", sources, [f"-I{SHIM}", f"-I{HERE}"])


def test_image(tmp_path: Path) -> None:
    build_and_run(tmp_path / "image", [HERE / "test_image.c", SHIM / "objects/module/image.c"], [f"-I{SHIM}", f"-I{HERE}"])


def calls(name: str, tmp_path: Path, sanitizer: str, flags: tuple[str, ...] = (), args: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> None:
    """A test of the driver's calls with a fake worker behind them. more: files of the test beside its first."""
    out, cuda = c_build.generated(), c_build.cuda_headers()
    sources = [
        *(HERE / f"{part}.c" for part in (name, *more, "fake_session")),
        out / "gv_commands.c",
        *(WIRE / f"{name}.c" for name in ("sha256", "module_meta", "module_known", "lz4", "link_inputs")),
        *OBJECTS,
    ]
    includes = ["-isystem", cuda, *(f"-I{folder}" for folder in (out, SHIM, NATIVE, WIRE, HERE))]
    build_and_run(tmp_path / name, sources, [*includes, *flags], sanitizer, args)


@pytest.mark.slow
def test_calls(tmp_path: Path) -> None:
    calls("test_calls", tmp_path, MEMORY, more=("memory_calls", "pool_calls", "green_calls", "cluster_calls", "tensor_map_calls"))


@pytest.mark.slow
def test_threads(tmp_path: Path) -> None:
    calls("test_threads", tmp_path, RACES)


@pytest.mark.slow
def test_module_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    limits = ("-DMETA_CACHE_BYTES=(1ull<<20)", "-DMETA_CACHE_FILES=16u", "-DLEARNED_MAX=64u")
    calls("test_module_cache", tmp_path, MEMORY, limits, (str(folder),))
