"""Asynchronous copies: mbarriers and their phases, bulk copies and reductions, boxes of tensors, tensor maps changed by the program."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError, engine

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"
REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %q<20>; .reg .b16 %h<9>; .shared .align 1024 .b8 sm[16384]; .shared .b64 bar[4];"
rng = np.random.default_rng(11)


def kernel(params: str, text: str) -> Kernels:
    names = [p.split()[-1] for p in params.split(",")]
    loads = " ".join(f"ld.param.u64 %q{i}, [{n}];" for i, n in enumerate(names) if f".u64 {n}" in params)
    return Kernels(f"{HEAD}.visible .entry k({params}) {{ {REGISTERS} mov.u32 %r0, %tid.x; mov.u32 %r1, sm; mov.u32 %r2, bar; {loads} {text} ret; }}")


def wait(parity: str, barrier: str = "[%r2]", form: str = "try_wait.parity.shared::cta", label: str = "W") -> str:
    return f"{label}: mbarrier.{form}.b64 %p8, {barrier}, {parity}; @!%p8 bra {label};"


def test_bulk_copies_fill_tiles_phase_after_phase() -> None:
    """One thread starts the copies, all threads wait for the bytes, four tiles through one barrier, and the results go back in bulk."""
    k = kernel(
        ".param .u64 x, .param .u64 y",
        f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
        READY: bar.sync 0; mov.u32 %r5, 0; shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r1;
        LOOP: @%p1 bra GO;
        mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 512;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%q0], 512, [%r2];
        GO: and.b32 %r7, %r5, 1; {wait("%r7")}
        ld.shared.u32 %r8, [%r6]; mad.lo.u32 %r8, %r8, 3, %r5; st.shared.u32 [%r6], %r8; fence.proxy.async.shared::cta; bar.sync 0;
        @%p1 bra NEXT; cp.async.bulk.global.shared::cta.bulk_group [%q1], [%r1], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
        NEXT: bar.sync 0; add.u64 %q0, %q0, 512; add.u64 %q1, %q1, 512; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 4; @%p2 bra LOOP;
        @!%p1 mbarrier.inval.shared.b64 [%r2];""",
    )
    x, y = aligned(rng.integers(0, 1 << 30, (4, 128), np.uint32)), aligned(np.zeros((4, 128), np.uint32))
    k.launch("k", 1, 128, x, y)
    assert np.array_equal(y, x * 3 + np.arange(4, dtype=np.uint32)[:, None])


