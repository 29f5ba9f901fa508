"""tcgen05: tensor memory, what moves between it, registers and shared memory, and products of matrices into it.

The engine does all of it when the instruction comes (native/backend/soft/engine/matrix); the waits and fences then have nothing to wait for, and a
commit arrives at its mbarrier at once.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.async_copy import each_lane, lanes_of
from gpuvirt.soft.ops.fragments import VECTOR, buffer, items, of_warp, vector
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Vec

W = Val("%w", "ptr")
_SHAPES = {"32x32b": (0, 1), "16x64b": (1, 1), "16x128b": (2, 2), "16x256b": (3, 4), "16x32bx2": (4, 1)}  # the engine's number; registers of .x1
_COPIES = {
    ("128x256b", ""): 0, ("4x256b", ""): 1, ("128x128b", ""): 2, ("64x128b", "warpx2::02_13"): 3, ("64x128b", "warpx2::01_23"): 4,
    ("32x128b", "warpx4"): 5,
}  # fmt: skip
_KINDS = {  # the engine's number, and the scales that a row may have
    "kind::f16": (0, ()), "kind::tf32": (1, ()), "kind::f8f6f4": (2, ()), "kind::i8": (3, ()), "kind::mxf8f6f4": (4, (1,)), "kind::mxf4": (5, (2,)),
    "kind::mxf4nvf4": (6, (2, 4)),
}  # fmt: skip
_VECTORS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block32": 2, "block16": 4}
_PAIR, _LEFT_HERE, _SPARSE, _STATIONARY, _VECTORS_SHIFT, _SCALE_SHIFT = 16, 32, 64, 128, 8, 12


@emits
def tcgen05(e: Context, ins: Ins) -> None:
    what = ins.mods[0]
    if what.startswith(("wait::", "fence::")):
        return
    if what in ("alloc", "dealloc", "relinquish_alloc_permit"):
        _columns(e, ins, what)
    elif what in ("ld", "st"):
        _registers(e, ins, what == "ld")
    elif what == "cp":
        _copy(e, ins)
    elif what == "commit":
        ranks = e.band(e.rd_int(ins.ops[1], 32), e.const(0xFFFF, "i32")) if "multicast::cluster" in ins.mods else e.const(0, "i32")
        each_lane(e, "soft_tensor_commit", "", [lanes_of(e, ins, ins.ops[0], _space(ins)), ranks])
    elif what == "mma":
        _product(e, ins)
    else:
        raise e.fail()


def _space(ins: Ins) -> str:
    return "shared" if any(m.startswith("shared::") for m in ins.mods) else ""


def _address(e: Context, operand: Operand) -> Val:
    """An address in tensor memory."""
    if not isinstance(operand, Addr) or not isinstance(operand.base, (Reg, Imm)):
        raise e.fail("no address in tensor memory")
    return e.add(e.rd_int(operand.base, 32), e.const(operand.offset, "i32"))


def _columns(e: Context, ins: Ins, what: str) -> None:
    executing = e.exec_bits()
    if what == "alloc":
        e.uses_barrier = True
        place = of_warp(e, lanes_of(e, ins, ins.ops[0], _space(ins)))
        e.call("soft_tensor_memory_alloc", "void", [W, executing, place, of_warp(e, e.rd_int(ins.ops[1], 32))], declare=True)
    elif what == "dealloc":
        arguments = [of_warp(e, e.rd_int(operand, 32)) for operand in ins.ops]
        e.call("soft_tensor_memory_dealloc", "void", [W, executing, *arguments], declare=True)
    else:
        e.call("soft_tensor_memory_relinquish", "void", [W], declare=True)


def _registers(e: Context, ins: Ins, load: bool) -> None:
    shape, of_one = next((_SHAPES[m] for m in ins.mods if m in _SHAPES), (0, 0))
    times = next((int(m[1:]) for m in ins.mods if m.startswith("x") and m[1:].isdigit()), 0)
    registers, memory, more = (items(ins.ops[0]), ins.ops[1], ins.ops[2:]) if load else (items(ins.ops[-1]), ins.ops[0], ins.ops[1:-1])
    half = more[0] if more else Imm(0)
    if not of_one or len(registers) != of_one * times or len(more) != (shape == 4) or not isinstance(half, Imm) or not 0 <= half.value < 512:
        raise e.fail("the number of registers")
    packed = "pack::16b" in ins.mods or "unpack::16b" in ins.mods
    values = buffer(e, "tensor", len(registers))
    if not load:
        for i, register in enumerate(registers):
            e.emit(f"store {(value := e.splat(e.rd_int(register, 32))).ty} {value.s}, ptr {e.offset(values, i * VECTOR).s}, align 64")
    numbers = [e.const(n, "i32") for n in (shape, len(registers), int(packed), half.value)]
    arguments = [W, of_warp(e, _address(e, memory)), *numbers, values]
    e.call("soft_tensor_memory_load" if load else "soft_tensor_memory_store", "void", arguments, declare=True)
    if load:
        for i, register in enumerate(registers):
            e.wr(register, vector(e, values, i))


def _pair(ins: Ins) -> bool:
    return "cta_group::2" in ins.mods


def _copy(e: Context, ins: Ins) -> None:
    shape = next((m for m in ins.mods if (m, "") in _COPIES or m in ("64x128b", "32x128b")), "")
    number = _COPIES.get((shape, next((m for m in ins.mods if m.startswith("warpx")), "")))
    if number is None:
        raise e.fail("the shape")
    arguments = [_address(e, ins.ops[0]), e.rd_int(ins.ops[1], 64), e.const(number, "i32"), e.const(int(_pair(ins)), "i32")]
    each_lane(e, "soft_tensor_memory_copy", "", arguments)


def _product(e: Context, ins: Ins) -> None:
    """[d], a or [a], b, {[metadata],} instruction descriptor, {[scales of a], [scales of b],} {disabled lanes,} enable d {, scale d}"""
    kind, vectors = next((_KINDS[m] for m in ins.mods if m in _KINDS), (0, ()))
    zero = e.const(0, "i32")
    d, a, b, *rest = ins.ops
    how = kind
    for is_so, bit in ((_pair(ins), _PAIR), (isinstance(a, Addr), _LEFT_HERE), ("sp" in ins.mods, _SPARSE), ("ws" in ins.mods, _STATIONARY)):
        how |= bit * is_so
    metadata = _address(e, rest.pop(0)) if "sp" in ins.mods else zero
    descriptor = e.rd_int(rest.pop(0), 32)
    scales = [zero, zero]
    if vectors or "block_scale" in ins.mods:
        count = next((n for word, n in _VECTORS.items() if word in ins.mods), min(vectors, default=0))
        if count not in vectors or "block_scale" not in ins.mods or len(rest) != 3:
            raise e.fail("the scales")
        scales = [_address(e, rest.pop(0)), _address(e, rest.pop(0))]
        how |= count << _VECTORS_SHIFT
    disabled = [e.const(0, "i64")] * 4
    if isinstance(rest[0], Vec):
        words = [e.resize(e.rd_int(item, 32), "i64") for item in rest[0].items]
        if len(words) != 4 * (1 + _pair(ins)):
            raise e.fail("the lanes that stay as they are")
        for i in range(0, len(words), 2):
            disabled[i // 2] = e.bor(words[i], e.shl(words[i + 1], e.const(32, "i64")))
        rest.pop(0)
    enable = e.rd_pred(rest.pop(0))
    if rest:
        scale = rest.pop(0)
        if rest or "ws" in ins.mods or kind > 1 or not isinstance(scale, Imm) or not 0 <= scale.value < 16:
            raise e.fail("what follows the predicate")  # with .ws: a mask of columns
        how |= scale.value << _SCALE_SHIFT
    left = e.resize(_address(e, a), "i64") if isinstance(a, Addr) else e.rd_int(a, 64)
    arguments = [e.const(how, "i32"), _address(e, d), left, e.rd_int(b, 64), descriptor, metadata, *scales, e.cast("zext", enable, "i32"), *disabled]
    each_lane(e, "soft_tensor_product", "", arguments)
