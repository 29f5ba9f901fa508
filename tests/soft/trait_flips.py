"""Kernels that go wrong when one trait of one row of the opcode table is another (test_opcode_traits.py says what is expected of them,
trait_flips_run.py runs them)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gpuvirt.soft.ptx import opcodes

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"


class Kernel(NamedTuple):
    """A kernel `k` of one block, and what it leaves in its array of u32, which is the argument `out`."""

    text: str
    want: list[int]
    threads: int = 32
    start: tuple[int, ...] = ()  # what the array begins with; else zeros
    eager: bool = False  # lanes go apart at the first chance, and not only after some time of waiting, which a busy machine makes too long


class Flip(NamedTuple):
    """`trait` of the row `op`, of its line for `variant`, is taken to be `to`."""

    op: str
    variant: str
    trait: str
    to: str
    kernel: Kernel
    costs: bool = False  # it is right all the same, but by more or slower code

    @property
    def name(self) -> str:
        return f"{self.op}{'.' * bool(self.variant)}{self.variant} {self.trait}={self.to}"

    def apply(self) -> None:
        row = opcodes.OPCODES[self.op]
        value = {self.trait: opcodes.COLUMNS[self.trait](self.to)}
        if self.variant:
            assert any(self.variant in some for some, _ in row.variants), self.name
            variants = tuple((some, replace(t, **value) if self.variant in some else t) for some, t in row.variants)
            changed = replace(row, variants=variants)
        else:
            changed = replace(row, base=replace(row.base, **value))
        assert changed != row, self.name
        opcodes.OPCODES[self.op] = changed
        opcodes.traits_of.cache_clear()


# ---- kernels -----------------------------------------------------------------------------------------------------------

_REGISTERS = """
.reg .pred %p<12>; .reg .b16 %h<8>; .reg .b32 %r<24>; .reg .b64 %q<24>; .reg .f32 %f<12>; .reg .f64 %e<8>;
.shared .align 128 .b8 memory[2048];
"""


def kernel(body: str, want: Any, threads: int = 32, start: tuple[int, ...] = (), more: str = "", result: str = "%r9") -> Kernel:
    """%r0 is the thread's number and %q0 the address of its word of the array, %q1 that of the array, to which `result` is written at the end."""
    text = f"""{HEAD}{more}
.visible .entry k(.param .u64 out) {{{_REGISTERS}
    mov.u32 %r0, %tid.x; ld.param.u64 %q1, [out]; mad.wide.u32 %q0, %r0, 4, %q1;
    {body}
    {f"st.global.u32 [%q0], {result};" if result else ""}
    END: ret; }}
"""
    return Kernel(text, [int(w) & 0xFFFFFFFF for w in want], threads, start)


def skipped(op: str, value: int, prepare: str = "", result: str = "%r9") -> Kernel:
    """Half of the warp goes around an instruction whose operands are the same in all lanes: its result belongs to the others alone."""
    wide = {"r": "mov.b32 %r9, 7;", "q": "mov.b64 %q9, 7;", "h": "mov.b16 %h1, 7;", "p": "setp.ne.u32 %p9, 1, 1;", "f": "mov.b32 %f9, 7;", "e": "mov.b64 %e1, 7;"}
    kept = {"r": "", "q": "cvt.u32.u64 %r9, %q9;", "h": "cvt.u32.u16 %r9, %h1;", "p": "selp.u32 %r9, 1, 7, %p9;", "f": "mov.b32 %r9, %f9;",
            "e": "mov.b64 %q9, %e1; shr.u64 %q9, %q9, 32; cvt.u32.u64 %r9, %q9;"}  # fmt: skip
    letter = result[1]
    first = 7 if letter != "e" else 0
    body = f"{wide[letter]} {prepare} setp.lt.u32 %p0, %r0, 16; @%p0 bra AROUND; {op} AROUND: {kept[letter]}"
    return kernel(body, [first] * 16 + [value] * 16)


def summed() -> Kernel:
    """Three products of ones, 16 each, to begin with 5: descriptors of 0 are of matrices of which every eight rows are the first 128 bytes of shared memory."""
    body = """shl.b32 %r1, %r0, 2; mov.u32 %r3, memory; add.u32 %r1, %r1, %r3; st.shared.u32 [%r1], 0x3c003c00; bar.sync 0; mov.f32 %f1, 5.0; mov.f32 %f2, 5.0; mov.f32 %f3, 5.0; mov.f32 %f4, 5.0; mov.u64 %q4, 0; mov.u32 %r2, 0; setp.eq.u32 %p1, 0, 0;
    AGAIN: wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %q4, %q4, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3; @%p2 bra AGAIN;
    cvt.rzi.u32.f32 %r9, %f1;"""
    return kernel(body, [53] * 128, 128)


LANES = np.arange(32)
_LOAD = "ld.global.u32 %r1, [%q1];"  # a number that nothing is known of