def aligned(a: Any, to: int = 128) -> Any:
    """The array in memory that begins at a multiple of `to` bytes."""
    room = np.zeros(a.nbytes + to, np.uint8)
    start = -room.ctypes.data % to
    out = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def test_producer_and_consumer_warps() -> None:
    """Full and empty barriers: one warp fills two buffers in turn, the other three read them; arrivals are counted by thread."""
    k = kernel(
        ".param .u64 x, .param .u64 y",
        f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 32; mbarrier.init.shared.b64 [%r2+8], 32;
        mbarrier.init.shared.b64 [%r2+16], 96; mbarrier.init.shared.b64 [%r2+24], 96;
        READY: bar.sync 0; mov.u32 %r5, 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra CONSUME;
        PRODUCE: and.b32 %r6, %r5, 1; shl.b32 %r7, %r6, 3; add.u32 %r7, %r7, %r2; shr.u32 %r8, %r5, 1; and.b32 %r8, %r8, 1; xor.b32 %r9, %r8, 1;
        {wait("%r9", "[%r7+16]", label="E")}
        mul.wide.u32 %q3, %r0, 4; add.u64 %q3, %q3, %q0; mul.wide.u32 %q4, %r5, 128; add.u64 %q3, %q3, %q4; ld.global.u32 %r10, [%q3];
        shl.b32 %r11, %r6, 7; add.u32 %r11, %r11, %r1; shl.b32 %r12, %r0, 2; add.u32 %r11, %r11, %r12; st.shared.u32 [%r11], %r10;
        mbarrier.arrive.shared.b64 %q5, [%r7]; add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 10; @%p4 bra PRODUCE; bra DONE;
        CONSUME: mov.u32 %r20, 0;
        NEXT: and.b32 %r6, %r5, 1; shl.b32 %r7, %r6, 3; add.u32 %r7, %r7, %r2; shr.u32 %r8, %r5, 1; and.b32 %r8, %r8, 1;
        {wait("%r8", "[%r7]", "test_wait.parity.shared", "F")}
        and.b32 %r12, %r0, 31; shl.b32 %r12, %r12, 2; shl.b32 %r11, %r6, 7; add.u32 %r11, %r11, %r1; add.u32 %r11, %r11, %r12; ld.shared.u32 %r10, [%r11];
        mad.lo.u32 %r20, %r20, 5, %r10; mbarrier.arrive.shared.b64 _, [%r7+16];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 10; @%p4 bra NEXT;
        sub.u32 %r0, %r0, 32; mul.wide.u32 %q3, %r0, 4; add.u64 %q3, %q3, %q1; st.global.u32 [%q3], %r20; DONE:""",
    )
    x, y = rng.integers(0, 1000, (10, 32), np.uint32), np.zeros((3, 32), np.uint32)
    k.launch("k", 1, 128, x, y)
    want = np.zeros(32, np.uint32)
    for row in x:
        want = want * np.uint32(5) + row
    assert np.array_equal(y, np.broadcast_to(want, y.shape))


def test_lanes_of_one_warp_wait_for_each_other() -> None:
    """Half of a warp waits for the arrivals of the other half, which comes later in the code."""
    k = kernel(
        ".param .u64 y",
        f"""setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r2], 16; bar.warp.sync -1; setp.lt.u32 %p2, %r0, 16; @!%p2 bra OTHER;
        {wait("0", form="test_wait.parity.shared")} ld.shared.u32 %r9, [%r1]; bra END;
        OTHER: mov.u32 %r9, 7; st.shared.u32 [%r1], %r9; mbarrier.arrive.shared.b64 _, [%r2];
        END: mul.wide.u32 %q3, %r0, 4; add.u64 %q3, %q3, %q0; st.global.u32 [%q3], %r9;""",
    )
    y = np.zeros(32, np.uint32)
    k.launch("k", 1, 32, y)
    assert (y == 7).all()


def test_states_of_a_barrier() -> None:
    """Pending counts, dropped arrivals, bytes expected and completed by hand, and what test_wait says at each step."""
    k = kernel(
        ".param .u64 y",
        """setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mbarrier.init.shared.b64 [%r2], 5;
        mbarrier.arrive.shared.b64 %q1, [%r2]; mbarrier.arrive.shared.b64 %q2, [%r2], 2; mbarrier.pending_count.b64 %r5, %q1; mbarrier.pending_count.b64 %r6, %q2;
        st.global.v2.u32 [%q0], {%r5, %r6};
        mbarrier.test_wait.shared.b64 %p2, [%r2], %q1; selp.u32 %r5, 1, 0, %p2;
        mbarrier.arrive_drop.shared.b64 %q3, [%r2]; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 100; mbarrier.arrive.shared.b64 _, [%r2];
        mbarrier.test_wait.shared.b64 %p2, [%r2], %q1; selp.u32 %r6, 1, 0, %p2;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 100; mbarrier.test_wait.shared.b64 %p2, [%r2], %q3; selp.u32 %r7, 1, 0, %p2;
        mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 1; selp.u32 %r8, 1, 0, %p2; st.global.v2.u32 [%q0+8], {%r5, %r6}; st.global.v2.u32 [%q0+16], {%r7, %r8};
        mbarrier.arrive.noComplete.shared.b64 %q4, [%r2], 3; mbarrier.pending_count.b64 %r5, %q4;
        cp.async.mbarrier.arrive.shared.b64 [%r2]; mbarrier.test_wait.shared.b64 %p2, [%r2], %q4; selp.u32 %r6, 1, 0, %p2;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r2]; mbarrier.test_wait.shared.b64 %p2, [%r2], %q4; selp.u32 %r7, 1, 0, %p2;
        mbarrier.arrive.shared.b64 %q5, [%r2]; mbarrier.pending_count.b64 %r8, %q5;
        st.global.v2.u32 [%q0+24], {%r5, %r6}; st.global.v2.u32 [%q0+32], {%r7, %r8}; END:""",
    )
    y = np.zeros(10, np.uint32)
    k.launch("k", 1, 32, y)
    assert y.tolist() == [5, 4, 0, 0, 1, 0, 4, 0, 1, 4]


REDUCED = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "b32": np.uint32, "b64": np.uint64,
}  # fmt: skip
REDUCTIONS = [
    *(("add", t) for t in ("f32", "f64", "f16", "u32", "s32", "u64")), *(("min", t) for t in ("f16", "u32", "s32", "u64", "s64")),
    *(("max", t) for t in ("f16", "u32", "s32", "u64", "s64")), *((o, t) for o in ("and", "or", "xor") for t in ("b32", "b64")), ("inc", "u32"), ("dec", "u32"),
]  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda o, v: np.where(o >= v, 0, o + 1), "dec": lambda o, v: np.where((o == 0) | (o > v), v, o - 1),
}  # fmt: skip


def bulk_reduction(op: str, t: str, size: int) -> str:
    noftz = ".noftz" if t in ("f16", "bf16") and op == "add" else ""
    return f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%q0], {size}, [%r2]; {wait("0")}
        cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{t} [%q1], [%r1], {size}; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0; END:"""


