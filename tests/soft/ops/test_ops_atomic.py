"""Atomic operations of every type: the new value in memory and the old one that comes back, global and shared, alone and in vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.ops.test_ops_floating import bf16, edges, from_bf16, to_bf16
from soft.ops.test_ops_integer import edges as int_edges
from soft.ptx_op import Case, check, product, tiers

pytestmark = pytest.mark.sampled(5)

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"
rng = np.random.default_rng(17)

INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda o, v: v,
    "inc": lambda o, v: np.where(o >= v, 0, o + 1).astype(o.dtype), "dec": lambda o, v: np.where((o == 0) | (o > v), v, o - 1).astype(o.dtype),
}  # fmt: skip
TYPES: dict[str, tuple[Any, str]] = {
    "u32": (np.uint32, "add min max inc dec"), "s32": (np.int32, "add min max"), "u64": (np.uint64, "add min max"), "s64": (np.int64, "add min max"),
    "b32": (np.uint32, "and or xor exch"), "b64": (np.uint64, "and or xor exch"), "f32": (np.float32, "add"), "f64": (np.float64, "add"),
    "f16": (np.float16, "add min max"), "bf16": (np.uint16, "add min max"),
}  # fmt: skip
REGISTER = {2: "%h1", 4: "%r5", 8: "%q5"}


def noftz(t: str) -> str:
    return ".noftz" if "f16" in t else ""


def reference(t: str, op: str) -> Callable[[Any, Any], Any]:
    if t == "bf16":
        return lambda v, o: to_bf16(INTEGER[op](from_bf16(o), from_bf16(v)).astype(np.float64)) if op != "add" else _rounded(from_bf16(o) + from_bf16(v))
    return lambda v, o: INTEGER[op](o, v)


def _rounded(x: Any) -> Any:
    raw = x.astype(np.float32).view(np.uint32)
    return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)


def _cases() -> list[Case]:
    out = []
    for t, (dtype, ops) in TYPES.items():
        if t in ("f32", "f64", "f16"):
            e = edges(t)
            e = e[np.isfinite(e)]
        else:
            e = bf16(edges("f32", True)[:8]) if t == "bf16" else int_edges(dtype)
            e = e[np.isfinite(from_bf16(e))] if t == "bf16" else e
        columns = product(e, e)
        width = np.dtype(dtype).itemsize
        bits, r = 8 * width, REGISTER[width]
        differs = f"setp.ne.b{bits} %p1, {r}, $b; @%p1 not.b{bits} $d, $d;"  # the old value must be what was there
        for op in ops.split():
            kind = f"{op}{noftz(t)}.{t}"
            want = reference(t, op)
            sm = f".shared .align 8 .b8 sm[1024]; mul.lo.u32 %r6, %r2, {width}; mov.u32 %r7, sm; add.u32 %r6, %r6, %r7; st.shared.b{bits} [%r6], $b; "
            for order in ("", ".relaxed.gpu", ".acq_rel.sys"):
                if order and op != "add":
                    continue
                out.append(Case(f"atom{order}.global.{kind} {r}, [%ab], $a; ld.global.b{bits} $d, [%ab]; {differs}", np.dtype(dtype), columns, want))
            out.append(Case(f"{sm}atom.shared.{kind} {r}, [%r6], $a; ld.shared.b{bits} $d, [%r6]; {differs}", np.dtype(dtype), columns, want))
            out.append(Case(f"atom.{kind} {r}, [%ab], $a; ld.b{bits} $d, [%ab]; {differs}", np.dtype(dtype), columns, want))
            if op != "exch":
                out.append(Case(f"red.global.{kind} [%ab], $a; ld.global.b{bits} $d, [%ab];", np.dtype(dtype), columns, want))
                out.append(Case(f"{sm}red.shared.{kind} [%r6], $a; ld.shared.b{bits} $d, [%r6];", np.dtype(dtype), columns, want))
    for bits, dtype in ((16, np.uint16), (32, np.uint32), (64, np.uint64)):
        e = int_edges(dtype, True)
        r = REGISTER[bits // 8]
        swapped = lambda c, o, n: np.where(o == c, n, o)  # noqa: E731
        text = f"atom.global.cas.b{bits} {r}, [%ab], $a, $c; ld.global.b{bits} $d, [%ab]; setp.ne.b{bits} %p1, {r}, $b; @%p1 not.b{bits} $d, $d;"
        out.append(Case(text, np.dtype(dtype), product(e, e, e), swapped))
        sm = f".shared .align 8 .b8 sm[1024]; mul.lo.u32 %r6, %r2, {bits // 8}; mov.u32 %r7, sm; add.u32 %r6, %r6, %r7; st.shared.b{bits} [%r6], $b; "
        text = f"{sm}atom.shared.cas.b{bits} {r}, [%r6], $a, $c; ld.shared.b{bits} $d, [%r6]; setp.ne.b{bits} %p1, {r}, $b; @%p1 not.b{bits} $d, $d;"
        out.append(Case(text, np.dtype(dtype), product(e, e, e), swapped))
    return out


CASES = _cases()


@pytest.mark.parametrize("case", tiers(CASES))
def test_atomic(case: Case) -> None:
    kept = tuple(i.copy() for i in case.inputs)  # they change in place, and the reference wants what was there before
    check(Case(case.text, case.out, tuple(i.copy() for i in case.inputs), lambda *_: case.want(*kept)))


def packed(op: str, t: str, count: int, form: str) -> str:
    """Every thread combines `count` words of its own; `form`: how the words are named."""
    names = ", ".join(f"%r{10 + i}" for i in range(count))
    loads = " ".join(f"ld.global.u32 %r{10 + i}, [%q1+{4 * i}];" for i in range(count))
    olds = ", ".join(f"%r{20 + i}" for i in range(count))
    stores = " ".join(f"st.global.u32 [%q3+{4 * i}], %r{20 + i};" for i in range(count))
    if form == "red":
        text = f"red.global.{op}.noftz.v{count}.{t} [%q2], {{{names}}};" if count > 1 else f"red.global.{op}.noftz.{t} [%q2], {names};"
        stores = ""
    elif count > 1:
        text = f"atom.global.{op}.noftz.v{count}.{t} {{{olds}}}, [%q2], {{{names}}};"
    else:
        text = f"atom.global.{op}.noftz.{t} {olds}, [%q2], {names};"
    return f"""{HEAD}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 o) {{ .reg .b32 %r<40>; .reg .b64 %q<9>; mov.u32 %r0, %tid.x;
    ld.param.u64 %q1, [x]; ld.param.u64 %q2, [y]; ld.param.u64 %q3, [o]; mul.wide.u32 %q4, %r0, {4 * count}; add.u64 %q1, %q1, %q4; add.u64 %q2, %q2, %q4;
    add.u64 %q3, %q3, %q4; {loads} {text} {stores} ret; }}"""


PACKED = [(op, t, count, form) for t in ("f16x2", "bf16x2") for op in ("add", "min", "max") for count in (1, 2, 4) for form in ("atom", "red")]
TEXTS = [packed(*p) for p in PACKED]


@pytest.mark.parametrize("op,t,count,form", [p if p[2] == 2 or p[0] == "add" else pytest.param(*p, marks=pytest.mark.long) for p in PACKED])
def test_pairs_and_vectors_of_pairs(op: str, t: str, count: int, form: str) -> None:
    x, y = (rng.standard_normal((32, 2 * count)).astype(np.float16) for _ in range(2))
    if t == "bf16x2":
        x, y = (bf16(v.astype(np.float32)) for v in (x, y))
        want = reference("bf16", op)(x, y)
    else:
        want = INTEGER[op](y, x)
    before, old = y.copy(), np.zeros_like(y)
    Kernels(packed(op, t, count, form)).launch("k", 1, 32, x, y, old)
    assert np.array_equal(y, want)
    assert form == "red" or np.array_equal(old, before)


def vector(t: str, count: int, form: str) -> str:
    register, bits = ("%h", 16) if t in ("f16", "bf16") else ("%r", 32)
    names = ", ".join(f"{register}{10 + i}" for i in range(count))
    loads = " ".join(f"ld.global.b{bits} {register}{10 + i}, [%q1+{bits // 8 * i}];" for i in range(count))
    noftz_ = ".noftz" if bits == 16 else ""
    olds = ", ".join(f"{register}{20 + i}" for i in range(count))
    text = f"red.global.add{noftz_}.v{count}.{t} [%q2], {{{names}}};"
    if form == "atom":
        text = f"atom.global.add{noftz_}.v{count}.{t} {{{olds}}}, [%q2], {{{names}}};"
        text += " ".join(f"st.global.b{bits} [%q1+{bits // 8 * i}], {register}{20 + i};" for i in range(count))
    return f"""{HEAD}.visible .entry k(.param .u64 x, .param .u64 y) {{ .reg .b32 %r<40>; .reg .b16 %h<40>; .reg .b64 %q<9>; mov.u32 %r0, %tid.x;
    ld.param.u64 %q1, [x]; ld.param.u64 %q2, [y]; mul.wide.u32 %q4, %r0, {bits // 8 * count}; add.u64 %q1, %q1, %q4; add.u64 %q2, %q2, %q4; {loads} {text} ret; }}"""


VECTORS = [("f32", 2), ("f32", 4), ("f16", 2), ("f16", 4), ("f16", 8), ("bf16", 8)]
TEXTS += [vector(t, n, form) for t, n in VECTORS for form in ("atom", "red")]


@pytest.mark.parametrize("form", ["atom", "red"])
@pytest.mark.parametrize("t,count", VECTORS)
def test_vectors(t: str, count: int, form: str) -> None:
    dtype = np.float32 if t == "f32" else np.float16
    x, y = (rng.standard_normal((64, count)).astype(dtype) for _ in range(2))
    if t == "bf16":
        x, y = (bf16(v.astype(np.float32)) for v in (x, y))
    want = reference("bf16", "add")(x, y) if t == "bf16" else x + y
    before = y.copy()
    Kernels(vector(t, count, form)).launch("k", 1, 64, x, y)
    assert np.array_equal(y, want)
    assert form == "red" or np.array_equal(x, before)  # the old values


def wide(space: str) -> str:
    put = ".shared .align 16 .b8 sm[1024]; mov.u32 %r1, sm; shl.b32 %r2, %r0, 4; add.u32 %r1, %r1, %r2; st.shared.b128 [%r1], %o1;"
    where = "[%q2]" if space == "global" else "[%r1]"
    back = "" if space == "global" else "ld.shared.b128 %o5, [%r1]; st.global.b128 [%q2], %o5;"
    return f"""{HEAD}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 n, .param .u64 o) {{ .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .b128 %o<9>;
    mov.u32 %r0, %tid.x; mul.wide.u32 %q0, %r0, 16; ld.param.u64 %q1, [x]; ld.param.u64 %q2, [y]; ld.param.u64 %q3, [n]; ld.param.u64 %q4, [o];
    add.u64 %q1, %q1, %q0; add.u64 %q2, %q2, %q0; add.u64 %q3, %q3, %q0; add.u64 %q4, %q4, %q0;
    ld.global.v2.b64 {{%q5, %q6}}, [%q1]; mov.b128 %o0, {{%q5, %q6}}; ld.global.b128 %o1, [%q2]; ld.global.b128 %o2, [%q3]; {put if space == "shared" else ""}
    atom.{space}.cas.b128 %o3, {where}, %o0, %o2; atom.{space}.exch.b128 %o4, {where}, %o3; mov.b128 {{%q7, %q8}}, %o4; st.global.v2.b64 [%q4], {{%q7, %q8}};
    {back} ret; }}"""


TEXTS += [wide("global"), wide("shared")]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_128_bits(space: str) -> None:
    """Compare and swap, exchange: the first where both halves agree only; and plain moves, loads and stores of .b128."""
    y, n = (rng.integers(0, 1 << 63, (32, 2), np.uint64) for _ in range(2))
    x = y.copy()
    x[::3, 0] ^= 1
    x[1::3, 1] ^= 1
    old, after = y.copy(), np.zeros_like(y)
    room = np.zeros(66, np.uint64)
    start = 1 if room.ctypes.data % 16 else 0
    there = room[start : start + 64].reshape(32, 2)
    there[...] = y
    Kernels(wide(space)).launch("k", 1, 32, x, there, n, after)
    hit = (x == old).all(1)
    assert hit.any() and not hit.all()
    assert np.array_equal(after, np.where(hit[:, None], n, old)) and np.array_equal(there, old)
