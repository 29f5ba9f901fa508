"""The forms of instructions that the other tables lack, so that every type of every opcode has a test (test_coverage.py sees to it)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft import exact
from soft.ops.test_ops_floating import (
    B16,
    E16,
    E32,
    E64,
    PAIRS,
    edges,
    flushed,
    from_bf16,
    halves,
    maximum,
    minimum,
    nan_or,
    over_bf16,
    pairs,
    to_bf16,
)
from soft.ops.test_ops_integer import T, each
from soft.ops.test_ops_integer import edges as int_edges
from soft.ptx_op import Case, bits, check, product, run, tiers

pytestmark = pytest.mark.sampled(5)

ALL = "0xffffffff"
BPAIRS = np.array([0x3F803F80, 0x00008000, 0x7F7F0001, 0x3EAA3FC0, 0xBF804080, 0x00800080, 0xC1203F00, 0x1234D678, 0x7FFF3F80, 0x7F80FF80], np.uint32)
B32X2 = product(edges("f32", True), edges("f32", True))
X2 = (B32X2[0].view(np.uint32).astype(np.uint64) | B32X2[1].view(np.uint32).astype(np.uint64) << np.uint64(32))[::7]
PRED = "setp.ne.u32 %p1, $a, 0; setp.ne.u32 %p2, $b, 0; "
BITS = np.array([0, 1], np.uint32)


def bpairs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers over bf16x2 in u32."""

    def over(*columns: Any) -> Any:
        low, high = (to_bf16(function(*(from_bf16(halves(c, None)[i]) for c in columns))) for i in (0, 1))
        return low.astype(np.uint32) | high.astype(np.uint32) << 16

    return over


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of f32 over f32x2 in u64."""

    def over(*columns: Any) -> Any:
        parts = []
        for shift in (0, 32):
            args = [(c >> np.uint64(shift)).astype(np.uint32).view(np.float32) for c in columns]
            parts.append(np.asarray(function(*args)).astype(np.float32).view(np.uint32).astype(np.uint64))
        return parts[0] | parts[1] << np.uint64(32)

    return over


def canonical(function: Callable[..., Any]) -> Callable[..., Any]:
    """Float results as bits, with the one NaN that PTX gives."""
    return lambda *a: np.where(np.isnan(r := np.asarray(function(*a)).astype(np.float32)), np.uint32(0x7FFFFFFF), r.view(np.uint32)).astype(np.uint32)


def xorsign(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    return lambda a, b: np.copysign(function(np.abs(a), np.abs(b)), np.where(np.signbit(a) ^ np.signbit(b), dtype(-1), dtype(1)))


COMPARE: dict[str, Callable[[Any, Any], Any]] = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOL: dict[str, Callable[[Any, Any], Any]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(name: str, a: Any, b: Any) -> Any:
    """PTX's comparisons of floats: the plain ones are false of NaN, those with u are true of it (ne is true of neither)."""
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered if name == "nan" else ~unordered
    result = COMPARE[name.removesuffix("u")](a, b)
    return result | unordered if name.endswith("u") else result & ~unordered