@pytest.mark.parametrize("op,t", REDUCTIONS)
def test_bulk_reductions(op: str, t: str) -> None:
    dtype = np.dtype(REDUCED[t])
    if dtype.kind == "f":
        x, y = (aligned(rng.standard_normal(32).astype(dtype)) for _ in range(2))
    else:
        info = np.iinfo(dtype)
        x, y = (aligned(rng.integers(info.min, info.max, 32, dtype, endpoint=True)) for _ in range(2))
    with np.errstate(over="ignore"):
        want = FUNCTIONS[op](y, x).astype(dtype)
    kernel(".param .u64 x, .param .u64 y", bulk_reduction(op, t, 32 * dtype.itemsize)).launch("k", 1, 32, x, y)
    assert np.array_equal(y, want)


def test_bulk_reduction_of_bf16() -> None:
    x, y = (aligned((rng.standard_normal(32).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)) for _ in range(2))
    f, g = ((a.astype(np.uint32) << 16).view(np.float32) for a in (x, y))
    total = (f + g).view(np.uint32)
    want = ((total + 0x7FFF + (total >> 16 & 1)) >> 16).astype(np.uint16)
    kernel(".param .u64 x, .param .u64 y", bulk_reduction("add", "bf16", 64)).launch("k", 1, 32, x, y)
    assert np.array_equal(y, want)


