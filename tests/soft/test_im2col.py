"""Columns of pixels of a tensor (im2col): loads at a filter's offsets, stores, strides, images one after the other, and what is outside."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError, engine
from soft.matrices import rng
from soft.test_async_copy import aligned, tensor_map

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
CHANNELS = 8  # that are loaded, 32 bytes


class Pixels(ctypes.Structure):
    _fields_ = [("channels", ctypes.c_uint32), ("count", ctypes.c_uint32), ("lower", ctypes.c_int32 * 3), ("upper", ctypes.c_int32 * 3)]


def column_map(array: Any, count: int, lower: tuple[int, ...], upper: tuple[int, ...], steps: tuple[int, ...] = (), channels: int = CHANNELS) -> Any:
    """The map of a C-contiguous array, images first, channels last; corners as CUDA has them, of the fastest dimension of pixels first; -1: none."""
    rank = array.ndim
    out = aligned(np.zeros(128, np.uint8))
    dims, strides = (ctypes.c_uint64 * rank)(*array.shape[::-1]), (ctypes.c_uint64 * rank)(*array.strides[::-1][1:])
    step = (ctypes.c_uint32 * rank)(*(steps or (1,) * rank))
    pixels = Pixels(channels, count, (ctypes.c_int32 * 3)(*lower), (ctypes.c_int32 * 3)(*upper))
    place, address = ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(array.ctypes.data)
    rc = engine().soft_tensor_map_im2col(place, 2, rank, address, dims, strides, ctypes.byref(pixels), step, 0, 0, 0)
    return out if rc == 0 else -1


def there_and_back(rank: int, count: int) -> str:
    """Loads a column from where `at` says, at the offsets behind that, to `o`, and stores it with another map."""
    spatial = rank - 2
    at = ", ".join(f"%r{1 + i}" for i in range(rank))
    loads = " ".join(f"ld.global.u32 %r{1 + i}, [%q3+{4 * i}];" for i in range(rank)) + " ".join(f"ld.global.u16 %h{i}, [%q3+{20 + 4 * i}];" for i in range(spatial))
    return f"""{HEAD}.visible .entry k(.param .u64 m, .param .u64 n, .param .u64 o, .param .u64 at) {{ .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b16 %h<4>; .reg .b64 %q<6>;
    .shared .align 1024 .b8 sm[16384]; .shared .b64 bar; ld.param.u64 %q0, [m]; ld.param.u64 %q1, [n]; ld.param.u64 %q2, [o]; ld.param.u64 %q3, [at]; {loads}
    mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; mov.u32 %r10, sm; mov.u32 %r11, bar; @%p0 bra SEEN; mbarrier.init.shared.b64 [%r11], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r11], {count * 4 * CHANNELS};
    cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r10], [%q0, {{{at}}}], [%r11], {{{", ".join(f"%h{i}" for i in range(spatial))}}};
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r11], 0; @!%p2 bra W;
    cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group [%q1, {{{at}}}], [%r10]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    SEEN: bar.warp.sync -1; mov.u32 %r12, %r0; mad.wide.u32 %q2, %r0, 4, %q2;
    SHOW: mad.lo.u32 %r13, %r12, 4, %r10; ld.shared.u32 %r14, [%r13]; st.global.u32 [%q2], %r14; add.u64 %q2, %q2, 128; add.u32 %r12, %r12, 32;
    setp.lt.u32 %p1, %r12, {count * CHANNELS}; @%p1 bra SHOW; ret; }}"""


def walked(shape: tuple[int, ...], at: list[int], count: int, lower: tuple[int, ...], upper: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """The positions of a column's pixels, fastest dimension first, the image last."""
    position = list(at[1:])
    for _ in range(count):
        yield tuple(position)
        for i in range(len(lower)):
            position[i] += steps[1 + i]
            if position[i] < shape[i] + upper[i]:
                break
            position[i] = lower[i]
        else:
            position[-1] += steps[-1]


