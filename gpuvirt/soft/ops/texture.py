"""Textures and surfaces: fetches, gathers, loads, stores, reductions and attributes. What they do is the engine's
(native/backend/soft/engine/helpers_texture.c); here its arguments are put together.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import gather
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.parser import Addr, Ins, Operand, Pair, Sym, Vec
from gpuvirt.soft.ptx.types import LANES

_FLAGS, _WIDTH, _HEIGHT, _DEPTH, _LAYERS, _LEVELS = 12, 24, 84, 88, 92, 96  # offsets in struct soft_texture (native/backend/soft/engine/texture.h)
_ATTRIBUTES = {
    "width": _WIDTH, "height": _HEIGHT, "depth": _DEPTH, "array_size": _LAYERS, "num_mipmap_levels": _LEVELS, "normalized_coords": _FLAGS,
}  # fmt: skip
_NORMALIZED_COORDINATES = 1  # the number of the bit CU_TRSF_NORMALIZED_COORDINATES

# The words of kernel_abi.h.
_GEOMETRIES = {"1d": (0, 1), "2d": (1, 2), "3d": (2, 3), "cube": (3, 3)}  # number, coordinates
_LAYERED, _INTEGERS, _LEVEL, _GRADIENTS, _CLAMP, _ZERO, _GATHER_SHIFT = 4, 8, 16, 32, 64, 128, 8
_COMPONENTS = "rgba"
_REDUCTIONS = {"add": 0, "and": 1, "or": 2, "min": 3, "max": 4}
_SIGNED = 2  # min and max of signed numbers are so much further
_ROWS = 10
_BITS = {"b8": 8, "b16": 16, "b32": 32, "b64": 64}


def _geometry(e: Context, ins: Ins) -> tuple[int, int, bool]:
    """The geometry's number, how many coordinates it has, and whether a layer stands before them."""
    for name, (number, coordinates) in _GEOMETRIES.items():
        if name in ins.mods:
            return number, coordinates, False
        if f"a{name}" in ins.mods:
            return number, coordinates, True
    raise e.fail()


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def _put(e: Context, place: Val, row: int, value: Val, bytes_: int) -> None:
    vector = e.splat(value)
    e.emit(f"store {vector.ty} {vector.s}, ptr {e.offset(place, row * LANES * bytes_).s}, align 4")


def _check_reference(e: Context, operand: Operand) -> None:
    """A handle is a texture or surface object, in a register, or the address of a reference: its descriptor lies there."""
    variable = e.layout.module.variables.get(operand.name) if isinstance(operand, Sym) else None
    if variable is not None and variable.init:
        raise e.fail(f"a reference with an initialiser ('{variable.name}'): bind it with cuTexRef* or cuSurfRef*")


def _source(e: Context, operand: Operand, coordinates: int, layered: bool) -> tuple[Val, Val]:
    """Where the handles and the rows of coordinates lie, of [handle, {layer, x, y, z}]."""
    if not isinstance(operand, Vec) or len(operand.items) != 2:
        raise e.fail("no handle and coordinates, or a sampler of its own")
    at = _items(operand.items[1])
    if len(at) < coordinates + layered:
        raise e.fail("too few coordinates")
    _check_reference(e, operand.items[0])
    handles, rows = e.alloca(f"<{LANES} x i64>, align 64"), e.alloca(f"[{_ROWS} x <{LANES} x i32>], align 64")
    _put(e, handles, 0, e.rd_int(operand.items[0], 64), 8)
    if layered:
        _put(e, rows, 0, e.rd_int(at[0], 32), 4)
    for row, item in enumerate(at[layered : coordinates + layered], 1):
        _put(e, rows, row, e.rd_int(item, 32), 4)
    return handles, rows


def _fetched(e: Context, ins: Ins, handles: Val, rows: Val, what: int) -> None:
    """The call, and its four components. A predicate beside them says that the texels are there: they always are."""
    target = ins.ops[0]
    if isinstance(target, Pair):
        e.wr(target.second, e.const(1, "i1"))
        target = target.first
    if not isinstance(target, Vec) or len(target.items) != 4:
        raise e.fail("no four components")
    out = e.alloca(f"[4 x <{LANES} x i32>], align 64")
    e.call("soft_tex", "void", [Val("%w", "ptr"), e.exec_bits(), handles, rows, e.const(what, "i32"), out], declare=True)
    for i, item in enumerate(target.items):
        e.wr(item, e.let(f"load <{LANES} x i32>, ptr {e.offset(out, 4 * LANES * i).s}", "i32", True))


