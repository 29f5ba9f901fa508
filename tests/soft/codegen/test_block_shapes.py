"""One translation for a class of block shapes: what a thread knows of itself and of its block is right in blocks of any size, and whatever size came first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError

from gpuvirt.soft import pipeline
from gpuvirt.soft.codegen import context, warp_loop, warp_state
from gpuvirt.soft.ptx.block_shape import Shape, class_of

ROWS = [(x, 1, 1) for x in (2, 7, 31, 33, 63, 64, 65, 96, 100, 128, 160, 999, 1000, 1024)]
PLANES = [(32, 2, 1), (32, 3, 1), (64, 2, 1), (96, 5, 1), (32, 32, 1), (512, 2, 1), (128, 7, 1)]
SPACES = [(32, 1, 2), (32, 2, 2), (64, 2, 4), (96, 2, 3), (32, 8, 4), (64, 1, 5)]
SHORT_ROWS = [(16, 4, 1), (16, 16, 1), (16, 64, 1), (16, 3, 1), (16, 17, 1), (8, 32, 1), (8, 33, 1), (8, 4, 2), (8, 8, 8), (1, 64, 1), (1, 33, 1), (1, 64, 3)]
OTHERS = [(1, 1, 1), (32, 1, 1), (4, 8, 1), (5, 3, 1), (5, 7, 3), (33, 2, 1), (48, 2, 1), (8, 3, 2), (1, 1, 64)]
SHAPES = ROWS + PLANES + SPACES + SHORT_ROWS + OTHERS
CLASSES = {(-32, 1, 1), (-1, 1, 1), (-32, -1, 1), (-32, -1, -1)}
SHORT_CLASSES = {(16, -2, 1), (16, -1, 1), (8, -4, 1), (8, -1, 1), (8, -4, -1), (1, -32, 1), (1, -1, 1), (1, -32, -1)}

# Each thread writes twelve words at its place in the grid: its special registers, the lanes that vote with it, and what the thread at the other end of its
# block has written to shared memory (BARRIER) or its own (without: the warps of a block run one after the other then).
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.shared .align 4 .b32 words[1024];
.func (.param .b32 place) where()
{
    .reg .b32 %r<6>;
    mov.u32 %r0, %tid.z; mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.y; mad.lo.u32 %r3, %r0, %r1, %r2;
    mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r4, %r3, %r1, %r2;
    st.param.b32 [place], %r4;
    ret;
}
.visible .entry k(.param .u64 to)
{
    .reg .b64 %a<6>; .reg .b32 %r<30>; .reg .pred %p<3>;
    ld.param.u64 %a0, [to];
    { .param .b32 place; call.uni (place), where, (); ld.param.b32 %r0, [place]; }
    mov.u32 %r1, %ntid.x; mov.u32 %r2, %ntid.y; mov.u32 %r3, %ntid.z;
    mul.lo.u32 %r4, %r1, %r2; mul.lo.u32 %r4, %r4, %r3;
    mov.u32 %r5, %ctaid.x; mad.lo.u32 %r6, %r5, %r4, %r0;
    mul.wide.u32 %a1, %r6, 48; add.u64 %a2, %a0, %a1;
    mov.u32 %r7, %tid.x; mov.u32 %r8, %tid.y; mov.u32 %r9, %tid.z;
    mov.u32 %r10, %warpid; mov.u32 %r11, %nwarpid; mov.u32 %r12, %laneid;
    setp.eq.u32 %p0, %r0, %r0;
    vote.sync.ballot.b32 %r13, %p0, 0xffffffff;
    shl.b32 %r14, %r0, 2;
    mov.u32 %r15, words; add.u32 %r16, %r15, %r14;
    mul.lo.u32 %r17, %r6, 3;
    st.shared.u32 [%r16], %r17;
    not.b32 %r18, %r0; add.u32 %r18, %r18, %r4;
    BARRIER
    shl.b32 %r19, %r18, 2; add.u32 %r19, %r15, %r19;
    ld.shared.u32 %r20, [%r19];
    setp.lt.u32 %p1, %r0, 70;
    selp.u32 %r21, 1, 2, %p1;
    @%p1 bra ON;
    add.u32 %r21, %r21, %r1;
ON: st.global.v4.u32 [%a2], {%r7, %r8, %r9, %r10};
    st.global.v4.u32 [%a2+16], {%r11, %r12, %r13, %r20};
    st.global.v4.u32 [%a2+32], {%r1, %r2, %r3, %r21};
    ret;
}
"""
BLOCKS = 3
KINDS = {"in turns": KERNEL.replace("BARRIER", "mov.u32 %r18, %r0;"), "with a barrier": KERNEL.replace("BARRIER", "bar.sync 0;")}


