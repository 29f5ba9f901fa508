"""Correctly rounded floating-point results in all rounding modes, by rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

FORMATS = {"f16": (11, -24, 65504.0), "bf16": (8, -133, float.fromhex("0x1.fep127")), "f32": (24, -149, float.fromhex("0x1.fffffep127")),
           "f64": (53, -1074, float.fromhex("0x1.fffffffffffffp1023"))}  # fmt: skip


def rounded(x: Fraction, name: str, mode: str) -> float:
    """A non-zero rational to a format: (precision, exponent of the smallest subnormal, largest finite number)."""
    precision, lowest, largest = FORMATS[name]
    sign = -1 if x < 0 else 1
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - precision + 1, lowest)
    whole, rest = divmod(size, quantum)
    away = mode == ("rp" if sign > 0 else "rm")
    if mode == "rn":
        away = rest * 2 > quantum or (rest * 2 == quantum and whole % 2 == 1)
    if mode == "rna":
        away = rest * 2 >= quantum
    if rest and away:
        whole += 1
    value = whole * quantum
    if value > Fraction(largest):
        return sign * (math.inf if mode in ("rn", "rna") or away or mode == ("rp" if sign > 0 else "rm") else largest)
    return sign * float(value)


def _sum(a: float, b: Fraction | float, mode: str, name: str, b_sign: float) -> float:
    total = Fraction(a) + Fraction(b)
    if total:
        return rounded(total, name, mode)
    if a == 0 and b == 0 and math.copysign(1, a) == b_sign:
        return math.copysign(0.0, a)
    return -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, mode: str, name: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    return _sum(a, b, mode, name, math.copysign(1, b))


def sub(a: float, b: float, mode: str, name: str) -> float:
    return add(a, -b, mode, name)


def mul(a: float, b: float, mode: str, name: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return rounded(Fraction(a) * Fraction(b), name, mode)


def div(a: float, b: float, mode: str, name: str) -> float:
    if math.isnan(a) or math.isnan(b) or (a == 0 == b) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or b == 0:
        return sign * math.inf
    if math.isinf(b) or a == 0:
        return sign * 0.0
    return rounded(Fraction(a) / Fraction(b), name, mode)


def fma(a: float, b: float, c: float, mode: str, name: str) -> float:
    if not all(math.isfinite(x) for x in (a, b, c)):
        product = a * b if not (math.isfinite(a) and math.isfinite(b)) else 0.0
        return product + c
    product = Fraction(a) * Fraction(b)
    return _sum(c, product, mode, name, math.copysign(1, a) * math.copysign(1, b))


def sqrt(a: float, mode: str, name: str) -> float:
    if a == 0 or math.isnan(a) or a == math.inf:
        return a
    if a < 0:
        return math.nan
    x = Fraction(a) * Fraction(4) ** 1200  # far more bits than any format has; a remainder is one more bit below
    root = math.isqrt(int(x))
    return rounded(Fraction(2 * root + (root * root != x), 2) / Fraction(2) ** 1200, name, mode)


def rcp(a: float, mode: str, name: str) -> float:
    return div(1.0, a, mode, name)


def flush(x: float) -> float:
    """.ftz"""
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def table(function: Callable[..., float], mode: str, name: str, ftz: bool = False, sat: bool = False) -> Callable[..., Any]:
    """The function over arrays."""

    def one(*args: float) -> float:
        values = [flush(float(x)) if ftz else float(x) for x in args]
        result = function(*values, mode, name)
        result = flush(result) if ftz else result
        if sat:
            result = 0.0 if not result > 0 else min(result, 1.0)
        return result

    def over(*columns: Any) -> Any:
        return np.array([one(*row) for row in zip(*columns, strict=True)], np.float64)

    return over
