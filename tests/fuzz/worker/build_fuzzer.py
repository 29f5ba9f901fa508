"""Builds the worker's fuzzer: the whole worker, both backends, the transports, a client that fuzzes, and the fake driver as a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import c_build
from fuzz.worker import shapes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "native"
TESTS = ROOT / "tests/native"
FUZZER = [HERE / f"{name}.c" for name in ("step", "generate", "mutate", "client", "connections", "soft_modules", "fuzzer", "coverage")]
PEERS = [TESTS / "transport/pair.c", TESTS / "transport/sealed_peer.c"]
# Small limits are reached by small sessions.
LIMITS = ["-DWORKER_MAX_STAGING=(8<<20)", "-DWORKER_MAX_EARLY=(3<<20)", "-DWORKER_MAX_AHEAD=(1<<20)"]
TRACED = ["-fsanitize-coverage=trace-pc"]
# No leaks are looked for: what a session has under way when it is cut ends with its process. A copy of many gigabytes gets no memory.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
}


@dataclass(frozen=True)
class Fuzzer:
    """A built fuzzer and the driver for its sessions on the cuda backend."""

    program: Path
    driver: Path


def product() -> list[Path]:
    """What is fuzzed: all of it but what the daemon calls."""
    folders = [NATIVE / "backend", NATIVE / "transport", NATIVE / "wire"]
    generated = [c_build.generated() / f"{name}.c" for name in ("gv_commands", "gv_dispatch", "gv_objects")]
    worker = [p for p in sorted((NATIVE / "worker").rglob("*.c")) if p.stem != "key_exchange"]
    return [*worker, *(p for folder in folders for p in sorted(folder.rglob("*.c"))), *generated]


def includes(folder: Path) -> list[str]:
    shapes.write(folder)
    places = [folder, c_build.generated(), NATIVE, *(NATIVE / part for part in ("wire", "worker", "backend"))]
    soft = str(NATIVE / "backend/soft")  # by quotes alone: its limits.h is not the one of C
    return ["-isystem", c_build.cuda_headers(), *(f"-I{place}" for place in places), "-iquote", soft]


def build_driver(folder: Path, variant: str) -> Path:
    sources = [TESTS / "worker/cuda/fake_driver.c", TESTS / "worker/cuda/fake_defaults.c", HERE / "driver_memory.c"]
    return c_build.library(folder / "libfake.so", sources, variant=variant, flags=includes(folder))


def build(folder: Path, variant: str = "address", instead: Mapping[Path, Path] | None = None, name: str = "fuzzer") -> Fuzzer:
    """The fuzzer, in `folder`; `instead`: other sources in the place of some of the product's. Those in one folder share all else."""
    program = link(folder / name, variant, instead or {}, FUZZER, [*LIMITS, *includes(folder)])
    return Fuzzer(program, build_driver(folder, variant))


def link(target: Path, variant: str, instead: Mapping[Path, Path], fuzzer: Sequence[Path], flags: Sequence[str]) -> Path:
    """The worker and its backends tell where they have been; what lies below is as all tests have it."""
    below = [p for p in product() if p.is_relative_to(NATIVE / "transport") or p.is_relative_to(NATIVE / "wire")]
    sources = [*(instead.get(p, p) for p in product() if p not in below or p in instead), *PEERS, *fuzzer]
    others = c_build.objects([p for p in below if p not in instead], [*c_build.STRICT, *c_build.VARIANTS[variant], *flags])
    traced = ["-fvisibility=hidden", *TRACED, *flags]
    return c_build.program(target, sources, variant=variant, flags=traced, libraries=[*map(str, others), "-ldl", "-lm"])
