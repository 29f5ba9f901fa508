"""Floating-point instructions against rational arithmetic: every rounding mode, ftz, sat, signed zeros, infinities, NaN, subnormals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft import exact
from soft.ptx_op import Case, check, product

pytestmark = pytest.mark.sampled(5)

DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
MODES = ("rn", "rz", "rm", "rp")
OPERATIONS: dict[str, Callable[..., float]] = {"add": exact.add, "sub": exact.sub, "mul": exact.mul, "div": exact.div, "fma": exact.fma}


def edges(name: str, few: bool = False) -> Any:
    """Numbers at which floating code goes wrong."""
    dtype = DTYPES[name]
    info = np.finfo(dtype)
    tiny, least, top, eps = float(info.smallest_normal), float(info.smallest_subnormal), float(info.max), float(info.eps)
    numbers = [0.0, 1.0, 1.0 + eps, 1 / 3, top, tiny, least, 3 * least, np.inf]
    if not few:
        numbers += [1.0 - eps / 2, 2.0, 0.1, 1.5, 1 / 7, tiny - least, top / 3, 1e-3, float(info.max) / 2, tiny * 1.5, 123.456, 5 / eps, np.nan]
    with np.errstate(all="ignore"):
        a = np.array(numbers, dtype)
        return np.concatenate([a, -a])


E32, E64, E16 = edges("f32"), edges("f64"), edges("f16")


def bf16(values: Any) -> Any:
    """Numbers cut to bf16, as their 16 bits."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(raw: Any) -> Any:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: Any) -> Any:
    """Doubles that are exact in bf16 as their bits; one NaN pattern."""
    raw = bf16(values)
    return np.where(np.isnan(values), 0x7FFF, raw).astype(np.uint16)


B16 = bf16(edges("f32"))


def over_bf16(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *columns: to_bf16(function(*(from_bf16(c) for c in columns)))


def halves(x: Any, element: Any) -> tuple[Any, Any]:
    low, high = (x & 0xFFFF).astype(np.uint16), (x >> 16).astype(np.uint16)
    return (low, high) if element is None else (low.view(element), high.view(element))


def pairs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of f16 arrays over f16x2 in u32; NaN as 0x7fff or as it comes."""

    def over(*columns: Any) -> Any:
        low, high = (np.asarray(function(*(halves(c, np.float16)[i] for c in columns))).astype(np.float16).view(np.uint16) for i in (0, 1))
        return low.astype(np.uint32) | high.astype(np.uint32) << 16

    return over


PAIRS = np.array([0x3C003C00, 0x00008000, 0x7BFF0001, 0x35553E00, 0xBC004200, 0x04000400, 0xC9003800, 0x1234D678], np.uint32)


def minimum(a: Any, b: Any) -> Any:
    """PTX's min: a NaN gives the other, -0 is less than +0."""
    result = np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a) | np.signbit(b), -0.0, 0.0).astype(a.dtype), result)


def maximum(a: Any, b: Any) -> Any:
    result = np.fmax(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0).astype(a.dtype), result)


def flushed(a: Any) -> Any:
    return np.where(np.abs(a) < np.float32(2.0**-126), np.copysign(np.float32(0), a), a)


def nan_or(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, function(a, b))


