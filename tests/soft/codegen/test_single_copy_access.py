"""Volatile and relaxed vector accesses are single-copy: a thread never reads a half-written vector, as single-pass scans rely on."""

from __future__ import annotations

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.ptx_op import HEAD

ROUNDS = 100_000

# Block 0 writes, block 1 reads; parts of a vector differ by 1 from one to the next. `slot` is the address of the thread's vector.
TEXT = """
.visible .entry k(.param .u64 cells, .param .u64 torn, .param .u64 started, .param .u32 spread)
{{
.reg .pred %p<5>; .reg .b32 %r<30>; .reg .b64 %q<30>;
ld.param.u64 %q0, [cells]; ld.param.u64 %q1, [torn]; ld.param.u64 %q2, [started]; ld.param.u32 %r0, [spread];
mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 7; and.b32 %r2, %r2, 31; mul.lo.u32 %r2, %r2, %r0; mad.wide.u32 %q3, %r2, 1, %q0;
{slot}
mov.u32 %r3, %ctaid.x; setp.ne.u32 %p0, %r3, 0; atom.global.add.u32 %r4, [%q2], 1;
MEET: ld.volatile.global.u32 %r5, [%q2]; setp.lt.u32 %p1, %r5, %r8; @%p1 bra MEET;
mov.u32 %r6, 0; mov.u32 %r7, 0;
@%p0 bra READ;
WRITE: add.u32 %r6, %r6, 1;
{make}
st.{put}.global.{type} [%q3], {{{values}}};
setp.lt.u32 %p1, %r6, {rounds}; @%p1 bra WRITE;
ret;
READ: add.u32 %r6, %r6, 1;
ld.{how}.global.{type} {{{values}}}, [%q3];
{compare}
setp.lt.u32 %p1, %r6, {rounds}; @%p1 bra READ;
mad.wide.u32 %q1, %r1, 4, %q1; st.global.u32 [%q1], %r7;
ret;
}}
"""


def kernel(kind: str, how: str, uniform: bool) -> Kernels:
    count, bits = int(kind[1]), int(kind.split(".u")[1])
    letter, size = ("q", "u64") if bits == 64 else ("r", "u32")
    values = [f"%{letter}{20 + i}" for i in range(count)]
    make = f"cvt.u64.u32 {values[0]}, %r6;" if bits == 64 else f"mov.u32 {values[0]}, %r6;"
    compare = ""
    for i in range(1, count):
        make += f" add.{size} {values[i]}, {values[0]}, {i};"
        compare += f" add.{size} {values[0]}, {values[0]}, 1; setp.ne.{size} %p2, {values[0]}, {values[i]}; @%p2 add.u32 %r7, %r7, 1;"
    slot = "mov.u64 %q3, %q0; " if uniform else ""
    text = TEXT.format(slot=slot, make=make, type=kind, values=", ".join(values), compare=compare, how=how, put="volatile" if how == "cg" else how, rounds=ROUNDS)
    return Kernels(HEAD + text.replace("setp.lt.u32 %p1, %r5, %r8", "mov.u32 %r8, %ntid.x; shl.b32 %r8, %r8, 1; setp.lt.u32 %p1, %r5, %r8"))


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, how) for kind in ("v2.u32", "v4.u32", "v2.u64") for how in ("relaxed.gpu", "volatile")), ("v2.u32", "cg"), ("v2.u64", "cg")]
)
@pytest.mark.parametrize("uniform", [False, True])
def test_no_vector_is_torn(kind: str, how: str, uniform: bool) -> None:
    count, bits = int(kind[1]), int(kind.split(".u")[1])
    size = count * bits // 8
    k = kernel(kind, how, uniform)
    for spread in (size, 48):
        # Before the first write a reader must find the parts as they would be written.
        cells = np.zeros(32 * 48 // (bits // 8), np.uint64 if bits == 64 else np.uint32)
        for lane in range(32):
            at = lane * spread // (bits // 8)
            cells[at : at + count] = np.arange(count)
        torn, started = np.zeros(32, np.uint32), np.zeros(1, np.uint32)
        k.launch("k", 2, 32, cells, torn, started, np.uint32(spread))
        assert not torn.any(), torn
        last = cells[:count] if uniform else cells.reshape(-1)[: 31 * spread // (bits // 8) + count]
        assert (last[:count] == ROUNDS + np.arange(count)).all()


def test_labels_declared_later_in_a_scope_that_is_repeated() -> None:
    """Inlined assembly repeats its braces, labels and all; a branch forwards finds the one of its own braces."""
    part = "{ .reg .pred p; AGAIN: add.u32 %r1, %r1, 1; setp.ge.u32 p, %r1, LIMIT; @p bra DONE; bra AGAIN; DONE: }\n"
    text = ".visible .entry k(.param .u64 out) { .reg .b32 %r<3>; .reg .b64 %q<3>; ld.param.u64 %q0, [out]; mov.u32 %r1, 0;\n"
    for limit in (5, 9):
        text += part.replace("LIMIT", str(limit)) + f"st.global.u32 [%q0+{limit}], %r1;".replace(f"+{limit}", "+0" if limit == 5 else "+4") + "\n"
    out = np.zeros(2, np.uint32)
    Kernels(HEAD + text + "ret; }").launch("k", 1, 1, out)
    assert list(out) == [5, 9]
