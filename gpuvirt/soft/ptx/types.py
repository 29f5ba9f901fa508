"""PTX's fundamental types and what LLVM calls them."""

from __future__ import annotations

from typing import NamedTuple

LANES = 32


class Type(NamedTuple):
    """A PTX type: `kind` is one of b, u, s (integers), f (float), h (bfloat16), p (predicate), x (packed)."""

    name: str
    bits: int
    kind: str


_NARROW = {"e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e2m1x2": 8}
_NARROW |= {"e4m3x4": 32, "e5m2x4": 32, "e2m3x4": 32, "e3m2x4": 32, "e2m1x4": 16}


def _table() -> dict[str, Type]:
    types = {}
    for bits in (8, 16, 32, 64, 128):
        for kind in "bus":
            types[f"{kind}{bits}"] = Type(f"{kind}{bits}", bits, kind)
    for bits in (16, 32, 64):
        types[f"f{bits}"] = Type(f"f{bits}", bits, "f")
    types["bf16"] = Type("bf16", 16, "h")
    types["tf32"] = Type("tf32", 32, "b")
    types["pred"] = Type("pred", 1, "p")
    for name, bits in (("f16x2", 32), ("bf16x2", 32), ("f32x2", 64), ("u16x2", 32), ("s16x2", 32), *_NARROW.items()):
        types[name] = Type(name, bits, "x")
    return types


TYPES = _table()


def llvm_type(t: Type) -> str:
    """The LLVM element type in which instructions of type `t` compute; bf16 and packed types travel as integers."""
    if t.kind == "f":
        return {16: "half", 32: "float", 64: "double"}[t.bits]
    return f"i{t.bits}"


INT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "half": 16, "float": 32, "double": 64, "bfloat": 16}
