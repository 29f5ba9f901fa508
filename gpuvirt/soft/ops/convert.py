"""cvt: conversions between all types, with rounding, saturation and flushing."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import fp8, stochastic
from gpuvirt.soft.ops.float_formats import canonical, clean, flush, flushed, narrow, pack_halves, saturate, step, widen
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import TYPES, Type, llvm_type

_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _floats(t: Type) -> bool:
    return t.kind in "fh"


@emits
def cvt(e: Context, ins: Ins) -> None:
    types = [TYPES[m] for m in ins.mods if m in TYPES]
    mode = next((m for m in ins.mods if m in ("rn", "rz", "rm", "rp", "rna", *_INTEGRAL)), None)
    if "pack" in ins.mods:
        _pack(e, ins, types)
        return
    if len(types) != 2:
        raise e.fail()
    to, t = types
    if "rs" in ins.mods:
        if to.kind != "x" or t.name != "f32":
            raise e.fail()
        stochastic.convert(e, ins, to)
        return
    if to.kind == "x" or t.kind == "x":
        _packed(e, ins, to, t, mode)
        return
    if to.name == "tf32":
        bits = e.rd_int(ins.ops[1], 32)
        half = e.const(0x1000, "i32")
        if mode == "rn":
            bias = e.add(e.const(0xFFF, "i32"), e.band(e.lshr(bits, e.const(13, "i32")), e.const(1, "i32")))
        elif mode == "rz":
            bias = e.const(0, "i32")
        else:
            bias = half
        finite = e.icmp("ult", e.band(bits, e.const(0x7FFFFFFF, "i32")), e.const(0x7F800000, "i32"))
        rounded = e.band(e.add(bits, bias), e.const(~0x1FFF, "i32"))
        result = e.select(finite, rounded, bits)
        if "satfinite" in ins.mods:
            size, top = e.band(result, e.const(0x7FFFFFFF, "i32")), e.const(0x7F7FE000, "i32")
            number = e.icmp("ule", e.band(bits, e.const(0x7FFFFFFF, "i32")), e.const(0x7F800000, "i32"))
            limited = e.bor(e.intrinsic("umin", size, top), e.band(result, e.const(-(1 << 31), "i32")))
            result = e.select(number, limited, result)
        if "relu" in ins.mods:  # NaN stays, whatever its sign
            negative = e.band(e.icmp("slt", result, e.const(0, "i32")), e.icmp("ule", result, e.const(0xFF800000, "i32")))
            result = e.select(negative, e.const(0, "i32"), result)
        nan = e.icmp("ugt", e.band(bits, e.const(0x7FFFFFFF, "i32")), e.const(0x7F800000, "i32"))
        e.wr(ins.ops[0], e.select(nan, e.const(0x7FFFFFFF, "i32"), result))
        return
    if _floats(t):
        if _floats(to):
            _float_to_float(e, ins, to, t, mode)
        else:
            _float_to_int(e, ins, to, t, mode)
        return
    a = e.rd(ins.ops[1], t)
    if _floats(to):
        _int_to_float(e, ins, to, t, mode, a)
        return
    if "sat" in ins.mods:
        a = _saturate_int(e, a, t, to)
    e.wr(ins.ops[0], e.resize(a, f"i{to.bits}", t.kind == "s"), to.kind == "s")


def _saturate_int(e: Context, a: Val, t: Type, to: Type) -> Val:
    low, high = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if to.kind == "s" else (0, (1 << to.bits) - 1)
    if t.kind == "s":
        if low > -(1 << (t.bits - 1)):
            a = e.intrinsic("smax", a, e.const(low, a.t))
        if high < (1 << (t.bits - 1)) - 1:
            a = e.intrinsic("smin", a, e.const(high, a.t))
    elif high < (1 << t.bits) - 1:
        a = e.intrinsic("umin", a, e.const(high, a.t))
    return a


def _read(e: Context, ins: Ins, t: Type) -> Val:
    """The source as float or double (16-bit formats widened)."""
    a = e.rd(ins.ops[1], t)
    if t.bits == 16:
        return widen(e, a, t)
    if "ftz" not in ins.mods:
        return a
    return flushed(e, a) if not _INTEGRAL.keys().isdisjoint(ins.mods) or "sat" in ins.mods else flush(e, a)


def _float_to_float(e: Context, ins: Ins, to: Type, t: Type, mode: str | None) -> None:
    a = _read(e, ins, t)
    if mode in _INTEGRAL:
        a = e.intrinsic(_INTEGRAL[mode], a)
    if "relu" in ins.mods:
        zero = e.fconst(0.0, a.t)
        a = e.select(e.fcmp("ole", a, zero), zero, a)
    if "sat" in ins.mods:
        a = saturate(e, a)
    if to.bits == 16:
        if a.t == "double":
            a = _odd(e, a)
        if "satfinite" in ins.mods:
            a = finite(e, a, to)
        result = narrow(e, a, to, mode if mode in ("rn", "rz", "rm", "rp", "rna") else "rn")
    elif to.bits == 64:
        result = a if a.t == "double" else e.cast("fpext", a, "double")
    elif a.t == "double":
        result = canonical(e, e.cast("fptrunc", a, "float"))
        if mode in ("rz", "rm", "rp"):
            back = e.cast("fpext", result, "double")
            result = step(e, result, e.fcmp("ogt", back, a), e.fcmp("olt", back, a), mode)
        if "ftz" in ins.mods:
            result = flush(e, result)
    else:
        result = canonical(e, a)
    e.wr(ins.ops[0], result)


def _odd(e: Context, a: Val) -> Val:
    """A double as float, rounded to odd: a later rounding to 16 bits is then as if made from the double."""
    nearest = e.cast("fptrunc", a, "float")
    back = e.cast("fpext", nearest, "double")
    above, below = e.fcmp("ogt", back, a), e.fcmp("olt", back, a)
    truncated = step(e, nearest, above, below, "rz")
    return e.bitcast(e.bor(e.as_int(truncated), e.cast("zext", e.bor(above, below), "i32")), "float")


def saturated(e: Context, a: Val, bits: int, signed: bool) -> Val:
    """A float or double as integer, towards zero, within the integer's bounds; NaN as 0. LLVM would do it lane by lane."""
    t = f"i{bits}"
    if not a.v or (bits != 32 and not (bits == 64 and "avx512dq" in e.m.features)):
        return e.intrinsic("fptosi.sat" if signed else "fptoui.sat", a, suffix=[t, a.t], ret=t)
    least, beyond = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    high = e.fcmp("oge", a, e.fconst(beyond, a.t))
    near = e.select(e.fcmp("ogt", a, e.fconst(least, a.t)), a, e.fconst(least, a.t))
    whole = e.cast("fptosi" if signed else "fptoui", e.select(high, e.fconst(0.0, a.t), near), t)
    whole = e.select(high, e.const((1 << (bits - 1)) - 1 if signed else -1, t), whole)
    return e.select(e.fcmp("uno", a, a), e.const(0, t), whole) if signed else whole