def test_stores_and_reductions_that_complete_a_barrier() -> None:
    k = kernel(
        ".param .u64 y",
        f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mbarrier.init.shared.b64 [%r2], 1; st.bulk.weak.shared::cta [%r1], 64, 0;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 20; mov.u32 %r5, 5; mov.u32 %r6, 6;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r1], {{%r5, %r6}}, [%r2];
        mov.u64 %q4, 77; st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r1+8], %q4, [%r2];
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1+4], %r5, [%r2]; {wait("0")}
        ld.shared.v4.u32 {{%r5, %r6, %r7, %r8}}, [%r1]; st.global.v4.u32 [%q0], {{%r5, %r6, %r7, %r8}};
        mapa.shared::cluster.u32 %r9, %r1, 0; ld.shared::cluster.u32 %r9, [%r9]; getctarank.shared::cluster.u32 %r10, %r1; add.u32 %r9, %r9, %r10;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; st.global.u32 [%q0+16], %r9; END:""",
    )
    y = np.zeros(5, np.uint32)
    k.launch("k", 1, 1, y)
    assert y.tolist() == [5, 11, 77, 0, 5]


def test_blocks_that_ask_for_others_work() -> None:
    """As persistent kernels do: a block does its tile, asks for one of a block that has not begun, and goes on as long as it gets one. Who gets none
    does its own only, and the sums are of every tile once."""
    k = kernel(
        ".param .u64 x, .param .u64 y",
        f""".reg .b128 %w0; setp.ne.u32 %p1, %r0, 0; mov.u32 %r5, %ctaid.x; mov.u32 %r20, 0; @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1;
        READY: bar.sync 0; AGAIN: mad.lo.u32 %r6, %r5, 64, %r0; mul.wide.u32 %q2, %r6, 4; add.u64 %q3, %q0, %q2; add.u64 %q4, %q1, %q2;
        ld.global.u32 %r7, [%q3]; mul.lo.u32 %r7, %r7, 3; red.global.add.u32 [%q4], %r7;
        st.shared.v4.b32 [%r1], {{-1, -1, -1, -1}}; bar.sync 0; @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 16;
        @!%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];
        {wait("%r20")} xor.b32 %r20, %r20, 1; ld.shared.b128 %w0, [%r1];
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %w0; @!%p2 bra END;
        clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r5, %r8, %r9, _}}, %w0;
        clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r5, %w0; clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r8, %w0;
        clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r9, %w0; bra AGAIN; END:""",
    )
    x = rng.integers(0, 1 << 20, 11 * 64).astype(np.uint32)
    y = np.zeros_like(x)
    k.launch("k", 11, 64, x, y)
    assert np.array_equal(y, 3 * x)


def test_an_answer_of_sixteen_bytes_is_said_to_the_barrier() -> None:
    k = kernel(
        ".param .u64 y",
        """setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mbarrier.init.shared.b64 [%r2], 1; st.shared.v4.b32 [%r1], {-1, -1, -1, -1}; st.shared.b32 [%r1+16], 9;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 17; mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; selp.u32 %r5, 1, 0, %p2;
        clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%q1], [%q2];
        mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; selp.u32 %r6, 1, 0, %p2; mbarrier.complete_tx.relaxed.cta.shared.b64 [%r2], 1;
        mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; selp.u32 %r7, 1, 0, %p2; st.global.v2.b32 [%q0], {%r5, %r6}; st.global.b32 [%q0+8], %r7;
        ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r1]; ld.shared.b32 %r9, [%r1+16]; st.global.b32 [%q0+12], %r9;
        or.b32 %r5, %r5, %r6; or.b32 %r7, %r7, %r8; or.b32 %r5, %r5, %r7; st.global.b32 [%q0+16], %r5; END:""".replace(
            "mbarrier.init.shared", "mov.u64 %q1, sm; cvta.shared.u64 %q1, %q1; mov.u64 %q2, bar; cvta.shared.u64 %q2, %q2; mbarrier.init.shared"
        ),
    )
    y = np.full(5, 7, np.uint32)
    k.launch("k", 1, 1, y)
    assert y.tolist() == [0, 0, 1, 9, 0]


# Tensors -------------------------------------------------------------------------------------------------------------------------------------

TYPES = {np.uint8: 0, np.uint16: 1, np.uint32: 2, np.int32: 3, np.uint64: 4, np.int64: 5, np.float16: 6, np.float32: 7, np.float64: 8}


def tensor_map(array: Any, box: tuple[int, ...], steps: tuple[int, ...] | None = None, swizzle: int = 0, fill: int = 0) -> Any:
    """The map of a C-contiguous array; box and steps are given in the array's order, outermost first."""
    rank = array.ndim
    out = aligned(np.zeros(128, np.uint8))
    dims = (ctypes.c_uint64 * rank)(*array.shape[::-1])
    strides = (ctypes.c_uint64 * rank)(*array.strides[::-1][1:])
    boxes, step = (ctypes.c_uint32 * rank)(*box[::-1]), (ctypes.c_uint32 * rank)(*(steps or (1,) * rank)[::-1])
    rc = engine().soft_tensor_map_tiled(
        ctypes.c_void_p(out.ctypes.data), TYPES[array.dtype.type], rank, ctypes.c_uint64(array.ctypes.data), dims, strides, boxes, step, 0, swizzle, fill
    )
    assert rc == 0
    return out


