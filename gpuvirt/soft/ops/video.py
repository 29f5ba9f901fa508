"""The scalar video instructions: bytes, halves and words of registers, computed in 34 bits, saturated, and then combined with a third operand."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.parser import Ins, Operand, Part
from gpuvirt.soft.ptx.types import TYPES, Type

SECOND = ("add", "min", "max")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PARTS = {"b0": (0, 8), "b1": (8, 8), "b2": (16, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16), "": (0, 32)}


def _types(ins: Ins, count: int) -> list[Type]:
    types = [TYPES[m] for m in ins.mods if m in TYPES]
    if len(types) != count or any(t.bits != 32 or t.kind not in "us" for t in types):
        raise BadPtx(f"{ins.op} takes {count} types of .u32 and .s32 ('{ins}')")
    return types


def _part(operand: Operand) -> Part:
    return operand if isinstance(operand, Part) else Part(operand, "", False)


def _read(e: Context, operand: Operand, t: Type) -> Val:
    """The chosen part of a source, extended by its type to 64 bits."""
    part = _part(operand)
    shift, bits = PARTS[part.select]
    value = e.rd_int(part.reg, 32)
    if bits < 32:
        value = e.resize(e.lshr(value, e.const(shift, "i32")), f"i{bits}")
    return e.resize(value, "i64", t.kind == "s")


def _clamp(e: Context, value: Val, signed: bool) -> Val:
    low, high = (e.const(n, value.t) for n in ((-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)))
    value = e.select(e.icmp("slt", value, low), low, value)
    return e.select(e.icmp("sgt", value, high), high, value)


def _finish(e: Context, ins: Ins, value: Val, t: Type) -> None:
    """Saturates, applies the second operation or puts the result into its part of the third operand."""
    if "sat" in ins.mods:
        value = _clamp(e, value, t.kind == "s")
    word = e.resize(value, "i32")
    target = _part(ins.ops[0])
    second = next((m for m in ins.mods[1:] if m in SECOND), None)
    if len(ins.ops) > 3:
        c = e.rd_int(ins.ops[3], 32)
        if second == "add":
            word = e.add(word, c)
        elif second:
            word = e.intrinsic(("s" if t.kind == "s" else "u") + second, word, c)
        else:
            shift, bits = PARTS[target.select]
            mask = ((1 << bits) - 1) << shift
            moved = e.band(e.shl(word, e.const(shift, "i32")), e.const(mask, "i32"))
            word = e.bor(moved, e.band(c, e.const(~mask & 0xFFFFFFFF, "i32")))
    elif second or target.select:
        raise BadPtx(f"'{ins}' needs a third operand")
    e.wr(target.reg, word)


@emits
def arithmetic(e: Context, ins: Ins) -> None:
    to, ta, tb = _types(ins, 3)
    a, b = _read(e, ins.ops[1], ta), _read(e, ins.ops[2], tb)
    if ins.op == "vadd":
        value = e.add(a, b)
    elif ins.op == "vsub":
        value = e.sub(a, b)
    elif ins.op == "vabsdiff":
        difference = e.sub(a, b)
        value = e.select(e.icmp("slt", difference, e.const(0, "i64")), e.sub(e.const(0, "i64"), difference), difference)
    else:
        value = e.intrinsic("s" + ins.op[1:], a, b)
    _finish(e, ins, value, to)


@emits
def shift(e: Context, ins: Ins) -> None:
    to, ta, tb = _types(ins, 3)
    a, b = _read(e, ins.ops[1], ta), _read(e, ins.ops[2], tb)
    b = e.band(b, e.const(31, "i64")) if "wrap" in ins.mods else e.intrinsic("umin", b, e.const(32, "i64"))
    if ins.op == "vshl":
        wide = "i128"  # 32 bits and a sign, shifted by up to 32
        _finish(e, ins, e.shl(e.resize(a, wide, True), e.resize(b, wide)), to)
    else:
        _finish(e, ins, e.ashr(a, b), to)


@emits
def multiply(e: Context, ins: Ins) -> None:
    _, ta, tb = _types(ins, 3)
    first, second, third = (_part(o) for o in ins.ops[1:4])
    signed = "s" in (ta.kind, tb.kind) or first.negated != second.negated or third.negated
    wide = "i128"
    product = e.mul(e.resize(_read(e, first, ta), wide, True), e.resize(_read(e, second, tb), wide, True))
    c = e.resize(e.rd_int(third.reg, 32), wide, signed)
    if first.negated != second.negated:
        product = e.sub(e.const(0, wide), product)
    elif third.negated:
        c = e.sub(e.const(0, wide), c)
    total = e.add(product, c)
    if "po" in ins.mods:
        total = e.add(total, e.const(1, wide))
    places = next((int(m[3:]) for m in ins.mods if m in ("shr7", "shr15")), 0)
    if places:
        total = e.ashr(total, e.const(places, wide))
    if "sat" in ins.mods:
        total = _clamp(e, total, signed)
    e.wr(ins.ops[0], e.resize(total, "i32"))


@emits
def compare(e: Context, ins: Ins) -> None:
    ta, tb = _types(ins, 2)
    name = next(m for m in ins.mods if m in COMPARISONS)
    a, b = _read(e, ins.ops[1], ta), _read(e, ins.ops[2], tb)
    condition = e.icmp(name if name in ("eq", "ne") else "s" + name, a, b)
    _finish(e, ins, e.select(condition, e.const(1, "i64"), e.const(0, "i64")), TYPES["u32"])


# Two halves or four bytes at a time. A selection names a part of a and b together for each result, the highest first: 0 to n - 1 are a's, the
# others b's.


def _chosen(operand: Operand, count: int, default: int) -> list[int]:
    """Which part each result takes, the lowest first."""
    select = _part(operand).select
    letter = "h" if count == 2 else "b"
    if not select:
        return list(range(default, default + count))
    if select[0] != letter or len(select) != count + 1:
        raise BadPtx(f"a selection of {count} parts, not .{select}")
    return [int(digit) for digit in reversed(select[1:])]


def _piece(e: Context, a: Val, b: Val, which: int, count: int, signed: bool) -> Val:
    bits = 32 // count
    word = a if which < count else b
    value = e.shl(word, e.const(32 - bits - bits * (which % count), "i32"))
    return e.op("ashr" if signed else "lshr", value, e.const(32 - bits, "i32"))


@emits
def simd(e: Context, ins: Ins) -> None:
    name, count = ins.op[:-1], int(ins.op[-1])
    if name == "vset":
        ta, tb = _types(ins, 2)
        to = TYPES["u32"]
    else:
        to, ta, tb = _types(ins, 3)
    bits, signed = 32 // count, to.kind == "s"
    first, second = _part(ins.ops[1]), _part(ins.ops[2])
    a, b, c = e.rd_int(first.reg, 32), e.rd_int(second.reg, 32), e.rd_int(ins.ops[3], 32)
    target = _part(ins.ops[0])
    taken = [int(digit) for digit in target.select[1:]] or list(range(count))
    total = c if "add" in ins.mods else e.const(0, "i32")
    picks = zip(_chosen(ins.ops[1], count, 0), _chosen(ins.ops[2], count, count), strict=True)
    for i, (pa, pb) in enumerate(picks):
        mask = e.const(((1 << bits) - 1) << (bits * i), "i32")
        if i not in taken:
            if "add" not in ins.mods:
                total = e.bor(total, e.band(c, mask))
            continue
        x, y = _piece(e, a, b, pa, count, ta.kind == "s"), _piece(e, a, b, pb, count, tb.kind == "s")
        value = _combined(e, ins, name, x, y)
        if "sat" in ins.mods:
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            value = e.intrinsic("smin", e.intrinsic("smax", value, e.const(low, "i32")), e.const(high, "i32"))
        total = e.add(total, value) if "add" in ins.mods else e.bor(total, e.band(e.shl(value, e.const(bits * i, "i32")), mask))
    e.wr(target.reg, total)


def _combined(e: Context, ins: Ins, name: str, x: Val, y: Val) -> Val:
    zero, one = e.const(0, "i32"), e.const(1, "i32")
    if name == "vset":
        comparison = next(m for m in ins.mods if m in COMPARISONS)
        return e.cast("zext", e.icmp(comparison if comparison in ("eq", "ne") else "s" + comparison, x, y), "i32")
    if name == "vadd":
        return e.add(x, y)
    if name == "vavrg":  # a half goes up
        total = e.add(x, y)
        return e.ashr(e.add(total, e.select(e.icmp("sge", total, zero), one, zero)), one)
    if name in ("vmin", "vmax"):
        return e.intrinsic("s" + name[1:], x, y)
    difference = e.sub(x, y)
    return e.intrinsic("abs", difference, tail="i1 false") if name == "vabsdiff" else difference