@emits
def tex(e: Context, ins: Ins) -> None:
    """tex.level.a2d.v4.f32.f32 {d0, d1, d2, d3}, [texture, {layer, x, y, y}], lod"""
    number, coordinates, layered = _geometry(e, ins)
    if "v4" not in ins.mods or ins.mods[-1] not in ("s32", "f32"):
        raise e.fail()
    what = number | (_LAYERED if layered else 0) | (_INTEGERS if ins.mods[-1] == "s32" else 0)
    handles, rows = _source(e, ins.ops[1], coordinates, layered)
    more = ins.ops[2:]
    if "level" in ins.mods:
        if len(more) != 1:
            raise e.fail("no level of detail")
        _put(e, rows, 4, e.rd_int(more[0], 32), 4)
        what |= _LEVEL
    elif "grad" in ins.mods:
        if len(more) != 2 or any(len(_items(gradient)) < coordinates for gradient in more):
            raise e.fail("no two gradients")
        for first, gradient in zip((4, 7), more, strict=True):
            for row, item in enumerate(_items(gradient)[:coordinates], first):
                _put(e, rows, row, e.rd_int(item, 32), 4)
        what |= _GRADIENTS
    elif more:
        raise e.fail("offsets and depth comparison")
    _fetched(e, ins, handles, rows, what)


@emits
def tld4(e: Context, ins: Ins) -> None:
    """tld4.r.2d.v4.f32.f32 {d0, d1, d2, d3}, [texture, {x, y}]"""
    number, coordinates, layered = _geometry(e, ins)
    component = next((c for c in _COMPONENTS if c in ins.mods), "")
    if not component or coordinates < 2 or "v4" not in ins.mods or ins.mods[-1] != "f32" or len(ins.ops) != 2:
        raise e.fail()
    handles, rows = _source(e, ins.ops[1], coordinates, layered)
    _fetched(e, ins, handles, rows, number | (_LAYERED if layered else 0) | (_COMPONENTS.index(component) + 1) << _GATHER_SHIFT)


@emits
def txq(e: Context, ins: Ins) -> None:
    """txq.width.b32 d, [texture]: of linear memory, the number of elements."""
    texture = ins.ops[1]
    if not isinstance(texture, Addr) or texture.offset:
        raise e.fail("no texture")
    handle = e.splat(e.rd_int(texture.base, 64))
    offset = next((offset for name, offset in _ATTRIBUTES.items() if name in ins.mods), None)
    if offset is None:
        raise e.fail()
    value = gather(e, e.add(handle, e.const(offset, "i64")), "i32", 4, e.exec_mask())
    if offset == _FLAGS:
        value = e.band(e.lshr(value, e.const(_NORMALIZED_COORDINATES, "i32")), e.const(1, "i32"))
    e.wr(ins.ops[0], value)


def _surface(e: Context, ins: Ins, operand: Operand) -> tuple[list[Val], int]:
    """Of a surface's instruction: the call's arguments up to what an element is, and the bits of its type."""
    number, coordinates, layered = _geometry(e, ins)
    handles, rows = _source(e, operand, coordinates, layered)
    what = number | (_LAYERED if layered else 0) | (_CLAMP if "clamp" in ins.mods else _ZERO if "zero" in ins.mods else 0)
    bits = next((bits for name, bits in _BITS.items() if name in ins.mods), 64 if "u64" in ins.mods or "s64" in ins.mods else 32)
    return [Val("%w", "ptr"), e.exec_bits(), handles, rows, e.const(what, "i32"), e.const(bits // 8, "i32")], bits


@emits
def suld(e: Context, ins: Ins) -> None:
    """suld.b.2d.v2.b32.trap {d0, d1}, [surface, {x, y}]: x counts bytes."""
    arguments, bits = _surface(e, ins, ins.ops[1])
    items = _items(ins.ops[0])
    out = e.alloca(f"[{len(items)} x <{LANES} x i64>], align 64")
    e.call("soft_surface_load", "void", [*arguments, e.const(len(items), "i32"), out], declare=True)
    for i, item in enumerate(items):
        value = e.let(f"load <{LANES} x i64>, ptr {e.offset(out, 8 * LANES * i).s}", "i64", True)
        e.wr(item, e.resize(value, f"i{bits}"))


def _values(e: Context, items: tuple[Operand, ...], bits: int) -> Val:
    values = e.alloca(f"[{len(items)} x <{LANES} x i64>], align 64")
    for row, item in enumerate(items):
        _put(e, values, row, e.resize(e.rd_int(item, bits), "i64"), 8)
    return values


@emits
def sust(e: Context, ins: Ins) -> None:
    """sust.b.2d.v2.b32.clamp [surface, {x, y}], {a, b}"""
    arguments, bits = _surface(e, ins, ins.ops[0])
    items = _items(ins.ops[1])
    values = _values(e, items, bits)
    e.call("soft_surface_store", "void", [*arguments, e.const(len(items), "i32"), values], declare=True)


@emits
def sured(e: Context, ins: Ins) -> None:
    """sured.b.add.2d.u32.trap [surface, {x, y}], a"""
    operation = next((number for name, number in _REDUCTIONS.items() if name in ins.mods), None)
    if operation is None or ("s64" in ins.mods and operation):
        raise e.fail()
    if "s32" in ins.mods and operation >= _REDUCTIONS["min"]:
        operation += _SIGNED
    arguments, bits = _surface(e, ins, ins.ops[0])
    values = _values(e, _items(ins.ops[1]), bits)
    e.call("soft_surface_reduce", "void", [*arguments, e.const(operation, "i32"), values], declare=True)
