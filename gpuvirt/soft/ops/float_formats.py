"""Floating-point values as PTX has them: f16 and bf16 in wider ones, subnormal numbers, saturation, canonical NaNs, neighbours of a number."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.parser import Operand
from gpuvirt.soft.ptx.types import INT_BITS, Type


def flush(e: Context, a: Val) -> Val:
    """Subnormal numbers to zero of the same sign."""
    if a.t != "float" or a.c or a.s in e.clean:
        return a
    bits = e.as_int(a)
    exponent = e.band(bits, e.const(0x7F800000, "i32"))
    zero = e.band(bits, e.const(-(1 << 31), "i32"))
    return clean(e, e.bitcast(e.select(e.icmp("eq", exponent, e.const(0, "i32")), zero, bits), "float"))


def clean(e: Context, a: Val) -> Val:
    """Notes that a value is not subnormal."""
    e.clean.add(a.s)
    return a


def flushed(e: Context, a: Val) -> Val:
    """An operand or result of an instruction that computes: flushed, unless the processor does it."""
    return a if e.m.flush else flush(e, a)


def saturate(e: Context, a: Val) -> Val:
    """To [0, 1]; NaN to 0."""
    zero, one = e.fconst(0.0, a.t), e.fconst(1.0, a.t)
    positive = e.select(e.fcmp("ogt", a, zero), a, zero)
    return e.select(e.fcmp("olt", positive, one), positive, one)


def canonical(e: Context, value: Val) -> Val:
    """A NaN as PTX's canonical one of the format; doubles keep theirs."""
    if value.t != "float":
        return value
    return e.bitcast(e.select(e.fcmp("uno", value, value), e.const(0x7FFFFFFF, "i32"), e.as_int(value)), "float")


# 16-bit formats ------------------------------------------------------------------------------------------------------------------------------


def widen(e: Context, a: Val, t: Type) -> Val:
    """An f16 (half or i16) or bf16 (i16) value as float; exact."""
    if t.kind == "h":
        return e.bitcast(e.shl(e.cast("zext", a, "i32"), e.const(16, "i32")), "float")
    return e.cast("fpext", e.bitcast(a, "half"), "float")


def narrow(e: Context, a: Val, t: Type, mode: str = "rn") -> Val:
    """A float to f16 (half) or bf16 (i16)."""
    if t.kind == "h":
        return to_bfloat(e, a, mode)
    half = e.cast("fptrunc", a, "half") if mode == "rn" else directed_half(e, a, mode)
    nan = e.fcmp("uno", a, a)
    return e.bitcast(e.select(nan, e.const(0x7FFF, "i16"), e.as_int(half)), "half")


def to_bfloat(e: Context, a: Val, mode: str) -> Val:
    bits = e.as_int(a)
    upper = e.lshr(bits, e.const(16, "i32"))
    if mode in ("rn", "rna"):
        bias = e.const(0x8000, "i32") if mode == "rna" else e.add(e.band(upper, e.const(1, "i32")), e.const(0x7FFF, "i32"))
        upper = e.lshr(e.add(bits, bias), e.const(16, "i32"))
    elif mode in ("rm", "rp"):
        inexact = e.icmp("ne", e.band(bits, e.const(0xFFFF, "i32")), e.const(0, "i32"))
        negative = e.icmp("slt", bits, e.const(0, "i32"))
        away = e.band(inexact, negative if mode == "rm" else e.invert(negative))
        finite = e.icmp("ult", e.band(bits, e.const(0x7FFFFFFF, "i32")), e.const(0x7F800000, "i32"))
        upper = e.add(upper, e.cast("zext", e.band(away, finite), "i32"))
    nan = e.fcmp("uno", a, a)
    return e.resize(e.select(nan, e.const(0x7FFF, "i32"), upper), "i16")


def directed_half(e: Context, a: Val, mode: str) -> Val:
    """A float to half, rounded towards zero, down or up."""
    nearest = e.cast("fptrunc", a, "half")
    back = e.cast("fpext", nearest, "float")
    return step(e, nearest, e.fcmp("ogt", back, a), e.fcmp("olt", back, a), mode)


def step(e: Context, nearest: Val, above: Val, below: Val, mode: str) -> Val:
    """Turns a result rounded to nearest into one rounded as `mode`; `above`: it is greater than the exact value, `below`: it is less."""
    bits = e.as_int(nearest)
    width = INT_BITS[nearest.t]
    t = f"i{width}"
    sign = e.icmp("slt", bits, e.const(0, t))
    one = e.const(1, t)
    smallest = {16: 1, 32: 1, 64: 1}[width]
    is_zero = e.icmp("eq", e.band(bits, e.const((1 << (width - 1)) - 1, t)), e.const(0, t))
    down = e.select(sign, e.add(bits, one), e.sub(bits, one))
    down = e.select(is_zero, e.const((1 << (width - 1)) | smallest, t), down)
    up = e.select(sign, e.sub(bits, one), e.add(bits, one))
    up = e.select(is_zero, e.const(smallest, t), up)
    if mode == "rm":
        bits = e.select(above, down, bits)
    elif mode == "rp":
        bits = e.select(below, up, bits)
    else:
        positive = e.band(above, e.invert(sign))
        negative = e.band(below, sign)
        bits = e.select(e.band(positive, e.invert(is_zero)), e.sub(bits, one), e.select(e.band(negative, e.invert(is_zero)), e.sub(bits, one), bits))
    return e.bitcast(bits, nearest.t)


def halves(e: Context, operand: Operand, element: Type) -> tuple[Val, Val]:
    """The two 16-bit parts of a packed operand, low first, as i16 (or half)."""
    value = e.rd_int(operand, 32)
    low = e.resize(value, "i16")
    high = e.resize(e.lshr(value, e.const(16, "i32")), "i16")
    if element.kind == "f":
        return e.bitcast(low, "half"), e.bitcast(high, "half")
    return low, high


def pack_halves(e: Context, low: Val, high: Val) -> Val:
    a, b = (e.cast("zext", e.as_int(x), "i32") for x in (low, high))
    return e.bor(a, e.shl(b, e.const(16, "i32")))
