"""Matrices and tensors of elements of 8, 6 and 4 bits: ldmatrix and stmatrix of bytes, and boxes of tensors whose elements are less than a byte."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError, engine
from soft.matrices import G, T, rng
from soft.test_async_copy import aligned

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"
LANE = np.arange(32)


def load(form: str, registers: int) -> str:
    """A kernel of one warp: lane i's row of 16 bytes is the i-th of those in shared memory; the registers of all lanes go to `o`."""
    names = ", ".join(f"%d{i}" for i in range(registers))
    return f"""{HEAD}.visible .entry k(.param .u64 i, .param .u64 o) {{ .reg .b32 %r<8>; .reg .b64 %q<4>; .reg .b32 %d<4>; .shared .align 128 .b8 sm[512];
    ld.param.u64 %q0, [i]; ld.param.u64 %q1, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, sm; mad.lo.u32 %r1, %r0, 16, %r1; mad.wide.u32 %q0, %r0, 16, %q0;
    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%q0]; st.shared.v4.u32 [%r1], {{%r2, %r3, %r4, %r5}}; bar.warp.sync -1;
    ldmatrix.sync.aligned.{form} {{{names}}}, [%r1]; mad.wide.u32 %q1, %r0, {4 * registers}, %q1;
    {" ".join(f"st.global.u32 [%q1+{4 * i}], %d{i};" for i in range(registers))} ret; }}"""


def store(form: str, registers: int) -> str:
    names = ", ".join(f"%d{i}" for i in range(registers))
    return f"""{HEAD}.visible .entry k(.param .u64 i, .param .u64 o) {{ .reg .b32 %r<8>; .reg .b64 %q<4>; .reg .b32 %d<4>; .shared .align 128 .b8 sm[512];
    ld.param.u64 %q0, [i]; ld.param.u64 %q1, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, sm; mad.lo.u32 %r1, %r0, 16, %r1; mad.wide.u32 %q0, %r0, {4 * registers}, %q0;
    {" ".join(f"ld.global.u32 %d{i}, [%q0+{4 * i}];" for i in range(registers))} st.shared.v4.u32 [%r1], {{%r0, %r0, %r0, %r0}}; bar.warp.sync -1;
    stmatrix.sync.aligned.{form} [%r1], {{{names}}}; bar.warp.sync -1;
    ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1]; mad.wide.u32 %q1, %r0, 16, %q1; st.global.v4.u32 [%q1], {{%r2, %r3, %r4, %r5}}; ret; }}"""


LOADS = [(f"m16n16.x{n}.trans.shared.b8", 2 * n) for n in (1, 2)]
SPREADS = [(f"m8n16.x{n}.shared.b8x16.{form}", n, bits) for n in (1, 2, 4) for form, bits in (("b4x16_p64", 4), ("b6x16_p32", 6))]
STORES = [(f"m16n8.x{n}.trans.shared.b8", n) for n in (1, 2, 4)]


