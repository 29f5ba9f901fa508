"""Kernels with many products by wmma: what is kept of their operands, and how much code they become."""

from __future__ import annotations

import random

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft import pipeline
from gpuvirt.soft.ptx.module import Module

A, B, ROUNDS = 3, 6, 3  # more operands than are kept
PAIRS = [(i, j) for i in range(A) for j in range(B)]
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
SHAPE = "sync.aligned.row.m16n16k16"
GUARDED = f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d, .param .u64 on) {{
.reg .b32 %a<8>, %b<8>, %on; .reg .f32 %c<8>; .reg .b64 %p<4>; .reg .pred %q;
ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [d]; ld.param.u64 %p3, [on];
mov.u32 %on, %tid.x; mad.wide.u32 %p3, %on, 4, %p3; ld.global.u32 %on, [%p3]; setp.ne.u32 %q, %on, 0;
{" ".join(f"mov.u32 %a{i}, 0x3C003C00; mov.u32 %b{i}, 0x3C003C00; mov.f32 %c{i}, 0f3F800000;" for i in range(8))}
@%q wmma.load.a.{SHAPE}.global.f16 GROUPa, [%p0], 16;
@%q wmma.load.b.{SHAPE}.global.f16 GROUPb, [%p1], 16;
@%q wmma.load.c.{SHAPE}.global.f32 GROUPc, [%p2], 16;
wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 GROUPc, GROUPa, GROUPb, GROUPc;
@%q wmma.store.d.{SHAPE}.global.f32 [%p2], GROUPc, 16; ret; }}"""


def group(name: str) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(8)) + "}"


def text(order: list[tuple[int, int]]) -> str:
    """D[i][j] = (ROUNDS + 1) A[i] B[j] for the pairs of `order`: once, and once in each round of a loop."""
    lines = [f".reg .b32 %a{i}_<8>;" for i in range(A)] + [f".reg .b32 %b{j}_<8>;" for j in range(B)]
    lines += [f".reg .f32 %c{i}{j}_<8>;" for i, j in PAIRS]
    lines.append("ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [d]; mov.u32 %n, 0;")
    for letter, count, pointer in (("a", A, "%p0"), ("b", B, "%p1")):
        for i in range(count):
            lines.append(f"add.u64 %at, {pointer}, {i * 512}; wmma.load.{letter}.{SHAPE}.global.f16 {group(f'{letter}{i}_')}, [%at], 16;")
    lines += [f"mov.f32 %c{i}{j}_{e}, 0f00000000;" for i, j in PAIRS for e in range(8)]

    def product(i: int, j: int) -> str:
        c = group(f"c{i}{j}_")
        return f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {c}, {group(f'a{i}_')}, {group(f'b{j}_')}, {c};"

    lines += [product(i, j) for i, j in order]
    lines += ["again:", *(product(i, j) for i, j in reversed(order)), f"add.u32 %n, %n, 1; setp.lt.u32 %more, %n, {ROUNDS}; @%more bra again;"]
    for i, j in order:
        lines.append(f"add.u64 %at, %p2, {(i * B + j) * 1024}; wmma.store.d.{SHAPE}.global.f32 [%at], {group(f'c{i}{j}_')}, 16;")
    head = f"{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d) {{\n.reg .b32 %n; .reg .b64 %at, %p<3>; .reg .pred %more;\n"
    return head + "\n".join(lines) + "\nret; }\n"


@pytest.mark.parametrize("seed", range(2))
def test_operands_that_are_kept(seed: int) -> None:
    order = PAIRS.copy()
    random.Random(seed).shuffle(order)
    r = np.random.default_rng(seed)
    a, b = ((r.integers(-8, 9, (count, 16, 16)) / 8).astype(np.float16) for count in (A, B))
    d = np.zeros((A, B, 16, 16), np.float32)
    Kernels(text(order)).launch("k", 1, 32, a, b, d)
    assert np.array_equal(d, (ROUNDS + 1) * np.einsum("imk,jkn->ijmn", a.astype(np.float32), b.astype(np.float32)))


def test_a_guard_that_lets_nobody_through() -> None:
    """Pointers that lead nowhere are not followed, though the compiler does not know that the lanes agree."""
    kernels = Kernels(GUARDED.replace("GROUPa", group("a")).replace("GROUPb", group("b")).replace("GROUPc", group("c")))
    r = np.random.default_rng(5)
    a, b, d = ((r.integers(-8, 9, (16, 16)) / 8).astype(t) for t in (np.float16, np.float16, np.float32))
    want = d + a.astype(np.float32) @ b.astype(np.float32)
    kernels.launch("k", 1, 32, np.uint64(8), np.uint64(8), np.uint64(8), np.zeros(32, np.uint32))
    kernels.launch("k", 1, 32, a, b, d, np.ones(32, np.uint32))
    assert np.array_equal(d, want)


def test_a_product_is_little_code() -> None:
    """What a kernel with thousands of products becomes must be compiled in seconds: a product written out is 70,000 characters."""
    few, many = (pipeline.translate(Module(text(order)), "k", (32, 1, 1))[0] for order in (PAIRS[:1], PAIRS))
    functions = [line for line in many.splitlines() if line.startswith("define internal") and '@"wmma.' in line]
    assert len(functions) == 4, functions  # a load of either, numbers of A, of B, a product
    products = len(PAIRS) - 1
    assert len(many) - len(few) < products * 2 * 6000