COLUMNS = [  # the array's shape, pixels of a column, corners, steps, where it begins, offsets
    ((4, 9, 12), 16, (-1,), (-1,), (1, 1, 1), (0, -1, 1), (2,)),
    ((3, 7, 6, 16), 32, (-1, -1), (-1, -1), (1, 1, 1, 1), (8, 2, 5, 0), (1, 2)),
    ((3, 7, 6, 16), 64, (-1, -2), (1, 0), (1, 1, 1, 1), (12, -1, -2, 1), (0, 3)),
    ((5, 8, 8, 8), 48, (0, 0), (-2, -2), (1, 2, 2, 1), (0, 0, 2, 3), (2, 1)),
    ((2, 4, 5, 6, 8), 100, (-1, 0, -1), (0, -1, 0), (1, 1, 2, 1, 1), (-4, 3, 2, 1, 0), (1, 0, 2)),
]


@pytest.mark.parametrize(("shape", "count", "lower", "upper", "steps", "at", "offsets"), COLUMNS)
def test_columns(shape: Any, count: int, lower: Any, upper: Any, steps: Any, at: Any, offsets: Any) -> None:
    data = aligned(rng.integers(1, 1 << 30, shape).astype(np.uint32))
    back, shown = aligned(np.zeros_like(data)), np.zeros((count, CHANNELS), np.uint32)
    numbers = np.array([*at, *[0] * (5 - len(at)), *offsets, *[0] * (3 - len(offsets))], np.int32)
    maps = [column_map(a, count, lower, upper, steps) for a in (data, back)]
    Kernels(there_and_back(len(shape), count)).launch("k", 1, 32, *maps, shown, numbers)
    sizes = shape[::-1]
    want, kept = np.zeros_like(shown), np.zeros_like(back)
    for pixel, position in enumerate(walked(sizes[1:], list(at), count, lower, upper, steps)):
        moved = [p + o for p, o in zip(position, (*offsets, 0), strict=True)]
        for c in range(CHANNELS):
            channel = at[0] + c
            if not 0 <= channel < sizes[0]:
                continue
            if all(0 <= p < n for p, n in zip(moved, sizes[1:], strict=True)):
                want[pixel, c] = data[(*moved[::-1], channel)]
            if all(0 <= p < n for p, n in zip(position, sizes[1:], strict=True)):  # a store has no offsets
                kept[(*position[::-1], channel)] = want[pixel, c]
    assert np.array_equal(shown, want) and want.any() and np.array_equal(back, kept) and kept.any()


def test_maps_that_do_not_make_sense() -> None:
    data = aligned(np.zeros((3, 8, 8, 16), np.uint32))
    assert isinstance(column_map(data, 64, (0, 0), (0, 0)), np.ndarray)
    for count, lower, upper, channels in [(0, (0, 0), (0, 0), 8), (1025, (0, 0), (0, 0), 8), (64, (-129, 0), (0, 0), 8), (64, (0, 0), (0, 128), 8),
                                          (64, (4, 0), (-4, 0), 8), (64, (0, 0), (0, 0), 0), (64, (0, 0), (0, 0), 6), (64, (0, 0), (0, 0), 260)]:  # fmt: skip
        assert isinstance(column_map(data, count, lower, upper, channels=channels), int), (count, lower, upper, channels)
    assert isinstance(column_map(data[0, 0], 64, (), ()), int)


def test_maps_of_the_other_kind() -> None:
    data, shown = aligned(np.zeros((3, 8, 8, 16), np.uint32)), np.zeros((16, CHANNELS), np.uint32)
    with pytest.raises(LaunchError, match="no tensor map of 4 dimensions"):
        boxes = tensor_map(data, (1, 1, 8, 8))
        Kernels(there_and_back(4, 16)).launch("k", 1, 32, boxes, boxes, shown, np.zeros(8, np.int32))


@pytest.mark.parametrize(("old", "new"), [("%h0, %h1", "%h0"), (".im2col.", ".im2col_no_offs."), ("4d.shared", "2d.shared"), (".im2col_no_offs.", ".im2col.")])
def test_what_is_no_copy(old: str, new: str) -> None:
    source = there_and_back(4, 16)
    assert old in source
    with pytest.raises(Exception, match=r"cp\.async"):
        Kernels(source.replace(old, new)).get("k", (32, 1, 1))


TEXTS = [there_and_back(rank, 16) for rank in (3, 4, 5)]
