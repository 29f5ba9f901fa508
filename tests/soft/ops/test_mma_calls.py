"""Blocks with many products call one function for each kind of product and compute the same bits as single products."""

from __future__ import annotations

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft import pipeline
from gpuvirt.soft.ptx.module import Module

pytestmark = pytest.mark.sampled(5)

COUNT = 9
# (instruction, registers of A, B, C; the types of a register of A and B, and of C)
FORMS = [
    ("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, "b32", "f32"),
    ("m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2, "b32", "b32"),
    ("m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4, "b32", "f32"),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4, "b32", "f32"),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, "b32", "f32"),
    ("m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, "f64", "f64"),
    ("m16n8k8.row.col.f64.f64.f64.f64", 4, 2, 4, "f64", "f64"),
    ("m16n8k32.row.col.satfinite.s32.s8.s8.s32", 4, 2, 4, "b32", "b32"),
    ("m16n8k32.row.col.s32.u8.s8.s32", 4, 2, 4, "b32", "b32"),
    ("m8n8k16.row.col.s32.s8.u8.s32", 1, 1, 2, "b32", "b32"),
    ("m16n8k64.row.col.s32.s4.u4.s32", 4, 2, 4, "b32", "b32"),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 2, 4, "b32", "f32"),
    ("m16n8k32.row.col.f32.e5m2.e4m3.f32", 4, 2, 4, "b32", "f32"),
    ("m16n8k256.row.col.s32.b1.b1.s32.and.popc", 4, 2, 4, "b32", "b32"),
]


def text(form: str, a: int, b: int, c: int, ab: str, cd: str, count: int) -> str:
    """Each lane reads its registers of the products' A, B and C one after the other, and writes D in C's place."""
    wide, broad = int(ab[1:]) // 8, int(cd[1:]) // 8
    lines = ["ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; mov.u32 %l, %tid.x; cvt.u64.u32 %q, %l;"]
    for pointer, size in (("%p0", a * count * wide), ("%p1", b * count * wide), ("%p2", c * count * broad)):
        lines.append(f"mul.lo.u64 %o, %q, {size}; add.u64 {pointer}, {pointer}, %o;")
    regs = []
    for j in range(count):
        for letter, n, t, pointer in (("a", a, ab, "%p0"), ("b", b, ab, "%p1"), ("c", c, cd, "%p2")):
            regs.append(f".reg .{t} %{letter}{j}_<{n}>;")
            lines += [f"ld.global.{t} %{letter}{j}_{i}, [{pointer}+{(j * n + i) * int(t[1:]) // 8}];" for i in range(n)]

    def group(letter: str, j: int, n: int) -> str:
        return "{" + ", ".join(f"%{letter}{j}_{i}" for i in range(n)) + "}"

    for j in range(count):
        lines.append(f"mma.sync.aligned.{form} {group('c', j, c)}, {group('a', j, a)}, {group('b', j, b)}, {group('c', j, c)};")
    for j in range(count):
        lines += [f"st.global.{cd} [%p2+{(j * c + i) * broad}], %c{j}_{i};" for i in range(c)]
    head = ".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {\n"
    return head + ".reg .b32 %l; .reg .b64 %q, %o, %p<3>;\n" + "\n".join([*regs, *lines]) + "\nret; }\n"


def words(r: np.random.Generator, form: str, count: int, ab: str) -> np.ndarray:
    """Registers full of numbers of the form's type."""
    if ab == "f64":
        return r.standard_normal(count)
    if "e5m2" in form:  # no infinities, no NaN
        return (r.integers(0, 1 << 32, count, dtype=np.uint32) & 0xBBBBBBBB).astype(np.uint32)
    if ".tf32." in form or form.endswith(".f32.f32"):
        return r.standard_normal(count, np.float32).view(np.uint32)
    if ".f16.f16." in form:
        return r.standard_normal(2 * count).astype(np.float16).view(np.uint32)
    if ".bf16." in form:
        return (r.standard_normal(2 * count, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    return r.integers(0, 1 << 32, count, dtype=np.uint32)


@pytest.mark.parametrize("form, a, b, c, ab, cd", FORMS, ids=[f[0] for f in FORMS])
def test_the_same_bits(form: str, a: int, b: int, c: int, ab: str, cd: str) -> None:
    r = np.random.default_rng(len(form))
    left, right = (words(r, form, 32 * COUNT * n, ab).reshape(32, COUNT, n) for n in (a, b))
    if cd == "f64":
        sums = r.standard_normal(32 * COUNT * c)
    elif cd == "f32":
        sums = r.standard_normal(32 * COUNT * c, np.float32).view(np.uint32)
    elif ".f16.f16." in form:
        sums = words(r, form, 32 * COUNT * c, ab)
    else:
        sums = r.integers(0, 1 << 32, 32 * COUNT * c, dtype=np.uint32)
    sums = sums.reshape(32, COUNT, c)
    many, one = (text(form, a, b, c, ab, cd, n) for n in (COUNT, 1))
    got = sums.copy()
    Kernels(many).launch("k", 1, 32, left, right, got)
    single = Kernels(one)
    for j in range(COUNT):
        want = np.ascontiguousarray(sums[:, j])
        single.launch("k", 1, 32, np.ascontiguousarray(left[:, j]), np.ascontiguousarray(right[:, j]), want)
        assert np.array_equal(got[:, j].view(np.uint8), want.view(np.uint8)), j
    assert not np.array_equal(got, sums)


def test_called_where_there_are_many() -> None:
    """One function for all, where the processor's registers are wide enough."""
    many, one = (pipeline.translate(Module(text(*FORMS[0], n)), "k", (32, 1, 1))[0] for n in (COUNT, 1))
    assert '@"mma.' not in one
    if '@"mma.' in many:
        assert many.count("define internal x86_regcallcc") == 1 and many.count("call x86_regcallcc") == COUNT
