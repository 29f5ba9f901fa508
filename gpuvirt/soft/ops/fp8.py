"""Numbers of 8, 6 and 4 bits: conversions to and from pairs of e4m3, e5m2, e2m3, e3m2, e2m1 and ue8m0."""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ops.float_formats import halves, narrow, pack_halves, widen
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import TYPES, Type


class Format(NamedTuple):
    """A format of few bits: bits of the fraction, bias of the exponent, code of the largest number, code of NaN (None: there is none)."""

    fraction: int
    bias: int
    largest: int
    nan: int | None

    @property
    def sign(self) -> int:
        """The sign's bit."""
        return 0x80 if self.nan is not None else self.largest + 1


FORMATS = {
    "e4m3": Format(3, 7, 0x7E, 0x7F), "e5m2": Format(2, 15, 0x7B, 0x7F), "e2m3": Format(3, 1, 0x1F, None), "e3m2": Format(2, 3, 0x1F, None),
    "e2m1": Format(1, 1, 0x07, None),
}  # fmt: skip
PAIRS = {f"{name}x2" for name in FORMATS} | {"ue8m0x2"}


def encode(e: Context, a: Val, name: str) -> Val:
    """A float in the format, to nearest even; what is too large becomes the largest number (.satfinite). In the low bits of an i32."""
    f = FORMATS[name]
    bits = e.as_int(a)
    shift = 31 - f.sign.bit_length() + 1
    sign = e.band(e.lshr(bits, e.const(shift, "i32")), e.const(f.sign, "i32"))
    size = e.intrinsic("fabs", a)
    # Below the normal range a fixed step applies: adding a big power of two rounds there.
    magic = 2.0 ** (23 - f.fraction + 1 - f.bias)
    tiny = e.sub(e.as_int(e.fadd(size, e.fconst(magic, "float"))), e.as_int(e.fconst(magic, "float")))
    raw = e.as_int(size)
    cut = 23 - f.fraction
    odd = e.band(e.lshr(raw, e.const(cut, "i32")), e.const(1, "i32"))
    rounded = e.add(raw, e.add(odd, e.const((1 << (cut - 1)) - 1, "i32")))
    normal = e.sub(e.lshr(rounded, e.const(cut, "i32")), e.const((127 - f.bias) << f.fraction, "i32"))
    small = e.fcmp("olt", size, e.fconst(2.0 ** (1 - f.bias), "float"))
    code = e.intrinsic("umin", e.select(small, tiny, normal), e.const(f.largest, "i32"))
    nan = e.fcmp("uno", a, a)
    if f.nan is None:  # the largest, positive
        return e.select(nan, e.const(f.largest, "i32"), e.bor(code, sign))
    return e.bor(e.select(nan, e.const(f.nan, "i32"), code), sign)


def decode(e: Context, code: Val, name: str) -> Val:
    """A number of the format (in an i16) as half; exact."""
    f = FORMATS[name]
    if name == "e5m2":
        return e.bitcast(e.shl(code, e.const(8, "i16")), "half")
    top = f.sign.bit_length() - 1
    sign = e.shl(e.band(code, e.const(f.sign, "i16")), e.const(15 - top, "i16"))
    size = e.shl(e.band(code, e.const(f.sign - 1, "i16")), e.const(10 - f.fraction, "i16"))
    wide = e.fmul(e.cast("fpext", e.bitcast(size, "half"), "float"), e.fconst(2.0 ** (15 - f.bias), "float"))  # the exponents' biases differ
    value = e.as_int(e.cast("fptrunc", wide, "half"))
    if f.nan is not None:
        nan = e.icmp("eq", e.band(code, e.const(0x7F, "i16")), e.const(f.nan, "i16"))
        value = e.select(nan, e.const(0x7FFF, "i16"), value)
    return e.bitcast(e.bor(value, sign), "half")


def _to_scale(e: Context, a: Val, ins: Ins) -> Val:
    """A float as ue8m0: the exponent of its size, rounded towards zero or up."""
    size = e.band(e.as_int(a), e.const(0x7FFFFFFF, "i32"))
    infinity = e.const(0x7F800000, "i32")
    code = e.lshr(size, e.const(23, "i32"))
    if "rp" in ins.mods:
        above = e.icmp("ne", e.band(size, e.const(0x7FFFFF, "i32")), e.const(0, "i32"))
        above = e.band(e.band(above, e.icmp("ugt", size, e.const(0x00400000, "i32"))), e.icmp("ult", size, infinity))
        code = e.add(code, e.cast("zext", above, "i32"))
    elif "rz" not in ins.mods:
        raise e.fail()
    if "satfinite" in ins.mods:
        code = e.select(e.icmp("ule", size, infinity), e.intrinsic("umin", code, e.const(0xFE, "i32")), code)
    return code


def _from_scale(e: Context, code: Val) -> Val:
    """ue8m0 (in an i16) as bf16."""
    value = e.shl(code, e.const(7, "i16"))
    value = e.select(e.icmp("eq", code, e.const(0, "i16")), e.const(0x0040, "i16"), value)
    return e.select(e.icmp("eq", code, e.const(0xFF, "i16")), e.const(0x7FFF, "i16"), value)


def convert(e: Context, ins: Ins, to: Type, t: Type) -> None:
    """cvt between a pair of these and a pair of f16, bf16 or f32."""
    if to.name in PAIRS:
        _narrowed(e, ins, to, t)
        return
    if to.name not in ("f16x2", "bf16x2") or t.name not in PAIRS:
        raise e.fail()
    name = t.name[:-2]
    value = e.rd_int(ins.ops[1], max(t.bits, 16))
    step = 4 if name == "e2m1" else 8
    parts = []
    for shift in (0, step):
        code = e.band(e.lshr(value, e.const(shift, "i16")), e.const((1 << step) - 1, "i16"))
        if name == "ue8m0":
            if to.name != "bf16x2":
                raise e.fail()
            parts.append(_from_scale(e, code))
            continue
        part = decode(e, code, name)
        if "relu" in ins.mods:
            zero = e.half(0.0)
            part = e.select(e.fcmp("olt", part, zero), zero, part)
            part = e.select(e.icmp("eq", e.as_int(part), e.const(0x8000, "i16")), zero, part)
        parts.append(narrow(e, widen(e, part, TYPES["f16"]), TYPES["bf16"]) if to.name == "bf16x2" else part)
    e.wr(ins.ops[0], pack_halves(e, parts[0], parts[1]))


def _narrowed(e: Context, ins: Ins, to: Type, t: Type) -> None:
    if t.name == "f32":
        high, low = (e.rd(o, t) for o in ins.ops[1:3])
    elif t.name in ("f16x2", "bf16x2"):
        element = TYPES[t.name[:-2]]
        low, high = (widen(e, part, element) for part in halves(e, ins.ops[1], element))
    else:
        raise e.fail()
    name = to.name[:-2]
    if name != "ue8m0" and ("rn" not in ins.mods or "satfinite" not in ins.mods):
        raise e.fail()
    if name == "ue8m0":
        a, b = (_to_scale(e, x, ins) for x in (low, high))
    else:
        if "relu" in ins.mods:
            zero = e.fconst(0.0, "float")
            low, high = (e.select(e.fcmp("ole", x, zero), zero, x) for x in (low, high))
        a, b = (encode(e, x, name) for x in (low, high))
    e.wr(ins.ops[0], e.resize(e.bor(a, e.shl(b, e.const(4 if name == "e2m1" else 8, "i32"))), f"i{to.bits}"))