def expected(shape: Shape, kind: str) -> np.ndarray:
    """Twelve words for each thread of the grid."""
    x, y, z = shape
    threads = x * y * z
    own = np.tile(np.arange(threads), BLOCKS)
    place = np.arange(BLOCKS * threads)
    last = (threads - 1) // 32
    alive = np.where(own // 32 == last, (1 << ((threads - 1) % 32 + 1)) - 1, 0xFFFFFFFF)
    read = place if kind == "in turns" else place // threads * threads + threads - 1 - own
    columns = [own % x, own // x % y, own // (x * y), own // 32, np.full_like(own, last + 1), own % 32, alive, 3 * read]
    return np.stack([*columns, *(np.full_like(own, n) for n in shape), np.where(own < 70, 1, 2 + x)], axis=1).astype(np.uint32)


def run(kernels: Kernels, shape: Shape) -> np.ndarray:
    """The words, and behind them a block's that nobody may write."""
    out = np.full((BLOCKS * np.prod(shape) + 64, 12), 0xDEADBEEF, np.uint32)
    kernels.launch("k", BLOCKS, shape, out)
    return out


def is_right(out: np.ndarray, shape: Shape, kind: str) -> bool:
    want = expected(shape, kind)
    return np.array_equal(out[: len(want)], want) and bool((out[len(want) :] == 0xDEADBEEF).all())


def goes_wrong(shape: Shape, kind: str) -> bool:
    try:
        return not is_right(run(Kernels(KINDS[kind]), shape), shape, kind)
    except LaunchError:
        return True


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Shape]:
    """The shapes that are translated, with an empty cache."""
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    seen: list[Shape] = []
    before: Callable[..., object] = pipeline.translate

    def translate(module: object, kernel: str, shape: Shape, careful: bool = False) -> object:
        seen.append(shape)
        return before(module, kernel, shape, careful)

    monkeypatch.setattr(pipeline, "translate", translate)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [1, -1], ids=["small first", "large first"])
def test_every_thread_knows_its_place(translated: list[Shape], kind: str, turn: int) -> None:
    kernels = Kernels(KINDS[kind])
    wrong = [shape for shape in SHAPES[::turn] if not is_right(run(kernels, shape), shape, kind)]
    assert not wrong
    assert sorted(translated) == sorted({*CLASSES, *SHORT_CLASSES, *OTHERS})


def test_exact(translated: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUVIRT_SOFT_SHAPES: the same results, each shape by itself."""
    monkeypatch.setenv("GPUVIRT_SOFT_SHAPES", "exact")
    kernels = Kernels(KINDS["in turns"])
    some = [(64, 1, 1), (128, 1, 1), (100, 1, 1), (32, 4, 1), (32, 2, 2), (16, 16, 1)]
    assert all(is_right(run(kernels, shape), shape, "in turns") for shape in some)
    assert translated == some


def test_a_kernel_with_one_shape(translated: list[Shape]) -> None:
    kernels = Kernels(KINDS["in turns"].replace(".param .u64 to)", ".param .u64 to)\n.reqntid 128, 1, 1"))
    assert is_right(run(kernels, (128, 1, 1)), (128, 1, 1), "in turns")
    assert translated == [(128, 1, 1)]


def test_classes() -> None:
    assert [class_of(s) for s in OTHERS] == OTHERS
    assert {class_of(s) for s in SHORT_ROWS} == SHORT_CLASSES
    assert {class_of(s) for s in PLANES} == {(-32, -1, 1)} and {class_of(s) for s in SPACES} == {(-32, -1, -1)}
    assert [class_of(s) for s in ROWS[2:6]] == [(-1, 1, 1), (-1, 1, 1), (-1, 1, 1), (-32, 1, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_warp_taken_for_full_is_noticed(translated: list[Shape], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for module in (context, warp_loop, warp_state):
        monkeypatch.setattr(module, "full_warps", lambda shape: True)
    assert goes_wrong((100, 1, 1), kind)


def test_a_row_of_another_length_is_noticed(translated: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes the first block's shape for that of all of its class."""
    monkeypatch.setattr(warp_state.WarpState, "threads", lambda e, axis: e.const((64, 2, 1)[axis], "i32"))
    assert not goes_wrong((64, 2, 1), "in turns") and goes_wrong((96, 2, 1), "in turns")