def _cases() -> list[Case]:
    out: list[Case] = []

    def add(text: str, dtype: Any, want: Callable[..., Any], *lists: Any, tolerance: float = 0.0) -> None:
        out.append(Case(text, np.dtype(dtype), product(*lists), want, tolerance))

    for name, dtype in DTYPES.items():
        e, few = edges(name), edges(name, True)
        for op, f in OPERATIONS.items():
            operands = "$a, $b, $c" if op == "fma" else "$a, $b"
            lists = (few, few, few) if op == "fma" else (e, e)
            for mode in MODES if name != "f16" else ("rn",):
                if name == "f16" and op == "div":
                    continue
                add(f"{op}.{mode}.{name} $d, {operands};", dtype, exact.table(f, mode, name), *lists)
        for mode in MODES if name != "f16" else ():
            add(f"sqrt.{mode}.{name} $d, $a;", dtype, exact.table(exact.sqrt, mode, name), e)
            add(f"rcp.{mode}.{name} $d, $a;", dtype, exact.table(exact.rcp, mode, name), e)
        add(f"neg.{name} $d, $a;", dtype, np.negative, e)
        add(f"abs.{name} $d, $a;", dtype, np.abs, e)
        add(f"min.{name} $d, $a, $b;", dtype, minimum, e, e)
        add(f"max.{name} $d, $a, $b;", dtype, maximum, e, e)
        comparisons = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
        either = lambda a, b: np.isnan(a) | np.isnan(b)  # noqa: E731
        for c, g in comparisons.items():
            ordered = lambda a, b, g=g, either=either: g(a, b) & ~either(a, b)  # noqa: E731
            unordered = lambda a, b, g=g, either=either: g(a, b) | either(a, b)  # noqa: E731
            add(f"setp.{c}.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, ordered, e, e)
            add(f"setp.{c}u.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, unordered, e, e)
        add(f"setp.num.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, lambda a, b: ~np.isnan(a) & ~np.isnan(b), e, e)
        add(f"setp.nan.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, lambda a, b: np.isnan(a) | np.isnan(b), e, e)
        if name != "f16":
            kinds: dict[str, Callable[..., Any]] = {
                "finite": np.isfinite, "infinite": np.isinf, "number": lambda a: ~np.isnan(a), "notanumber": np.isnan,
                "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).smallest_normal),
                "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).smallest_normal),
            }  # fmt: skip
            for kind, f in kinds.items():
                add(f"testp.{kind}.{name} %p1, $a; selp.b32 $d, 1, 0, %p1;", np.uint32, f, e)
            add(f"copysign.{name} $d, $a, $b;", dtype, lambda a, b: np.copysign(b, a), e, e)
    few = edges("f32", True)
    for op in OPERATIONS:
        operands = "$a, $b, $c" if op == "fma" else "$a, $b"
        lists = (few, few, few) if op == "fma" else (E32, E32)
        for ftz, sat in ((True, False), (False, True), (True, True)):
            if op == "div" and sat:
                continue
            suffix = ".rn" + ".ftz" * ftz + ".sat" * sat
            want = exact.table(OPERATIONS[op], "rn", "f32", ftz, sat)
            add(f"{op}{suffix}.f32 $d, {operands};", np.float32, want, *lists)
    add("min.ftz.f32 $d, $a, $b;", np.float32, lambda a, b: minimum(flushed(a), flushed(b)), E32, E32)
    add("max.NaN.f32 $d, $a, $b;", np.float32, nan_or(maximum), E32, E32)
    add("min.NaN.f32 $d, $a, $b;", np.float32, nan_or(minimum), E32, E32)
    add("abs.ftz.f32 $d, $a;", np.float32, lambda a: np.abs(flushed(a)), E32)
    add("neg.ftz.f32 $d, $a;", np.float32, lambda a: -flushed(a), E32)
    add("setp.lt.ftz.f32 %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, lambda a, b: flushed(a) < flushed(b), E32, E32)
    add("set.gt.f32.f32 $d, $a, $b;", np.float32, lambda a, b: a > b, E32, E32)
    add("slct.f32.f32 $d, $a, $b, $c;", np.float32, lambda a, b, c: np.where(c >= 0, a, b), few, few, E32)
    add("mad.rn.f32 $d, $a, $b, $c;", np.float32, exact.table(exact.fma, "rn", "f32"), few, few, few)
    # 16-bit formats
    add("fma.rn.relu.f16 $d, $a, $b, $c;", np.float16, lambda a, b, c: _relu(exact.table(exact.fma, "rn", "f16")(a, b, c)), *([edges("f16", True)] * 3))
    add("add.sat.f16 $d, $a, $b;", np.float16, exact.table(exact.add, "rn", "f16", sat=True), E16, E16)
    for op in ("add", "sub", "mul", "fma"):
        operands = "$a, $b, $c" if op == "fma" else "$a, $b"
        small = bf16(edges("f32", True))
        lists = (small, small, small) if op == "fma" else (B16, B16)
        add(f"{op}.rn.bf16 $d, {operands};", np.uint16, over_bf16(exact.table(OPERATIONS[op], "rn", "bf16")), *lists)
        columns = (PAIRS, PAIRS, PAIRS) if op == "fma" else (PAIRS, PAIRS)
        add(f"{op}.rn.f16x2 $d, {operands};", np.uint32, pairs(exact.table(OPERATIONS[op], "rn", "f16")), *columns)
    ordinary = B16[~np.isnan(from_bf16(B16))]
    add("min.bf16 $d, $a, $b;", np.uint16, over_bf16(minimum), ordinary, ordinary)
    add("max.bf16 $d, $a, $b;", np.uint16, over_bf16(maximum), ordinary, ordinary)
    add("neg.bf16 $d, $a;", np.uint16, lambda a: a ^ 0x8000, B16)
    add("abs.bf16 $d, $a;", np.uint16, lambda a: a & 0x7FFF, B16)
    add("min.f16x2 $d, $a, $b;", np.uint32, pairs(minimum), PAIRS, PAIRS)
    add("max.f16x2 $d, $a, $b;", np.uint32, pairs(maximum), PAIRS, PAIRS)
    add("neg.f16x2 $d, $a;", np.uint32, lambda a: a ^ 0x80008000, PAIRS)
    add("abs.f16x2 $d, $a;", np.uint32, lambda a: a & 0x7FFF7FFF, PAIRS)
    text = "setp.lt.f16x2 %p1|%p2, $a, $b; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2; or.b32 $d, %r3, %r4;"
    less = lambda a, b: sum((halves(a, np.float16)[i] < halves(b, np.float16)[i]).astype(np.uint32) << i for i in (0, 1))  # noqa: E731
    add(text, np.uint32, less, PAIRS, PAIRS)
    # Approximations: the bounds that PTX's text gives.
    x = np.concatenate([np.geomspace(1e-37, 1e37, 400), -np.geomspace(1e-37, 1e37, 100), [0.0, -0.0, np.inf, np.nan]]).astype(np.float32)
    wide = lambda f: lambda a: f(a.astype(np.float64))  # noqa: E731
    add("rcp.approx.f32 $d, $a;", np.float32, wide(np.reciprocal), x, tolerance=2.0**-23)
    add("rcp.approx.ftz.f32 $d, $a;", np.float32, lambda a: flushed((1 / flushed(a).astype(np.float64)).astype(np.float32)), x, tolerance=2.0**-23)
    add("sqrt.approx.f32 $d, $a;", np.float32, wide(np.sqrt), x, tolerance=2.0**-23)
    add("rsqrt.approx.f32 $d, $a;", np.float32, wide(lambda a: 1 / np.sqrt(a)), x, tolerance=2.0**-22.4)
    add("rsqrt.approx.f64 $d, $a;", np.float64, lambda a: 1 / np.sqrt(a), np.geomspace(1e-300, 1e300, 200), tolerance=2.0**-20)
    add("div.approx.f32 $d, $a, $b;", np.float32, lambda a, b: a.astype(np.float64) / b, np.float32([1, -3, 0.1, 1e10]), x[200:260], tolerance=2.0**-22)
    add("div.full.f32 $d, $a, $b;", np.float32, lambda a, b: a.astype(np.float64) / b, np.float32([1, -3, 0.1, 1e10]), x[200:260], tolerance=2.0**-22)
    powers = np.concatenate([np.linspace(-126, 127, 997), [0, 1, -1, 10, 128, 200, -200, np.inf, -np.inf, np.nan]]).astype(np.float32)
    add("ex2.approx.f32 $d, $a;", np.float32, wide(np.exp2), powers, tolerance=2.0**-22.5)
    add("ex2.approx.ftz.f32 $d, $a;", np.float32, wide(np.exp2), powers, tolerance=2.0**-22.5)
    away = np.concatenate([np.geomspace(1e-38, 0.5, 300), np.geomspace(2, 3e38, 300), [0.0, np.inf, -1.0, np.nan]]).astype(np.float32)
    add("lg2.approx.f32 $d, $a;", np.float32, wide(np.log2), away, tolerance=2.0**-22)
    angles = np.linspace(-3.1, 3.1, 1000).astype(np.float32)
    near = lambda f: lambda a: np.round(f(a.astype(np.float64)) * 2**19)  # noqa: E731  absolute error
    absolute = " mul.f32 $d, $d, 0f49000000; cvt.rni.f32.f32 $d, $d;"
    add("sin.approx.f32 $d, $a;" + absolute, np.float32, near(np.sin), angles[np.abs(np.sin(angles)) > 0.1], tolerance=2.0**-15)
    add("cos.approx.f32 $d, $a;" + absolute, np.float32, near(np.cos), angles[np.abs(np.cos(angles)) > 0.1], tolerance=2.0**-15)
    add("tanh.approx.f32 $d, $a;", np.float32, wide(np.tanh), np.concatenate([x, np.linspace(-9, 9, 500).astype(np.float32)]), tolerance=2.0**-11)
    add("tanh.approx.f16 $d, $a;", np.float16, wide(np.tanh), E16, tolerance=2.0**-10.987)
    add("ex2.approx.f16 $d, $a;", np.float16, wide(np.exp2), np.linspace(-10, 15, 200).astype(np.float16), tolerance=2.0**-9.9)
    return out


def _relu(a: Any) -> Any:
    return np.where(np.isnan(a), a, np.where(a > 0, a, 0.0))


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_instruction(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_instruction_on_uniform_operands(case: Case) -> None:
    check(case, uniform=True)
