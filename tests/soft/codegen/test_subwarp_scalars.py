"""Addresses that follow a pattern in each half or quarter of a warp, as in blocks of 16 x 16 threads, which are kept as one scalar each."""

from __future__ import annotations

import random

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError

from gpuvirt.soft.analysis import divergence
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.ptx.layout import Program
from gpuvirt.soft.ptx.module import Module

SHAPES = [(16, 16), (8, 16), (16, 4), (8, 8, 2), (16, 2, 3), (4, 8), (32, 3), (16, 3), (12, 5)]
MASK = 0xFFFFFFFF

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 stride, .param .u32 rounds, .param .u32 flag)
{
  .reg .pred %p<8>; .reg .b32 %r<40>; .reg .b64 %rd<40>;
  .shared .align 16 .b8 tile[16384];
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in];
  ld.param.u32 %r1, [stride]; ld.param.u32 %r2, [rounds]; ld.param.u32 %r3, [flag];
  mov.u32 %r4, %tid.x; mov.u32 %r5, %tid.y; mov.u32 %r6, %tid.z; mov.u32 %r7, %ntid.x; mov.u32 %r8, %ntid.y;
  mad.lo.s32 %r9, %r6, %r8, %r5;
  mad.lo.s32 %r10, %r9, %r7, %r4;
  mov.u32 %r20, 0; mov.u32 %r11, 0;
  setp.ne.u32 %p1, %r3, 0;