def boxed(array: Any, at: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...], fill: float) -> Any:
    """The elements of a box of which the tensor may lack some."""
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    out = np.full(counts, fill, array.dtype)
    for index in itertools.product(*map(range, counts)):
        place = tuple(a + i * s for a, i, s in zip(at, index, steps, strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            out[index] = array[place]
    return out


def unswizzled(flat: Any, mode: int) -> Any:
    """Bytes of shared memory in the order of the box, by the definition: pieces of 16 bytes change places by the number of the 128-byte line; of 32 bytes by two
    bits of it, where the mode is 4."""
    offsets = np.arange(flat.size)
    if mode == 4:
        return flat[offsets ^ ((offsets >> 7 & 3) << 5)]
    return flat[offsets ^ ((offsets >> 7 & (1 << mode) - 1) << 4)]


def load_text(rank: int, size: int) -> str:
    coordinates = ", ".join(f"%r{20 + i}" for i in range(rank))
    loads = " ".join(f"ld.global.s32 %r{20 + i}, [%q1+{4 * i}];" for i in range(rank))
    return f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra GO; mbarrier.init.shared.b64 [%r2], 1; {loads} mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};
        cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%q0, {{{coordinates}}}], [%r2];
        GO: bar.sync 0; {wait("0")} mov.u32 %r5, %r0;
        LOOP: setp.ge.u32 %p2, %r5, {size}; @%p2 bra END; add.u32 %r6, %r1, %r5; ld.shared.u8 %h1, [%r6]; cvt.u64.u32 %q3, %r5; add.u64 %q3, %q3, %q2;
        st.global.u8 [%q3], %h1; add.u32 %r5, %r5, 64; bra LOOP; END:"""


@pytest.mark.parametrize(
    "dtype,shape,box,at,steps,swizzle,fill",
    [
        (np.float32, (40,), (16,), (3,), None, 0, 0), (np.float32, (40,), (16,), (32,), None, 0, 1), (np.uint8, (100, 64), (8, 32), (5, 16), None, 1, 0),
        (np.float16, (33, 72), (16, 64), (20, 16), None, 3, 0), (np.float32, (33, 72), (16, 32), (20, 16), None, 4, 0), (np.float16, (33, 72), (16, 32), (-2, -5), None, 2, 1),
        (np.int32, (9, 10, 12), (3, 4, 8), (2, 1, 3), None, 0, 0), (np.float64, (4, 5, 6, 8), (2, 3, 2, 4), (1, 1, 5, 2), None, 0, 0),
        (np.float32, (3, 4, 5, 6, 8), (2, 2, 2, 2, 4), (1, 2, 3, 4, 5), None, 0, 0), (np.float32, (64, 64), (16, 8), (3, 4), (2, 1), 0, 0),
        (np.uint16, (30, 48), (4, 16), (1, 2), (3, 2), 0, 0),
    ],
)  # fmt: skip
def test_boxes_of_tensors_are_loaded(dtype: Any, shape: Any, box: Any, at: Any, steps: Any, swizzle: int, fill: int) -> None:
    """1 to 5 dimensions, boxes that stick out of the tensor, every swizzle, strides of elements."""
    array = aligned((rng.standard_normal(shape) * 100).astype(dtype) if np.dtype(dtype).kind == "f" else rng.integers(0, 200, shape).astype(dtype))
    steps = steps or (1,) * len(shape)
    want = boxed(array, at, box, steps, np.nan if fill else 0)
    out = np.zeros(want.nbytes, np.uint8)
    kernel(".param .u64 m, .param .u64 c, .param .u64 y", load_text(len(shape), want.nbytes)).launch(
        "k", 1, 64, tensor_map(array, box, steps, swizzle, fill), np.array(at[::-1], np.int32), out
    )
    got = unswizzled(out, swizzle).view(dtype).reshape(want.shape)
    assert np.array_equal(got, want, equal_nan=np.dtype(dtype).kind == "f")
    if swizzle:
        assert not np.array_equal(out, unswizzled(out, swizzle))


def test_boxes_are_stored_and_added() -> None:
    """A box that sticks out writes only what the tensor has; the map is a kernel parameter."""
    k = Kernels(f"""{HEAD}.visible .entry k(.param .align 64 .b8 m[128], .param .u64 x) {{ {REGISTERS} mov.u32 %r0, %tid.x; mov.u32 %r1, sm; ld.param.u64 %q0, [x];
        mul.wide.u32 %q3, %r0, 4; add.u64 %q3, %q3, %q0; ld.global.u32 %r5, [%q3]; shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r1; st.shared.u32 [%r6], %r5;
        bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mov.b64 %q5, m; cvta.param.u64 %q5, %q5; mov.u32 %r8, 4; mov.u32 %r9, -2;
        prefetch.tensormap [%q5];
        cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%q5, {{%r8, %r9}}], [%r1];
        mov.u32 %r9, 3; cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%q5, {{%r8, %r9}}], [%r1];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; END: ret; }}""")
    x = rng.standard_normal((8, 8)).astype(np.float32)
    y = aligned(rng.standard_normal((6, 12)).astype(np.float32))
    want = y.copy()
    want[0:6, 4:12] = x[2:8]
    want[3:6, 4:12] += x[0:3]
    k.launch("k", 1, 64, tensor_map(y, (8, 8)).tobytes(), x)
    assert np.array_equal(y, want)


@pytest.mark.parametrize("beginning", ["another", "nothing"])
def test_a_program_changes_a_tensor_map(beginning: str) -> None:
    """tensormap.replace of a copy in shared memory, or of zeros, published with cp_fenceproxy, then used."""
    a, b = (aligned(rng.standard_normal((16, 16)).astype(np.float32)) for _ in range(2))
    out = np.zeros(4 * 4 * 4, np.uint8)
    text = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra GO; mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%q0], 128, [%r2];
        GO: bar.sync 0; {wait("0")} @%p1 bra FENCE; ld.global.u64 %q4, [%q1]; mov.u32 %r5, 4; mov.u32 %r7, 13; mov.u64 %q5, 64;
        tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %q4;
        tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r1], 0, %r5; tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r1], 1, %r5;
        tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 0, 16; tensormap.replace.tile.element_stride.shared.b1024.b32 [%r1], 1, 1;
        tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 1, %r7; tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r1], 0, %q5;
        tensormap.replace.tile.element_stride.shared.b1024.b32 [%r1], 0, 1; tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r1], 1;
        tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r1], 7; tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r1], 0;
        tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r1], 0; tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r1], 0;
        FENCE: bar.sync 0; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%q0], [%r1], 128;
        fence.proxy.tensormap::generic.acquire.gpu [%q0], 128; bar.sync 0; @%p1 bra STAY; mov.u32 %r20, 5; mov.u32 %r21, 11;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64;
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%q0, {{%r20, %r21}}], [%r2];
        STAY: bar.sync 0; {wait("1", label="V")} setp.ge.u32 %p2, %r0, 16; @%p2 bra END; shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5; ld.shared.u32 %r7, [%r6];
        cvt.u64.u32 %q3, %r5; add.u64 %q3, %q3, %q2; st.global.u32 [%q3], %r7; END:"""
    where = np.array([b.ctypes.data], np.uint64)
    start = tensor_map(a, (8, 8)) if beginning == "another" else aligned(np.zeros(128, np.uint8))
    kernel(".param .u64 m, .param .u64 w, .param .u64 y", text).launch("k", 1, 32, start, where, out)
    assert np.array_equal(out.view(np.float32).reshape(4, 4), boxed(b[:13], (11, 5), (4, 4), (1, 1), 0))


