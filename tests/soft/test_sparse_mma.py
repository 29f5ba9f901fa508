"""mma.sp: every kind of elements and shape, with each selector, against the product of the matrix with the zeros put in."""

from __future__ import annotations

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.matrices import G, T, bits_of, draw, fragments, metadata, rng, thinned, value

HEAD = ".version 8.7\n.target sm_120a\n.address_size 64\n"
# m16n8k of each, with the types of the sums; the selectors that there are
SHAPES = [
    *((k, a, d, 4 if k == 16 else 2) for k in (16, 32) for a, d in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    (8, "tf32", "f32", 4), (16, "tf32", "f32", 2), *((k, a, "s32", 2 if k == 32 else 1) for k in (32, 64) for a in ("s8", "u8")),
    *((k, a, "s32", 2 if k == 64 else 1) for k in (64, 128) for a in ("s4", "u4")), (64, "e4m3", "f32", 1), (64, "e5m2", "f32", 1),
]  # fmt: skip


def text(k: int, kind: str, sums: str, selector: int, form: str) -> str:
    """A kernel of one warp, with the registers of the factors, the metadata and the sums in memory."""
    left, right = (k // 2 * 16 // 32 * bits_of(kind) // 32, k * 8 // 32 * bits_of(kind) // 32)
    registers = 2 if sums == "f16" else 4
    t = "f32" if sums == "f32" else "b32"
    prefix = ".kind::f8f6f4" if kind in ("e4m3", "e5m2") else ""
    a_names, b_names, d_names = (", ".join(f"%{n}{i}" for i in range(count)) for n, count in (("a", left), ("b", right), ("d", registers)))
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 e, .param .u64 d) {{
    .reg .b32 %r<4>; .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .{t} %d<4>; .reg .b64 %q<6>;
    ld.param.u64 %q0, [a]; ld.param.u64 %q1, [b]; ld.param.u64 %q2, [e]; ld.param.u64 %q3, [d]; mov.u32 %r0, %tid.x;
    mad.wide.u32 %q0, %r0, 4, %q0; mad.wide.u32 %q1, %r0, 4, %q1; mad.wide.u32 %q2, %r0, 4, %q2; mad.wide.u32 %q3, %r0, {4 * registers}, %q3;
    {" ".join(f"ld.global.b32 %a{i}, [%q0+{128 * i}];" for i in range(left))}
    {" ".join(f"ld.global.b32 %b{i}, [%q1+{128 * i}];" for i in range(right))} ld.global.b32 %r1, [%q2];
    {" ".join(f"ld.global.{t} %d{i}, [%q3+{4 * i}];" for i in range(registers))}
    mma.{form}.sync.aligned.m16n8k{k}.row.col{prefix}.{sums}.{kind}.{kind}.{sums} {{{d_names}}}, {{{a_names}}}, {{{b_names}}}, {{{d_names}}}, %r1, {selector};
    {" ".join(f"st.global.{t} [%q3+{4 * i}], %d{i};" for i in range(registers))} ret; }}"""


@pytest.mark.parametrize("form", ["sp", "sp::ordered_metadata"])
@pytest.mark.parametrize(("k", "kind", "sums", "selectors"), SHAPES)
def test_products(k: int, kind: str, sums: str, selectors: int, form: str) -> None:
    bits = bits_of(kind)
    places, nibbles = thinned(16, k, bits)
    kept = draw(kind, (16, k // 2))
    b = draw(kind, (8, k))
    width = k // places.shape[1]
    dense = np.zeros((16, k), np.float32 if sums != "s32" else np.int64)
    columns = (np.arange(places.shape[1])[None, :, None] * width + places).reshape(16, -1)
    np.put_along_axis(dense, columns, value(kind, kept).astype(dense.dtype), 1)
    left, right = fragments(kept, bits, 16), fragments(b, bits, 8)
    for selector in range(selectors):
        first = rng.integers(-4, 5, (32, 4))
        d = first.astype({"f32": np.float32, "s32": np.int32, "f16": np.float16}[sums])
        Kernels(text(k, kind, sums, selector, form)).launch("k", 1, 32, left, right, metadata(nibbles, bits, selector), d)
        want, begun = dense @ value(kind, b).astype(dense.dtype).T, np.zeros((16, 8))
        got = np.zeros((16, 8))
        for i in range(4):
            got[G + i // 2 * 8, 2 * T + i % 2] = d[:, i]
            begun[G + i // 2 * 8, 2 * T + i % 2] = first[:, i]
        want = want + begun
        assert np.array_equal(got, want.astype(np.float16) if sums == "f16" else want), (selector, got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [("m16n8k32", "m16n8k16"), (", 1;", ", 2;"), (", 1;", ", %r1;"), ("m16n8k32", "m8n8k32")],
)
def test_what_is_no_sparse_product(old: str, new: str) -> None:
    source = f"""{HEAD}.visible .entry k() {{ .reg .b32 %r<20>;
    mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {{%r0, %r1, %r2, %r3}}, {{%r4, %r5, %r6, %r7}}, {{%r8, %r9, %r10, %r11}}, {{%r0, %r1, %r2, %r3}}, %r1, 1; ret; }}"""
    Kernels(source).get("k", (32, 1, 1))
    assert old in source
    with pytest.raises(Exception, match=r"mma\.sp"):
        Kernels(source.replace(old, new)).get("k", (32, 1, 1))


TEXTS = [text(k, kind, sums, 0, form) for k, kind, sums, _ in SHAPES for form in ("sp", "sp::ordered_metadata")]
