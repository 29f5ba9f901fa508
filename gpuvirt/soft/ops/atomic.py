"""Atomic operations: atom (with the old value) and red (without)."""

from __future__ import annotations

from gpuvirt.soft.codegen import helpers
from gpuvirt.soft.codegen.addressing import address, space_of, spread
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import guarded
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import async_copy
from gpuvirt.soft.ptx.parser import Ins, Operand, Reg, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES, Type

_OPS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec", "sub")
_REDUCED = {"add", "min", "max", "and", "or", "xor"}


@emits
def atom(e: Context, ins: Ins) -> None:
    if "async" in ins.mods:
        async_copy.asynchronous(e, ins)
        return
    t = ins.type
    op = next(m for m in ins.mods if m in _OPS)
    shared = space_of(ins) == "shared"
    returns = ins.op == "atom"
    ops = ins.ops if returns else [None, *ins.ops]
    where = address(e, ins, ops[1], space_of(ins))
    width = next((int(m[1]) for m in ins.mods if m in ("v2", "v4", "v8")), 1)
    if width > 1:
        _vector(e, ins, t, op, where_lanes=spread(e, where), ops=ops, width=width)
        return
    element, parts, kind = _kind(t)
    value = e.rd_int(ops[2], t.bits)
    if not returns and where.scalar is not None and where.pattern is None and op in _REDUCED and parts == 1 and kind in "us" and t.bits in (32, 64):
        _reduced(e, op, kind, where.scalar, e.splat(value), shared)
        return
    swap = e.rd_int(ops[3], t.bits) if op == "cas" else None
    old = _call(e, op, element, kind, parts, shared, spread(e, where), value, swap)
    if returns and not (isinstance(ops[0], Reg) and ops[0].name == "_"):
        e.wr(ops[0], old, t.kind == "s")


def _kind(t: Type) -> tuple[str, int, str]:
    """(LLVM element type, elements, kind) of an atomic's type."""
    if t.kind == "x":
        return ("bfloat" if t.name == "bf16x2" else "half"), 2, "f"
    if t.kind == "h":
        return "bfloat", 1, "f"
    if t.kind == "f":
        return {16: "half", 32: "float", 64: "double"}[t.bits], 1, "f"
    return f"i{t.bits}", 1, "s" if t.kind == "s" else "u"


def _call(e: Context, op: str, element: str, kind: str, parts: int, shared: bool, lanes: Val, value: Val, swap: Val | None) -> Val:
    name = helpers.atomic(e.m, op, element, kind, parts, shared)
    arguments = [lanes, e.splat(value)]
    if swap is not None:
        arguments.append(e.splat(swap))
    return e.call(name, value.t, [*arguments, e.exec_bits()], True)


def _reduced(e: Context, op: str, kind: str, where: Val, value: Val, shared: bool) -> None:
    """All lanes update one place and nobody asks for the old value: combine first, then update once."""
    t = value.t
    bits = int(t[1:])
    name = (("s" if kind == "s" else "u") + op) if op in ("min", "max") else op
    neutral = {
        "add": 0, "or": 0, "xor": 0, "and": -1, "umin": -1, "umax": 0, "smin": (1 << (bits - 1)) - 1, "smax": -(1 << (bits - 1)),
    }[name]  # fmt: skip
    mask = e.exec_mask()
    if mask is not None:
        value = e.select(mask, value, e.const(neutral, t))
    full = f"llvm.vector.reduce.{name}.v{LANES}{t}"
    e.m.declare(full, f"declare {t} @{full}({value.ty})")
    total = e.let(f"call {t} @{full}({value.ty} {value.s})", t)
    pointer = e.pointer(where)
    if e.pred is not None:
        pointer = guarded(e, pointer)
    if shared:
        old = e.let(f"load {t}, ptr {pointer.s}, align {bits // 8}", t)
        new = e.intrinsic(name, old, total) if op in ("min", "max") else e.op(op, old, total)
        e.emit(f"store {t} {new.s}, ptr {pointer.s}, align {bits // 8}")
        return
    rmw = op if kind == "s" or op not in ("min", "max") else "u" + op
    e.emit(f"{e.name()} = atomicrmw {rmw} ptr {pointer.s}, {t} {total.s} seq_cst, align {bits // 8}")


def _vector(e: Context, ins: Ins, t: Type, op: str, where_lanes: Val, ops: list[Operand], width: int) -> None:
    """atom.v2 and its like are one atomic operation per element."""
    source, dst = ops[2], ops[0]
    if not isinstance(source, Vec):
        raise e.fail()
    element, parts, kind = _kind(t)
    for i, item in enumerate(source.items):
        lanes = e.add(where_lanes, e.const(i * t.bits // 8, "i64"))
        old = _call(e, op, element, kind, parts, False, lanes, e.rd_int(item, t.bits), None)
        if isinstance(dst, Vec):
            e.wr(dst.items[i], old)
    del width


__all__ = ["TYPES"]