"""
# Behind it %r20 is what the thread found.
TAIL = """
  mul.wide.u32 %rd30, %r10, 4;
  add.s64 %rd31, %rd1, %rd30;
  st.global.u32 [%rd31], %r20;
  ret;
}
"""
ROW = "mad.lo.s32 %r12, %r9, %r1, %r4; mul.wide.s32 %rd3, %r12, 4; add.s64 %rd4, %rd2, %rd3;"
SUM = "mad.lo.u32 %r20, %r20, 3, %r13;"
LOOP = "L: {} add.s32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, %r2; @%p2 bra L;"

# Name: (code, what thread (row, x) reads in a round of the words of `in`, whether its addresses are kept by groups).
CASES = {
    "a row on": (ROW + LOOP.format("ld.global.u32 %r13, [%rd4+8];" + SUM + "add.s64 %rd4, %rd4, 64;"), lambda y, x, s, k, f: y * s + x + 2 + 16 * k, True),
    "by a parameter": (
        ROW + "mul.wide.s32 %rd5, %r1, 4;" + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, %rd5;"),
        lambda y, x, s, k, f: (y + k) * s + x,
        True,
    ),
    "computed in the loop": (
        LOOP.format("mad.lo.s32 %r14, %r11, 7, %r9; mad.lo.s32 %r12, %r14, %r1, %r4; mul.wide.s32 %rd3, %r12, 4; add.s64 %rd4, %rd2, %rd3;"
                    "ld.global.u32 %r13, [%rd4];" + SUM),
        lambda y, x, s, k, f: (y + 7 * k) * s + x,
        True,
    ),
    "only sometimes on": (
        ROW + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "@%p1 add.s64 %rd4, %rd4, 32;"), lambda y, x, s, k, f: y * s + x + 8 * k * f, True
    ),
    "one of two addresses": (
        ROW + "@!%p1 bra N; mad.lo.s32 %r24, %r9, %r1, 9; add.s32 %r25, %r4, %r24; mul.wide.s32 %rd3, %r25, 4; add.s64 %rd4, %rd2, %rd3; N:"
        + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 4;"),
        lambda y, x, s, k, f: y * s + x + k + 9 * f,
        True,
    ),
    "the same for a row": (
        "mul.lo.s32 %r12, %r9, %r1; mul.wide.s32 %rd3, %r12, 4; add.s64 %rd4, %rd2, %rd3;"
        + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 4;"),
        lambda y, x, s, k, f: y * s + k,
        True,
    ),
    "every second word": (
        "mad.lo.s32 %r12, %r9, %r1, %r4; add.s32 %r26, %r12, %r4; mul.wide.s32 %rd3, %r26, 4; add.s64 %rd4, %rd2, %rd3;"
        + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 4;"),
        lambda y, x, s, k, f: y * s + 2 * x + k,
        True,
    ),
    "of some lanes": (
        ROW + "and.b32 %r15, %r10, 3; setp.eq.u32 %p3, %r15, 0;"
        + LOOP.format("mov.u32 %r13, 5; @!%p3 ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 64;"),
        lambda y, x, s, k, f: ("unless", y * s + x + 16 * k),
        True,
    ),
    "pairs of some lanes": (
        "shl.b32 %r16, %r4, 1; mad.lo.s32 %r12, %r9, %r1, %r16; mul.wide.s32 %rd3, %r12, 4; add.s64 %rd4, %rd2, %rd3;"
        "and.b32 %r15, %r10, 3; setp.eq.u32 %p3, %r15, 0;"
        + LOOP.format("mov.u32 %r13, 5; mov.u32 %r17, 0; @!%p3 ld.global.v2.u32 {%r17, %r13}, [%rd4+8];" + SUM + "add.s64 %rd4, %rd4, 64;"),
        lambda y, x, s, k, f: ("unless", y * s + 2 * x + 3 + 16 * k),
        True,
    ),
    "in a branch": (
        ROW + "and.b32 %r15, %r10, 3; setp.eq.u32 %p3, %r15, 0; mov.u32 %r13, 5; @%p3 bra N;"
        + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 64;") + "bra M; N: mov.u32 %r20, 77; M:",
        lambda y, x, s, k, f: ("branch", y * s + x + 16 * k),
        True,
    ),
    "through shared memory": (
        ROW + "mov.u32 %r21, tile; shl.b32 %r22, %r9, 7; add.s32 %r21, %r21, %r22; shl.b32 %r22, %r4, 2; add.s32 %r23, %r21, %r22;"
        + LOOP.format(
            "ld.global.u32 %r13, [%rd4]; st.shared.u32 [%r23+4], %r13; bar.sync 0; ld.shared.u32 %r13, [%r23+4];" + SUM
            + "ld.shared.u32 %r13, [%r21+4]; bar.sync 0;" + SUM + "add.s64 %rd4, %rd4, 64;"
        ),
        lambda y, x, s, k, f: ("both", y * s + x + 16 * k, y * s + 16 * k),
        True,
    ),
    "volatile": (ROW + LOOP.format("ld.volatile.global.u32 %r13, [%rd4];" + SUM + "add.s64 %rd4, %rd4, 64;"), lambda y, x, s, k, f: y * s + x + 16 * k, True),
    "wanted as a number too": (
        ROW + LOOP.format("ld.global.u32 %r13, [%rd4];" + SUM + "sub.s64 %rd6, %rd4, %rd2; cvt.u32.u64 %r18, %rd6; add.s32 %r20, %r20, %r18; add.s64 %rd4, %rd4, 64;"),
        lambda y, x, s, k, f: ("number", y * s + x + 16 * k),
        False,
    ),
}  # fmt: skip


def grouped(text: str, shape: tuple[int, ...]) -> dict[str, int]:
    program = Program(Module(text), "k")
    body = program.bodies["k"]
    cfg = Cfg(body, program.exits, frozenset())
    return dict(divergence.analyze(cfg, tuple([*shape, 1, 1][:3])).grouped)  # type: ignore[arg-type]


def threads(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    nx, ny, nz = [*shape, 1, 1][:3]
    return np.divmod(np.arange(nx * ny * nz), nx)


@pytest.mark.parametrize("name, flag", [(name, flag) for name, case in CASES.items() for flag in (0, 1) if flag == 0 or "%p1" in case[0]])
def test_cases(name: str, flag: int) -> None:
    """Each kind of address, in every shape of a block."""
    body, place, by_groups = CASES[name]
    text = HEAD + body + TAIL
    assert (16 in grouped(text, (16, 16)).values()) == by_groups
    assert (8 in grouped(text, (8, 8, 2)).values()) == by_groups
    assert not grouped(text, (32, 3))
    kernels = Kernels(text)
    stride, rounds = 134, 5
    words = np.random.default_rng(1).integers(0, 1 << 32, 40000, dtype=np.uint32)
    for shape in SHAPES:
        y, x = threads(shape)
        want = np.zeros(len(x), np.uint64)
        off = np.arange(len(x)) % 4 == 0
        for k in range(rounds):
            at = place(y, x, stride, k, flag)
            if isinstance(at, tuple):
                kind, *places = at
                for p in places:
                    read = words[p]
                    want = want * 3 + np.where(off, 5, read) if kind == "unless" else want * 3 + read
                if kind == "number":
                    want += 4 * places[0].astype(np.uint64)
            else:
                want = want * 3 + words[at]
            want &= MASK
        if name == "in a branch":
            want[off] = 77
        out = np.zeros(len(x), np.uint32)
        kernels.launch("k", 1, shape, out, words, np.uint32(stride), np.uint32(rounds), np.uint32(flag))
        assert np.array_equal(out, want.astype(np.uint32)), (shape, np.flatnonzero(out != want)[:8])


def test_misaligned() -> None:
    """An odd pointer is noticed, by the lanes that access."""
    body, *_ = CASES["of some lanes"]
    out, memory = np.zeros(256, np.uint32), np.zeros(200000, np.uint8)
    with pytest.raises(LaunchError, match=r"misaligned address .* for 4 bytes \(lanes 0xeeeeeeee\)") as caught:
        Kernels(HEAD + body + TAIL).launch("k", 1, (16, 16), out, memory[1:], np.uint32(134), np.uint32(5), np.uint32(0))
    assert caught.value.code == 716
    body, *_ = CASES["pairs of some lanes"]  # not by the parameter: rows of 133 words
    with pytest.raises(LaunchError, match=r"for 8 bytes \(lanes 0xeeee0000\)"):
        Kernels(HEAD + body + TAIL).launch("k", 1, (16, 16), out, memory, np.uint32(133), np.uint32(5), np.uint32(0))


def index(r: random.Random, x: np.ndarray, y: np.ndarray, u: int) -> tuple[str, str, np.ndarray] | None:
    """(PTX, register, its values): an index that is made of the thread's place at random; None: one that runs over."""
    values = {"%r4": x.astype(np.int64), "%r9": y.astype(np.int64), "%r1": np.full(len(x), u)}
    text = []
    for i in range(r.randrange(3, 9)):
        name, a, b = f"%i{i}", r.choice(list(values)[-4:]), r.choice(list(values))
        c = r.choice([1, 2, 3, 4, 8, 15, 16, 31, 48, 64, 100])
        op = r.choice(["add", "sub", "mul", "mad", "madr", "shl", "shr", "and", "or", "xor", "addc", "mulr"])
        va, vb = values[a], values[b]
        line, value = {
            "add": (f"add.s32 {name}, {a}, {b};", va + vb),
            "sub": (f"sub.s32 {name}, {a}, {b};", va - vb),
            "mul": (f"mul.lo.s32 {name}, {a}, {c};", va * c),
            "mulr": (f"mul.lo.s32 {name}, {a}, %r1;", va * u),
            "mad": (f"mad.lo.s32 {name}, {a}, {c}, {b};", va * c + vb),
            "madr": (f"mad.lo.s32 {name}, {a}, %r1, {b};", va * u + vb),
            "shl": (f"shl.b32 {name}, {a}, {c % 5};", va << c % 5),
            "shr": (f"shr.u32 {name}, {a}, {c % 5};", va >> c % 5),
            "and": (f"and.b32 {name}, {a}, {c};", va & c),
            "or": (f"or.b32 {name}, {a}, {c};", va | c),
            "xor": (f"xor.b32 {name}, {a}, {c};", va ^ c),
            "addc": (f"add.s32 {name}, {a}, {-c};", va - c),
        }[op]
        if abs(value).max() >= 1 << 24 or (op == "shr" and va.min() < 0):
            return None
        values[name] = value
        text.append(line)
    return " ".join(text), name, value


