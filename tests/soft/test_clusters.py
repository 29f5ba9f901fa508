"""Thread block clusters: what blocks are told of theirs, shared memory of other blocks, the cluster's barrier, copies to several blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError
from soft.scheduling import clusters
from soft.scheduling.cases import cuda
from soft.test_async_copy import aligned, tensor_map

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %q<20>; .reg .b16 %h<2>; .reg .b128 %w<2>; .shared .align 1024 .b8 sm[8192]; .shared .align 16 .b64 bar[2]; "
    ".shared .align 16 .b128 answer;"
)
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# %r0: thread, %r1: rank, %r2: blocks of the cluster, %r3: the next block's rank; %q0, %q1: parameters; %q2: where in the first of them the thread's word lies
START = """mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; add.u32 %r3, %r1, 1; rem.u32 %r3, %r3, %r2;
mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ntid.x; mad.lo.u32 %r6, %r4, %r5, %r0; mul.wide.u32 %q2, %r6, 4; add.u64 %q2, %q2, %q0;"""


def kernel(text: str, directives: str = "", params: str = ".param .u64 o, .param .u64 i") -> Kernels:
    loads = "ld.param.u64 %q0, [o];" + (" ld.param.u64 %q1, [i];" if "u64 i" in params else "")
    return Kernels(f"{HEAD}.visible .entry k({params}) {directives} {{ {REGISTERS} {loads} {START} {text} ret; }}")


def ranks(blocks: int, of: int) -> Any:
    """Each block's cluster, and its rank in it, for a row of blocks."""
    return np.arange(blocks) // of, np.arange(blocks) % of


# ---- what blocks are told -----------------------------------------------------------------------------------------------------------------------

TOLD = ["clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"]


