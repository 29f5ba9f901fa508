"""Versions for usual strides (stride_versions.py) and uniform copies of blocks (uniform_branches.py)."""

from __future__ import annotations

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft import pipeline
from gpuvirt.soft.ptx.module import Module

HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
# y[i * b] = 3 * x[i * a], the strides in bytes, as CuPy's kernels do it: a loop over the grid, 64-bit indices, products kept in the upper half.
STRIDES = (
    HEAD
    + """
.visible .entry k(.param .u64 x, .param .align 8 .b8 more[24], .param .u64 n)
{
  .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<19>; .reg .f32 %f<3>;
  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [more]; ld.param.v2.u64 {%rd3, %rd4}, [more+8]; ld.param.u64 %rd5, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mul.wide.u32 %rd15, %r1, %r2; mov.u32 %r3, %tid.x; cvt.u64.u32 %rd7, %r3;
  add.s64 %rd6, %rd15, %rd7; setp.ge.s64 %p1, %rd6, %rd5; @%p1 bra DONE;
  mov.u32 %r1, %nctaid.x; mul.wide.u32 %rd8, %r1, %r2; mul.lo.s64 %rd16, %rd3, %rd6; shl.b64 %rd9, %rd16, 32;
  mul.lo.s64 %rd18, %rd8, %rd3; shl.b64 %rd10, %rd18, 32;
LOOP:
  shr.s64 %rd11, %rd9, 32; add.s64 %rd12, %rd1, %rd11; ld.global.f32 %f1, [%rd12];
  mul.f32 %f2, %f1, 0f40400000;
  mul.lo.s64 %rd17, %rd6, %rd4; cvt.s64.s32 %rd13, %rd17; add.s64 %rd14, %rd2, %rd13; st.global.f32 [%rd14], %f2;
  add.s64 %rd9, %rd9, %rd10; add.s64 %rd6, %rd6, %rd8; setp.lt.s64 %p2, %rd6, %rd5; @%p2 bra LOOP;
DONE: ret;
}
"""
)


@pytest.mark.parametrize("block", [128, 48])
@pytest.mark.parametrize("n", [1, 31, 96, 1000])
def test_strides(n: int, block: int) -> None:
    k = Kernels(STRIDES)
    rng = np.random.default_rng(n)
    for grid in (1, 3):
        for a, b in ((4, 4), (8, 4), (4, 12), (0, 4), (-4, 4), (4, -4), (-8, 8), (16, 16)):
            x, y = rng.standard_normal(4 * n).astype(np.float32), np.zeros(4 * n, np.float32)
            want = y.copy()
            first = [-s * (n - 1) if s < 0 else 0 for s in (a, b)]
            want[[(first[1] + i * b) // 4 for i in range(n)]] = [np.float32(3) * x[(first[0] + i * a) // 4] for i in range(n)]
            more = np.array([y.ctypes.data + first[1], a, b], np.int64).tobytes()
            k.launch("k", grid, block, np.uint64(x.ctypes.data + first[0]), more, np.uint64(n))
            np.testing.assert_array_equal(y, want, f"strides {a}, {b}, {grid} blocks")


def test_the_usual_strides_make_plain_accesses() -> None:
    text, _, _ = pipeline.translate(Module(STRIDES), "k", (128, 1, 1))
    guessed = text[text.index("void @gv_kernel.guessed") : text.index("void @gv_kernel.general")]
    assert "gather" not in guessed and "scatter" not in guessed and "load <32 x i32>" in guessed and "store <32 x i32>" in guessed


# Counts for each lane how the comparisons of `at + lane` with `bound` come out. The sum wraps around where they are far up.
BOUNDS = (
    HEAD
    + """
.visible .entry k(.param .u64 out, .param .u32 at, .param .u32 bound)
{
  .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [at]; ld.param.u32 %r2, [bound]; mov.u32 %r3, %tid.x; add.s32 %r4, %r1, %r3; mov.u32 %r5, 0;
  BODY
  mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r5; ret;
}
"""
)
COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def test_bounds_at_the_ends_of_the_numbers() -> None:
    body = ""
    tests = [(f"{c}.{t}", COMPARE[c], np.int32 if t == "s32" else np.uint32) for t in ("s32", "u32") for c in COMPARE]
    for i, (c, _, _) in enumerate(tests):
        # After the comparison the index changes: what counts is what it was.
        body += f"setp.{c} %p1, %r4, %r2; add.s32 %r4, %r4, 1; @{'!' if i % 2 else ''}%p1 bra S{i}; add.s32 %r5, %r5, {1 << i}; S{i}: sub.s32 %r4, %r4, 1;\n"
    k = Kernels(BOUNDS.replace("BODY", body))
    ends = [0, 1, 31, 32, 33, 1000, 2**31 - 40, 2**31 - 32, 2**31 - 20, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 33, 2**32 - 32, 2**32 - 31, 2**32 - 10]
    for at in ends:
        for bound in {*ends, (at + 16) % 2**32, (at + 31) % 2**32, (at + 32) % 2**32}:
            out = np.zeros(32, np.uint32)
            k.launch("k", 1, 32, out, np.uint32(at), np.uint32(bound))
            index = ((at + np.arange(32)) % 2**32).astype(np.uint32)
            want = np.zeros(32, np.uint32)
            for i, (_, f, dtype) in enumerate(tests):
                said = f(index.view(dtype), np.uint32(bound).view(dtype))
                want += ((said if i % 2 else ~said) << i).astype(np.uint32)
            np.testing.assert_array_equal(out, want, f"{at} beside {bound}")


# Collatz steps, with a detour that few lanes take in few rounds: lanes part, meet, and leave the loop at different times.
PATHS = (
    HEAD
    + """
.visible .entry k(.param .u64 out, .param .u32 n, .param .u32 rare)
{
  .reg .pred %p<6>; .reg .b32 %r<12>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [rare]; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 bra DONE;
  add.s32 %r7, %r6, 1; mov.u32 %r8, 0;
LOOP:
  setp.eq.s32 %p2, %r7, 1; @%p2 bra OUT;
  and.b32 %r9, %r7, %r2; setp.ne.s32 %p3, %r9, 0; @%p3 bra PLAIN;
  add.s32 %r8, %r8, 1000;
PLAIN:
  and.b32 %r10, %r7, 1; setp.eq.s32 %p4, %r10, 0; @%p4 bra EVEN;
  mad.lo.s32 %r7, %r7, 3, 1; bra NEXT;
EVEN: shr.u32 %r7, %r7, 1;
NEXT: add.s32 %r8, %r8, 1; setp.lt.u32 %p5, %r8, 500000; @%p5 bra LOOP;
OUT: mul.wide.u32 %rd2, %r6, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r8;
DONE: ret;
}
"""
)


@pytest.mark.parametrize("n", [32, 33, 200])
def test_lanes_part_and_meet(n: int) -> None:
    k = Kernels(PATHS)
    for rare in (1, 4, 63, 0xFFFFFFFF):
        out = np.full(256, 7, np.uint32)
        k.launch("k", 4, 64, out, np.uint32(n), np.uint32(rare))
        want = np.full(256, 7, np.uint32)
        for i in range(n):
            x, steps = i + 1, 0
            while x != 1 and steps < 500000:
                steps += 0 if x & rare else 1000
                x = x // 2 if x % 2 == 0 else 3 * x + 1
                steps += 1
            want[i] = steps
        np.testing.assert_array_equal(out, want)
