"""wgmma: every kind of elements, layouts and swizzles of matrices in shared memory, both sources of the left factor, and warps that wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError
from soft.matrices import KINDS, metadata, rng, thinned
from soft.test_async_copy import aligned

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}


def placed(matrix: Any, swizzle: int, column_major: bool, start: int, room: int = 8192) -> tuple[Any, int]:
    """A matrix, rows of 32 bytes, as it lies in shared memory (`room` bytes from `start` on), and its descriptor.

    Column-major ones are given by their rows, too; the layouts are the canonical ones of the PTX ISA.
    """
    rows, k = matrix.shape
    size, width = matrix.itemsize, WIDTHS[swizzle]
    memory = np.zeros(room, np.uint8)
    if column_major:
        side = width // size  # elements of a column that lie side by side
        inner, outer = 8 * width, 8 * width * -(-rows // side)
        offset = lambda r, c: r % side * size + r // side * inner + c % 8 * width + c // 8 * outer  # noqa: E731
        leading, stride = (outer, inner) if swizzle == 0 else (inner, outer)
    else:
        across = 8 * width * (rows // 8) if swizzle == 0 else 16
        offset = lambda r, c: r % 8 * width + r // 8 * 8 * width + c * size // 16 * across + c * size % 16  # noqa: E731
        leading, stride = across, 8 * width
    for r in range(rows):
        for c in range(k):
            at = start + offset(r, c)
            at ^= (at >> 7 & (width // 16 - 1)) << 4
            memory[at - start : at - start + size] = np.frombuffer(matrix[r, c].tobytes(), np.uint8)
    return memory, start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62


def text(n: int, k: int, kinds: tuple[str, str, str], registers: bool, more: str, selector: int | None = None) -> str:
    """A kernel of one warpgroup: params a, b (8 KiB each of shared memory), their descriptors, the product, which begins with what it holds, `keep`.

    With a selector the left factor is sparse, and the metadata of all threads follows it.
    """
    d, a, b = kinds
    count = n // 2 if d != "f16" else n // 4
    t = {"f32": "f32", "s32": "b32", "f16": "b32"}[d]
    sums = ", ".join(f"%d{i}" for i in range(count))
    left = "{%a0, %a1, %a2, %a3}" if registers else "%q2"
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 da, .param .u64 db, .param .u64 d, .param .u32 keep) {{
    .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b32 %a<4>; .reg .b64 %q<10>; .reg .{t} %d<{count}>; .shared .align 1024 .b8 sm[16384];
    ld.param.u64 %q0, [a]; ld.param.u64 %q1, [b]; ld.param.u64 %q2, [da]; ld.param.u64 %q3, [db]; ld.param.u64 %q4, [d]; ld.param.u32 %r5, [keep];
    mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, sm; add.u32 %r2, %r2, %r1; cvt.u64.u32 %q5, %r1; add.u64 %q0, %q0, %q5; add.u64 %q1, %q1, %q5;
    mov.u32 %r3, 0;
    FILL: ld.global.u32 %r4, [%q0]; st.shared.u32 [%r2], %r4; ld.global.u32 %r4, [%q1]; st.shared.u32 [%r2+8192], %r4; add.u32 %r2, %r2, 512;
    add.u64 %q0, %q0, 512; add.u64 %q1, %q1, 512; add.u32 %r3, %r3, 1; setp.lt.u32 %p0, %r3, 16; @%p0 bra FILL;
    fence.proxy.async.shared::cta; bar.sync 0; mad.wide.u32 %q4, %r0, {4 * count}, %q4;
    {" ".join(f"ld.global.{t} %d{i}, [%q4+{4 * i}];" for i in range(count))}
    {" ".join(f"ld.global.b32 %a{i}, [%q2+{512 * i}];" for i in range(4)).replace("%q2", "%q6") if registers else ""}
    {"ld.global.u32 %r6, [%q0];" if selector is not None else ""} setp.ne.u32 %p1, %r5, 0; wgmma.fence.sync.aligned;
    wgmma.mma_async{".sp" if selector is not None else ""}.sync.aligned.m64n{n}k{k}{".satfinite" if "satfinite" in more else ""}.{d}.{a}.{b}{".and.popc" if a == "b1" else ""} {{{sums}}}, {left}, %q3,
    {f"%r6, {selector}, " if selector is not None else ""}%p1{more.replace("satfinite", "")}; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    {" ".join(f"st.global.{t} [%q4+{4 * i}], %d{i};" for i in range(count))} ret; }}"""