def _results() -> Iterator[Flip]:
    """What is not taken for a result is written for all lanes, also for those that are elsewhere."""
    yield Flip("wgmma", "mma_async", "result", "first", summed())
    rows = [
        # op, instruction with a = 13, b = 5, c = 2 in %r1, %r2, %r3 (also as floats %f1.., %e1.. and in %q, %h), result
        ("mov", "mov.u32 %r9, %r1;", 13), ("add", "add.u32 %r9, %r1, %r2;", 18), ("sub", "sub.u32 %r9, %r1, %r2;", 8),
        ("mul", "mul.lo.u32 %r9, %r1, %r2;", 65), ("mad", "mad.lo.u32 %r9, %r1, %r2, %r3;", 67), ("mul24", "mul24.lo.u32 %r9, %r1, %r2;", 65),
        ("mad24", "mad24.lo.u32 %r9, %r1, %r2, %r3;", 67), ("sad", "sad.u32 %r9, %r1, %r2, %r3;", 10), ("div", "div.u32 %r9, %r1, %r2;", 2),
        ("rem", "rem.u32 %r9, %r1, %r2;", 3), ("min", "min.u32 %r9, %r1, %r2;", 5), ("max", "max.u32 %r9, %r1, %r2;", 13),
        ("neg", "neg.s32 %r9, %r1;", -13), ("abs", "abs.s32 %r9, %r1;", 13), ("and", "and.b32 %r9, %r1, %r2;", 5), ("or", "or.b32 %r9, %r1, %r2;", 13),
        ("xor", "xor.b32 %r9, %r1, %r2;", 8), ("not", "not.b32 %r9, %r1;", ~13), ("cnot", "cnot.b32 %r9, %r1;", 0), ("shl", "shl.b32 %r9, %r1, %r3;", 52),
        ("shr", "shr.u32 %r9, %r1, %r3;", 3), ("shf", "shf.l.clamp.b32 %r9, %r1, %r2, %r3;", 20), ("lop3", "lop3.b32 %r9, %r1, %r2, %r3, 0x96;", 10),
        ("popc", "popc.b32 %r9, %r1;", 3), ("clz", "clz.b32 %r9, %r1;", 28), ("brev", "brev.b32 %r9, %r1;", 0xB0000000), ("bfind", "bfind.u32 %r9, %r1;", 3),
        ("fns", "fns.b32 %r9, %r1, 0, %r3;", 2), ("bfe", "bfe.u32 %r9, %r1, 2, 2;", 3), ("bfi", "bfi.b32 %r9, %r1, %r2, 8, 4;", 0xD05),
        ("bmsk", "bmsk.clamp.b32 %r9, %r2, %r3;", 0x60), ("szext", "szext.clamp.s32 %r9, %r1, 4;", -3), ("prmt", "prmt.b32 %r9, %r1, %r2, 0x4440;", 0x0505050D),
        ("dp4a", "dp4a.u32.u32 %r9, %r1, %r2, %r3;", 67), ("dp2a", "dp2a.lo.u32.u32 %r9, %r1, %r2, %r3;", 67), ("set", "set.gt.u32.u32 %r9, %r1, %r2;", -1),
        ("selp", "selp.b32 %r9, %r1, %r2, %p1;", 13), ("slct", "slct.b32.s32 %r9, %r1, %r2, %r3;", 13), ("cvt", "cvt.u32.u16 %r9, %h2;", 13),
        ("vadd", "vadd.u32.u32.u32 %r9, %r1, %r2;", 18), ("vsub", "vsub.u32.u32.u32 %r9, %r1, %r2;", 8), ("vabsdiff", "vabsdiff.u32.u32.u32 %r9, %r1, %r2;", 8),
        ("vmin", "vmin.u32.u32.u32 %r9, %r1, %r2;", 5), ("vmax", "vmax.u32.u32.u32 %r9, %r1, %r2;", 13), ("vshl", "vshl.u32.u32.u32.clamp %r9, %r1, %r3;", 52),
        ("vshr", "vshr.u32.u32.u32.clamp %r9, %r1, %r3;", 3), ("vmad", "vmad.u32.u32.u32 %r9, %r1, %r2, %r3;", 67), ("vset", "vset.u32.u32.gt %r9, %r1, %r2;", 1),
        ("ld", "ld.global.u32 %r9, [%q1+4];", 5), ("ldu", "ldu.global.u32 %r9, [%q1+4];", 5), ("activemask", "activemask.b32 %r9;", 0xFFFF0000),
        ("vote", "vote.sync.ballot.b32 %r9, %p1, 0xffff0000;", 0xFFFF0000), ("redux", "redux.sync.add.u32 %r9, %r1, 0xffff0000;", 13 * 16),
        ("shfl", "shfl.sync.idx.b32 %r9, %r1, 20, 31, 0xffff0000;", 13), ("match", "match.any.sync.b32 %r9, %r1, 0xffff0000;", 0xFFFF0000),
        ("elect", "elect.sync %r9|%p2, 0xffff0000;", 16),
    ]  # fmt: skip
    numbers = "ld.global.u32 %r1, [%q1]; ld.global.u32 %r2, [%q1+4]; ld.global.u32 %r3, [%q1+8]; cvt.u16.u32 %h2, %r1; setp.gt.u32 %p1, %r1, %r2;"
    for op, text, value in rows:
        yield Flip(op, "", "result", "none", skipped(text, value, numbers)._replace(start=(13, 5, 2)))
    floats = numbers + "cvt.rn.f32.u32 %f1, %r1; cvt.rn.f32.u32 %f2, %r2; cvt.rn.f32.u32 %f3, %r3;"

    def f32(x: float) -> int:
        return int(np.float32(x).view(np.uint32))

    for op, text, number in [
        ("fma", "fma.rn.f32 %f9, %f1, %f2, %f3;", 67.0), ("copysign", "copysign.f32 %f9, %f1, %f2;", 5.0), ("rcp", "rcp.rn.f32 %f9, %f3;", 0.5),
        ("sqrt", "mul.f32 %f4, %f2, %f2; sqrt.rn.f32 %f9, %f4;", 5.0), ("ex2", "ex2.approx.f32 %f9, %f3;", 4.0), ("lg2", "lg2.approx.f32 %f9, %f3;", 1.0),
        ("sin", "sub.f32 %f4, %f1, %f1; sin.approx.f32 %f9, %f4;", 0.0), ("cos", "sub.f32 %f4, %f1, %f1; cos.approx.f32 %f9, %f4;", 1.0),
        ("tanh", "sub.f32 %f4, %f1, %f1; tanh.approx.f32 %f9, %f4;", 0.0), ("rsqrt", "mul.f32 %f4, %f3, %f3; rsqrt.approx.f32 %f9, %f4;", 0.5),
    ]:  # fmt: skip
        yield Flip(op, "", "result", "none", skipped(text, f32(number), floats, "%f9")._replace(start=(13, 5, 2)))
    for op, text in [("setp", "setp.gt.u32 %p9, %r1, %r2;"), ("testp", "testp.finite.f32 %p9, %f1;"), ("isspacep", "isspacep.global %p9, %q1;")]:
        yield Flip(op, "", "result", "none", skipped(text, 1, floats, "%p9")._replace(start=(13, 5, 2)))
    loads = "ld.global.u32 %r1, [%q1]; ld.global.u32 %r2, [%q1+4]; ld.global.u32 %r3, [%q1+8];"
    for op, text, value in [("addc", "addc.u32 %r9, %r1, %r2;", 19), ("subc", "subc.u32 %r9, %r1, %r3;", 10), ("madc", "madc.lo.u32 %r9, %r1, %r2, %r3;", 68)]:
        carried = f"{loads} {'sub.cc.u32 %r4, %r2, %r1;' if op == 'subc' else 'add.cc.u32 %r4, %r1, 0xffffffff;'}"
        yield Flip(op, "", "result", "none", skipped(text, value, carried)._replace(start=(13, 5, 2)))
    # What is taken for a result is not read.
    two = "mov.u32 %r9, 1; mov.u32 %r1, 5; setp.lt.u32 %p0, %r0, 16; @%p0 bra LATER; mov.u32 %r1, 6; LATER:"
    words = 32 * [9]
    yield Flip("st", "", "result", "first", kernel(f"{two} st.global.u32 [%q0], %r1;", [5] * 16 + [6] * 16, result=""))
    yield Flip("red", "", "result", "first", kernel(f"{two} red.global.add.u32 [%q0], %r1;", [14] * 16 + [15] * 16, start=tuple(words), result=""))
    yield Flip("nanosleep", "", "result", "first", kernel(f"{two} nanosleep.u32 %r1; mov.u32 %r9, %r1;", [5] * 16 + [6] * 16))


