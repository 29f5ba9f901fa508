"""Comparisons of integers and floating-point numbers, and the choice between two values."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.float_formats import flushed, halves, widen
from gpuvirt.soft.ptx.parser import Ins, Pair
from gpuvirt.soft.ptx.types import TYPES, Type

_HALVES = {"f16x2", "bf16x2"}
_COMPARE = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}


def compare(e: Context, name: str, t: Type, a: Val, b: Val) -> Val:
    """A comparison as setp and set make it."""
    if t.kind in "f":
        if name in ("num", "nan"):
            return e.fcmp("ord" if name == "num" else "uno", a, b)
        if name.endswith("u") and name[:-1] in ("eq", "ne", "lt", "le", "gt", "ge"):
            return e.fcmp("u" + name[:-1], a, b)
        return e.fcmp("o" + {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(name, name), a, b)
    plain = _COMPARE.get(name, name)
    if plain in ("eq", "ne"):
        return e.icmp(plain, a, b)
    signed = t.kind == "s" and name not in _COMPARE
    return e.icmp(("s" if signed else "u") + plain, a, b)


def compare_operands(e: Context, ins: Ins, t: Type) -> list[tuple[Val, Val, Type]]:
    """The pairs to compare (two for packed types), as values that fcmp or icmp take."""
    a, b = ins.ops[1], ins.ops[2]
    if t.name in _HALVES:
        element = TYPES[t.name[:-2]]
        return [(widen(e, x, element), widen(e, y, element), TYPES["f32"]) for x, y in zip(halves(e, a, element), halves(e, b, element), strict=True)]
    if t.bits == 16 and t.kind in "fh":
        return [(widen(e, e.rd(a, t), t), widen(e, e.rd(b, t), t), TYPES["f32"])]
    x, y = e.rd(a, t), e.rd(b, t)
    if "ftz" in ins.mods:
        x, y = flushed(e, x), flushed(e, y)
    return [(x, y, t)]


@emits
def setp(e: Context, ins: Ins) -> None:
    t = ins.type
    name = next(m for m in ins.mods if m in _COMPARISONS)
    join = next((m for m in ins.mods[1:] if m in ("and", "or", "xor")), None)
    pairs = compare_operands(e, ins, t)
    results = [compare(e, name, kind, a, b) for a, b, kind in pairs]
    other = e.rd_pred(ins.ops[3]) if join and len(ins.ops) > 3 else None
    dst = ins.ops[0]
    firsts = [r if other is None or join is None else e.op(join, r, other) for r in results]
    if isinstance(dst, Pair):
        second = firsts[1] if len(results) == 2 else e.invert(results[0])
        if len(results) == 1 and other is not None and join is not None:
            second = e.op(join, second, other)
        e.wr(dst.first, firsts[0])
        e.wr(dst.second, second)
    else:
        e.wr(dst, firsts[0])


@emits
def set_(e: Context, ins: Ins) -> None:
    types = [TYPES[m] for m in ins.mods if m in TYPES]
    to, t = types[0], types[-1]
    name = next(m for m in ins.mods if m in _COMPARISONS)
    join = next((m for m in ins.mods[1:] if m in ("and", "or", "xor")), None)
    other = e.rd_pred(ins.ops[3]) if join and len(ins.ops) > 3 else None
    results = []
    for a, b, kind in compare_operands(e, ins, t):
        result = compare(e, name, kind, a, b)
        results.append(result if other is None or join is None else e.op(join, result, other))
    if t.name in _HALVES:
        yes = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(to.name, 0xFFFF)
        low, high = (e.select(r, e.const(yes, "i32"), e.const(0, "i32")) for r in results)
        e.wr(ins.ops[0], e.bor(low, e.shl(high, e.const(16, "i32"))))
        return
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f64": 0x3FF0000000000000}.get(to.name, -1)
    width = f"i{to.bits}"
    e.wr(ins.ops[0], e.select(results[0], e.const(ones, width), e.const(0, width)))


@emits
def selp(e: Context, ins: Ins) -> None:
    t = ins.type
    e.wr(ins.ops[0], e.select(e.rd_pred(ins.ops[3]), e.rd_int(ins.ops[1], t.bits), e.rd_int(ins.ops[2], t.bits)), t.kind == "s")


@emits
def slct(e: Context, ins: Ins) -> None:
    types = [TYPES[m] for m in ins.mods if m in TYPES]
    t, kind = types[0], types[-1]
    c = e.rd(ins.ops[3], kind)
    if kind.kind == "f":
        c = flushed(e, c) if "ftz" in ins.mods else c
        condition = e.fcmp("oge", c, e.fconst(0.0, "float"))
    else:
        condition = e.icmp("sge", c, e.const(0, "i32"))
    e.wr(ins.ops[0], e.select(condition, e.rd_int(ins.ops[1], t.bits), e.rd_int(ins.ops[2], t.bits)), t.kind == "s")
