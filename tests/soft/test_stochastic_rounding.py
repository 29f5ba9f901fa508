"""cvt.rs: the random bits decide, exactly as often as the number is near, which neighbour a float becomes."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
from soft.ptx_op import run

FORMATS = {  # bits of a result, of the fraction, bias, the largest finite code, NaN, whether there is an infinity
    "f16": (16, 10, 15, 0x7BFF, 0x7FFF, True), "bf16": (16, 7, 127, 0x7F7F, 0x7FFF, True), "e4m3": (8, 3, 7, 0x7E, 0x7F, False), "e5m2": (8, 2, 15, 0x7B, 0x7F, False),
    "e2m3": (8, 3, 1, 0x1F, 0x1F, False), "e3m2": (8, 2, 3, 0x1F, 0x1F, False), "e2m1": (4, 1, 1, 7, 7, False),
}  # fmt: skip
SIGN = {"f16": 15, "bf16": 15, "e4m3": 7, "e5m2": 7, "e2m3": 5, "e3m2": 5, "e2m1": 3}
VALUES = [0.0, 1.0, 1.0 / 3, 0.7, 3.14159, 1.9999999, 2.0**-15, 1.1 * 2.0**-15, 3e-6, 0.3 * 2.0**-24, 0.017, 0.11, 5.9, 6.1, 27.9, 447.9, 500.0, 65503.0, 65519.9, 1e6, 3.3e38, np.inf, 2.0**-130]
RANDOM = [0, 1, 0x5555, 0x7FFF, 0x8000, 0xC3A7, 0xFFFF]


def code(x: float, random: int, name: str, bits: int, satfinite: bool, relu: bool) -> int:
    """By the definition: what is cut off and the random bits, as fractions of the last place, are added; what is carried rounds away from zero."""
    _, fraction, bias, largest, nan, infinite = FORMATS[name]
    if np.isnan(x):
        return nan
    if relu and x <= 0:
        return 0
    sign = int(np.signbit(np.float32(x))) << SIGN[name]
    top = largest + 1 if infinite and not satfinite else largest
    if np.isinf(x):
        return top | sign
    size = abs(Fraction(float(np.float32(x))))
    exponent = max(1 - bias, floor(np.log2(float(size))) if size else 1 - bias)
    if size and Fraction(2) ** exponent > size:
        exponent = max(1 - bias, exponent - 1)
    cut = 23 - fraction
    part = Fraction(random >> max(0, bits - cut), 1 << min(bits, cut))
    units = floor(size / Fraction(2) ** (exponent - fraction) + part)  # in last places, with the leading one
    return min(units + ((exponent + bias - 1) << fraction), top) | sign


def results(text: str, count: int, name: str) -> tuple[Any, Any]:
    """What the instruction gives for columns of floats and random bits, and what it should."""
    more, bits = FORMATS[name][0], 32 // count
    a, b, r = (column.ravel() for column in np.meshgrid(np.float32(VALUES + [-x for x in VALUES] + [np.nan]), np.float32([0.7, -3.14159, 0.017]), RANDOM, indexing="ij"))
    random = (r & ((1 << bits) - 1)).astype(np.uint32) * np.uint32(sum(1 << bits * i for i in range(count))) ^ np.uint32(0x1234)
    got = run(text, np.dtype(np.uint32), a, b, random)
    want = []
    for x, y, word in zip(a, b, random, strict=True):
        parts = [y, x] if count == 2 else [y, x, y, x]  # the lowest first; the first operand is the highest
        codes = [code(float(v), int(word) >> bits * i & ((1 << bits) - 1), name, bits, "satfinite" in text, "relu" in text) for i, v in enumerate(parts)]
        want.append(sum(c << more * i for i, c in enumerate(codes)))
    return got, np.array(want, np.uint32)


TEXTS = [f"cvt.rs{more}.{name}x2.f32 $d, $a, $b, $c;" for name in ("f16", "bf16") for more in ("", ".relu", ".satfinite", ".relu.satfinite")]
TEXTS += [f"cvt.rs{more}.satfinite.{name}x4.f32 $d, {{$a, $b, $a, $b}}, $c;" for name in ("e4m3", "e5m2", "e2m3", "e3m2") for more in ("", ".relu")]
TEXTS += [f"cvt.rs{more}.satfinite.e2m1x4.f32 %h1, {{$a, $b, $a, $b}}, $c; cvt.u32.u16 $d, %h1;" for more in ("", ".relu")]


@pytest.mark.parametrize("text", TEXTS)
def test_by_the_definition(text: str) -> None:
    name, _, count = text.split(".f32")[0].rpartition(".")[2].rpartition("x")
    got, want = results(text, int(count), name)
    assert np.array_equal(got, want), [(hex(g), hex(w)) for g, w in zip(got, want, strict=True) if g != w][:5]


def test_the_mean_is_the_number() -> None:
    """Over all random bits, of 16 and of 8, also where results are subnormal."""
    words = np.arange(1 << 16, dtype=np.uint32)
    for x in (1.0 / 3, 3e-6, 2.7e-5):
        a = np.full(len(words), x, np.float32)
        got = run("cvt.rs.f16x2.f32 $d, $a, $a, $c;".replace("$c", "$b"), np.dtype(np.uint32), a, words)
        assert np.isclose((got & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64).mean(), np.float32(x), rtol=2e-4 if x < 1e-4 else 1e-7)