def _float_to_int(e: Context, ins: Ins, to: Type, t: Type, mode: str | None) -> None:
    a = _read(e, ins, t)
    if mode in _INTEGRAL and mode != "rzi":
        a = e.intrinsic(_INTEGRAL[mode], a)
    signed = to.kind == "s"
    result = saturated(e, a, to.bits, signed)
    if to.bits == 64:  # NaN becomes 0x8000000000000000 there, and 0 for 32 bits and less
        result = e.select(e.fcmp("uno", a, a), e.const(1 << 63, "i64"), result)
    e.wr(ins.ops[0], result, signed)


def _int_to_float(e: Context, ins: Ins, to: Type, t: Type, mode: str | None, a: Val) -> None:
    kind = "sitofp" if t.kind == "s" else "uitofp"
    if to.bits == 16:
        if t.bits <= 16:
            value = e.cast(kind, a, "float")
        elif t.bits == 32:
            value = _odd(e, e.cast(kind, a, "double"))
        else:  # keep what lies below double's precision as one sticky bit
            magnitude = e.intrinsic("abs", a, tail="i1 false") if t.kind == "s" else a
            low = e.band(magnitude, e.const(0xFFF, "i64"))
            sticky = e.select(e.icmp("ne", low, e.const(0, "i64")), e.const(0x1000, "i64"), e.const(0, "i64"))
            big = e.icmp("ugt", magnitude, e.const(1 << 52, "i64"))
            magnitude = e.select(big, e.bor(e.band(magnitude, e.const(~0xFFF, "i64")), sticky), magnitude)
            value = _odd(e, e.cast("uitofp", magnitude, "double"))
            if t.kind == "s":
                value = e.select(e.icmp("slt", a, e.const(0, "i64")), e.fneg(value), value)
        e.wr(ins.ops[0], narrow(e, value, to, mode if mode in ("rn", "rz", "rm", "rp") else "rn"))
        return
    result = clean(e, e.cast(kind, a, llvm_type(to)))
    if mode in ("rz", "rm", "rp"):
        if t.bits <= 32:
            exact = e.cast(kind, a, "double")
            if to.bits == 32:
                back = e.cast("fpext", result, "double")
                result = step(e, result, e.fcmp("ogt", back, exact), e.fcmp("olt", back, exact), mode)
        else:
            back = e.intrinsic("fptosi.sat" if t.kind == "s" else "fptoui.sat", result, suffix=["i64", result.t], ret="i64")
            s = "s" if t.kind == "s" else "u"
            # A result of 2**63 or 2**64 does not fit back: it was rounded up.
            limit = e.fconst(2.0**63 if s == "s" else 2.0**64, result.t)
            above = e.bor(e.fcmp("oge", result, limit), e.icmp(s + "gt", back, a))
            below = e.band(e.fcmp("olt", result, limit), e.icmp(s + "lt", back, a))
            result = step(e, result, above, below, mode)
    if "sat" in ins.mods:
        result = saturate(e, result)
    e.wr(ins.ops[0], result)