@pytest.mark.parametrize(
    ("grid", "cluster"), [((6, 4, 2), (3, 2, 1)), ((2, 4, 4), (1, 2, 4)), ((16, 1, 1), (16, 1, 1)), ((5, 3, 2), (1, 1, 1)), ((4, 2, 2), None)]
)
def test_blocks_know_their_place(grid: tuple[int, ...], cluster: tuple[int, ...] | None) -> None:
    """In each dimension, in clusters of each shape, and where none was named."""
    text = """mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z; mov.u32 %r9, %nctaid.x; mov.u32 %r10, %nctaid.y;
    mad.lo.u32 %r8, %r8, %r10, %r7; mad.lo.u32 %r8, %r8, %r9, %r4; mul.wide.u32 %q3, %r8, 64; add.u64 %q3, %q3, %q0;"""
    for i, (name, axis) in enumerate(itertools.product(TOLD, "xyz")):
        text += f"mov.u32 %r11, %{name}.{axis}; st.global.u32 [%q3+{4 * i}], %r11; "
    text += """mov.pred %p1, %is_explicit_cluster; selp.u32 %r11, 1, 0, %p1;
    st.global.v4.u32 [%q3+48], {%r1, %r2, %r11, %r11};"""
    o = np.zeros((*reversed(grid), 16), np.uint32)
    kernel(text).launch("k", grid, 32, o, o, cluster=cluster or (0, 0, 0))
    shape = np.array(cluster or (1, 1, 1))
    for z, y, x in np.ndindex(*reversed(grid)):
        at = np.array((x, y, z))
        inside = at % shape
        rank = inside[0] + shape[0] * (inside[1] + shape[1] * inside[2])
        want = [*(at // shape), *(np.array(grid) // shape), *inside, *shape, rank, shape.prod(), int(cluster is not None), int(cluster is not None)]
        assert o[z, y, x].tolist() == want, (at, o[z, y, x], want)


def test_what_no_grid_is_made_of() -> None:
    k = kernel("")
    o = np.zeros(1, np.uint32)
    for cluster, message in (((3, 1, 1), "not made of such"), ((2, 0, 1), "not made of such"), ((32, 1, 1), "more blocks than a cluster")):
        with pytest.raises(LaunchError, match=message) as caught:
            k.launch("k", 32, 32, o, o, cluster=cluster)
        assert caught.value.code == 912


# ---- shared memory of other blocks --------------------------------------------------------------------------------------------------------------

OWN = "mov.u32 %r10, sm; shl.b32 %r11, %r0, 2; add.u32 %r10, %r10, %r11; mad.lo.u32 %r12, %r4, 1000, %r0; st.shared.u32 [%r10], %r12;"
GENERIC = "cvt.u64.u32 %q5, %r10; cvta.shared.u64 %q5, %q5;"
READS = {
    "by shared address": "mapa.shared::cluster.u32 %r13, %r10, %r3; ld.shared::cluster.u32 %r14, [%r13];",
    "by generic address": GENERIC + "mapa.u64 %q6, %q5, %r3; ld.u32 %r14, [%q6];",
    "there and back": GENERIC
    + "mapa.u64 %q6, %q5, %r3; cvta.to.shared::cluster.u64 %q6, %q6; cvt.u32.u64 %r13, %q6; ld.shared::cluster.u32 %r14, [%r13];",
    "by a shared address of 64 bits": "cvt.u64.u32 %q5, %r10; mapa.shared::cluster.u64 %q6, %q5, %r3; ld.shared::cluster.u32 %r14, [%q6];",
    "by a variable": "mapa.shared::cluster.u32 %r13, sm, %r3; add.u32 %r13, %r13, %r11; ld.shared::cluster.u32 %r14, [%r13];",
    "atomically": "mapa.shared::cluster.u32 %r13, %r10, %r3; atom.shared::cluster.add.u32 %r14, [%r13], 7;",
    "by a generic address, atomically": GENERIC + "mapa.u64 %q6, %q5, %r3; atom.add.u32 %r14, [%q6], 7;",
}


@pytest.mark.parametrize("how", READS)
def test_a_block_reads_the_next(how: str) -> None:
    """In many clusters, with more warps than one, each time written anew."""
    k = kernel(f"{OWN} {SYNC} {READS[how]} {SYNC} st.global.u32 [%q2], %r14;")
    for of, blocks in ((2, 64), (4, 32), (8, 16), (16, 16), (1, 5)):
        o = np.zeros((blocks, 96), np.uint32)
        k.launch("k", blocks, 96, o, o, cluster=(of, 1, 1))
        cluster, rank = ranks(blocks, of)
        read = cluster * of + (rank + 1) % of
        assert np.array_equal(o, read[:, None] * 1000 + np.arange(96)), (of, o)


def test_lanes_read_different_blocks() -> None:
    """Each lane names a block of its own, and getctarank tells which one."""
    k = kernel(
        f"""{OWN} {SYNC} rem.u32 %r15, %r0, %r2; mapa.shared::cluster.u32 %r13, %r10, %r15; ld.shared::cluster.u32 %r14, [%r13];
        getctarank.shared::cluster.u32 %r16, %r13; {GENERIC} mapa.u64 %q6, %q5, %r15; getctarank.u64 %r17, %q6; getctarank.u64 %r18, %q5;
        mad.lo.u32 %r14, %r16, 100000, %r14; mad.lo.u32 %r14, %r17, 1000000, %r14; mad.lo.u32 %r14, %r18, 10000000, %r14; {SYNC}
        st.global.u32 [%q2], %r14;"""
    )
    o = np.zeros((8, 64), np.uint32)
    k.launch("k", 8, 64, o, o, cluster=(4, 1, 1))
    cluster, rank = ranks(8, 4)
    named = np.arange(64) % 4
    read = (cluster * 4)[:, None] + named
    assert np.array_equal(o, read * 1000 + np.arange(64) + named * 1100000 + rank[:, None] * 10000000)


def test_an_address_means_the_same_in_every_block() -> None:
    """A block hands the shared address of its memory, 32 bits, to another one, which uses it as it is."""
    k = kernel(
        f"""{OWN} mov.u32 %r15, sm; mapa.shared::cluster.u32 %r16, %r15, 0; setp.ne.u32 %p1, %r0, 0;
        mad.lo.u32 %r17, %r1, 4, 4096; add.u32 %r16, %r16, %r17; @!%p1 st.shared::cluster.u32 [%r16], %r15; {SYNC}
        mapa.shared::cluster.u32 %r16, %r15, 0; mad.lo.u32 %r17, %r3, 4, 4096; add.u32 %r16, %r16, %r17; ld.shared::cluster.u32 %r18, [%r16];
        add.u32 %r18, %r18, %r11; ld.shared::cluster.u32 %r14, [%r18]; {SYNC} st.global.u32 [%q2], %r14;"""
    )
    o = np.zeros((6, 64), np.uint32)
    k.launch("k", 6, 64, o, o, cluster=(3, 1, 1))
    cluster, rank = ranks(6, 3)
    assert np.array_equal(o, (cluster * 3 + (rank + 1) % 3)[:, None] * 1000 + np.arange(64))


def test_which_space_an_address_is_in() -> None:
    """Of another block's: shared::cluster, not shared::cta, not global; behind its end and behind the last block: neither."""
    spaces = ("shared::cta", "shared::cluster", "global")
    text = f"{OWN} {GENERIC} mapa.u64 %q6, %q5, %r3; add.u64 %q7, %q6, 65536; mapa.u64 %q8, %q5, %r2; mov.u32 %r14, 0; "
    for i, q in enumerate((5, 6, 7, 8)):
        for j, space in enumerate(spaces):
            text += f"isspacep.{space} %p1, %q{q}; selp.u32 %r15, {1 << 4 * i + j}, 0, %p1; or.b32 %r14, %r14, %r15; "
    o = np.zeros((4, 32), np.uint32)
    kernel(f"{text} {SYNC} st.global.u32 [%q2], %r14;").launch("k", 4, 32, o, o, cluster=(2, 1, 1))
    assert (o == 0x4423).all(), hex(o[0, 0])


@pytest.mark.parametrize("rank", [2, 15, 200])
def test_a_block_that_is_not_there(rank: int) -> None:
    k = kernel(f"{OWN} {SYNC} mapa.shared::cluster.u32 %r13, %r10, {rank}; ld.shared::cluster.u32 %r14, [%r13]; st.global.u32 [%q2], %r14; {SYNC}")
    o = np.zeros((4, 32), np.uint32)
    with pytest.raises(LaunchError, match="illegal address"):
        k.launch("k", 4, 32, o, o, cluster=(2, 1, 1))


def test_memory_of_a_cluster_is_not_the_next_launchs() -> None:
    """What a larger cluster had is out of bounds for blocks alone."""
    big = kernel(f"{OWN} {SYNC} {READS['by shared address']} {SYNC}")
    o = np.zeros((64, 32), np.uint32)
    beyond = kernel("mov.u32 %r10, sm; ld.shared.u32 %r11, [%r10+0x1000000]; st.global.u32 [%q2], %r11;")
    for _ in range(3):
        big.launch("k", 64, 32, o, o, cluster=(8, 1, 1))
        with pytest.raises(LaunchError, match="illegal address"):
            beyond.launch("k", 64, 32, o, o)


# ---- the barrier (more of it: scheduling/clusters.py) -------------------------------------------------------------------------------------------


def test_a_block_alone_passes_it() -> None:
    """In a launch without clusters it is the block's own."""
    k = cuda(clusters.EXCHANGE.replace("SYNC", "__cluster_barrier_arrive(); __cluster_barrier_wait()"))
    o = np.zeros((3, 96), np.uint32)
    k.launch("f", 3, 96, o)
    assert np.array_equal(o, clusters.exchanged(3, 1, 96))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setp.eq.u32 %p1, %r1, 0; @!%p1 bra ELSE; barrier.cluster.arrive; barrier.cluster.wait; ELSE: bar.sync 0; @%p1 bra DONE; "
         "bar.sync 1, 64; DONE:", "barriers that nobody else will reach"),
        ("barrier.cluster.wait;", "barrier.cluster.wait without an arrival"),
    ],
)  # fmt: skip
def test_waiting_in_vain_is_an_error(text: str, message: str) -> None:
    o = np.zeros(64, np.uint32)
    with pytest.raises(LaunchError, match=message):
        kernel(text).launch("k", 2, 32, o, o, cluster=(2, 1, 1))