@pytest.mark.parametrize(("form", "registers"), LOADS)
def test_bytes_are_loaded_by_columns(form: str, registers: int) -> None:
    """A register has four rows of one of the first or of the last eight columns."""
    rows, out = rng.integers(0, 256, (32, 16)).astype(np.uint8), np.zeros((32, registers, 4), np.uint8)
    Kernels(load(form, registers)).launch("k", 1, 32, rows, out)
    for r in range(registers):
        for b in range(4):
            assert np.array_equal(out[:, r, b], rows[r // 2 * 16 + 4 * T + b, G + r % 2 * 8])


@pytest.mark.parametrize(("form", "registers", "bits"), SPREADS)
def test_small_elements_get_a_byte_each(form: str, registers: int, bits: int) -> None:
    """16 of them are at the beginning of each row; what is behind them is not looked at."""
    rows, out = rng.integers(0, 256, (32, 16)).astype(np.uint8), np.zeros((32, registers, 4), np.uint8)
    Kernels(load(form, registers)).launch("k", 1, 32, rows, out)
    whole = [int.from_bytes(row.tobytes(), "little") for row in rows]
    fields = np.array([[w >> bits * i & (1 << bits) - 1 for i in range(16)] for w in whole])
    for r in range(registers):
        for b in range(4):
            assert np.array_equal(out[:, r, b], fields[8 * r + G, 4 * T + b])


@pytest.mark.parametrize(("form", "registers"), STORES)
def test_bytes_are_stored_by_columns(form: str, registers: int) -> None:
    """Registers as an mma's accumulators lie, a byte each; a row of memory is a column."""
    values, out = rng.integers(0, 256, (32, registers, 4)).astype(np.uint8), np.zeros((32, 16), np.uint8)
    Kernels(store(form, registers)).launch("k", 1, 32, values, out)
    for r in range(registers):
        for b in range(4):
            assert np.array_equal(out[8 * r + 2 * T + b % 2, G + b // 2 * 8], values[:, r, b])
    assert (out[8 * registers :].view(np.uint32) == LANE[8 * registers :, None]).all()


@pytest.mark.parametrize(
    "text",
    ["ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r1, %r2, %r3, %r4}, [%r5];", "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%r5];",
     "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16 {%r1}, [%r5];", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r5];",
     "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r5], {%r1};", "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r5], {%r1};"],
)  # fmt: skip
def test_what_is_no_matrix(text: str) -> None:
    with pytest.raises(Exception, match="matrix"):
        Kernels(f"{HEAD}.visible .entry k() {{ .reg .b32 %r<8>; {text} ret; }}").get("k", (32, 1, 1))


# ---- tensors ------------------------------------------------------------------------------------------------------------------------------------

U4, U4_APART, U6_APART = 13, 14, 15
UNITS = {U4: (2, 1, 1), U4_APART: (16, 8, 16), U6_APART: (16, 12, 16)}  # elements, bytes in the tensor, bytes in shared memory


def tensor_map(kind: int, bytes_: Any, columns: int, box: tuple[int, int], swizzle: int = 0, fill: int = 0) -> Any:
    """The map of rows of so many elements; -1: there is none."""
    out = aligned(np.zeros(128, np.uint8))
    dims, strides = (ctypes.c_uint64 * 2)(columns, len(bytes_)), (ctypes.c_uint64 * 1)(bytes_.strides[0])
    boxes, steps = (ctypes.c_uint32 * 2)(*box), (ctypes.c_uint32 * 2)(1, 1)
    rc = engine().soft_tensor_map_tiled(ctypes.c_void_p(out.ctypes.data), kind, 2, ctypes.c_uint64(bytes_.ctypes.data), dims, strides, boxes, steps, 0, swizzle, fill)
    return out if rc == 0 else -1


def there_and_back(size: int) -> str:
    """Loads a box at (x, y) to shared memory, which goes to `o`, and stores it with another map at the same place; `size` bytes are counted."""
    return f"""{HEAD}.visible .entry k(.param .u64 m, .param .u64 n, .param .u64 o, .param .u32 x, .param .u32 y) {{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %q<4>;
    .shared .align 1024 .b8 sm[4096]; .shared .b64 bar; ld.param.u64 %q0, [m]; ld.param.u64 %q1, [n]; ld.param.u64 %q2, [o]; ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y];
    mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; mov.u32 %r3, sm; mov.u32 %r4, bar; mov.u32 %r6, 0;
    CLEAR: mad.lo.u32 %r5, %r6, 128, %r3; mad.lo.u32 %r5, %r0, 4, %r5; st.shared.u32 [%r5], 0xEEEEEEEE; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 32; @%p1 bra CLEAR;
    bar.warp.sync -1; @%p0 bra SEEN; mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {size};
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%q0, {{%r1, %r2}}], [%r4];
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra W;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%q1, {{%r1, %r2}}], [%r3]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    SEEN: bar.warp.sync -1; mov.u32 %r6, 0; mad.wide.u32 %q2, %r0, 4, %q2;
    SHOW: mad.lo.u32 %r5, %r6, 128, %r3; mad.lo.u32 %r5, %r0, 4, %r5; ld.shared.u32 %r7, [%r5]; st.global.u32 [%q2], %r7; add.u64 %q2, %q2, 128; add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 32; @%p1 bra SHOW; ret; }}"""


@pytest.mark.parametrize(("kind", "columns", "box", "x", "y"), [(U4, 512, (64, 5), 96, 3), (U4, 512, (256, 3), 448, -1), (U4_APART, 256, (128, 4), 128, 2),
                                                                (U4_APART, 256, (128, 3), 0, 8), (U6_APART, 384, (128, 4), 256, -2), (U6_APART, 256, (128, 2), 128, 5)])  # fmt: skip
@pytest.mark.parametrize("swizzle", [0, 3])
def test_boxes_of_small_elements(kind: int, columns: int, box: tuple[int, int], x: int, y: int, swizzle: int) -> None:
    """16 of 4 or 6 bits lie 16 bytes apart in shared memory, or side by side; what is outside of the tensor is zeros; gaps stay, and are not counted."""
    elements, size, apart = UNITS[kind]
    data = aligned(rng.integers(0, 256, (10, columns // elements * size)).astype(np.uint8))
    back = aligned(np.zeros_like(data))
    shown = np.zeros(4096, np.uint8)
    units = box[0] // elements * box[1]
    maps = [tensor_map(kind, a, columns, box, swizzle) for a in (data, back)]
    Kernels(there_and_back(units * size)).launch("k", 1, 32, *maps, shown, x, y)
    want, kept = np.full(4096, 0xEE, np.uint8), np.zeros_like(data)
    for row in range(box[1]):
        for unit in range(box[0] // elements):
            at = (row * (box[0] // elements) + unit) * apart
            at ^= (at >> 7 & 7) << 4 if swizzle else 0
            column = (x // elements + unit) * size
            inside = 0 <= y + row < len(data) and 0 <= column < data.shape[1]
            want[at : at + size] = data[y + row, column : column + size] if inside else 0
            if inside:
                kept[y + row, column : column + size] = data[y + row, column : column + size]
    assert np.array_equal(shown, want) and np.array_equal(back, kept)


def test_maps_that_do_not_make_sense() -> None:
    data = aligned(np.zeros((4, 128), np.uint8))
    assert isinstance(tensor_map(U4, data, 256, (64, 2)), np.ndarray)
    for kind, columns, box, fill in [(U4, 255, (64, 2), 0), (U4, 256, (63, 2), 0), (U4_APART, 250, (128, 2), 0), (U4, 256, (64, 2), 1), (16, 256, (64, 2), 0)]:
        assert isinstance(tensor_map(kind, data, columns, box, 0, fill), int), (kind, columns, box, fill)


def test_small_elements_are_not_added() -> None:
    data = aligned(np.zeros((4, 128), np.uint8))
    text = f"""{HEAD}.visible .entry k(.param .u64 m) {{ .reg .b32 %r<4>; .reg .b64 %q<2>; .shared .align 128 .b8 sm[512]; ld.param.u64 %q0, [m]; mov.u32 %r0, sm; mov.u32 %r1, 0;
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%q0, {{%r1, %r1}}], [%r0]; ret; }}"""
    with pytest.raises(LaunchError, match="cannot be reduced"):
        Kernels(text).launch("k", 1, 1, tensor_map(U4, data, 256, (64, 2)))


TEXTS = [*(load(form, n) for form, n in LOADS), *(load(form, n) for form, n, _ in SPREADS), *(store(form, n) for form, n in STORES)]
