"""tcgen05: tensor memory and who has it, registers and shared memory to and from it, products of every kind of elements, shape and layout, pairs of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError
from soft.matrices import KINDS, Kind, eights, of_codes, rng, thinned
from soft.test_wgmma import placed

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
ROOM = 32768  # bytes of each factor in shared memory
SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # registers of .x1
TIMES = (1, 2, 4, 8, 16, 32, 64, 128)


def kernel(work: str, pair: bool = False, more: str = "") -> Kernels:
    """A kernel of 128 threads: fills shared memory (2 * ROOM bytes) and all of tensor memory from what it is given, works, and says what tensor memory
    holds then. With `pair` a cluster of two blocks, which are given one after the other."""
    group = f"cta_group::{1 + pair}"
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if pair else "bar.sync 0;"
    eight = ", ".join(f"%v{i}" for i in range(8))
    return Kernels(f"""{HEAD}.visible .entry k(.param .u64 image, .param .u64 before, .param .u64 after, .param .u64 a, .param .u64 b, .param .u32 i, .param .u32 keep) {{
    .reg .pred %p<8>; .reg .b32 %r<40>; .reg .b64 %q<20>; .reg .b32 %v<8>; .shared .align 1024 .b8 sm[{2 * ROOM}]; .shared .align 8 .b64 bar; .shared .b32 at; {more}
    ld.param.u64 %q0, [image]; ld.param.u64 %q1, [before]; ld.param.u64 %q2, [after]; ld.param.u64 %q3, [a]; ld.param.u64 %q4, [b]; ld.param.u32 %r10, [i];
    ld.param.u32 %r11, [keep]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r2, 0;
    mul.wide.u32 %q5, %r1, {2 * ROOM}; add.u64 %q0, %q0, %q5; mad.lo.u32 %r3, %r1, 128, %r0; mul.wide.u32 %q5, %r3, 2048; add.u64 %q1, %q1, %q5; add.u64 %q2, %q2, %q5;
    shl.b32 %r4, %r0, 2; cvt.u64.u32 %q5, %r4; add.u64 %q0, %q0, %q5; mov.u32 %r5, sm; add.u32 %r4, %r4, %r5; mov.u32 %r6, 0;
    FILL: ld.global.u32 %r7, [%q0]; st.shared.u32 [%r4], %r7; add.u64 %q0, %q0, 512; add.u32 %r4, %r4, 512; add.u32 %r6, %r6, 512; setp.lt.u32 %p2, %r6, {2 * ROOM}; @%p2 bra FILL;
    @%p0 mbarrier.init.shared.b64 [bar], 1;
    @!%p1 bra TAKEN; tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [at], 512; tcgen05.relinquish_alloc_permit.{group}.sync.aligned; TAKEN: {meet}
    ld.shared.u32 %r8, [at]; shl.b32 %r9, %r2, 21; add.u32 %r8, %r8, %r9; mov.u32 %r6, 0;
    WRITE: ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%q1]; ld.global.v4.b32 {{%v4, %v5, %v6, %v7}}, [%q1+16]; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8], {{{eight}}};
    add.u64 %q1, %q1, 32; add.u32 %r8, %r8, 8; add.u32 %r6, %r6, 8; setp.lt.u32 %p2, %r6, 512; @%p2 bra WRITE; tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;
    {meet} tcgen05.fence::after_thread_sync; setp.ne.u32 %p3, %r11, 0; setp.eq.and.u32 %p4, %r1, 0, %p0; ld.shared.u32 %r12, [at]; {work} {meet}
    ld.shared.u32 %r8, [at]; add.u32 %r8, %r8, %r9; mov.u32 %r6, 0;
    READ: tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{eight}}}, [%r8]; tcgen05.wait::ld.sync.aligned; st.global.v4.b32 [%q2], {{%v0, %v1, %v2, %v3}}; st.global.v4.b32 [%q2+16], {{%v4, %v5, %v6, %v7}};
    add.u64 %q2, %q2, 32; add.u32 %r8, %r8, 8; add.u32 %r6, %r6, 8; setp.lt.u32 %p2, %r6, 512; @%p2 bra READ;
    {meet} ld.shared.u32 %r8, [at]; @!%p1 bra GIVEN; tcgen05.dealloc.{group}.sync.aligned.b32 %r8, 512; GIVEN: ret; }}""")


def launched(work: str, image: Any, before: Any, a: int = 0, b: int = 0, i: int = 0, keep: int = 1, pair: bool = False, more: str = "") -> Any:
    """What tensor memory holds afterwards: [block * 128 + lane, column]."""
    after = np.zeros_like(before)
    kernel(work, pair, more).launch("k", 1 + pair, 128, image, before, after, a, b, i, keep, cluster=(1 + pair, 1, 1))
    return after


def cells(blocks: int = 1) -> Any:
    return rng.integers(0, 1 << 32, (128 * blocks, 512), np.uint32)


NO_IMAGE = np.zeros(2 * ROOM, np.uint8)


# ---- registers --------------------------------------------------------------------------------------------------------------------------------


def place(shape: str, thread: int, register: int, half: int) -> tuple[int, int]:
    """The lane and the column of a thread's register, from the warp's first."""
    g, t = divmod(thread, 4)
    match shape:
        case "16x64b":  # threads 4g and 4g + 2 have row g, 4g + 1 and 4g + 3 row g + 8
            return g + 8 * (t & 1), 2 * register + (t >> 1)
        case "16x128b":
            return g + 8 * (register & 1), 4 * (register >> 1) + t
        case "16x256b":  # as an mma's accumulators
            return g + 8 * (register >> 1 & 1), 8 * (register >> 2) + 2 * t + (register & 1)
        case "16x32bx2":
            return thread & 15, register + half * (thread >> 4)
        case _:
            return thread, register


FORMS = [(shape, times) for shape, each in SHAPES.items() for times in TIMES if times * each <= 128]


@pytest.mark.parametrize(("shape", "times"), FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_registers(shape: str, times: int, packed: bool) -> None:
    """What each warp loads it stores elsewhere, turned by one register: its lanes are the 32 of its number."""
    count = SHAPES[shape] * times
    wide = {"16x64b": 2, "16x128b": 2, "16x256b": 2}.get(shape, 1) * count * (1 + packed)
    half = wide if shape == "16x32bx2" else 0
    if max(wide, 2 * half) > 256:
        return  # not twice beside each other
    names = [f"%d{i}" for i in range(count)]
    turned = names[1:] + names[:1]
    comma = f", {half}" if half else ""
    work = f"""add.u32 %r12, %r12, %r9; tcgen05.ld.sync.aligned.{shape}.x{times}{".pack::16b" if packed else ""}.b32 {{{", ".join(names)}}}, [%r12]{comma};
    tcgen05.wait::ld.sync.aligned; tcgen05.st.sync.aligned.{shape}.x{times}{".unpack::16b" if packed else ""}.b32 [%r12+256]{comma}, {{{", ".join(turned)}}}; tcgen05.wait::st.sync.aligned;"""
    before = cells()
    after = launched(work, NO_IMAGE, before, more=f".reg .b32 %d<{count}>;")
    want = before.copy()
    for warp in range(4):
        for thread in range(32):
            at = [place(shape, thread, r, half >> packed) for r in range(count)]
            for (lane, column), (to, to_column) in zip(at[1:] + at[:1], at, strict=True):
                if packed:
                    want[32 * warp + to, 256 + 2 * to_column] = before[32 * warp + lane, 2 * column] & 0xFFFF
                    want[32 * warp + to, 257 + 2 * to_column] = before[32 * warp + lane, 2 * column + 1] & 0xFFFF
                else:
                    want[32 * warp + to, 256 + to_column] = before[32 * warp + lane, column]
    assert np.array_equal(after, want)


# ---- shared memory ----------------------------------------------------------------------------------------------------------------------------

COPIES = {
    "128x256b": (128, 2, lambda r: [r]), "4x256b": (4, 2, lambda r: [32 * r]), "128x128b": (128, 1, lambda r: [r]),
    "64x128b.warpx2::02_13": (64, 1, lambda r: [r, r + 64]), "64x128b.warpx2::01_23": (64, 1, lambda r: [r + r // 32 * 32, r + r // 32 * 32 + 32]),
    "32x128b.warpx4": (32, 1, lambda r: [r, r + 32, r + 64, r + 96]),
}  # fmt: skip
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [bar], 0; @!%p5 bra WAIT;"


@pytest.mark.parametrize("shape", COPIES)
@pytest.mark.parametrize("swizzle", [0, 1])
def test_copies(shape: str, swizzle: int) -> None:
    rows, pieces, lanes = COPIES[shape]
    matrix = rng.integers(0, 256, (max(rows, 8), 32), np.uint8)
    image, descriptor = placed(matrix, swizzle, False, 0, 2 * ROOM)
    before = cells()
    after = launched(f"@!%p0 bra DONE; tcgen05.cp.cta_group::1.{shape} [%r12+40], %q3; {COMMIT} DONE: {WAIT}", image, before, descriptor)
    for row in range(rows):
        for lane in lanes(row):
            before[lane, 40 : 40 + 4 * pieces] = matrix[row, : 16 * pieces].view(np.uint32)
    assert np.array_equal(after, before)


# ---- products ---------------------------------------------------------------------------------------------------------------------------------


def small(exponent: int, fraction: int, bias: int) -> Any:
    """The values of all codes of a format of 6 or 4 bits."""
    codes = np.arange(1 << (1 + exponent + fraction))
    e, f = codes >> fraction & ((1 << exponent) - 1), codes & ((1 << fraction) - 1)
    size = np.where(e == 0, f * 2.0 ** (1 - bias - fraction), (1 + f / (1 << fraction)) * 2.0 ** (e - bias))
    return np.where(codes >> (exponent + fraction), -size, size).astype(np.float32)


ALL = dict(KINDS)
for _name, _table in (("e2m3", small(2, 3, 1)), ("e3m2", small(3, 2, 3)), ("e2m1", small(2, 1, 1))):
    ALL[_name] = Kind(4 if _name == "e2m1" else 6, *of_codes(_table))
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "u8": 0, "s8": 1, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
WORDS = {"f16": "kind::f16", "bf16": "kind::f16", "tf32": "kind::tf32", "s8": "kind::i8", "u8": "kind::i8"}
SUMS = {"f16": 0, "f32": 1, "s32": 2}


def rows_of(kind: str, codes: Any, packed: bool = False) -> Any:
    """The bytes of rows: 16 elements of 6 or 4 bits begin every 16 bytes, or with `packed` two of 4 bits lie in each."""
    bits = ALL[kind].bits
    if packed:
        return codes[:, ::2] | codes[:, 1::2] << 4
    if bits >= 8:
        return codes.view(np.uint8).reshape(len(codes), -1)
    out = np.zeros(codes.shape, np.uint8)
    for start in range(0, codes.shape[1], 16):
        for row, part in enumerate(codes[:, start : start + 16]):
            number = sum(int(c) << bits * i for i, c in enumerate(part))
            out[row, start : start + 16] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
    return out


def lanes_of(paths: int, m: int, part: int) -> int:
    return m // 16 * 32 + m % 16 if paths == 0 else m + part * (128 // paths)


def commit(blocks: int) -> str:
    """What tells each block when the product is there."""
    several, ranks = (".multicast::cluster", ", %h0") if blocks == 2 else ("", "")
    return f"tcgen05.commit.cta_group::{blocks}.mbarrier::arrive::one.shared::cluster{several}.b64 [bar]{ranks};"


class Layout:
    """Where D's rows and columns lie. paths: into how many parts the columns are divided; 0: of 32 lanes 16 have rows."""

    def __init__(self, m: int, n: int, blocks: int = 1, stationary: bool = False, sparse: bool = False) -> None:
        self.rows, self.n, self.blocks = m // blocks, n, blocks
        if stationary:
            self.paths = {32: 4, 64: 2, 128: 1}[m]
        else:
            self.paths = 1 if self.rows == 128 else 0 if blocks == 1 or sparse else 2
        self.parts = max(1, self.paths)

    def cell(self, m: int, n: int) -> tuple[int, int]:
        """The row of the array of cells, and the column."""
        block, row = divmod(m, self.rows)
        part, column = divmod(n, self.n // self.parts)
        return 128 * block + lanes_of(self.paths, row, part), column

    def index(self) -> tuple[Any, Any]:
        where = [[self.cell(m, n) for n in range(self.n)] for m in range(self.rows * self.blocks)]
        return tuple(np.moveaxis(np.array(where), -1, 0))  # type: ignore[return-value]


def numbers(raw: Any, form: str) -> Any:
    if form == "f16":
        return (raw & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return raw.view(np.float32).astype(np.float64) if form == "f32" else raw.view(np.int32).astype(np.int64)


def raw(values: Any, form: str) -> Any:
    if form == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return values.astype(np.float32).view(np.uint32) if form == "f32" else values.astype(np.int64).astype(np.int32).view(np.uint32)


def run(
    m: int, n: int, kinds: tuple[str, str, str], *, swizzles: tuple[int, int] = (1, 1), turned: tuple[int, int] = (0, 0), blocks: int = 1, how: str = "",
    keep: int = 1, bits: int = 0, after: str = "", here: bool = False, want: Any = None, first: int = 4,
) -> None:  # fmt: skip
    """A product, beside the same in float64. here: A is in tensor memory, from column 300 on; how: .ws, collectors; bits: more of the instruction descriptor."""
    d_kind, a_kind, b_kind = kinds
    k = {32: 8, 16: 16}.get(ALL[a_kind].bits, 32)
    layout = Layout(m, n, blocks, ".ws" in how)
    a, b = ALL[a_kind].draw((m, k)), ALL[b_kind].draw((n, k))
    before, index = cells(blocks), layout.index()
    image = np.zeros((blocks, 2, ROOM), np.uint8)
    descriptors = [0, 0]
    for block in range(blocks):
        parts = [a[block * layout.rows :][: layout.rows], b[block * n // blocks :][: n // blocks]]
        for i, (kind, part) in enumerate(zip((a_kind, b_kind), parts, strict=True)):
            if not turned[i]:
                part = rows_of(kind, part)
            image[block, i], descriptors[i] = placed(part, swizzles[i], bool(turned[i]), i * ROOM, ROOM)
    left = "%q3"
    if here:
        left = "[%r12+300]"
        words = rows_of(a_kind, a).view(np.uint32)
        for part in range(layout.parts):
            for row in range(m):
                before[row // layout.rows * 128 + lanes_of(layout.paths, row % layout.rows, part), 300 : 300 + words.shape[1]] = words[row]
    sums = rng.integers(-first, first + 1, (m, n))
    before[index] = raw(sums, d_kind)
    instruction = SUMS[d_kind] << 4 | CODES[a_kind] << 7 | CODES[b_kind] << 10 | turned[0] << 15 | turned[1] << 16 | n // 8 << 17 | m // 16 << 24 | bits
    work = f"""mov.b16 %h0, 3; @!%p4 bra DONE; tcgen05.mma{how.split()[0] if how.startswith(".ws") else ""}.cta_group::{blocks}.{WORDS.get(a_kind, "kind::f8f6f4")}{how.removeprefix(".ws").strip()}
    [%r12], {left}, %q4, %r10, {after.format("%p3") if after else "%p3"}; {commit(blocks)} DONE: {WAIT}"""
    got = launched(work, image, before, *descriptors, instruction, keep, blocks == 2, ".reg .b16 %h<1>;")
    product = ALL[a_kind].value(a).astype(np.float64) @ ALL[b_kind].value(b).astype(np.float64).T
    wanted = (want or (lambda product, sums: product + sums))(product, sums if keep else 0 * sums)
    cells_wanted = before.copy()
    cells_wanted[index] = raw(wanted, d_kind)
    assert np.array_equal(numbers(got[index], d_kind), numbers(cells_wanted[index], d_kind)), (m, n, kinds)
    assert np.array_equal(got, cells_wanted), "cells that are none of D's"


FLOATS8 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
ELEMENTS = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "f16", "bf16"), ("f32", "tf32", "tf32"), *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
    *(("f32", a, b) for a in FLOATS8 for b in FLOATS8), ("f16", "e4m3", "e5m2"),
]  # fmt: skip


@pytest.mark.parametrize("kinds", ELEMENTS)
def test_elements_of_every_kind(kinds: tuple[str, str, str]) -> None:
    run(128, 32, kinds)


SHAPES_OF_D = [
    (128, 256, 1, ""), (128, 16, 1, ""), (64, 8, 1, ""), (64, 200, 1, ""), (128, 64, 1, ".ws"), (64, 128, 1, ".ws"), (32, 64, 1, ".ws"), (32, 256, 1, ".ws"),
    (256, 64, 2, ""), (256, 256, 2, ""), (128, 64, 2, ""), (128, 256, 2, ""),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "blocks", "how"), SHAPES_OF_D)
def test_shapes(m: int, n: int, blocks: int, how: str) -> None:
    run(m, n, ("f32", "bf16", "bf16"), blocks=blocks, how=how)


@pytest.mark.parametrize(("m", "n", "blocks", "how"), [(128, 32, 1, ""), (64, 24, 1, ""), (64, 64, 1, ".ws"), (32, 64, 1, ".ws"), (256, 32, 2, ""), (128, 64, 2, "")])
@pytest.mark.parametrize("kind", ["f16", "tf32", "e5m2", "s8"])
def test_left_factor_in_tensor_memory(m: int, n: int, blocks: int, how: str, kind: str) -> None:
    run(m, n, ("s32" if kind == "s8" else "f32", kind, kind), blocks=blocks, how=how, here=True)


@pytest.mark.parametrize("turned", [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["f16", "e4m3", "s8", "tf32"])
def test_columns_of_every_width(turned: tuple[int, int], swizzle: int, kind: str) -> None:
    run(128, 64, ("s32" if kind == "s8" else "f32", kind, kind), swizzles=(swizzle, swizzle), turned=turned)


@pytest.mark.parametrize("swizzles", [(0, 0), (1, 2), (2, 3), (3, 1), (0, 1)])
def test_rows_of_every_width(swizzles: tuple[int, int]) -> None:
    run(64, 64, ("f32", "f16", "f16"), swizzles=swizzles)


def test_what_the_descriptor_says_more() -> None:
    run(128, 16, ("f32", "f16", "f16"), bits=1 << 13, want=lambda product, sums: sums - product)
    run(128, 16, ("f32", "e4m3", "e4m3"), bits=1 << 14, want=lambda product, sums: sums - product)
    run(128, 16, ("f32", "bf16", "bf16"), bits=3 << 13)
    run(128, 16, ("f32", "bf16", "bf16"), keep=0)
    run(128, 16, ("f32", "f16", "f16"), after="{}, 3", want=lambda product, sums: product + sums / 8)
    run(128, 16, ("s32", "s8", "s8"), bits=1 << 3, first=2**31 - 1, want=lambda product, sums: np.clip(product + sums, -(2**31), 2**31 - 1))
    run(128, 16, ("s32", "s8", "u8"), first=2**31 - 1)


@pytest.mark.parametrize("how", [f"{ws}.collector::{which}::{what}" for ws, some in (("", "a"), (".ws ", "b0 b1 b2 b3")) for which in some.split() for what in ("fill", "use", "lastuse", "discard")])
def test_collectors_change_nothing(how: str) -> None:
    run(128, 64, ("f32", "f16", "f16"), how=how)


@pytest.mark.parametrize("blocks", [1, 2])
def test_lanes_that_stay_as_they_are(blocks: int) -> None:
    """A bit of four words for each lane; with a pair of four more for the second block's."""
    words = [0x1, 0x80000000, 0, 0xFF, 0, 0x10, 0, 0xFFFFFFFF][: 4 * blocks]
    stays = [m for m in range(128 * blocks) if words[m // 32] >> m % 32 & 1]

    def want(product: Any, sums: Any) -> Any:
        product[stays] = 0
        return product + sums

    run(128 * blocks, 32, ("f32", "f16", "f16"), blocks=blocks, after=f"{{{{{', '.join(map(str, words))}}}}}, {{}}", want=want)


# ---- scales and sparse factors ----------------------------------------------------------------------------------------------------------------

E8M0 = (lambda s: rng.integers(124, 131, s).astype(np.uint8), lambda c: 2.0 ** (c.astype(np.float64) - 127))
E4M3 = (lambda s: rng.choice(np.flatnonzero((eights(3, 7)[:128] >= 0.25) & (eights(3, 7)[:128] <= 4)), s).astype(np.uint8), lambda c: eights(3, 7)[c].astype(np.float64))
SCALED = [
    ("kind::mxf8f6f4", "", 1, E8M0, ("e4m3", "e2m1")), ("kind::mxf8f6f4", ".scale_vec::1X", 1, E8M0, ("e3m2", "e5m2")), ("kind::mxf4", ".block32", 2, E8M0, ("e2m1", "e2m1")),
    ("kind::mxf4", ".scale_vec::2X", 2, E8M0, ("e2m1", "e2m1")), ("kind::mxf4nvf4", ".scale_vec::2X", 2, E8M0, ("e2m1", "e2m1")),
    ("kind::mxf4nvf4", ".scale_vec::4X", 4, E4M3, ("e2m1", "e2m1")), ("kind::mxf4nvf4", ".block16", 4, E4M3, ("e2m1", "e2m1")),
]  # fmt: skip


@pytest.mark.parametrize("kinds", SCALED)
@pytest.mark.parametrize(("m", "n", "blocks"), [(128, 96, 1), (256, 64, 2), (128, 128, 2)])
def test_scales(kinds: tuple[str, str, int, Any, tuple[str, str]], m: int, n: int, blocks: int) -> None:
    """Scales lie in columns 400 and on (A) and 440 and on (B), 32 rows in each, in all groups of 32 lanes; where columns of D are divided, B's are too."""
    word, vector, count, (draw, value), (a_kind, b_kind) = kinds
    packed = word != "kind::mxf8f6f4"
    k = 64 if packed else 32
    layout = Layout(m, n, blocks)
    a, b = ALL[a_kind].draw((m, k)), ALL[b_kind].draw((n, k))
    of_a, of_b = draw((m, count)), draw((n, count))
    byte = {1: 3, 2: 2, 4: 0}[count]
    before, index, image, descriptors = cells(blocks), layout.index(), np.zeros((blocks, 2, ROOM), np.uint8), [0, 0]
    for block in range(blocks):
        parts = [a[block * layout.rows :][: layout.rows], b[block * n // blocks :][: n // blocks]]
        for i, (kind, part) in enumerate(zip((a_kind, b_kind), parts, strict=True)):
            image[block, i], descriptors[i] = placed(rows_of(kind, part, packed), 1, False, i * ROOM, ROOM)
        view = before[128 * block : 128 * block + 128].view(np.uint8).reshape(128, 512, 4)
        for group in range(4):
            for row in range(layout.rows):
                view[32 * group + row % 32, 400 + row // 32, byte : byte + count] = of_a[block * layout.rows + row]
            part = group * layout.parts // 4
            for i in range(n // layout.parts):
                view[32 * group + i % 32, 440 + i // 32, byte : byte + count] = of_b[part * n // layout.parts + i]
    sums = rng.integers(-4, 5, (m, n))
    before[index] = raw(sums, "f32")
    codes = [1, 1] if packed else [CODES[a_kind], CODES[b_kind]]
    instruction = byte << 4 | codes[0] << 7 | codes[1] << 10 | n // 8 << 17 | (draw is E8M0[0]) << 23 | m // 16 << 24 | byte << 29
    work = f"mov.b16 %h0, 3; @!%p4 bra DONE; tcgen05.mma.cta_group::{blocks}.{word}.block_scale{vector} [%r12], %q3, %q4, %r10, [%r12+400], [%r12+440], %p3; {commit(blocks)} DONE: {WAIT}"
    got = launched(work, image, before, *descriptors, instruction, 1, blocks == 2, ".reg .b16 %h<1>;")
    scaled = [(ALL[kind].value(x).astype(np.float64).reshape(len(x), count, -1) * value(s)[..., None]).reshape(len(x), k) for kind, x, s in ((a_kind, a, of_a), (b_kind, b, of_b))]
    assert np.allclose(numbers(got[index], "f32"), scaled[0] @ scaled[1].T + sums, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("kinds", [("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("s32", "s8", "u8"), ("f32", "e5m2", "e4m3"), ("f32", "e2m1", "e2m1")])
@pytest.mark.parametrize(("m", "n", "blocks", "how"), [(128, 32, 1, ""), (256, 32, 2, ""), (64, 64, 1, ".ws"), (32, 64, 1, ".ws")])
def test_sparse_left_factor(kinds: tuple[str, str, str], m: int, n: int, blocks: int, how: str) -> None:
    """Half of each chunk is there; which half, columns 300 and on of tensor memory say: of 16 bits and more, eight lanes have the chunks of the first half of a
    row's columns, and of another eight rows, the next eight those of the second half; else each row's lane all, in two columns. Of 4 bits, two of which lie
    in a byte, products have scales, here one."""
    d_kind, a_kind, b_kind = kinds
    bits = ALL[a_kind].bits
    packed = bits == 4
    if packed and how:
        return  # none with scales
    selector = int(bits >= 16 and n == 64)  # which of two columns
    k = 2 * {32: 8, 16: 16, 4: 64}.get(bits, 32)
    layout = Layout(m, n, blocks, ".ws" in how, True)
    chosen, nibbles = thinned(m, k, bits)
    width = {32: 2, 4: 8}.get(bits, 4)
    places = (np.arange(chosen.shape[1])[None, :, None] * width + chosen).reshape(m, k // 2)
    a, b = ALL[a_kind].draw((m, k // 2)), ALL[b_kind].draw((n, k))
    before, index, image, descriptors = cells(blocks), layout.index(), np.zeros((blocks, 2, ROOM), np.uint8), [0, 0]
    for block in range(blocks):
        parts = [a[block * layout.rows :][: layout.rows], b[block * n // blocks :][: n // blocks]]
        for i, (kind, part) in enumerate(zip((a_kind, b_kind), parts, strict=True)):
            image[block, i], descriptors[i] = placed(rows_of(kind, part, packed), 1, False, i * ROOM, ROOM)
        if packed:
            before[128 * block : 128 * block + 128, 400:448] = 0x7F7F7F7F
        for part in range(layout.parts):
            lanes = 128 * block + part * (128 // layout.parts) * (layout.parts > 1)
            for row in range(layout.rows):
                word = sum(int(x) << 4 * i for i, x in enumerate(nibbles[block * layout.rows + row]))
                if bits < 16:
                    before[lanes + row, 300:302] = word & 0xFFFFFFFF, word >> 32
                    continue
                for half in range(2):
                    cell = before[lanes + row // 16 * 16 + 8 * half + row % 8]
                    shift = 16 * (row // 8 % 2)
                    cell[300 + selector] = int(cell[300 + selector]) & ~(0xFFFF << shift) & 0xFFFFFFFF | (word >> 16 * half & 0xFFFF) << shift
    sums = rng.integers(-4, 5, (m, n))
    before[index] = raw(sums, d_kind)
    codes = 1 << 7 | 1 << 10 | 1 << 23 if packed else SUMS[d_kind] << 4 | CODES[a_kind] << 7 | CODES[b_kind] << 10
    instruction = selector | 1 << 2 | codes | n // 8 << 17 | m // 16 << 24
    work = f"""mov.b16 %h0, 3; @!%p4 bra DONE; tcgen05.mma{how}.sp.cta_group::{blocks}.{WORDS.get(a_kind, 'kind::mxf4.block_scale' if packed else 'kind::f8f6f4')}
    [%r12], %q3, %q4, [%r12+300], %r10, {'[%r12+400], [%r12+440], ' if packed else ''}%p3; {commit(blocks)} DONE: {WAIT}"""
    got = launched(work, image, before, *descriptors, instruction, 1, blocks == 2, ".reg .b16 %h<1>;")
    dense = np.zeros((m, k))
    np.put_along_axis(dense, places, ALL[a_kind].value(a).astype(np.float64), 1)
    assert np.array_equal(numbers(got[index], d_kind), dense @ ALL[b_kind].value(b).astype(np.float64).T + sums)


# ---- who has it -------------------------------------------------------------------------------------------------------------------------------


_MORE = ["relinquish_alloc_permit.cta_group::1"] + [f"cp.cta_group::1.{shape}" for shape in COPIES] + [f"{op}.sync.aligned.{shape}.x{times}{more}" for op, more in (("ld", ".pack::16b"), ("st", ".unpack::16b")) for shape, times in FORMS]
_MORE += [f"mma.cta_group::2.{word}.block_scale{vector}" for word, vector, *_ in SCALED] + [f"mma.sp.cta_group::1.{word}" for word in WORDS.values()]
_MORE += [f"mma.ws.cta_group::1.kind::f8f6f4.collector::{which}::{what}" for which in ("a", "b0", "b1", "b2", "b3") for what in ("fill", "use", "lastuse", "discard")]
TEXTS = [f"tcgen05.{form} x;" for form in _MORE] + ["tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [bar], %h0;"]


def fails(text: str, match: str, threads: int = 32) -> None:
    made = Kernels(f"{HEAD}.visible .entry k(.param .u64 o) {{ .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %q<4>; .shared .b32 at; {text} ret; }}")
    with pytest.raises(LaunchError, match=match):
        made.launch("k", 1, threads, np.zeros(4, np.uint32))


TAKE = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], {}; ld.shared.u32 %r1, [at];"


def test_mistakes_are_named() -> None:
    fails(TAKE.format(33), "tcgen05.alloc of 33 columns")
    fails("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; " + TAKE.format(32), "after tcgen05.relinquish_alloc_permit")
    fails("mov.u32 %r1, 0; tcgen05.ld.sync.aligned.32x32b.x1.b32 %r2, [%r1];", "column 0 of tensor memory is not allocated")
    fails(TAKE.format(64) + "tcgen05.ld.sync.aligned.32x32b.x1.b32 %r2, [%r1+64];", "column 64 of tensor memory is not allocated")
    fails(TAKE.format(512) + "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r2, %r3}, [%r1+511];", "no column 512")
    fails(TAKE.format(32) + "add.u32 %r1, %r1, 0x700000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], %r2;", "no lane 143")
    fails(TAKE.format(32) + "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 64;", "column 32 of tensor memory is not allocated")
    product = "mov.u64 %q0, 0; setp.eq.u32 %p0, 0, 0; mov.u32 %r2, {}; elect.sync _|%p1, -1; @%p1 tcgen05.mma.cta_group::{}.kind::f16 [%r1], %q0, %q0, %r2, %p0;"
    fails(TAKE.format(32) + product.format(48 // 16 << 24 | 1 << 17, 1), "a shape that it does not have")
    fails(TAKE.format(32) + product.format(128 // 16 << 24 | 2 << 17 | 2 << 7, 1), "formats that the kind does not have")
    fails(TAKE.format(32) + product.format(128 // 16 << 24 | 4 << 17 | 1 << 2, 1), "disagrees about the sparse factor")
    fails(TAKE.format(32) + product.format(256 // 16 << 24 | 4 << 17, 2), "a pair of which there is one block")
    fails(TAKE.format(32) + product.format(128 // 16 << 24 | 8 << 17, 1), "column 32 of tensor memory is not allocated")
    sparse = product.replace("mma.cta", "mma.sp.cta").replace("%q0, %r2", "%q0, [%r1+40000], %r2")
    fails(TAKE.format(32) + sparse.format(128 // 16 << 24 | 4 << 17 | 1 << 2, 1), "no column 40001")


def test_who_finds_none_waits() -> None:
    """Two warps take 256 columns each, two wait for theirs; they get others' only when those are given back."""
    text = """mov.u32 %r0, %tid.x; shr.u32 %r2, %r0, 5; mul.wide.u32 %q1, %r2, 16; mov.u64 %q2, at; add.u64 %q1, %q1, %q2; cvt.u32.u64 %r3, %q1; mov.u32 %r5, 0;
    AGAIN: tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 256; ld.shared.u32 %r1, [%r3]; shl.b32 %r4, %r2, 21; add.u32 %r4, %r4, %r1;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4+7], %r0; nanosleep.u32 1000; tcgen05.ld.sync.aligned.32x32b.x1.b32 %r6, [%r4+7];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 256; setp.ne.u32 %p0, %r6, %r0; @%p0 trap; add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 20; @%p0 bra AGAIN;
    ld.param.u64 %q0, [o]; mul.wide.u32 %q1, %r0, 4; add.u64 %q0, %q0, %q1; st.global.u32 [%q0], %r5;"""
    o = np.zeros(128, np.uint32)
    Kernels(f"{HEAD}.visible .entry k(.param .u64 o) {{ .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %q<4>; .shared .align 16 .b8 at[64]; {text} ret; }}").launch("k", 1, 128, o)
    assert o.tolist() == [20] * 128


def test_nobody_misses_a_phase() -> None:
    """A warp starts what completes a barrier, and waits for it, three times; the others only wait. They come as long as an operation takes on a GPU."""
    text = """mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [bar], 1; bar.sync 0; mov.u32 %r1, 0;
    AGAIN: @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar]; and.b32 %r2, %r1, 1;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [bar], %r2; @!%p1 bra WAIT; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3; @%p1 bra AGAIN;
    ld.param.u64 %q0, [o]; mul.wide.u32 %q1, %r0, 4; add.u64 %q0, %q0, %q1; st.global.u32 [%q0], %r1;"""
    o = np.zeros(256, np.uint32)
    Kernels(f"{HEAD}.visible .entry k(.param .u64 o) {{ .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %q<4>; .shared .align 8 .b64 bar; {text} ret; }}").launch("k", 1, 256, o)
    assert o.tolist() == [3] * 256