# ---- asynchronous copies ------------------------------------------------------------------------------------------------------------------------

WAIT = "WAITS: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r8], 0; @!%p8 bra WAITS;"
BARRIER = f"mov.u32 %r7, sm; mov.u32 %r8, bar; setp.ne.u32 %p1, %r0, 0; @!%p1 mbarrier.init.shared.b64 [%r8], {{count}}; {SYNC}"
LOAD = "shl.b32 %r9, %r0, 2; add.u32 %r9, %r9, %r7; ld.shared.u32 %r14, [%r9]; st.global.u32 [%q2], %r14;"


def test_a_copy_goes_to_several_blocks() -> None:
    """The blocks that the mask names have the bytes and are told of them, others are not; each block sends a piece of its own."""
    k = kernel(
        f"""shl.b32 %r9, %r0, 2; mov.u32 %r7, sm; add.u32 %r9, %r9, %r7; st.shared.u32 [%r9], 0; st.shared.u32 [%r9+512], 0; {BARRIER.format(count=1)}
        @%p1 bra GO; setp.eq.u32 %p2, %r1, 3; selp.u32 %r10, 256, 512, %p2; mbarrier.arrive.expect_tx.shared.b64 _, [%r8], %r10;
        setp.eq.u32 %p3, %r1, 1; setp.gt.u32 %p4, %r1, 1; @%p4 bra GO; selp.u32 %r11, 0x7, 0xF, %p3; cvt.u16.u32 %h0, %r11;
        mul.wide.u32 %q4, %r1, 256; add.u64 %q4, %q4, %q1; mad.lo.u32 %r12, %r1, 512, %r7;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r12], [%q4], 256, [%r8], %h0;
        GO: {WAIT} {LOAD} ld.shared.u32 %r14, [%r9+512]; st.global.u32 [%q2+1024], %r14; {SYNC}"""
    )
    x, o = aligned(np.arange(1, 129, dtype=np.uint32)), np.zeros((2, 4, 64), np.uint32)
    k.launch("k", 4, 64, o, x, cluster=(4, 1, 1))
    assert (o[0] == x[:64]).all() and (o[1, :3] == x[64:]).all() and not o[1, 3].any()


