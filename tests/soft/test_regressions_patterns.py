"""Lane patterns at the edges of a register's width: each kernel is a case where unbounded arithmetic on the lanes' steps says something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuvirt.soft import patterns
from gpuvirt.soft.harness import Kernels

HEAD = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 u)
{
  .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd4, [u];
  cvt.u32.u64 %r6, %rd4;
  mov.u32 %r1, %tid.x;
"""
TAIL = """
  mul.wide.u32 %rd2, %r1, 8;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u64 [%rd3], %rd5;
  ret;
}
"""


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


CASES: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "shl then shr.u32": ("shl.b32 %r2, %r1, 28; shr.u32 %r3, %r2, 28; cvt.u64.u32 %rd5, %r3;", lambda t, u: t & 15),
    "shl then shr.s32": ("shl.b32 %r2, %r1, 27; shr.s32 %r3, %r2, 27; cvt.s64.s32 %rd5, %r3;", lambda t, u: signed(t << 27, 32) >> 27),
    "hash, widened with sign": ("mul.lo.s32 %r2, %r1, -1640531535; cvt.s64.s32 %rd5, %r2;", lambda t, u: signed(t * -1640531535, 32)),
    "hash, widened without sign": ("mul.lo.s32 %r2, %r1, -1640531535; cvt.u64.u32 %rd5, %r2;", lambda t, u: t * -1640531535 & 0xFFFFFFFF),
    "shl widened with sign": ("shl.b32 %r2, %r1, 27; cvt.s64.s32 %rd5, %r2;", lambda t, u: signed(t << 27, 32)),
    "shl widened without sign": ("shl.b32 %r2, %r1, 28; cvt.u64.u32 %rd5, %r2;", lambda t, u: t << 28 & 0xFFFFFFFF),
    "mul.wide.s32": ("shl.b32 %r2, %r1, 27; mul.wide.s32 %rd5, %r2, 3;", lambda t, u: signed(t << 27, 32) * 3),
    "mul.wide.u32": ("shl.b32 %r2, %r1, 28; mul.wide.u32 %rd5, %r2, 3;", lambda t, u: (t << 28 & 0xFFFFFFFF) * 3),
    "16 bits widened without sign": ("mul.lo.s32 %r2, %r1, 4096; cvt.u64.u16 %rd5, %r2;", lambda t, u: t * 4096 & 0xFFFF),
    "16 bits widened with sign": ("mul.lo.s32 %r2, %r1, 4096; cvt.s64.s16 %rd5, %r2;", lambda t, u: signed(t * 4096, 16)),
    "16 bits shifted": ("cvt.u16.u32 %h1, %r1; shl.b16 %h2, %h1, 12; shr.u16 %h3, %h2, 12; cvt.u64.u16 %rd5, %h3;", lambda t, u: t & 15),
    "uniform by 2^62 is not 0": (
        "shl.b64 %rd6, %rd4, 62; shr.u64 %rd7, %rd6, 60; cvt.u32.u64 %r2, %rd7; cvt.u64.u32 %rd5, %r1; and.b64 %rd5, %rd5, %rd7;",
        lambda t, u: t & ((u << 62 & (1 << 64) - 1) >> 60),
    ),
    "uniform by 2^62 as a multiplier": ("shl.b64 %rd6, %rd4, 62; cvt.u64.u32 %rd7, %r1; mul.lo.s64 %rd5, %rd7, %rd6;", lambda t, u: t * (u << 62)),
    "uniform by 2^62 as a mask": (
        "shl.b64 %rd6, %rd4, 62; cvt.u64.u32 %rd7, %r1; shl.b64 %rd7, %rd7, 60; and.b64 %rd5, %rd7, %rd6;",
        lambda t, u: (t << 60) & (u << 62),
    ),
    "just below 0, then up": ("add.s32 %r2, %r1, -16; mul.wide.s32 %rd5, %r2, 4;", lambda t, u: (t - 16) * 4),
    "falling steps without sign": ("sub.s32 %r2, 16, %r1; cvt.u64.u32 %rd5, %r2;", lambda t, u: 16 - t & 0xFFFFFFFF),
    "a uniform term": ("add.s32 %r2, %r1, %r6; shr.u32 %r3, %r2, 2; cvt.u64.u32 %rd5, %r3;", lambda t, u: (t + u) >> 2),
}


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("name", CASES)
def test_steps_end_at_the_width_of_the_register(name: str, threads: int) -> None:
    body, expected = CASES[name]
    kernels = Kernels(HEAD + body + TAIL)
    for u in (1, 7):
        out = np.zeros(threads, np.uint64)
        kernels.launch("k", 1, threads, out, np.uint64(u))
        want = np.array([expected(t, u) & ((1 << 64) - 1) for t in range(threads)], np.uint64)
        np.testing.assert_array_equal(out, want)


def test_a_multiple_of_a_large_power_is_no_constant() -> None:
    assert patterns.shift_left(patterns.UNIFORM, 62).constant is None
    assert patterns.shift_left(patterns.shift_left(patterns.UNIFORM, 40), 40).constant is None
    product = patterns.multiply(patterns.UNIFORM, patterns.constant(1 << 62))
    assert product is not None and product.constant is None
    joined = patterns.join(patterns.constant(0), patterns.constant(1 << 62))
    assert joined is not None and joined.constant is None