def product_of(d: Any, n: int, kind: str) -> Any:
    """The product as a matrix, of what the threads have of it."""
    g, t = np.arange(128) % 32 // 4, np.arange(128) % 4
    out = np.zeros((64, n), np.float32 if kind != "s32" else np.int64)
    values = d.view(np.float16).astype(np.float32) if kind == "f16" else d.view(np.float32) if kind == "f32" else d.view(np.int32).astype(np.int64)
    for i in range(n // 2):
        out[np.arange(128) // 32 * 16 + g + 8 * (i % 4 // 2), i // 4 * 8 + 2 * t + i % 2] = values[:, i]
    return out


def run(
    n: int, kinds: tuple[str, str, str], swizzles: tuple[int, int] = (1, 1), turned: tuple[int, int] = (0, 0), signs: str = "1, 1", keep: int = 1
) -> None:
    d_kind, a_kind, b_kind = kinds
    k = 256 // KINDS[a_kind].bits
    a, b = KINDS[a_kind].draw((64, k)), KINDS[b_kind].draw((n, k))
    left, da = placed(a, swizzles[0], bool(turned[0]), 0)
    right, db = placed(b, swizzles[1], bool(turned[1]), 8192)
    more = {16: f", {signs}, {turned[0]}, {turned[1]}", 32: f", {signs}"}.get(KINDS[a_kind].bits, f", {signs}" if d_kind != "s32" else "")
    first = rng.integers(-4, 5, (128, n // 2))
    d = first.astype({"f32": np.float32, "s32": np.int32, "f16": np.float16}[d_kind])
    before = product_of(d.copy(), n, d_kind)
    got = d.view(np.uint32)
    Kernels(text(n, k, kinds, False, more)).launch("k", 1, 128, left, right, da, db, got, keep)
    want = KINDS[a_kind].value(a) @ KINDS[b_kind].value(b).T
    want = want * (-1 if signs.count("-") == 1 else 1) + (before if keep else 0)
    want = want.astype(np.float16).astype(np.float32) if d_kind == "f16" else want
    assert np.array_equal(product_of(got, n, d_kind), want), (kinds, swizzles, turned)


@pytest.mark.parametrize("swizzles", [(0, 0), (1, 1), (2, 2), (3, 3), (1, 3), (0, 2)])
def test_rows_of_every_width(swizzles: tuple[int, int]) -> None:
    run(64, ("f32", "f16", "f16"), swizzles)


@pytest.mark.parametrize("turned", [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_columns_of_every_width(turned: tuple[int, int], swizzle: int) -> None:
    run(128 if turned[1] else 64, ("f32", "bf16", "bf16"), (swizzle, swizzle), turned)


ELEMENTS = [
    ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"), *((d, a, b) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
]  # fmt: skip


@pytest.mark.parametrize("kinds", ELEMENTS)
def test_elements_of_every_kind(kinds: tuple[str, str, str]) -> None:
    run(24, kinds)


@pytest.mark.parametrize("n", [pytest.param(n, marks=[] if n in (8, 176, 256) else [pytest.mark.wide]) for n in range(8, 257, 8)])
def test_products_of_every_size(n: int) -> None:
    run(n, ("f32", "f16", "f16"), (1, 3))


def test_signs_and_products_that_begin_anew() -> None:
    for signs in ("-1, 1", "1, -1", "-1, -1"):
        run(16, ("f32", "f16", "f16"), signs=signs)
        run(16, ("f32", "tf32", "tf32"), signs=signs)
        run(16, ("f32", "e4m3", "e5m2"), signs=signs, keep=0)
    run(32, ("s32", "u8", "s8"), keep=0)


def test_the_left_factor_in_registers() -> None:
    """Of each warp's lanes, as mma has it; the right factor is a column-major one."""
    a, b = KINDS["f16"].draw((64, 16)), KINDS["f16"].draw((40, 16))
    right, db = placed(b, 2, True, 8192)
    lane, warp = np.arange(128) % 32, np.arange(128) // 32
    fragments = np.zeros((4, 128, 2), np.uint16)
    for i in range(4):
        for j in range(2):
            fragments[i, :, j] = a[warp * 16 + lane // 4 + i % 2 * 8, lane % 4 * 2 + j + i // 2 * 8]
    own = "mad.wide.u32 %q6, %r0, 4, %q2;"
    source = text(40, 16, ("f32", "f16", "f16"), True, ", 1, 1, 1").replace("mad.wide.u32 %q4", f"{own} mad.wide.u32 %q4", 1)
    d = np.zeros((128, 20), np.uint32)
    Kernels(source).launch("k", 1, 128, right, right, fragments, db, d, 1)
    assert np.array_equal(product_of(d, 40, "f32"), KINDS["f16"].value(a) @ KINDS["f16"].value(b).T)


@pytest.mark.parametrize(("kind", "sums", "swizzle", "selectors"), [("f16", "f32", 1, 2), ("bf16", "f32", 2, 2), ("f16", "f16", 0, 2), ("tf32", "f32", 2, 2),
                                                                   ("s8", "s32", 1, 1), ("u8", "s32", 0, 1), ("e4m3", "f32", 2, 1), ("e5m2", "f16", 1, 1)])  # fmt: skip
def test_a_sparse_left_factor(kind: str, sums: str, swizzle: int, selectors: int) -> None:
    """Each warp has the metadata of its 16 rows, as mma.sp has."""
    bits = KINDS[kind].bits
    k, n = 512 // bits, 32
    for selector in range(selectors):
        kept, b = KINDS[kind].draw((64, k // 2)), KINDS[kind].draw((n, k))
        places, nibbles = thinned(64, k, bits)
        words = np.concatenate([metadata(nibbles[16 * w : 16 * w + 16], bits, selector) for w in range(4)])
        (left, da), (right, db) = placed(kept, swizzle, False, 0), placed(b, swizzle, False, 8192)
        more = {16: ", 1, 1, 0, 0", 32: ", 1, 1"}.get(bits, ", 1, 1" if sums != "s32" else "")
        d = np.zeros((128, n // 2), {"f32": np.float32, "s32": np.int32, "f16": np.float16}[sums])
        source = text(n, k, (sums, kind, kind), False, more, selector)
        Kernels(source).launch("k", 1, 128, np.concatenate([left, words.view(np.uint8)]), right, da, db, d, 0)
        dense = np.zeros((64, k), np.float32 if sums != "s32" else np.int64)
        columns = (np.arange(places.shape[1])[None, :, None] * (k // places.shape[1]) + places).reshape(64, -1)
        np.put_along_axis(dense, columns, KINDS[kind].value(kept).astype(dense.dtype), 1)
        want = dense @ KINDS[kind].value(b).astype(dense.dtype).T
        assert np.array_equal(product_of(d, n, sums), want.astype(np.float16).astype(np.float32) if sums == "f16" else want), selector


def test_single_bits_and_saturation() -> None:
    a, b = rng.integers(0, 256, (64, 32)).astype(np.uint8), rng.integers(0, 256, (16, 32)).astype(np.uint8)
    (left, da), (right, db) = placed(a, 1, False, 0), placed(b, 1, False, 8192)
    d = np.zeros((128, 8), np.uint32)
    Kernels(text(16, 256, ("s32", "b1", "b1"), False, "")).launch("k", 1, 128, left, right, da, db, d, 1)
    assert np.array_equal(product_of(d, 16, "s32"), np.unpackbits(a, axis=1).astype(np.int64) @ np.unpackbits(b, axis=1).T.astype(np.int64))
    ones = np.full((64, 32), 127, np.uint8)
    (left, da), (right, db) = placed(ones, 1, False, 0), placed(ones[:16], 1, False, 8192)
    for more, want in (("satfinite", 2**31 - 1), ("", 2**31 - 1000 + 32 * 127 * 127 - 2**32)):
        d = np.full((128, 8), 2**31 - 1000, np.uint32)
        Kernels(text(16, 32, ("s32", "s8", "s8"), False, more)).launch("k", 1, 128, left, right, da, db, d, 1)
        assert (product_of(d, 16, "s32") == want).all()


def test_a_pattern_that_begins_within_eight_rows() -> None:
    """The base offset says at which of the eight rows of a swizzle's pattern the matrix begins."""
    b = KINDS["f16"].draw((64, 16))
    a = KINDS["f16"].draw((64, 16))
    left, da = placed(a, 1, False, 0)
    right, db = placed(b, 1, False, 8192)
    shifted = np.zeros_like(right)
    moved = right.reshape(-1, 128)[:60].copy()
    shifted.reshape(-1, 128)[4 : 4 + len(moved)] = moved  # everything 4 rows later, swizzled as it was
    d = np.zeros((128, 16), np.uint32)
    Kernels(text(32, 16, ("f32", "f16", "f16"), False, ", 1, 1, 0, 0")).launch("k", 1, 128, left, shifted, da, db + (512 >> 4) | 4 << 49, d, 1)
    assert np.array_equal(product_of(d, 32, "f32"), KINDS["f16"].value(a) @ KINDS["f16"].value(b[:32]).T)


def test_nobody_goes_on_while_others_read() -> None:
    """One warp overwrites the factors as soon as its own wait is over: the products of all four are those of before."""
    a, b = KINDS["f16"].draw((64, 16)), KINDS["f16"].draw((64, 16))
    (left, da), (right, db) = placed(a, 1, False, 0), placed(b, 1, False, 8192)
    over = """setp.lt.u32 %p2, %r0, 96; @%p2 bra KEPT; mov.u32 %r6, sm; sub.u32 %r7, %r0, 96; mad.lo.u32 %r6, %r7, 512, %r6; mov.u32 %r7, 0;
    CLEAR: st.shared.u32 [%r6], 0x7c007c00; add.u32 %r6, %r6, 4; add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 128; @%p3 bra CLEAR; KEPT:"""
    source = text(64, 16, ("f32", "f16", "f16"), False, ", 1, 1, 0, 0").replace("wait_group.sync.aligned 0;", f"wait_group.sync.aligned 0; {over}")
    d = np.zeros((128, 32), np.uint32)
    Kernels(source).launch("k", 1, 128, left, right, da, db, d, 1)
    assert np.array_equal(product_of(d, 64, "f32"), KINDS["f16"].value(a) @ KINDS["f16"].value(b).T)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "m64n16k32"),
        (".f32.f16.f16", ".f32.f16.bf16"),
        ("1, 1, 0, 0;", "1, 1, 0;"),
        ("1, 1, 0, 0;", "2, 1, 0, 0;"),
        ("%d6, %d7", "%d6"),
        ("m64n16k16", "m64n20k16"),
    ],
)
def test_what_is_no_product(old: str, new: str) -> None:
    source = text(16, 16, ("f32", "f16", "f16"), False, ", 1, 1, 0, 0")
    assert old in source
    with pytest.raises(Exception, match="wgmma"):
        Kernels(source.replace(old, new)).get("k", (128, 1, 1))


def test_a_group_that_is_not_whole() -> None:
    source = text(16, 16, ("f32", "f16", "f16"), False, ", 1, 1, 0, 0")
    with pytest.raises(LaunchError, match="nobody else will reach"):
        Kernels(source).launch("k", 1, 96, aligned(np.zeros(8192, np.uint8)), np.zeros(8192, np.uint8), 0, 0, np.zeros((128, 8), np.uint32), 1)


_SIZES = [text(n, 16, ("f32", "f16", "f16"), False, ", 1, 1, 0, 0") for n in range(8, 257, 8)]
_ELEMENTS = [text(24, 256 // KINDS[a].bits, (d, a, b), False, ", 1, 1") for d, a, b in ELEMENTS]
_SPARSE = [text(8, k, ("f32", kind, kind), False, more, 0) for k, kind, more in ((32, "f16", ", 1, 1, 0, 0"), (64, "e4m3", ", 1, 1"))]
TEXTS = [*_SIZES, *_SPARSE, *_ELEMENTS, text(16, 256, ("s32", "b1", "b1"), False, ""), text(16, 32, ("s32", "s8", "s8"), False, "satfinite")]