def test_what_is_no_tensor_map_is_an_error() -> None:
    k = kernel(".param .u64 m, .param .u64 c, .param .u64 y", load_text(2, 64))
    with pytest.raises(LaunchError, match="no tensor map"):
        k.launch("k", 1, 64, aligned(np.zeros(128, np.uint8)), np.zeros(2, np.int32), np.zeros(64, np.uint8))


def test_copies_of_masked_bytes_and_to_the_own_block_of_a_multicast() -> None:
    """.cp_mask writes some of every 16 bytes; .multicast::cluster reaches the one block that there is; prefetches do nothing that shows."""
    k = kernel(
        ".param .u64 x, .param .u64 y",
        f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64;
        cp.async.bulk.prefetch.L2.global [%q0], 64; mov.u32 %r5, 1; cvt.u16.u32 %h1, %r5;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%q0], 64, [%r2], %h1; {wait("0")}
        mov.u32 %r5, 0x5A0F; cvt.u16.u32 %h1, %r5; cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%q1], [%r1], 64, %h1;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        cp.async.ca.shared.global [%r1+128], [%q0], 16; cp.async.wait_all; ld.shared.u32 %r6, [%r1+132]; st.global.u32 [%q1+64], %r6; END:""",
    )
    x, y = aligned(np.arange(1, 65, dtype=np.uint8)), aligned(np.zeros(68, np.uint8))
    k.launch("k", 1, 32, x, y)
    kept = np.tile([0x5A0F >> i & 1 for i in range(16)], 4)
    assert np.array_equal(y[:64], x * kept) and np.array_equal(y[64:], x[4:8])


TEXTS = [wait("0"), *(bulk_reduction(op, t, 64) for op, t in [*REDUCTIONS, ("add", "bf16")]), *(load_text(rank, 64) for rank in range(1, 6))]