def _carries() -> Iterator[Flip]:
    """Half of the warp goes around what writes the carry; then all add it to 5, in another block."""

    def around(text: str, lanes: tuple[int, int], last: str = "addc.u32 %r9, %r2, 0;", first: str = "add.cc.u32 %r4, %r1, 0;") -> Kernel:
        body = f"ld.global.u32 %r1, [%q1]; ld.global.u32 %r2, [%q1+4]; {first} setp.lt.u32 %p0, %r0, 16; @%p0 bra AROUND; {text} AROUND: {last}"
        return kernel(body, [lanes[0]] * 16 + [lanes[1]] * 16, start=(13, 5))

    over = "add.cc.u32 %r5, %r1, 0xffffffff;"
    yield Flip("add", "cc", "carry", "-", around(over, (5, 6)))
    yield Flip("mad", "cc", "carry", "-", around("mad.lo.cc.u32 %r5, %r1, 1, 0xffffffff;", (5, 6)))
    borrow = around("sub.cc.u32 %r5, %r2, %r1;", (5, 4), "subc.u32 %r9, %r2, 0;", "sub.cc.u32 %r4, %r1, %r2;")
    yield Flip("sub", "cc", "carry", "-", borrow)
    yield Flip("addc", "", "carry", "-", around(over, (5, 6)))
    yield Flip("madc", "", "carry", "-", around(over, (5, 6), "madc.lo.u32 %r9, %r2, 1, 0;"))
    yield Flip("subc", "", "carry", "-", borrow)
    for op, text in [("addc", "addc.cc.u32 %r5, %r1, 0xfffffff3;"), ("madc", "madc.lo.cc.u32 %r5, %r1, 1, 0xfffffff3;")]:
        yield Flip(op, "cc", "carry", "reads", around(text, (5, 6)))
        yield Flip(op, "cc", "carry", "writes", around(f"{over} bra ON; ON: {text.replace('fffffff3', 'fffffff2')}", (5, 6)))