def _cases() -> list[Case]:
    out: list[Case] = []

    def add(text: str, dtype: Any, want: Callable[..., Any], *lists: Any, tolerance: float = 0.0) -> None:
        out.append(Case(text, np.dtype(dtype), product(*lists), want, tolerance))

    # Pairs: halves of 32 bits, floats of 64.
    add("neg.bf16x2 $d, $a;", np.uint32, lambda a: a ^ 0x80008000, BPAIRS)
    add("abs.bf16x2 $d, $a;", np.uint32, lambda a: a & 0x7FFF7FFF, BPAIRS)
    operations = {"add": exact.add, "sub": exact.sub, "mul": exact.mul, "fma": exact.fma}
    for op, f in operations.items():
        operands = "$a, $b, $c" if op == "fma" else "$a, $b"
        count = 3 if op == "fma" else 2
        add(f"{op}.rn.bf16x2 $d, {operands};", np.uint32, bpairs(exact.table(f, "rn", "bf16")), *[BPAIRS] * count)
        some = np.ascontiguousarray(X2[::3] if count == 3 else X2)
        for mode, ftz in (("rn", False), ("rz", False), ("rm", False), ("rp", False), ("rn", True), ("rz", True)):
            sound = some[~np.isnan(some.view(np.float32).reshape(-1, 2)).any(1)]
            sound = sound[np.isfinite(sound.view(np.float32).reshape(-1, 2)).all(1)]
            table = exact.table(f, mode, "f32", ftz)
            add(f"{op}.{mode}{'.ftz' * ftz}.f32x2 $d, {operands};", np.uint64, doubled(table), *[sound] * count)
    add("fma.rn.relu.bf16x2 $d, $a, $b, $c;", np.uint32, bpairs(lambda *a: relu(exact.table(exact.fma, "rn", "bf16")(*a))), BPAIRS, BPAIRS, BPAIRS)
    for op, g in {"min": minimum, "max": maximum}.items():
        sound = BPAIRS[:8]
        add(f"{op}.bf16x2 $d, $a, $b;", np.uint32, bpairs(g), sound, sound)
        add(f"{op}.NaN.bf16x2 $d, $a, $b;", np.uint32, bpairs(nan_or(g)), BPAIRS, BPAIRS)
        add(f"{op}.xorsign.abs.f32 $d, $a, $b;", np.float32, xorsign(g, np.float32), E32[~np.isnan(E32)], E32[~np.isnan(E32)])
        add(f"{op}.ftz.xorsign.abs.f32 $d, $a, $b;", np.float32, lambda a, b, g=g: xorsign(g, np.float32)(flushed(a), flushed(b)), E32[~np.isnan(E32)], E32[:9])
        add(f"{op}.ftz.f32 $d, $a, $b;", np.uint32, canonical(lambda a, b, g=g: g(flushed(a), flushed(b))), E32, E32)
        add(f"{op}.f32 $d, $a, $b;", np.uint32, canonical(g), E32, E32)
        add(f"{op}.f32 $d, $a, $b, $c;", np.uint32, canonical(lambda a, b, c, g=g: g(g(a, b), c)), E32[::5], E32[::4], E32[::3])
        add(f"{op}.NaN.f16 $d, $a, $b;", np.uint16, lambda a, b, g=g: half_bits(nan_or(g)(a, b)), E16, E16)
        add(f"{op}.relu.s16x2 $d, $a, $b;", np.uint32, relu_pairs(g), PAIRS, PAIRS)
        sound16 = E16[~np.isnan(E16)]
        add(f"{op}.xorsign.abs.f16 $d, $a, $b;", np.float16, xorsign(g, np.float16), sound16, sound16)
    # Integers: carries of every width, products of 24 bits, chains.
    for name in ("s32", "u32", "s64", "u64"):
        e, small = int_edges(T[name]), int_edges(T[name], True)
        width = 8 * T[name].itemsize
        mask = (1 << width) - 1
        one = f"mov.b{width} $d, 1; mov.b{width} %{'r' if width == 32 else 'q'}5, 0; "
        r = "%r" if width == 32 else "%q"
        for op, carry in (("add", lambda a, b, m=mask: ((a & m) + (b & m)) > m), ("sub", lambda a, b, m=mask: (a & m) < (b & m))):
            # 10 * (carry out of the second step) + (carry out of the first)
            text = (f"{one}{op}.cc.{name} {r}3, $a, $b; addc.{name} {r}4, {r}5, {r}5; {op}.cc.{name} {r}3, $a, $b; {op}c.cc.{name} {r}3, $b, $a;"
                    f" addc.cc.{name} {r}6, {r}5, {r}5; mul.lo.{name} {r}6, {r}6, 10; add.{name} $d, {r}6, {r}4;")  # fmt: skip
            if op == "sub":  # a borrow is the carry of subc alone: 0 - 0 - borrow
                text = (f"{one}sub.cc.{name} {r}3, $a, $b; subc.{name} {r}4, {r}5, {r}5; sub.cc.{name} {r}3, $a, $b; subc.cc.{name} {r}3, $b, $a;"
                        f" subc.cc.{name} {r}6, {r}5, {r}5; mul.lo.{name} {r}6, {r}6, 10; add.{name} $d, {r}6, {r}4;")  # fmt: skip

            def want(a: int, b: int, carry: Callable[[int, int], bool] = carry, op: str = op, m: int = mask) -> int:
                first = int(carry(a, b))
                second = ((b & m) + (a & m) + first) > m if op == "add" else (b & m) < (a & m) + first
                return (10 * second + first) * (1 if op == "add" else -1)

            out.append(Case(text, T[name], product(e, e), each(want, T[name])))
        for part in ("lo", "hi"):
            text = f"mad.{part}.cc.{name} {r}3, $a, $b, $c; madc.{part}.cc.{name} {r}4, $b, $c, {r}3; addc.{name} $d, {r}4, 0;"

            def chain(a: int, b: int, c: int, part: str = part, m: int = mask, w: int = width) -> int:
                def piece(x: int, y: int) -> int:
                    return (x * y >> (w if part == "hi" else 0)) & m

                total = piece(a, b) + (c & m)
                again = piece(b, c) + (total & m) + (total >> w)
                return (again & m) + (again >> w)

            out.append(Case(text, T[name], product(small, small, small), each(chain, T[name])))
        if width == 32:
            cut = (lambda x: ((x & 0xFFFFFF) ^ 0x800000) - 0x800000) if name == "s32" else (lambda x: x & 0xFFFFFF)
            high = lambda a, b, c, f=cut: (f(a) * f(b) >> 16) + c  # noqa: E731
            out.append(Case(f"mad24.hi.{name} $d, $a, $b, $c;", T[name], product(small, small, small), each(high, T[name])))
    high = lambda a, b, c: max(-(1 << 31), min((1 << 31) - 1, (sign24(a) * sign24(b) >> 16) + c))  # noqa: E731
    few = int_edges(np.int32, True)
    out.append(Case("mad24.hi.sat.s32 $d, $a, $b, $c;", np.dtype(np.int32), product(few, few, few), each(high, np.int32)))
    # Predicates
    for op, h in BOOL.items():
        add(PRED + f"{op}.pred %p3, %p1, %p2; selp.b32 $d, 1, 0, %p3;", np.uint32, h, BITS, BITS)
    add(PRED + "not.pred %p3, %p1; mov.pred %p4, %p3; selp.b32 $d, 1, 0, %p4;", np.uint32, lambda a, b: a == 0, BITS, BITS)
    words = np.array([0, 1, 0x80000000, 0xF0F0F0F0], np.uint32)
    text = "setp.ne.u32 %p2, $c, 0; lop3.and.b32 $d|%p1, $a, $b, $c, 0x96, %p2; selp.b32 $d, 1, 0, %p1;"
    add(text, np.uint32, lambda a, b, c: ((a ^ b ^ c) != 0) & (c != 0), words, words, words)
    # mad of floats is fma
    for name, dtype in (("f32", np.float32), ("f64", np.float64)):
        floats = edges(name, True)
        for mode in ("rn", "rz", "rm", "rp"):
            add(f"mad.{mode}.{name} $d, $a, $b, $c;", dtype, exact.table(exact.fma, mode, name), floats, floats, floats)
    floats = edges("f32", True)
    add("mad.rn.ftz.f32 $d, $a, $b, $c;", np.float32, exact.table(exact.fma, "rn", "f32", True), floats, floats, floats)
    # Approximations of the types and modifiers that the other table leaves out: bounds by PTX's text.
    x = np.concatenate([np.geomspace(1e-37, 1e37, 300), [1e-40, 0.0, np.inf, np.nan]]).astype(np.float32)
    add("rsqrt.approx.ftz.f32 $d, $a;", np.float32, lambda a: 1 / np.sqrt(flushed(a).astype(np.float64)), x, tolerance=2.0**-22.4)
    add("sqrt.approx.ftz.f32 $d, $a;", np.float32, lambda a: np.sqrt(flushed(a).astype(np.float64)), x, tolerance=2.0**-23)
    add("lg2.approx.ftz.f32 $d, $a;", np.float32, lambda a: np.log2(flushed(a).astype(np.float64)), np.concatenate([x[:120], x[180:]]), tolerance=2.0**-22)
    near_one = np.linspace(0.5, 2, 1001).astype(np.float32)  # there the bound of lg2 is absolute: 2^-22
    error = "lg2.approx.f32 $d, $a; sub.f32 $d, $d, $b; abs.f32 $d, $d; setp.le.f32 %p1, $d, 0f34800000; selp.f32 $d, 0f3F800000, 0f00000000, %p1;"
    columns = (near_one, np.log2(near_one.astype(np.float64)).astype(np.float32))
    out.append(Case(error, np.dtype(np.float32), columns, lambda a, b: np.ones(len(a), np.float32)))
    for mode in ("rn", "rz", "rm", "rp"):
        add(f"sqrt.{mode}.ftz.f32 $d, $a;", np.float32, exact.table(exact.sqrt, mode, "f32", True), E32)
        add(f"rcp.{mode}.ftz.f32 $d, $a;", np.float32, exact.table(exact.rcp, mode, "f32", True), E32)
        add(f"div.{mode}.ftz.f32 $d, $a, $b;", np.float32, exact.table(exact.div, mode, "f32", True), E32[::2], E32[::2])
        for op in ("add", "mul"):
            add(f"{op}.{mode}.ftz.f32 $d, $a, $b;", np.float32, exact.table(operations[op], mode, "f32", True), E32[::2], E32[1::2])
    angles = np.concatenate([np.linspace(-3.14, 3.14, 500), [1e-40, -0.0]]).astype(np.float32)
    for op, f in (("sin", np.sin), ("cos", np.cos)):  # an absolute error of 2^-20.5
        inside = lambda a, f=f: f(flushed(a).astype(np.float64))  # noqa: E731
        error = f"{op}.approx.ftz.f32 $d, $a; sub.f32 $d, $d, $b; abs.f32 $d, $d; setp.le.f32 %p1, $d, 0f35350000; selp.f32 $d, 0f3F800000, 0f00000000, %p1;"
        columns = (angles, inside(angles).astype(np.float32))
        out.append(Case(error, np.dtype(np.float32), columns, lambda a, b: np.ones(len(a), np.float32)))
    h = np.linspace(-8, 8, 200).astype(np.float16)
    b = np.unique(np.concatenate([(np.linspace(-8, 8, 200).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), B16[:8]]))
    for op, f in (("ex2", np.exp2), ("tanh", np.tanh)):
        ftz = ".ftz" if op == "ex2" else ""
        pair = h.view(np.uint16).astype(np.uint32) | h[::-1].view(np.uint16).astype(np.uint32) << 16
        low = f"{op}.approx.f16x2 %r3, $a; mov.b32 {{%h1, %h2}}, %r3; mov.b16 $d, %h1;"
        add(low, np.float16, lambda a, f=f: f(halves(a, np.float16)[0].astype(np.float64)), pair, tolerance=2.0**-9)
        add(low.replace("$d, %h1", "$d, %h2"), np.float16, lambda a, f=f: f(halves(a, np.float16)[1].astype(np.float64)), pair, tolerance=2.0**-9)
        widened = "cvt.u32.u16 %r4, %h1; shl.b32 $d, %r4, 16;"
        add(f"{op}.approx{ftz}.bf16 %h1, $a; {widened}", np.float32, lambda a, f=f: f(from_bf16(a).astype(np.float64)), b[from_bf16(b) == from_bf16(b)], tolerance=2.0**-7)
        bpair = b.astype(np.uint32) | b[::-1].astype(np.uint32) << 16
        bpair = bpair[~np.isnan(from_bf16(halves(bpair, None)[1])) & ~np.isnan(from_bf16(halves(bpair, None)[0]))]
        add(f"{op}.approx{ftz}.bf16x2 %r3, $a; and.b32 $d, %r3, 0xffff0000;", np.float32, lambda a, f=f: f(from_bf16(halves(a, None)[1]).astype(np.float64)), bpair,
            tolerance=2.0**-7)  # fmt: skip
    # Comparisons: set and setp of every type, comparison and boolean.
    for name in (*T, "b16", "b32", "b64"):
        dtype = T.get(name.replace("b", "u"))
        e = int_edges(dtype, True)
        names = {"eq": "eq", "ne": "ne"} if name[0] == "b" else {c: c for c in COMPARE} | (UNSIGNED if name[0] == "u" else {})
        for c, g in names.items():
            add(f"set.{c}.u32.{name} $d, $a, $b;", np.uint32, lambda a, b, g=g: np.where(COMPARE[g](a, b), 0xFFFFFFFF, 0), e, e)
            add(f"setp.{c}.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, lambda a, b, g=g: COMPARE[g](a, b), e, e)
        add(f"set.eq.f32.{name} $d, $a, $b;", np.float32, lambda a, b: (a == b) * np.float32(1), e, e)
        add(f"selp.{name} $d, $a, $b, %p1;".replace("selp", "setp.lt.u32 %p1, %r2, 16; selp"), dtype, by_thread(16), e, e)
        s = f"slct.{name}.s32 $d, $a, $b, $c;"
        add(s, dtype, lambda a, b, c: np.where(c >= 0, a, b), e, e[:3], int_edges(np.int32, True))
        if name[0] == "b":
            shifts = np.array([0, 1, 7, 15, 31, 63, 64, 200], np.uint32)
            bits_ = 8 * dtype.itemsize
            add(f"shr.{name} $d, $a, $b;", dtype, each(lambda a, n, w=bits_: a >> min(n, w), dtype), int_edges(dtype), shifts)
    for name, e, dtype in (("f16", E16, np.float16), ("f32", E32, np.float32), ("f64", E64, np.float64), ("bf16", B16, np.uint16)):
        value = from_bf16 if name == "bf16" else lambda v: v
        some = e[::2]
        for c in (*COMPARE, *(f"{c}u" for c in COMPARE), "num", "nan"):
            test = lambda a, b, c=c, v=value: comparison(c, v(a), v(b))  # noqa: E731
            add(f"set.{c}.u32.{name} $d, $a, $b;", np.uint32, lambda a, b, f=test: np.where(f(a, b), 0xFFFFFFFF, 0), some, some)
            if name == "bf16":
                add(f"setp.{c}.bf16 %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, test, some, some)
        if name != "bf16":
            add(f"selp.{name} $d, $a, $b, %p1;".replace("selp", "setp.lt.u32 %p1, %r2, 16; selp"), dtype, by_thread(16), some, some)
    for op, g in BOOL.items():
        add(f"setp.ne.u32 %p3, $b, 0; set.lt.{op}.u32.s32 $d, $a, 5, %p3;", np.uint32, lambda a, b, g=g: np.where(g(a < 5, b != 0), 0xFFFFFFFF, 0), few, BITS)
        both = lambda a, b, g=g: g(a < 5, b != 0) + 2 * g(~(a < 5), b != 0)  # noqa: E731
        text = f"setp.ne.u32 %p3, $b, 0; setp.lt.{op}.s32 %p1|%p2, $a, 5, %p3; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2; add.u32 $d, %r3, %r4;"
        add(text, np.uint32, both, few, BITS)
        add(f"setp.ne.u32 %p3, $b, 0; setp.lt.{op}.s32 %p1, $a, 5, !%p3; selp.b32 $d, 1, 0, %p1;", np.uint32, lambda a, b, g=g: g(a < 5, b == 0), few, BITS)
    add("set.lt.ftz.u32.f32 $d, $a, $b;", np.uint32, lambda a, b: np.where(comparison("lt", flushed(a), flushed(b)), 0xFFFFFFFF, 0), E32, E32)
    add("set.eq.f16.f16 $d, $a, $b;", np.float16, lambda a, b: (a == b) * np.float16(1), E16, E16)
    add("set.lt.bf16.bf16 $d, $a, $b;", np.uint16, lambda a, b: np.where(comparison("lt", from_bf16(a), from_bf16(b)), 0x3F80, 0), B16, B16)
    add("set.ge.f16x2.f16x2 $d, $a, $b;", np.uint32, pairs(lambda a, b: comparison("ge", a, b) * np.float16(1)), PAIRS, PAIRS)
    add("set.ge.bf16x2.bf16x2 $d, $a, $b;", np.uint32, bpairs(lambda a, b: comparison("ge", a, b) * 1.0), BPAIRS, BPAIRS)
    text = "setp.lt.bf16x2 %p1|%p2, $a, $b; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2; or.b32 $d, %r3, %r4;"
    less = lambda a, b: sum((from_bf16(halves(a, None)[i]) < from_bf16(halves(b, None)[i])).astype(np.uint32) << i for i in (0, 1))  # noqa: E731
    add(text, np.uint32, less, BPAIRS, BPAIRS)
    add("slct.f64.f32 $d, $a, $b, $c;", np.float64, lambda a, b, c: np.where(c >= 0, a, b), E64[:4], E64[4:7], E32)
    add("slct.ftz.f32.f32 $d, $a, $b, $c;", np.float32, lambda a, b, c: np.where(flushed(c) >= 0, a, b), E32[:4], E32[4:7], E32)
    add("slct.b32.f32 $d, $a, $b, $c;", np.uint32, lambda a, b, c: np.where(c >= 0, a, b), words, words, E32)
    # Moves, loads and stores of every type: the element itself comes back; narrow ones are extended by their type.
    for name, dtype in (("u16", np.uint16), ("s16", np.int16), ("b16", np.uint16), ("f16", np.float16), ("bf16", np.uint16), ("u32", np.uint32), ("s32", np.int32),
                        ("f32", np.float32), ("b64", np.uint64), ("u64", np.uint64), ("s64", np.int64), ("f64", np.float64), ("b32", np.uint32)):  # fmt: skip
        e = {"f16": E16, "f32": E32, "f64": E64}.get(name)
        e = int_edges(dtype) if e is None else e
        width = np.dtype(dtype).itemsize
        raw = np.dtype(f"u{width}")
        register = {2: "%h1", 4: "%r3", 8: "%q3"}[width]
        memory = "b16" if "f16" in name else name
        for space in ("global", "shared"):
            where = "[%aa]" if space == "global" else "[sm]"
            put = "" if space == "global" else f".shared .align 16 .b8 sm[16]; @%p7 st.shared.{memory} [sm], $a; "
            # Only the first lane of a warp stores to shared memory: all lanes read its element.
            text = f"and.b32 %r3, %r2, 31; setp.eq.u32 %p7, %r3, 0; {put}bar.warp.sync -1; ld.{space}.{memory} {register}, {where}; mov.{name} $d, {register};"
            want = (lambda a: bits(a)) if space == "global" else (lambda a: np.repeat(bits(a)[::32], 32)[: len(a)])
            out.append(Case(text, raw, (np.resize(e, 96).view(raw),), want))
        if "f16" not in name:
            out.append(Case(f"ldu.global.{name} {register}, [%aa]; mov.{name} $d, {register};", raw, (e.view(raw),), lambda a: a))
    words64 = np.arange(96, dtype=np.uint64) * np.uint64(0x123456789ABCDF)
    out.append(Case("ldu.global.v2.u32 {%r3, %r4}, [%aa]; mov.b64 $d, {%r4, %r3};", np.dtype(np.uint64), (words64,), lambda a: a >> np.uint64(32) | a << np.uint64(32)))
    fours = "{%h1, %h2, %h3, %h4}"
    turned = lambda a: a.view(np.uint16).reshape(-1, 4)[:, ::-1].copy().view(np.uint64)[:, 0]  # noqa: E731
    out.append(Case(f"ldu.global.v4.u16 {fours}, [%aa]; mov.b64 $d, {{%h4, %h3, %h2, %h1}};", np.dtype(np.uint64), (words64,), turned))
    for name, dtype in (("u8", np.uint8), ("s8", np.int8), ("b8", np.uint8)):
        e = int_edges(dtype)
        extended = lambda a: a.astype(np.int64).astype(np.uint32)  # noqa: E731
        add(f"ld.global.{name} %r3, [%aa]; mov.b32 $d, %r3;", np.uint32, extended, e)
        add(f"ldu.global.{name} %r3, [%aa]; mov.b32 $d, %r3;", np.uint32, extended, e)
        add(f"ld.global.{name} %r3, [%aa]; st.global.{name} [%ad], %r3; ld.global.u8 $d, [%ad];", np.uint8, lambda a: a.view(np.uint8), e)
    add("ld.global.s16 %r3, [%aa]; mov.b32 $d, %r3;", np.uint32, lambda a: a.astype(np.int32).view(np.uint32), int_edges(np.int16))
    # Matches and reductions over a warp of 64-bit numbers and floats.
    column = np.repeat(np.array([5, 1 << 40, 5 + (1 << 32), 5], np.uint64), 32)
    column[::3] ^= np.uint64(1 << 63)
    same = lambda a: np.array([sum(1 << i for i, y in enumerate(w) if y == x) for w in a.reshape(-1, 32) for x in w], np.uint32)  # noqa: E731
    out.append(Case(f"match.any.sync.b64 $d, $a, {ALL};", np.dtype(np.uint32), (column,), same))
    floats = np.resize(E32, 128)
    for op, g in (("min", np.fmin), ("max", np.fmax)):
        for nan, absolute in itertools.product((False, True), repeat=2):

            def reduce(a: Any, g: Any = g, op: str = op, nan: bool = nan, absolute: bool = absolute) -> Any:
                results = []
                for w in a.reshape(-1, 32):
                    w = np.abs(w) if absolute else w
                    value = np.float32(np.nan) if nan and np.isnan(w).any() else g.reduce(w)
                    results += [value] * 32
                return np.array(results, np.float32)

            text = f"redux.sync.{op}{'.abs' * absolute}{'.NaN' * nan}.f32 $d, $a, {ALL};"
            out.append(Case(text, np.dtype(np.uint32), (floats,), canonical(reduce)))
            sound = floats[~np.isnan(floats)][:96]
            out.append(Case(text, np.dtype(np.float32), (sound,), reduce))
    # Barriers that reduce, by counts and names.
    for op, f in (("and", np.all), ("or", np.any)):
        block = lambda a, f=f: np.repeat([int(f(w != 0)) for w in a.reshape(-1, 128)], 128)  # noqa: E731
        some = np.concatenate([np.zeros(128), np.ones(128), np.eye(128)[77]]).astype(np.uint32)
        for form in (f"bar.red.{op}.pred", f"barrier.cta.red.{op}.aligned.pred", f"barrier.red.{op}.pred"):
            out.append(Case(f"setp.ne.u32 %p1, $a, 0; {form} %p2, 1, 128, %p1; selp.u32 $d, 1, 0, %p2;", np.dtype(np.uint32), (some,), block))
    count = lambda a: np.repeat([np.count_nonzero(w) for w in a.reshape(-1, 128)], 128)  # noqa: E731
    out.append(Case("setp.ne.u32 %p1, $a, 0; barrier.cta.red.popc.aligned.u32 $d, 3, %p1;", np.dtype(np.uint32), (some,), count))
    # Two warps fill, two others take: a named barrier that one half only arrives at.
    text = """.shared .align 16 .b8 sm[512]; shr.u32 %r3, %r2, 6; setp.eq.u32 %p1, %r3, 0; shl.b32 %r4, %r2, 2; mov.u32 %r5, sm; add.u32 %r4, %r4, %r5;
    @!%p1 bra TAKE; st.shared.u32 [%r4], $a; bar.arrive 2, 128; mov.u32 $d, $a; bra END; TAKE: bar.sync 2, 128; ld.shared.u32 $d, [%r4+-256]; END:"""
    halves_ = lambda a: np.concatenate([[*w[:64], *w[:64]] for w in a.reshape(-1, 128)])  # noqa: E731
    out.append(Case(text, np.dtype(np.uint32), (np.arange(256, dtype=np.uint32) * 3,), halves_))
    out.append(Case(text.replace("bar.arrive", "barrier.cta.arrive").replace("bar.sync", "barrier.sync"), np.dtype(np.uint32), out[-1].inputs, halves_))
    # Control, hints and copies that leave no trace.
    add("griddepcontrol.launch_dependents; griddepcontrol.wait; pmevent 3; brkpt; discard.global.L2 [%ae], 128; mov.u32 $d, $a;".replace("[%ae]", "[%ab]"),
        np.uint32, lambda a, b: a, words, words)  # fmt: skip
    add("setmaxnreg.inc.sync.aligned.u32 64; setmaxnreg.dec.sync.aligned.u32 32; mov.u32 $d, $a;", np.uint32, lambda a: a, words)
    add("prefetch.global.L2 [%aa]; prefetchu.L1 [%aa]; applypriority.global.L2::evict_normal [%aa], 128; mov.u32 $d, $a;", np.uint32, lambda a: a, words)
    add("createpolicy.fractional.L2::evict_last.b64 %q3, 1.0; ld.global.L2::cache_hint.u32 $d, [%aa], %q3;", np.uint32, lambda a: a, words)
    add("createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %q3, [%aa], 64, 128; createpolicy.cvt.L2.b64 %q3, 5; mov.u32 $d, $a;",
        np.uint32, lambda a: a, words)  # fmt: skip
    own = """.shared .align 4 .b8 sm[512]; shl.b32 %r4, %r2, 2; mov.u32 %r5, sm; add.u32 %r4, %r4, %r5; st.shared.u32 [%r4], $a;
    cvt.u64.u32 %q3, %r4; cvta.shared.u64 %q3, %q3; """
    add(f"{own} mapa.u64 %q3, %q3, 0; ld.u32 $d, [%q3];", np.uint32, lambda a: a, words)
    add(f"{own} getctarank.u64 %r3, %q3; add.u32 $d, $a, %r3;", np.uint32, lambda a: a, words)
    return out


def by_thread(count: int) -> Callable[..., Any]:
    """The first `count` threads of each block of 128 take a, the others b."""
    return lambda a, b: np.where(np.arange(len(a)) % 128 < count, a, b)


def sign24(x: int) -> int:
    return ((x & 0xFFFFFF) ^ 0x800000) - 0x800000


def relu(a: Any) -> Any:
    return np.where(np.isnan(a), a, np.where(a > 0, a, 0.0))


def half_bits(a: Any) -> Any:
    """f16 numbers as bits, NaN as PTX's own."""
    return np.where(np.isnan(a), 0x7FFF, np.asarray(a).astype(np.float16).view(np.uint16)).astype(np.uint16)


def relu_pairs(function: Callable[..., Any]) -> Callable[..., Any]:
    def over(a: Any, b: Any) -> Any:
        parts = []
        for i in (0, 1):
            x, y = (halves(v, np.int16)[i].astype(np.int64) for v in (a, b))
            parts.append(np.maximum(np.minimum(x, y) if function is minimum else np.maximum(x, y), 0).astype(np.uint32) & 0xFFFF)
        return parts[0] | parts[1] << 16

    return over


CASES = _cases()


@pytest.mark.parametrize("case", tiers(CASES))
def test_instruction(case: Case) -> None:
    check(case)


__all__ = ["over_bf16", "run"]
