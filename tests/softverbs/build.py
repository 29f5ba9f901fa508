"""Builds the software libibverbs and the programs that test it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import c_build

HERE = Path(__file__).parent
# In the order of their layers: each file calls those before it.
NAMES = ("names", "fabric", "memory", "completion", "outcome", "request", "respond", "progress", "queue_pair", "device")
LIBRARY = [HERE / f"{name}.c" for name in NAMES]


def library(folder: Path, variant: str = "plain", flags: Sequence[str] = ()) -> Path:
    """libibverbs.so.1 in `folder`: for LD_PRELOAD, LD_LIBRARY_PATH or dlopen."""
    return c_build.library(folder / "libibverbs.so.1", LIBRARY, variant=variant, flags=flags)


def program(folder: Path, name: str, variant: str = "plain", flags: Sequence[str] = ()) -> Path:
    """One of the test programs, with the library linked into it."""
    sources = [HERE / f"{name}.c", HERE / "ends.c", *LIBRARY]
    return c_build.program(folder / f"{name}.{variant}", sources, variant=variant, flags=flags)
