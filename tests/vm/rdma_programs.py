"""The C tests of the transports for the guest: only the cases of links over verbs, and as much time as emulation needs."""

from __future__ import annotations

from pathlib import Path

from .. import c_build

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native/transport"
HELPERS = [HERE / f"{name}.c" for name in ("pair", "mini_server", "cutter", "sealed_peer", "hostile_relay", "sealed_row")]
LINK = [*sorted((ROOT / "native/wire").glob("*.c")), *sorted((ROOT / "native/transport").rglob("*.c"))]
# As tests/native/test_native.py has them; a deadline is for what hangs. Less traffic, and cuts ten times as far from each other: what is to come back
# in between takes longer, too.
FLAGS = (
    c_build.calls("OPEN_NS", "long long", "test_open_limit"), "-DUNACKED_LIMIT=4194304u", "-DCOPIES_LIMIT=8388608ull", "-DDRAIN_MS=100000",
    "-DGV_MORE_TRANSPORT=gv_sealed_transport", "-DGV_TCP_SEALS=false", '-DONLY_TRANSPORT="verbs"', "-DTEST_PATIENCE_NS=200000000000LL",
    "-DLESS(n)=((n)/4)", "-DSTEP_US=20000",
)  # fmt: skip


def source(name: str) -> Path:
    (found,) = HERE.rglob(f"{name}.c")
    return found


def build(folder: Path, name: str) -> Path:
    return c_build.program(folder / name, [*LINK, *HELPERS, source(name)], flags=FLAGS)
