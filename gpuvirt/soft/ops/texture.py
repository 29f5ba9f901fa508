"""Textures: what there is of them, fetches from linear memory by the element's number, and their attributes."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import gather
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.parser import Addr, Ins, Vec
from gpuvirt.soft.ptx.types import LANES

_FLAGS, _ELEMENTS = 12, 24  # offsets in struct soft_texture (native/backend/soft/engine/texture.h)
_NORMALIZED_COORDINATES = 1  # the number of the bit CU_TRSF_NORMALIZED_COORDINATES


@emits
def tex(e: Context, ins: Ins) -> None:
    """tex.1d.v4.f32.s32 {d0, d1, d2, d3}, [texture, {x}]"""
    if "1d" not in ins.mods or "v4" not in ins.mods or ins.mods[-1] != "s32" or len(ins.ops) != 2:
        raise e.fail()
    target, source = ins.ops
    if not isinstance(source, Vec) or len(source.items) != 2 or not isinstance(target, Vec):
        raise e.fail("no texture and coordinate")
    at = source.items[1]
    x = e.splat(e.rd_int(at.items[0] if isinstance(at, Vec) else at, 32))
    handle = e.splat(e.rd_int(source.items[0], 64))
    places = []
    for value in (handle, x):
        places.append(e.alloca(f"{value.ty}, align 64"))
        e.emit(f"store {value.ty} {value.s}, ptr {places[-1].s}")
    out = e.alloca(f"[4 x <{LANES} x i32>], align 64")
    e.call("soft_tex_1d", "void", [Val("%w", "ptr"), e.exec_bits(), *places, out], declare=True)
    for i, item in enumerate(target.items):
        e.wr(item, e.let(f"load <{LANES} x i32>, ptr {e.offset(out, 4 * LANES * i).s}", "i32", True))


@emits
def txq(e: Context, ins: Ins) -> None:
    """txq.width.b32 d, [texture]: of linear memory, the number of elements."""
    texture = ins.ops[1]
    if not isinstance(texture, Addr) or texture.offset:
        raise e.fail("no texture")
    handle = e.splat(e.rd_int(texture.base, 64))
    offset = _ELEMENTS if "width" in ins.mods else _FLAGS
    value = gather(e, e.add(handle, e.const(offset, "i64")), "i32", 4, e.exec_mask())
    if "normalized_coords" in ins.mods:
        value = e.band(e.lshr(value, e.const(_NORMALIZED_COORDINATES, "i32")), e.const(1, "i32"))
    e.wr(ins.ops[0], value)
