"""Builds the shim's fuzzer: the whole of libcuda.so.1, the driver calls and the hostile server in one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import c_build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "native"
FUZZER = sorted(HERE.glob("*.c"))
# tcp is sealed, and tcp(plain) is not.
LIMITS = ["-DOPEN_NS=5000000000LL", "-DGV_TCP_SEALS=true"]


def product() -> list[Path]:
    """What is fuzzed."""
    folders = [NATIVE / "wire", NATIVE / "transport", *(NATIVE / "shim" / part for part in ("session", "abi", "objects"))]
    generated = [c_build.generated() / f"{name}.c" for name in ("gv_commands", "gv_stubs", "gv_proc_table", "gv_errors")]
    return [*(p for folder in folders for p in sorted(folder.rglob("*.c"))), *generated]


def includes() -> list[str]:
    """The folders of the sources, too, so that a copy of one elsewhere finds its neighbours."""
    places = [c_build.generated(), NATIVE, *(NATIVE / part for part in ("api", "wire", "transport", "shim"))]
    neighbours = sorted({p.parent for p in product()} - set(places))
    return ["-isystem", c_build.cuda_headers(), *(f"-I{place}" for place in [*places, *neighbours])]


def build(target: Path, instead: Mapping[Path, Path] | None = None, flags: Sequence[str] = ()) -> Path:
    """The fuzzer; `instead`: other sources in the place of some of the product's."""
    sources = [(instead or {}).get(p, p) for p in product()]
    return c_build.program(target, [*sources, *FUZZER], variant="address", flags=[*LIMITS, *flags, *includes()], libraries=["-ldl", "-lm"])