def test_a_box_of_a_tensor_goes_to_several_blocks() -> None:
    k = kernel(
        f"""{BARRIER.format(count=1)} mov.u16 %h0, 0xE; mov.u32 %r30, 4; mov.u32 %r31, 2; @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 256; setp.ne.u32 %p2, %r1, 1; or.pred %p2, %p1, %p2; @%p2 bra GO;
        cp.async.bulk.tensor.2d.cta_group::1.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r7], [%q1, {{%r30, %r31}}], [%r8], %h0;
        GO: setp.eq.u32 %p3, %r1, 0; @%p3 bra OVER; {WAIT} {LOAD} OVER: {SYNC}"""
    )
    x = aligned(np.arange(32 * 16, dtype=np.uint32).reshape(16, 32))
    o = np.zeros((4, 64), np.uint32)
    k.launch("k", 4, 64, o, tensor_map(x, (4, 16)), cluster=(4, 1, 1))
    assert (o[1:] == x[2:6, 4:20].ravel()).all() and not o[0].any()


@pytest.mark.parametrize("named", [0xFEFFFFFF, 0xFFFFFFFF])
def test_pairs_of_blocks_have_one_barrier(named: int) -> None:
    """cta_group::2: what both blocks of a pair get, the barrier of its first one counts, or of its second, as the one that is named is a first or a second."""
    k = kernel(
        f"""{BARRIER.format(count=1)} mov.u16 %h0, 0xF; mov.u32 %r30, 4; mov.u32 %r31, 2; and.b32 %r32, %r8, {named}; and.b32 %r33, %r1, 1; setp.eq.u32 %p5, %r33, {int(named == 0xFFFFFFFF)};
        not.pred %p6, %p1; and.pred %p6, %p6, %p5; @%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 512; {SYNC} setp.ne.u32 %p2, %r1, 3; or.pred %p2, %p1, %p2; @%p2 bra GO;
        cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r7], [%q1, {{%r30, %r31}}], [%r32], %h0;
        GO: @!%p5 bra OVER; {WAIT} OVER: {SYNC} {LOAD} {SYNC}"""
    )
    x = aligned(np.arange(32 * 16, dtype=np.uint32).reshape(16, 32))
    o = np.zeros((4, 64), np.uint32)
    k.launch("k", 4, 64, o, tensor_map(x, (4, 16)), cluster=(4, 1, 1))
    assert (o == x[2:6, 4:20].ravel()).all()


def test_no_block_is_taken_back_from_any() -> None:
    """clusterlaunchcontrol answers every block of the cluster."""
    k = kernel(
        f"""mov.u32 %r7, answer; mov.u64 %q5, -1; st.shared.v2.u64 [%r7], {{%q5, %q5}}; mov.u32 %r8, bar; setp.ne.u32 %p1, %r0, 0;
        @!%p1 mbarrier.init.shared.b64 [%r8], 1; {SYNC} @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 16; {SYNC}
        setp.ne.u32 %p2, %r1, 0; or.pred %p2, %p1, %p2;
        @!%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r7], [%r8];
        {WAIT} ld.shared.b128 %w0, [%r7]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %w0; selp.u32 %r9, 1, 2, %p3;
        st.global.u32 [%q2], %r9; {SYNC}"""
    )
    o = np.zeros((4, 32), np.uint32)
    k.launch("k", 4, 32, o, o, cluster=(2, 1, 1))
    assert (o == 2).all()