def _packed(e: Context, ins: Ins, to: Type, t: Type, mode: str | None) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a goes to the upper half, b to the lower; and the 8-bit formats."""
    if to.name in ("f16x2", "bf16x2") and t.name == "f32":
        element = TYPES[to.name[:-2]]
        parts = []
        for operand in (ins.ops[2], ins.ops[1]):
            a = e.rd(operand, t)
            if "relu" in ins.mods:
                zero = e.fconst(0.0, "float")
                a = e.select(e.fcmp("ole", a, zero), zero, a)
            if "satfinite" in ins.mods:
                a = finite(e, a, element)
            parts.append(narrow(e, a, element, mode or "rn"))
        e.wr(ins.ops[0], pack_halves(e, parts[0], parts[1]))
        return
    fp8.convert(e, ins, to, t)


def finite(e: Context, a: Val, t: Type) -> Val:
    """.satfinite: a float that is too large for f16 or bf16 as their largest number."""
    limit = e.fconst(65504.0 if t.kind == "f" else float.fromhex("0x1.fep127"), "float")
    size = e.intrinsic("fabs", a)
    return e.select(e.fcmp("ogt", size, limit), e.intrinsic("copysign", limit if not a.v else e.splat(limit), a), a)


def _pack(e: Context, ins: Ins, types: list[Type]) -> None:
    """cvt.pack.sat.u8.s32.b32 d, a, b, c"""
    to, t = types[0], types[1]
    a, b = e.rd_int(ins.ops[1], 32), e.rd_int(ins.ops[2], 32)
    low = e.band(_saturate_int(e, b, TYPES["s32"], to), e.const((1 << to.bits) - 1, "i32"))
    high = e.band(_saturate_int(e, a, TYPES["s32"], to), e.const((1 << to.bits) - 1, "i32"))
    result = e.bor(low, e.shl(high, e.const(to.bits, "i32")))
    if len(ins.ops) > 3:
        result = e.bor(result, e.shl(e.rd_int(ins.ops[3], 32), e.const(2 * to.bits, "i32")))
    del t
    e.wr(ins.ops[0], result)
