"""cvt between all types: integer width and sign, rounding modes both ways, saturation, ftz, the 16- and 8-bit formats, tf32."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from soft import exact
from soft.ops.test_ops_floating import bf16, from_bf16
from soft.ops.test_ops_floating import edges as float_edges
from soft.ops.test_ops_integer import edges as int_edges
from soft.ptx_op import Case, check, product, tiers

INTS = {f"{k}{b}": np.dtype(f"{'i' if k == 's' else 'u'}{b // 8}") for k in "su" for b in (8, 16, 32, 64)}
FLOATS = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
ROUND: dict[str, Callable[[Fraction], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
NUMBERS = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 127.5, 128.0, 255.5, 256.0, -128.5, 32767.5, 65535.5, -32769.0, 3e9, -3e9, 2147483647.5, 1e19, -1e19, 5e4]


def to_integer(x: float, mode: str, dtype: Any) -> int:
    """Out of range goes to the nearest end; NaN to 0, and to the sign bit alone in 64 bits."""
    info = np.iinfo(dtype)
    if math.isnan(x):
        return -(1 << 63) if dtype == np.int64 else 1 << 63 if dtype == np.uint64 else 0
    if math.isinf(x):
        return int(info.max if x > 0 else info.min)
    return max(int(info.min), min(int(info.max), ROUND[mode](Fraction(x))))


def table(function: Callable[[Any], Any], dtype: Any) -> Callable[..., Any]:
    return lambda column: np.array([function(x) for x in column.tolist()], dtype)


def rounding(mode: str, name: str) -> Callable[[Any], float]:
    def one(x: Any) -> float:
        if isinstance(x, float) and not math.isfinite(x):
            return x
        return exact.rounded(Fraction(x), name, mode) if x else (x if isinstance(x, float) else 0.0)

    return one


def numbers(name: str) -> Any:
    with np.errstate(all="ignore"):
        return np.concatenate([float_edges(name), np.array(NUMBERS).astype(FLOATS[name])])


def tf32(x: Any) -> Any:
    raw = x.view(np.uint32)
    rounded = np.where(np.isfinite(x), (raw + 0x1000) & ~np.uint32(0x1FFF), raw)
    return np.where(np.isnan(x), 0x7FFFFFFF, rounded).astype(np.uint32)


SMALL = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e2m1": (2, 1, 1)}  # bits of exponent and fraction, bias


def values_of(name: str) -> Any:
    """All numbers of a format of 8, 6 or 4 bits, by code."""
    width, mantissa, bias = SMALL[name]
    codes = np.arange(1 << (1 + width + mantissa))
    exponent, fraction = codes >> mantissa & ((1 << width) - 1), codes & ((1 << mantissa) - 1)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias - mantissa), (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias))
    if name == "e4m3":
        value = np.where(codes & 127 == 127, np.nan, value)
    elif name == "e5m2":
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(codes >> (width + mantissa) & 1, -value, value)


def to_small(name: str) -> Callable[[float], int]:
    """To nearest, ties to even, saturating; NaN is NaN or the largest number."""
    values = values_of(name)
    half = len(values) // 2
    finite = [float(values[c]) for c in range(half) if np.isfinite(values[c])]  # they rise with their codes
    between = [(a + b) / 2 for a, b in itertools.pairwise(finite)]

    def one(x: float) -> int:
        sign = half if math.copysign(1, x) < 0 else 0
        if math.isnan(x):
            return 127 | sign if half == 128 else half - 1
        code = bisect.bisect_left(between, abs(x))
        tie = code < len(between) and abs(x) == between[code]
        return (code + (code & 1) if tie else code) | sign

    return one


def half_value(x: Any) -> Any:
    return x.astype(np.uint16).view(np.float16).astype(np.float32)


def bfloat_value(x: Any) -> Any:
    return from_bf16(x.astype(np.uint16))


def to_scale(up: bool, saturate: bool) -> Callable[[float], int]:
    """ue8m0: the power of two below, or with `up` not below, the number's size."""

    def one(x: float) -> int:
        if math.isnan(x):
            return 255
        if math.isinf(x):
            return 254 if saturate else 255
        if x == 0 or abs(x) <= 2.0**-127:
            return 0
        fraction, exponent = math.frexp(abs(x))
        code = max(0, exponent - 1 + 127) + (1 if up and fraction != 0.5 else 0)
        if up and abs(x) < 2.0**-126:
            code = 1
        return min(code, 254) if saturate else code

    return one


