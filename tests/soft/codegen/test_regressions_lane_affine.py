"""Lane patterns at the edges of a register's width: each kernel is a case where unbounded arithmetic on the lanes' steps says something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft.analysis import lane_affine

pytestmark = pytest.mark.sampled(5)

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
    assert lane_affine.shift_left(lane_affine.UNIFORM, 62).constant is None
    assert lane_affine.shift_left(lane_affine.shift_left(lane_affine.UNIFORM, 40), 40).constant is None
    product = lane_affine.multiply(lane_affine.UNIFORM, lane_affine.constant(1 << 62))
    assert product is not None and product.constant is None
    joined = lane_affine.join(lane_affine.constant(0), lane_affine.constant(1 << 62))
    assert joined is not None and joined.constant is None


STRIDED = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in, .param .u64 step, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.s64 %rd3, [step]; ld.param.u32 %r3, [n];
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, %r3;
  @%p1 bra DONE;
  cvt.u64.u32 %rd4, %r1;
  mul.lo.s64 %rd5, %rd4, %rd3;
  add.s64 %rd6, %rd2, %rd5;
  LOAD
  add.s64 %rd7, %rd1, %rd5;
  STORE
DONE: ret;
}
"""


@pytest.mark.parametrize("n", [64, 50, 33, 1])
@pytest.mark.parametrize("step", [1, 2, 3, -1, 0])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_strides_known_at_run_time(width: int, step: int, n: int) -> None:
    """Where the lanes' accesses prove to lie side by side they are one access; everywhere else, and for lanes that are off, nothing changes."""
    if width == 16:
        access = "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd6];", "st.global.v4.u32 [%rd7], {%r4, %r5, %r6, %r7};"
    else:
        access = f"ld.global.u{8 * width} %rd8, [%rd6];", f"st.global.u{8 * width} [%rd7], %rd8;"
    kernels = Kernels(STRIDED.replace("LOAD", access[0]).replace("STORE", access[1]))
    room = 64 * 4
    data = np.arange(1, room * width + 1, dtype=np.uint32).astype(np.uint8).reshape(room, width)
    out = np.zeros_like(data)
    first = 64 if step < 0 else 0
    kernels.launch("k", 1, 64, out[first:], data[first:], np.int64(step * width), np.uint32(n))
    want = np.zeros_like(data)
    touched = [first + i * step for i in range(n)]
    want[touched] = data[touched]
    assert (out == want).all()


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne", "lo", "hs", "hi", "ls"])
@pytest.mark.parametrize("limit", [0, 1, 31, 32, 33, 63, 64, 100, 127, 128, -1, -32])
def test_comparisons_that_a_whole_warp_answers_alike(name: str, limit: int) -> None:
    """A branch on a comparison of the thread's number with a constant: with multiples of 32 no warp is divided."""
    kind = "u32" if name in ("lo", "hs", "hi", "ls") else "s32"
    text = f"{HEAD} setp.{name}.{kind} %p1, %r1, {limit}; mov.u64 %rd5, 1; @%p1 bra SOME; mov.u64 %rd5, 2; SOME: {TAIL}"
    out = np.zeros(128, np.uint64)
    Kernels(text).launch("k", 1, 128, out, np.uint64(0))
    compare = {"lt": "<", "lo": "<", "le": "<=", "ls": "<=", "gt": ">", "hi": ">", "ge": ">=", "hs": ">=", "eq": "==", "ne": "!="}[name]
    bound = limit & 0xFFFFFFFF if kind == "u32" else limit
    assert out.tolist() == [1 if eval(f"{t} {compare} {bound}") else 2 for t in range(128)]
