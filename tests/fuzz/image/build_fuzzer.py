"""Builds the fuzzer of sessions' images: what the worker's fuzzer is built of, with another program around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fuzz.worker.build_fuzzer import HERE as WORKER
from fuzz.worker.build_fuzzer import LIMITS, includes, link

HERE = Path(__file__).resolve().parent
SESSION = HERE / "everything.txt"
OWN = [HERE / "damage.c", HERE / "image_fuzzer.c"]
SHARED = [WORKER / f"{name}.c" for name in ("step", "generate", "mutate", "client", "connections", "soft_modules", "coverage")]
# An image says how large things are: a piece of memory that is larger than this is taken for a number that nobody has looked at.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:max_allocation_size_mb=32:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
}


def build(folder: Path, instead: Mapping[Path, Path] | None = None, name: str = "image_fuzzer") -> Path:
    """The fuzzer, in `folder`; `instead`: other sources in the place of some of the product's. Those in one folder share all else."""
    return link(folder / name, "address", instead or {}, [*SHARED, *OWN], [*LIMITS, *includes(folder), f"-I{WORKER}"])
