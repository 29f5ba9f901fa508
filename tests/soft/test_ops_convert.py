"""cvt between all types: integer width and sign, rounding modes both ways, saturation, ftz, the 16- and 8-bit formats, tf32."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from soft import exact
from soft.ptx_op import Case, check, product
from soft.test_ops_float import bf16, from_bf16
from soft.test_ops_float import edges as float_edges
from soft.test_ops_int import edges as int_edges

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
    return np.where(np.isfinite(x), (raw + 0x1000) & ~np.uint32(0x1FFF), raw).astype(np.uint32)


def fp8_values(name: str) -> Any:
    """All numbers of an 8-bit format by code."""
    mantissa, bias = (3, 7) if name == "e4m3" else (2, 15)
    codes = np.arange(256)
    exponent, fraction = codes >> mantissa & (15 if name == "e4m3" else 31), codes & ((1 << mantissa) - 1)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias - mantissa), (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias))
    if name == "e4m3":
        value = np.where(codes & 127 == 127, np.nan, value)
    else:
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(codes & 128, -value, value)


def to_fp8(name: str) -> Callable[[float], int]:
    values = fp8_values(name)
    finite = [c for c in range(128) if np.isfinite(values[c])]

    def one(x: float) -> int:
        sign = 128 if math.copysign(1, x) < 0 else 0
        if math.isnan(x):
            return 127 | sign
        best = min(finite, key=lambda c: (abs(Fraction(values[c]) - Fraction(abs(x) if math.isfinite(x) else 1e30)), c & 1))
        return best | sign

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
    for name in ("e4m3", "e5m2"):
        values = np.concatenate([fp8_values(name)[:254], numbers("f32"), [0.017, 0.0009765625, 1.0625, 1.1875]]).astype(np.float32)
        code = to_fp8(name)
        values = values[~np.isnan(values)]
        pack = lambda hi, lo, f=code: np.array([f(float(y)) | f(float(x)) << 8 for x, y in zip(hi, lo, strict=True)], np.uint16)  # noqa: E731
        add(f"cvt.rn.satfinite.{name}x2.f32 $d, $a, $b;", np.uint16, pack, values, np.float32([1, -0.3]))
        table16 = fp8_values(name).astype(np.float16)
        sound = np.flatnonzero(~np.isnan(fp8_values(name))).astype(np.uint16)
        unpack = lambda x, t=table16: t[x & 255].view(np.uint16).astype(np.uint32) | t[x >> 8].view(np.uint16).astype(np.uint32) << 16  # noqa: E731
        add(f"cvt.rn.f16x2.{name}x2 $d, $a;", np.uint32, unpack, sound | sound[::-1] << np.uint16(8))
    clamp = lambda x, low, high: np.clip(x.astype(np.int64), low, high)  # noqa: E731
    text = "cvt.pack.sat.u8.s32.b32 $d, $a, $b, 0x1234;"
    s32 = int_edges(np.int32)
    add(text, np.uint32, lambda a, b: clamp(b, 0, 255) | clamp(a, 0, 255) << 8 | 0x1234 << 16, s32, s32)
    add("cvt.pack.sat.s16.s32 $d, $a, $b;", np.uint32, lambda a, b: clamp(b, -32768, 32767) & 0xFFFF | (clamp(a, -32768, 32767) & 0xFFFF) << 16, s32, s32)
    return out


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_conversion(case: Case) -> None:
    check(case)
