"""Lane patterns, in kernels where a wrong pattern gives a wrong result."""

from __future__ import annotations

import numpy as np
from soft.kernels import Kernels

from gpuvirt.soft.analysis import lane_affine

# out[i] is the sum of i & 1, i & 3, ... i & 127: the mask has another value in every turn of the loop.
MASKS = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry masks(.param .u64 out)
{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, 2;
  mov.u32 %r3, 0;
again:
  add.s32 %r4, %r2, -1;
  and.b32 %r5, %r4, %r1;
  add.s32 %r3, %r3, %r5;
  shl.b32 %r2, %r2, 1;
  setp.le.u32 %p1, %r2, 128;
  @%p1 bra again;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r3;
  ret;
}
"""


def test_two_constants_are_no_constant() -> None:
    joined = lane_affine.join(lane_affine.constant(1), lane_affine.constant(3))
    assert joined is not None and joined.constant is None and joined.flat


def test_the_same_pattern_keeps_all_it_says() -> None:
    five = lane_affine.constant(5)
    assert lane_affine.join(five, five) == five


def test_a_mask_that_changes_from_turn_to_turn() -> None:
    out = np.zeros(256, np.uint32)
    Kernels(MASKS).launch("masks", 1, 256, out)
    lane = np.arange(256, dtype=np.uint32)
    np.testing.assert_array_equal(out, sum(lane & np.uint32((1 << k) - 1) for k in range(1, 8)))