def _variations() -> Iterator[Flip]:
    """What differs between lanes is kept as one number for all of them: the code generator finds a vector there."""
    t = LANES
    for op, text, want in [
        ("mov", "mov.u32 %r1, %laneid; xor.b32 %r2, %r1, %r1; mov.b32 %r9, %r1;", t), ("add", "add.u32 %r9, %r1, %r1;", 2 * t * t),
        ("sub", "sub.u32 %r9, 5, %r1;", 5 - t * t), ("mul", "mul.lo.u32 %r9, %r1, %r1;", t**4), ("mad", "mad.lo.u32 %r9, %r1, %r1, %r1;", t**4 + t * t),
        ("addc", "add.cc.u32 %r2, %r1, 0; addc.u32 %r9, %r1, 0;", t * t), ("div", "div.u32 %r9, %r1, 3;", t * t // 3), ("rem", "rem.u32 %r9, %r1, 7;", t * t % 7),
        ("min", "min.u32 %r9, %r1, 50;", np.minimum(t * t, 50)), ("max", "max.u32 %r9, %r1, 50;", np.maximum(t * t, 50)), ("neg", "neg.s32 %r9, %r1;", -t * t),
        ("abs", "neg.s32 %r2, %r1; abs.s32 %r9, %r2;", t * t), ("and", "and.b32 %r9, %r1, 12;", t * t & 12), ("or", "or.b32 %r9, %r1, 12;", t * t | 12),
        ("xor", "xor.b32 %r9, %r1, 12;", t * t ^ 12), ("not", "not.b32 %r9, %r1;", ~(t * t)), ("cnot", "cnot.b32 %r9, %r1;", t == 0),
        ("shl", "shl.b32 %r9, %r1, 1;", 2 * t * t), ("shr", "shr.u32 %r9, %r1, 1;", t * t // 2), ("selp", "setp.lt.u32 %p1, 1, 2; selp.u32 %r9, %r1, 3, %p1;", t * t),
        ("setp", "setp.gt.u32 %p1, %r1, 100; selp.u32 %r9, 1, 0, %p1;", t * t > 100), ("set", "set.gt.u32.u32 %r9, %r1, 100;", -(t * t > 100).astype(int)),
        ("popc", "popc.b32 %r9, %r1;", [int(n * n).bit_count() for n in t]), ("cvt", "cvt.u32.u8 %r9, %r1;", t * t % 256),
        ("ld", "ld.global.u32 %r9, [%q0];", 3 * t), ("ldu", "ldu.global.u32 %r9, [%q0];", 3 * t),
    ]:  # fmt: skip
        yield Flip(op, "", "varies", "never", kernel(f"mul.lo.u32 %r1, %r0, %r0; {text}", want, start=tuple(3 * t)))
    fill = "shl.b32 %r2, %r0, 2; mov.u32 %r3, memory; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r0;"
    matrix = f"{fill} mov.u32 %r4, memory; and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r4, %r4, %r5; bar.warp.sync -1;"
    halves = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r1, 0x0000ffff, 0xffff0000, %p1; setp.ne.u32 %p2, %r0, 3;"
    function = ".func (.param .b32 o) f() { .reg .b32 %v; mov.u32 %v, %tid.x; st.param.b32 [o], %v; ret; }"
    taking = ".func (.param .b32 o) f(.param .b32 i) { .reg .b32 %v; ld.param.b32 %v, [i]; add.u32 %v, %v, 1; st.param.b32 [o], %v; ret; }"
    half = np.where(t < 16, 0xFFFF, 0xFFFF0000)
    yield Flip("atom", "", "varies", "operands", kernel("mov.u32 %r9, 9; atom.global.max.u32 %r9, [%q1], 3;", [0] + [3] * 31, start=(0,), result="%r9"))
    yield Flip("atom", "add", "varies", "operands", kernel("atom.global.add.u32 %r9, [%q1+128], 1;", t, start=(0,) * 33))
    yield Flip("atom", "exch", "varies", "operands", kernel("atom.global.exch.b32 %r9, [%q1+128], 7;", [1] + [7] * 31, start=(1,) * 33))
    yield Flip("call", "", "varies", "operands", kernel("call (%r9), f, ();", t, more=function))
    yield Flip("call", "", "result", "none", kernel("call (%r9), f, ();", t, more=function))
    yield Flip(
        "ld",
        "param",
        "varies",
        "operands",
        kernel("{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call (b), f, (a); ld.param.b32 %r9, [b]; }", t + 1, more=taking),
    )
    local = ".local .align 4 .b32 here;"
    yield Flip("ld", "local", "varies", "operands", kernel(f"{local} st.local.u32 [here], %r0; ld.local.u32 %r9, [here];", t))
    yield Flip("cvta", "local", "varies", "operands", kernel(f"{local} cvta.local.u64 %q3, here; st.u32 [%q3], %r0; ld.u32 %r9, [%q3];", t))
    yield Flip("elect", "", "varies", "never", kernel("elect.sync %r1|%p1, -1; selp.u32 %r9, %r1, 9, %p1;", [0] + [9] * 31))
    yield Flip("elect", "", "varies", "members", kernel("elect.sync %r1|%p1, -1; selp.u32 %r9, %r1, 9, %p1;", [0] + [9] * 31))
    yield Flip("shfl", "", "varies", "never", kernel("shfl.sync.down.b32 %r9, %r0, 1, 31, -1;", [*range(1, 32), 31]))
    yield Flip("shfl", "", "varies", "operands", kernel("mov.u32 %r1, 7; shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, -1; selp.u32 %r9, 1, 0, %p1;", [1] * 31 + [0]))
    yield Flip("match", "", "varies", "members", kernel("and.b32 %r1, %r0, 1; match.any.sync.b32 %r9, %r1, -1;", np.where(t % 2, 0xAAAAAAAA, 0x55555555)))
    yield Flip("match", "all", "varies", "never", kernel(f"{halves} mov.u32 %r2, 4; match.all.sync.b32 %r9, %r2, %r1;", half))
    yield Flip("vote", "", "varies", "never", kernel(f"{halves} vote.sync.ballot.b32 %r9, %p2, %r1;", half & ~8))
    yield Flip("redux", "", "varies", "never", kernel(f"{halves} redux.sync.add.u32 %r9, %r0, %r1;", np.where(t < 16, 120, 376)))
    yield Flip("ldmatrix", "", "varies", "never", kernel(f"{matrix} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r9}}, [%r4];", t))
    yield Flip("movmatrix", "", "varies", "never", kernel("movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r0;", _transposed()))
    yield Flip("mma", "", "varies", "never", kernel(f"{_MMA} mov.b32 %r9, %f1;", [0x41000000] * 32))
    yield Flip(
        "mbarrier",
        "arrive",
        "varies",
        "operands",
        kernel("mbarrier.init.shared.b64 [memory], 64; bar.warp.sync -1; mbarrier.arrive.shared.b64 %q5, [memory]; mov.u32 %r9, 3;", [3] * 32),
    )
    yield Flip(
        "mbarrier",
        "test_wait",
        "varies",
        "never",
        kernel(
            "mbarrier.init.shared.b64 [memory], 64; and.b32 %r1, %r0, 1; bar.warp.sync -1;"
            "mbarrier.test_wait.parity.shared.b64 %p1, [memory], %r1; selp.u32 %r9, 1, 0, %p1;",
            t % 2,
        ),
    )
    yield Flip("alloca", "", "varies", "operands", kernel("alloca.u64 %q3, 16; st.local.u32 [%q3], %r0; ld.local.u32 %r9, [%q3];", t))
    yield Flip("stacksave", "", "varies", "operands", kernel("stacksave.u64 %q3; alloca.u64 %q4, 16; stackrestore.u64 %q3; mov.u32 %r9, 3;", [3] * 32))


_MMA = """mov.b32 %r1, 0x3c003c00; mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r1}, {%r1}, {%f1, %f1, %f1, %f1};"""


def _transposed() -> list[int]:
    """What movmatrix makes of the lanes' numbers: the low halves of a matrix' rows."""
    m = np.zeros((8, 8), int)
    m[:, ::2] = LANES.reshape(8, 4)
    return [int(m.T[i // 4, i % 4 * 2] | m.T[i // 4, i % 4 * 2 + 1] << 16) for i in range(32)]


def _formulas() -> Iterator[Flip]:
    """A number that is counted up from lane to lane by the wrong amount."""
    t = LANES
    for op, text, want, others in [
        ("add", "add.u32 %r9, 100, %r0;", 100 + t, ("sub", "mul", "and", "xor")), ("sub", "sub.u32 %r9, 100, %r0;", 100 - t, ("add", "mul")),
        ("mul", "mul.lo.u32 %r9, %r0, 3;", 3 * t, ("add", "sub", "shl", "copy")), ("mad", "mad.lo.u32 %r9, %r0, 3, %r0;", 4 * t, ("mul", "add")),
        ("shl", "shl.b32 %r9, %r0, 2;", 4 * t, ("add", "mul", "copy")), ("shr", "shr.u32 %r9, %r0, 4;", t // 16, ("copy", "add")),
        ("and", "and.b32 %r9, %r0, 24;", t & 24, ("copy", "or", "add")), ("or", "or.b32 %r9, %r0, 1;", t | 1, ("add", "copy", "xor")),
        ("xor", "xor.b32 %r9, %r0, 3;", t ^ 3, ("or", "add", "copy")), ("cvt", "add.u32 %r1, %r0, 250; cvt.u32.u8 %r9, %r1;", (t + 250) % 256, ("copy", "address")),
        ("min", "min.u32 %r9, %r0, 9;", np.minimum(t, 9), ("copy", "add")), ("max", "max.u32 %r9, %r0, 9;", np.maximum(t, 9), ("copy", "sub")),
        ("selp", "setp.lt.u32 %p1, %r0, 9; selp.u32 %r9, %r0, 1, %p1;", np.where(t < 9, t, 1), ("copy", "add")),
        ("shfl", "shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1;", t ^ 1, ("copy", "add")), ("mov", "mov.b32 %r9, %r0;", t, ("add", "mul")),
        ("not", "not.b32 %r9, %r0;", ~t, ("copy",)), ("popc", "popc.b32 %r9, %r0;", [n.bit_count() for n in range(32)], ("copy",)),
        ("cvta", "cvta.shared.u64 %q3, memory; cvt.u32.u64 %r2, %q3; cvta.shared.u64 %q4, 4; sub.u64 %q3, %q4, %q3; cvt.u32.u64 %r9, %q3; add.u32 %r9, %r9, %r0;", 4 + t, ("add",)),
        ("set", "set.gt.u32.u32 %r1, %r0, 5; sub.u32 %r9, 0, %r1;", t > 5, ("copy",)),
    ]:  # fmt: skip
        for to in others:
            yield Flip(op, "", "formula", to, kernel(text, want))


def _denormals() -> Iterator[Flip]:
    """An instruction that keeps subnormal numbers, beside one that flushes them."""
    tiny = 0x00412345
    prepare = "ld.global.u32 %r1, [%q1]; mov.b32 %f1, %r1; ld.global.f32 %f2, [%q1+4]; ld.global.f32 %f3, [%q1+8]; add.ftz.f32 %f8, %f1, %f2; {}"
    done = " mov.b32 %r2, %f8; sub.u32 %r2, %r2, 0x3f800000; add.u32 %r9, %r9, %r2;"
    for op, text, want in [
        ("add", "add.f32 %f9, %f1, %f3; mov.b32 %r9, %f9;", tiny), ("sub", "sub.f32 %f9, %f1, %f3; mov.b32 %r9, %f9;", tiny),
        ("mul", "mul.f32 %f9, %f1, %f2; mov.b32 %r9, %f9;", tiny), ("fma", "fma.rn.f32 %f9, %f1, %f2, %f3; mov.b32 %r9, %f9;", tiny),
        ("mad", "mad.rn.f32 %f9, %f1, %f2, %f3; mov.b32 %r9, %f9;", tiny), ("div", "div.rn.f32 %f9, %f1, %f2; mov.b32 %r9, %f9;", tiny),
        ("min", "min.f32 %f9, %f1, %f2; mov.b32 %r9, %f9;", tiny), ("max", "max.f32 %f9, %f1, %f3; mov.b32 %r9, %f9;", tiny),
        ("set", "set.gt.u32.f32 %r9, %f1, %f3;", -1), ("setp", "setp.gt.f32 %p1, %f1, %f3; selp.u32 %r9, 1, 0, %p1;", 1),
        ("slct", "neg.f32 %f4, %f1; slct.u32.f32 %r9, 1, 2, %f4;", 2),
        ("sqrt", "sqrt.rn.f32 %f9, %f1; mov.b32 %r9, %f9;", int(np.sqrt(np.uint32(tiny).view(np.float32)).view(np.uint32))),
        ("redux", "redux.sync.min.f32 %f9, %f1, -1; mov.b32 %r9, %f9;", tiny),
    ]:  # fmt: skip
        yield Flip(op, "", "denormals", "keeps", kernel(prepare.format(text) + done, [want] * 32, start=(tiny, 0x3F800000, 0)))
    widened = "cvt.f64.f32 %e1, %f1; mov.b64 %q3, %e1; shr.u64 %q3, %q3, 32; cvt.u32.u64 %r9, %q3;"
    high = int(np.float64(np.uint32(tiny).view(np.float32)).view(np.uint64) >> np.uint64(32))
    yield Flip("cvt", "", "denormals", "keeps", kernel(prepare.format(widened) + done, [high] * 32, start=(tiny, 0x3F800000, 0)))
    shared = "st.shared.u32 [memory], %r1; bar.warp.sync -1; setp.ne.u32 %p1, %r0, 0; @%p1 bra SKIP; red.shared.add.f32 [memory], %f3; SKIP: bar.warp.sync -1; ld.shared.u32 %r9, [memory];"
    yield Flip("red", "", "denormals", "keeps", kernel(prepare.format(shared) + done, [tiny] * 32, start=(tiny, 0x3F800000, 0)))
    yield Flip(
        "atom",
        "add",
        "denormals",
        "keeps",
        kernel(prepare.format(shared.replace("red.shared.add.f32 [", "atom.shared.add.f32 %f5, [")) + done, [tiny] * 32, start=(tiny, 0x3F800000, 0)),
    )
    product = (
        _MMA.replace("f32.f16.f16.f32", "f32.tf32.tf32.f32")
        .replace("mov.b32 %r1, 0x3c003c00; mov.f32 %f1, 0f00000000;", "mov.b32 %r4, 0;")
        .replace("{%r1, %r1}, {%r1}", "{%r4, %r4, %r4, %r4}, {%r4, %r4}")
        .replace("m16n8k8", "m16n8k8")
    )
    yield Flip("mma", "", "denormals", "keeps", kernel(prepare.format(product) + "mov.b32 %r9, %f1;" + done, [tiny] * 32, start=(tiny, 0x3F800000, 0)))


def _costing(flip: Flip) -> Flip:
    return flip._replace(costs=True)


def _flows() -> Iterator[Flip]:
    """Guards and jumps."""
    t = LANES
    yield Flip("bra", "", "flow", "masked", kernel("mov.u32 %r9, 1; setp.lt.u32 %p0, %r0, 16; @%p0 bra ON; mov.u32 %r9, 2; ON:", np.where(t < 16, 1, 2)))
    yield Flip(
        "brx",
        "",
        "flow",
        "masked",
        kernel("LIST: .branchtargets A, B; and.b32 %r1, %r0, 1; brx.idx %r1, LIST; A: mov.u32 %r9, 3; bra ON; B: mov.u32 %r9, 4; ON:", 3 + t % 2),
    )
    yield Flip("ret", "", "flow", "masked", kernel("mov.u32 %r9, 1; setp.lt.u32 %p0, %r0, 16; @%p0 ret;", np.where(t < 16, 0, 1)))
    yield Flip("exit", "", "flow", "masked", kernel("mov.u32 %r9, 1; setp.lt.u32 %p0, %r0, 16; @%p0 exit;", np.where(t < 16, 0, 1)))
    yield Flip(
        "exit",
        "",
        "flow",
        "return",
        kernel(
            "mov.u32 %r9, 1; call f, ();",
            np.where(t < 16, 0, 1),
            more=".func f() { .reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x; setp.lt.u32 %p, %r, 16; @%p exit; ret; }",
        ),
    )
    yield Flip("trap", "", "flow", "masked", kernel("mov.u32 %r9, 1; setp.gt.u32 %p0, %r0, 99; @%p0 trap;", [1] * 32))
    yield _costing(
        Flip("trap", "", "flow", "branched", kernel("setp.gt.u32 %p0, %r0, 99; @%p0 bra ON; trap; st.global.u32 [%q0], 1; ON: ret;", [719] + [0] * 32, result=""))
    )
    recursive = ".func f(.param .b32 n) { .reg .pred %p; .reg .b32 %m; ld.param.b32 %m, [n]; setp.ne.u32 %p, %m, 0; sub.u32 %m, %m, 1; @%p call f, (%m); ret; }"
    yield Flip("call", "", "flow", "masked", kernel("mov.u32 %r9, 1; mov.u32 %r1, 3; call f, (%r1);", [1] * 32, more=recursive))
    guard = "setp.lt.u32 %p0, %r0, 16;"
    others = "setp.gt.u32 %p0, %r0, 31; @%p0 {} 0; @!%p0 st.volatile.shared.u32 [memory], 5; ld.volatile.shared.u32 %r9, [memory]; bar.sync 0;"
    yield Flip("bar", "", "flow", "masked", kernel(others.format("bar.sync"), [5] * 64, 64))
    yield Flip("barrier", "aligned", "flow", "masked", kernel(others.format("barrier.sync.aligned"), [5] * 64, 64))
    none = "mov.u32 %r9, 7; setp.gt.u32 %p0, %r0, 99;"
    yield _costing(
        Flip(
            "cp",
            "",
            "flow",
            "masked",
            kernel(
                f"{guard} shl.b32 %r1, %r0, 2; mov.u32 %r2, memory; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], 5; @%p0 cp.async.ca.shared.global [%r1], [%q0], 4;"
                "cp.async.wait_all; ld.shared.u32 %r9, [%r1];",
                np.where(t < 16, t, 5),
                start=tuple(t),
            ),
        )
    )
    yield _costing(
        Flip(
            "mbarrier",
            "arrive",
            "flow",
            "masked",
            kernel(
                f"{guard} mbarrier.init.shared.b64 [memory], 64; bar.warp.sync -1; mov.b64 %q5, 0; @%p0 mbarrier.arrive.shared.b64 %q5, [memory];"
                "bar.warp.sync -1; @!%p0 mbarrier.arrive.shared.b64 %q5, [memory], 48; mbarrier.test_wait.parity.shared.b64 %p1, [memory], 0; selp.u32 %r9, 1, 0, %p1;",
                [1] * 32,
            ),
        )
    )
    yield _costing(
        Flip(
            "mma",
            "",
            "flow",
            "masked",
            kernel(f"{none} mov.f32 %f1, 0f40000000; {_MMA.replace('mov.f32 %f1, 0f00000000;', '').replace('mma', '@%p0 mma')} mov.b32 %r9, %f1;", [0x40000000] * 32),
        )
    )
    fill = "shl.b32 %r2, %r0, 2; mov.u32 %r3, memory; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r0; and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r4, %r5, memory; bar.warp.sync -1;".replace(
        "add.u32 %r4, %r5, memory", "mov.u32 %r4, memory; add.u32 %r4, %r4, %r5"
    )
    yield _costing(Flip("ldmatrix", "", "flow", "masked", kernel(f"{none} {fill} @%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r9}}, [%r4];", [7] * 32)))
    yield Flip(
        "stmatrix",
        "",
        "flow",
        "masked",
        kernel(f"{none} {fill} @%p0 stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {{%r9}}; bar.warp.sync -1; ld.shared.u32 %r9, [%r3];", t),
    )


_UNTIL = "mov.u64 %q7, %globaltimer; add.u64 %q7, %q7, 2000000000;"


def patient(one: Kernel) -> Kernel:
    """The same kernel, whose loops look for a minute instead of 2 s: what is right comes, also on a busy machine."""
    return one._replace(text=one.text.replace("2000000000;", "60000000000;"))


def spin(look: str, ready: str, count: str = "add.u32 %r15, %r15, 1;", name: str = "SPIN") -> str:
    """A loop that looks until %p5, for 2 s at most. It counts its rounds, without which plain loads are enough for a loop that waits."""
    return f"{name}: {look} {count} {ready} @%p5 bra {name}_END; mov.u64 %q8, %globaltimer; setp.gt.u64 %p6, %q8, %q7; @%p6 bra {name}_END; bra {name}; {name}_END:"


def _polls() -> Iterator[Flip]:
    """Two warps wait for each other: neither can go on unless the other's loop lets it."""
    flag, zero = "setp.ne.u32 %p5, %r1, 0;", "st.shared.u32 [{}], 0;"
    counted = "add.u32 %r15, %r15, 1;"

    def two(look: str, ready: str = flag, set_: str = "st.volatile.shared.u32 [{}], 1;", begin: str = zero, count: str = counted) -> Kernel:
        here, there = "memory+16", "memory+24"
        body = f"""{_UNTIL} mov.u32 %r15, 0; setp.ne.u32 %p0, %r0, 0; @%p0 bra READY; {begin.format(here)} {begin.format(there)} READY: bar.sync 0;
        setp.gt.u32 %p1, %r0, 31; @%p1 bra OTHER; {set_.format(here)} {spin(look.format(there), ready, count, "ONE")} selp.u32 %r9, 1, 0, %p5; bra DONE;
        OTHER: {spin(look.format(here), ready, count, "TWO")} selp.u32 %r9, 3, 0, %p5; {set_.format(there)} DONE:"""
        return kernel(body, [1] * 32 + [3] * 32, 64)

    yield Flip("ld", "volatile", "polls", "-", two("ld.volatile.shared.u32 %r1, [{}];"))
    yield Flip("ld", "", "access", "-", two("membar.cta; ld.shared.u32 %r1, [{}];", count=""))
    yield Flip("atom", "exch", "polls", "-", two("atom.shared.cas.b32 %r1, [{}], 1, 1;"))
    yield Flip("atom", "add", "polls", "-", two("atom.shared.add.u32 %r1, [{}], 0;"))
    yield Flip("atom", "or", "polls", "-", two("atom.shared.or.b32 %r1, [{}], 0;"))
    objects = ("mbarrier.arrive.shared.b64 %q5, [{}];", "mbarrier.init.shared.b64 [{}], 32;")
    yield Flip("mbarrier", "test_wait", "polls", "-", two("mbarrier.test_wait.parity.shared.b64 %p5, [{}], 0;", "", *objects))


def _fallback(act: str, after: str = "mov.u32 %r9, %r1;", want: Any = None, start: tuple[int, ...] = ()) -> Kernel:
    """Half of a warp waits for what the other half does on its way to the __syncwarp to which both come: they run in the lane fallback."""
    return kernel(
        f"{_UNTIL} setp.ne.u32 %p0, %r0, 0; @%p0 bra READY; st.shared.u32 [memory], 0; st.shared.u32 [memory+4], 0; READY: bar.sync 0;"
        f"setp.gt.u32 %p1, %r0, 15; @%p1 bra ACT; {spin('ld.volatile.shared.u32 %r1, [memory];', 'setp.ne.u32 %p5, %r1, 0;')} selp.u32 %r1, 1, 0, %p5; bra MEET;"
        f"ACT: {act} mov.u32 %r1, 1; MEET: bar.warp.sync -1; {after}", [1] * 32 if want is None else want, start=start)  # fmt: skip


_SET = "st.volatile.shared.u32 [memory], 1;"


def _stacks() -> Iterator[Flip]:
    """A function that takes from the stack gives back what it took, if it is known to take."""
    takes = ".func f() { .reg .b64 %a; alloca.u64 %a, 4096; ret; }"
    yield Flip("alloca", "", "access", "-", kernel("call f, (); mov.u32 %r9, 1;", [1] * 32, more=takes))
    yield Flip("alloca", "", "access", "stack", kernel("call f, ();" * 8 + "mov.u32 %r9, 1;", [1] * 32, more=takes))
    yield Flip("stacksave", "", "access", "-", kernel("stacksave.u64 %q3; mov.u32 %r9, 1;", [1] * 32))


def _acts() -> Iterator[Flip]:
    """Lanes that do nothing that others notice are not let go on alone."""
    yield Flip("st", "", "access", "-", _fallback(_SET))
    yield Flip("atom", "", "access", "-", _fallback("atom.shared.max.u32 %r2, [memory], 1;"))
    yield Flip("red", "", "access", "-", _fallback("red.shared.max.u32 [memory], 1;"))
    yield Flip("cp", "", "access", "-", _fallback("cp.async.ca.shared.global [memory], [%q1], 4; cp.async.wait_all;", start=(1,)))


def _syncs() -> Iterator[Flip]:
    """What lanes do together in the lane fallback."""
    t = LANES
    exchange = "shl.b32 %r2, %r0, 2; mov.u32 %r3, memory; add.u32 %r4, %r3, %r2; st.volatile.shared.u32 [%r4+512], %r0; {} xor.b32 %r2, %r2, 124; add.u32 %r4, %r3, %r2; ld.volatile.shared.u32 %r9, [%r4+512];"
    for op, variant, text, want in [
        ("shfl", "", "shfl.sync.down.b32 %r9, %r0, 1, 31, -1;", [*range(1, 32), 31]), ("vote", "", "setp.ne.u32 %p2, %r0, 3; vote.sync.ballot.b32 %r9, %p2, -1;", [~8] * 32),
        ("match", "", "and.b32 %r2, %r0, 1; match.any.sync.b32 %r9, %r2, -1;", np.where(t % 2, 0xAAAAAAAA, 0x55555555)),
        ("match", "all", "match.all.sync.b32 %r9|%p2, %r1, -1;", [-1] * 32),
        ("redux", "", "redux.sync.add.u32 %r9, %r0, -1;", [496] * 32), ("elect", "", "elect.sync %r9|%p2, -1;", [0] * 32),
        ("bar", "warp", exchange.format("bar.warp.sync -1;"), 31 - t),
        ("bar", "red", "setp.ne.u32 %p2, %r0, 3; bar.red.popc.u32 %r9, 0, %p2;", [31] * 32),
        ("barrier", "red", "setp.ne.u32 %p2, %r0, 3; barrier.red.popc.u32 %r9, 0, %p2;", [31] * 32),
        ("movmatrix", "", "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r0;", _transposed()), ("mma", "", f"and.b32 %r5, %r0, 3; setp.eq.u32 %p2, %r5, 0; selp.b32 %r5, 0x3c00, 0, %p2; {_MMA.replace('{%r1, %r1}', '{%r5, %r5}')} mov.b32 %r9, %f1;", [0x3F800000] * 32),
        ("ldmatrix", "", exchange.format("bar.warp.sync -1;") + "and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r4, %r3, %r5; add.u32 %r4, %r4, 512; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r4];", t),
    ]:  # fmt: skip
        # The half that waits is patient: where it gave up before the other half could go on alone, lanes stayed in step, and all was right by chance.
        yield Flip(op, variant, "sync", "-", patient(_fallback(_SET, text, want)._replace(eager=True)))
    # Who asks for the lanes beside it keeps those with whom it came, though it waits long for another warp: 8 s, unless some have gone on alone.
    waits = spin("ld.volatile.shared.u32 %r1, [memory];", "setp.ne.u32 %p5, %r1, 0;")
    late = ("mov.u64 %q9, %globaltimer; add.u64 %q9, %q9, 8000000000; LATE: nanosleep.u32 1000; ld.volatile.shared.u32 %r2, [memory+8]; setp.ne.u32 %p7, %r2, 0;"
            "@%p7 bra SOON; mov.u64 %q8, %globaltimer; setp.lt.u64 %p7, %q8, %q9; @%p7 bra LATE; SOON:")  # fmt: skip
    beside = (f"{_UNTIL} mov.u32 %r15, 0; st.shared.u32 [memory], 0; st.shared.u32 [memory+8], 0; bar.sync 0; setp.gt.u32 %p1, %r0, 31; @%p1 bra SET;"
              f"setp.gt.u32 %p2, %r0, 15; @%p2 bra ACT; {waits} bra MEET; ACT: st.volatile.shared.u32 [memory+4], 1;"
              f"MEET: activemask.b32 %r9; st.volatile.shared.u32 [memory+8], 1; bra ON; SET: {late} {_SET} mov.u32 %r9, 3; ON:")  # fmt: skip
    yield Flip("activemask", "", "sync", "-", patient(kernel(beside, [-1] * 32 + [3] * 32, threads=64)))
    here = "shl.b32 %r2, %r0, 2; mov.u32 %r3, memory; add.u32 %r4, %r3, %r2; xor.b32 %r2, %r2, 124; add.u32 %r3, %r3, %r2; setp.lt.u32 %p0, %r0, 16;"
    loose = (f"{here} @%p0 bra LOW; st.shared.u32 [%r4], %r0; barrier.sync 0; ld.shared.u32 %r9, [%r3]; bra ON;"
             "LOW: st.shared.u32 [%r4], %r0; barrier.sync 0; ld.shared.u32 %r9, [%r3]; ON:")  # fmt: skip
    for to in ("-", "barrier", "arrive"):
        yield Flip("barrier", "", "sync", to, kernel(loose, 31 - t))


def _costs() -> Iterator[Flip]:
    """Traits that only make code better."""
    t = LANES
    affine = "ld.global.u32 %r1, [%q1]; {} mul.wide.u32 %q3, %r2, 4; add.u64 %q3, %q1, %q3; ld.global.u32 %r9, [%q3];"

    def costs(op: str, variant: str, trait: str, to: str, one: Kernel) -> Flip:
        return Flip(op, variant, trait, to, one, True)

    for op, text, want in [
        ("mov", "mov.u32 %r2, %r0;", t), ("add", "add.u32 %r2, %r0, 1;", t + 1), ("sub", "sub.u32 %r2, 31, %r0;", 31 - t), ("mul", "mul.lo.u32 %r2, %r0, 2;", 2 * t),
        ("mad", "mad.lo.u32 %r2, %r0, 2, 1;", 2 * t + 1), ("shl", "shl.b32 %r2, %r0, 1;", 2 * t), ("shr", "shr.u32 %r2, %r0, 4;", t // 16),
        ("and", "and.b32 %r2, %r0, 16;", t & 16), ("or", "or.b32 %r2, %r0, 32;", t | 32), ("xor", "xor.b32 %r2, %r0, 32;", t ^ 32),
        ("cvt", "cvt.u64.u32 %q4, %r0; cvt.u32.u64 %r2, %q4;", t), ("setp", "setp.lt.u32 %p1, %r0, 99; selp.u32 %r2, %r0, 1, %p1;", t),
    ]:  # fmt: skip
        yield costs(op, "", "formula", "-", kernel(affine.format(text), want, start=tuple(range(99))))
    asked = " setp.eq.u32 %p3, %r9, 3; @%p3 bra ZERO; add.u32 %r9, %r9, 1; ZERO:"
    for op, variant, text, value in [
        ("activemask", "", "activemask.b32 %r9;", -1), ("bar", "red", "setp.ne.u32 %p2, %r0, 3; bar.red.popc.u32 %r9, 0, %p2;", 31),
        ("ld", "", "ld.global.u32 %r9, [%q1];", 5), ("vote", "", "setp.ne.u32 %p2, %r0, 3; vote.sync.ballot.b32 %r9, %p2, -1;", ~8),
        ("add", "", "ld.global.u32 %r1, [%q1]; add.u32 %r9, %r1, 1;", 6), ("redux", "", "redux.sync.add.u32 %r9, %r0, -1;", 496),
        ("shfl", "", "shfl.sync.idx.b32 %r9, %r0, 2, 31, -1;", 2), ("match", "all", "match.all.sync.b32 %r9|%p1, 4, -1;", -1),
    ]:  # fmt: skip
        yield costs(op, variant, "varies", "always", kernel(text + asked, [value + 1] * 32, start=(5,)))
    yield costs("add", "", "flow", "branched", kernel("mov.u32 %r9, 1; setp.lt.u32 %p0, %r0, 16; @%p0 add.u32 %r9, %r9, %r0;", np.where(t < 16, 1 + t, 1)))
    two = [1] * 64
    yield costs("bar", "", "sync", "-", kernel("bar.sync 0; mov.u32 %r9, 1;", two, 64))
    yield costs("barrier", "aligned", "sync", "-", kernel("barrier.sync.aligned 0; mov.u32 %r9, 1;", two, 64))
    yield costs("barrier", "cluster", "sync", "-", kernel("barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r9, 1;", two, 64))
    yield costs("bar", "arrive", "sync", "-", kernel("bar.arrive 1, 128; mov.u32 %r9, 1;", two, 64))
    yield costs("wgmma", "", "sync", "-", kernel("wgmma.fence.sync.aligned; mov.u32 %r9, 1;", [1] * 128, 128))
    yield costs("nanosleep", "", "sync", "-", kernel("nanosleep.u32 100; mov.u32 %r9, 1;", two, 64))
    yield costs("mbarrier", "", "sync", "-", kernel("setp.ne.u32 %p0, %r0, 0; @%p0 bra R; mbarrier.init.shared.b64 [memory], 64; R: mov.u32 %r9, 1;", two, 64))
    long = "".join(f"fma.rn.f32 %f{4 + i % 4}, %f{4 + i % 4}, %f2, %f{1 + i % 3};" for i in range(60))
    for op, text in [("fma", long), ("mad", long.replace("fma", "mad")), ("add", re.sub(r"fma.rn.f32 (\S+) (\S+) \S+ (\S+);", r"add.f32 \1 \2 \3;", long)),
                     ("mul", re.sub(r"fma.rn.f32 (\S+) (\S+) \S+ (\S+);", r"mul.f32 \1 \2 \3;", long))]:  # fmt: skip
        body = f"ld.global.f32 %f1, [%q0]; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1; mov.f32 %f5, %f1; mov.f32 %f6, %f1; mov.f32 %f7, %f1; {text}"
        yield costs(op, "", "formula", "-", kernel(f"{body} ld.global.u32 %r9, [%q0]; add.f32 %f4, %f4, %f5; st.global.f32 [%q0], %f4;", [0] * 32))
    moved = "ld.global.u32 %r1, [%q1]; mov.b32 %f1, %r1; mov.f32 %f2, 0f3f800000; add.ftz.f32 %f8, %f1, %f2; mov.b32 %r9, %f8; {}"
    for op, text in [("ld", "ld.global.f32 %f3, [%q0];"), ("st", "st.shared.f32 [memory], %f8;"), ("mov", "mov.f32 %f4, %f1;"), ("neg", "neg.f32 %f3, %f1;"),
                     ("abs", "abs.f32 %f3, %f1;"), ("selp", "setp.lt.u32 %p1, 1, %r0; selp.f32 %f3, %f1, %f2, %p1;"), ("copysign", "copysign.f32 %f3, %f1, %f2;"),
                     ("testp", "testp.finite.f32 %p2, %f1;")]:  # fmt: skip
        yield costs(op, "", "denormals", "never", kernel(moved.format(text), [0x3F800000] * 32, start=(0x12345,)))


def all_flips() -> list[Flip]:
    groups = (_results, _carries, _variations, _formulas, _denormals, _flows, _polls, _stacks, _acts, _syncs, _costs)
    return [flip for group in groups for flip in group()]