@pytest.mark.parametrize("seed", range(12))
def test_random_indices(seed: int) -> None:
    """What is known of lanes in groups holds: every thread reads what it would read alone, in a loop that goes on by a parameter."""
    r = random.Random(seed)
    words = np.random.default_rng(seed).integers(0, 1 << 32, 300000, dtype=np.uint32)
    for shape in r.sample([(16, 16), (8, 8), (16, 4, 2), (8, 4, 4), (4, 16), (2, 32), (16, 3)], 3):
        y, x = threads(shape)
        found = None
        while found is None or found[2].max() - found[2].min() > 200000:
            u = r.choice([1, 2, 16, 32, 40, 100, 128])
            found = index(r, x, y, u)
        code, name, value = found
        least = int(value.min())
        body = f".reg .b32 %i<10>; {code} sub.s32 %r12, {name}, {least}; mul.wide.s32 %rd3, %r12, 4; add.s64 %rd4, %rd2, %rd3; mul.wide.s32 %rd5, %r1, 4;"
        body += LOOP.format("ld.global.u32 %r13, [%rd4]; add.s64 %rd4, %rd4, %rd5;" + SUM)
        text = HEAD + body + TAIL
        want = np.zeros(len(x), np.uint64)
        for k in range(3):
            want = (want * 3 + words[value - least + u * k]) & MASK
        out = np.zeros(len(x), np.uint32)
        Kernels(text).launch("k", 1, shape, out, words, np.uint32(u), np.uint32(3), np.uint32(0))
        assert np.array_equal(out, want.astype(np.uint32)), (shape, u, code)


def test_random_indices_are_of_groups() -> None:
    """Of the random ones enough follow such a pattern."""
    r = random.Random(5)
    shape, some = (16, 16), 0
    y, x = threads(shape)
    for _ in range(60):
        found = index(r, x, y, 40)
        if found is not None:
            text = HEAD + f".reg .b32 %i<10>; {found[0]} mul.wide.s32 %rd3, {found[1]}, 4; add.s64 %rd4, %rd2, %rd3; ld.global.u32 %r20, [%rd4];" + TAIL
            some += bool(grouped(text, shape))
    assert some >= 10