def _cases() -> list[Case]:
    out: list[Case] = []

    def add(text: str, dtype: Any, want: Callable[..., Any], *lists: Any) -> None:
        out.append(Case(text, np.dtype(dtype), product(*lists), want))

    for a, ta in INTS.items():
        for b, tb in INTS.items():
            info = np.iinfo(tb)
            if a != b:
                add(f"cvt.{b}.{a} $d, $a;", tb, lambda x, t=tb: x.astype(t), int_edges(ta))
                add(f"cvt.sat.{b}.{a} $d, $a;", tb, table(lambda x, i=info: max(int(i.min), min(int(i.max), x)), tb), int_edges(ta))
        for b, tf in FLOATS.items():
            for mode in ("rn", "rz", "rm", "rp"):
                if mode == "rn" or (a[1:] in ("32", "64") and b != "f16"):
                    add(f"cvt.{mode}.{b}.{a} $d, $a;", tf, table(rounding(mode, b), tf), int_edges(ta))
                    add(f"cvt.{mode}.{a}.{b} $d, $a;".replace(f".{mode}.", f".{mode}i."), ta,
                        table(lambda x, m=mode, t=ta: to_integer(x, m + "i", t), ta), numbers(b))  # fmt: skip
    for mode in ("rn", "rz", "rm", "rp"):
        add(f"cvt.{mode}.f32.f64 $d, $a;", np.float32, table(rounding(mode, "f32"), np.float32), np.concatenate([numbers("f64"), numbers("f32").astype(np.float64)]))
        for b in FLOATS:
            want = table(lambda x, m=mode: x if not math.isfinite(x) else math.copysign(float(ROUND[m + "i"](Fraction(x))), x), FLOATS[b])
            add(f"cvt.{mode}i.{b}.{b} $d, $a;", FLOATS[b], want, numbers(b))
    for mode in ("rn", "rz"):
        add(f"cvt.{mode}.f16.f32 $d, $a;", np.float16, table(rounding(mode, "f16"), np.float16), numbers("f32"))
        narrow = table(rounding(mode, "bf16"), np.float64)
        add(f"cvt.{mode}.bf16.f32 $d, $a;", np.uint16, lambda x, f=narrow: bf16(np.where(np.isnan(x), np.uint32(0x7FFF0000).view(np.float32), f(x))), numbers("f32"))
        both = lambda hi, lo, m=mode: (  # noqa: E731
            table(rounding(m, "f16"), np.float16)(lo).view(np.uint16).astype(np.uint32) | table(rounding(m, "f16"), np.float16)(hi).view(np.uint16).astype(np.uint32) << 16
        )
        sound = numbers("f32")[~np.isnan(numbers("f32"))]
        add(f"cvt.{mode}.f16x2.f32 $d, $a, $b;", np.uint32, both, sound, sound[:8])
    add("cvt.rn.f16.f64 $d, $a;", np.float16, table(rounding("rn", "f16"), np.float16), numbers("f64"))
    add("cvt.f32.f16 $d, $a;", np.float32, lambda x: x.astype(np.float32), numbers("f16"))
    add("cvt.f64.f32 $d, $a;", np.float64, lambda x: x.astype(np.float64), numbers("f32"))
    add("cvt.f32.bf16 $d, $a;", np.float32, from_bf16, bf16(numbers("f32")))
    add("cvt.ftz.f64.f32 $d, $a;", np.float64, table(exact.flush, np.float64), numbers("f32"))
    add("cvt.rn.ftz.f32.f64 $d, $a;", np.float32, table(lambda x: exact.flush(rounding("rn", "f32")(x)), np.float32), numbers("f64"))
    add("cvt.sat.f32.f32 $d, $a;", np.float32, table(lambda x: 0.0 if not x > 0 else min(x, 1.0), np.float32), numbers("f32"))
    add("cvt.rna.tf32.f32 $d, $a;", np.uint32, tf32, numbers("f32"))
    add("cvt.rzi.ftz.s32.f32 $d, $a;", np.int32, table(lambda x: to_integer(x, "rzi", np.int32), np.int32), numbers("f32"))
    for name in SMALL:
        size = len(values_of(name))
        bits = 4 if name == "e2m1" else 8
        some = values_of(name)[: size - 2] if size == 256 else values_of(name)
        between = (some[1 : size // 2 - 2] + some[: size // 2 - 3]) / 2
        with np.errstate(all="ignore"):
            values = np.concatenate([some[::7] if size == 256 else some, between[::3], -between[::5], numbers("f32"), [0.017, 1.0625, 1.1875]]).astype(np.float32)
        code = to_small(name)
        relu = lambda x: 0.0 if x <= 0 else x  # noqa: E731
        store, out_type = ("cvt.u32.u16 $d, %h1;", np.uint32) if bits == 8 else ("mov.b32 $d, {%c1, %c2, %c3, %c3};", np.uint32)
        target = "%h1" if bits == 8 else "%c1"
        extra = "" if bits == 8 else ".reg .b8 %c<4>; mov.b8 %c3, 0; "
        for suffix, before in (("", float), (".relu", relu)):
            pack = lambda hi, lo, f=code, g=before, b=bits: np.array(  # noqa: E731
                [f(g(float(y))) | f(g(float(x))) << b for x, y in zip(hi, lo, strict=True)], np.uint32
            )
            if bits == 8:
                add(f"cvt.rn.satfinite{suffix}.{name}x2.f32 {target}, $a, $b; {store}", out_type, pack, values, np.float32([1, -0.3]))
            else:
                text = f"{extra}cvt.rn.satfinite{suffix}.{name}x2.f32 %c1, $a, $b; mov.b32 $d, {{%c1, %c3, %c3, %c3}};"
                add(text, out_type, pack, values, np.float32([1, -0.3]))
        table16 = values_of(name).astype(np.float16)
        table16 = np.where(np.isnan(table16) & (size == 256) & (name == "e4m3"), np.uint16(0x7FFF).view(np.float16), table16)
        sound = np.flatnonzero(~np.isnan(values_of(name))).astype(np.uint32)
        unpack = lambda x, t=table16, b=bits, m=size - 1: (  # noqa: E731
            t[x & m].view(np.uint16).astype(np.uint32) | t[x >> b & m].view(np.uint16).astype(np.uint32) << 16
        )
        source = f"{extra}mov.b32 {{%c1, %c2, %c3, %c3}}, $a; cvt.rn.f16x2.{name}x2 $d, %c1;" if bits == 4 else f"cvt.u16.u32 %h1, $a; cvt.rn.f16x2.{name}x2 $d, %h1;"
        add(source, np.uint32, unpack, sound | sound[::-1] << np.uint32(bits))
    for t, columns in (("f16x2", numbers("f16").view(np.uint16)), ("bf16x2", bf16(numbers("f32")))):
        single = half_value if t == "f16x2" else bfloat_value
        words = columns.astype(np.uint32) | columns[::-1].astype(np.uint32) << 16
        words = words[~np.isnan(single(words & 0xFFFF)) & ~np.isnan(single(words >> 16))]
        for name in ("e4m3", "e5m2"):
            code = to_small(name)
            both = lambda x, f=code, g=single: np.array(  # noqa: E731
                [f(float(a)) | f(float(b)) << 8 for a, b in zip(g(x & 0xFFFF), g(x >> 16), strict=True)], np.uint32
            )
            add(f"cvt.rn.satfinite.{name}x2.{t} %h1, $a; cvt.u32.u16 $d, %h1;", np.uint32, both, words)
    scales = np.concatenate([numbers("f32"), np.float32([2.0**-127, 2.0**-128, 1.5 * 2.0**-127, 3e38, 1.0000001])])
    for mode in ("rz", "rp"):
        for finite in ("", ".satfinite"):
            code = to_scale(mode == "rp", bool(finite))
            pack = lambda hi, lo, f=code: np.array([f(float(y)) | f(float(x)) << 8 for x, y in zip(hi, lo, strict=True)], np.uint16)  # noqa: E731
            add(f"cvt.{mode}{finite}.ue8m0x2.f32 $d, $a, $b;", np.uint16, pack, scales, np.float32([1.25, np.nan]))
            pair = lambda x, f=code: np.array([f(float(a)) | f(float(b)) << 8 for a, b in zip(from_bf16(x & 0xFFFF), from_bf16(x >> 16), strict=True)], np.uint16)  # noqa: E731
            columns = bf16(numbers("f32")).astype(np.uint32)
            add(f"cvt.{mode}{finite}.ue8m0x2.bf16x2 $d, $a;", np.uint16, pair, columns | columns[::-1] << 16)
    power = lambda c: np.where(c == 255, 0x7FFF, np.where(c == 0, 0x40, c << 7)).astype(np.uint32)  # noqa: E731
    codes = np.arange(256, dtype=np.uint16)
    add("cvt.rn.bf16x2.ue8m0x2 $d, $a;", np.uint32, lambda x: power(x & 255) | power(x >> 8) << 16, codes | codes[::-1] << np.uint16(8))
    for name, wide in (("f16", np.float64), ("bf16", np.float64)):
        largest = exact.FORMATS[name][2]
        for suffix, before in (
            (".satfinite", lambda x, m=largest: max(-m, min(m, x)) if not math.isnan(x) else x),
            (".relu", lambda x: 0.0 if x <= 0 else x),
            (".relu.satfinite", lambda x, m=largest: 0.0 if x <= 0 else min(m, x) if not math.isnan(x) else x),
        ):
            final = lambda x, f=before, n=name, m=largest: (lambda y: y if math.isnan(y) or abs(y) == m else rounding("rn", n)(y) or y * 0.0)(f(x))  # noqa: E731
            column = table(final, wide)
            if name == "f16":
                code16 = lambda x, f=column: np.where(np.isnan(x), 0x7FFF, f(x).astype(np.float16).view(np.uint16)).astype(np.uint16)  # noqa: E731
            else:
                code16 = lambda x, f=column: np.where(np.isnan(x), 0x7FFF, bf16(f(x))).astype(np.uint16)  # noqa: E731
            add(f"cvt.rn{suffix}.{name}.f32 $d, $a;", np.uint16, code16, numbers("f32"))
            add(f"cvt.rn{suffix}.{name}x2.f32 $d, $a, $b;", np.uint32,
                lambda hi, lo, f=code16: f(lo).astype(np.uint32) | f(hi).astype(np.uint32) << 16, numbers("f32"), np.float32([1, -0.3, 1e9]))  # fmt: skip
    clamp = lambda x, low, high: np.clip(x.astype(np.int64), low, high)  # noqa: E731
    text = "cvt.pack.sat.u8.s32.b32 $d, $a, $b, 0x1234;"
    s32 = int_edges(np.int32)
    add(text, np.uint32, lambda a, b: clamp(b, 0, 255) | clamp(a, 0, 255) << 8 | 0x1234 << 16, s32, s32)
    add("cvt.pack.sat.s16.s32 $d, $a, $b;", np.uint32, lambda a, b: clamp(b, -32768, 32767) & 0xFFFF | (clamp(a, -32768, 32767) & 0xFFFF) << 16, s32, s32)
    return out


CASES = _cases()


@pytest.mark.parametrize("case", tiers(CASES))
def test_conversion(case: Case) -> None:
    check(case)
