"""cvt.rs: stochastic rounding of floats to two numbers of 16 bits, or four of 8, 6 or 4, by random bits that the program gives.

The random bits are added to those that the result has no room for, and what is carried rounds away from zero. Which of the 32 bits are whose is told
by pictures of the PTX ISA alone: here the lowest result has the lowest ones, 16 or 8 each, and of more bits than are cut off the highest count.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ops.fp8 import FORMATS, Format
from gpuvirt.soft.ops.fragments import items
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import TYPES, Type

_INFINITE = {"f16": 0x7C00, "bf16": 0x7F80}
_WIDE = {"f16": Format(10, 15, 0x7BFF, 0x7FFF), "bf16": Format(7, 127, 0x7F7F, 0x7FFF)}


def convert(e: Context, ins: Ins, to: Type) -> None:
    """cvt.rs to a packed type: operands d, a, b, random; or d, {a, b, c, d}, random. The first input becomes the highest part."""
    name, _, count = to.name.rpartition("x")
    inputs = items(ins.ops[1]) if count == "4" else ins.ops[1:3]
    form = _WIDE.get(name) or FORMATS.get(name)
    if form is None or len(inputs) != int(count) or (name not in _WIDE and "satfinite" not in ins.mods):
        raise e.fail()
    random, bits, each = e.rd_int(ins.ops[-1], 32), 32 // len(inputs), to.bits // len(inputs)
    result = e.const(0, "i32")
    for i, operand in enumerate(reversed(inputs)):
        a = e.rd(operand, TYPES["f32"])
        if "relu" in ins.mods:
            zero = e.fconst(0.0, "float")
            a = e.select(e.fcmp("ole", a, zero), zero, a)
        share = e.band(e.lshr(random, e.const(i * bits, "i32")), e.const((1 << bits) - 1, "i32"))
        largest = form.largest if name not in _WIDE or "satfinite" in ins.mods else _INFINITE[name]
        result = e.bor(result, e.shl(_rounded(e, a, form, each, largest, share, bits), e.const(i * each, "i32")))
    e.wr(ins.ops[0], e.resize(result, f"i{to.bits}"))


def _rounded(e: Context, a: Val, f: Format, width: int, largest: int, random: Val, n: int) -> Val:
    """The number's code, in an i32; `n`: random bits."""
    cut = 23 - f.fraction
    if n > cut:
        random, n = e.lshr(random, e.const(n - cut, "i32")), cut
    size = e.band(e.as_int(a), e.const(0x7FFFFFFF, "i32"))
    code = e.lshr(e.add(size, e.shl(random, e.const(cut - n, "i32"))), e.const(cut, "i32"))
    if f.bias != 127:  # other exponents than a float's, so subnormal numbers where it has none: their last place is fixed
        code = e.sub(code, e.const((127 - f.bias) << f.fraction, "i32"))
        places = e.fmul(e.cast("fpext", e.intrinsic("fabs", a), "double"), e.fconst(2.0 ** (f.bias - 1 + f.fraction), "double"))
        added = e.fadd(places, e.fmul(e.cast("uitofp", random, "double"), e.fconst(2.0**-n, "double")))
        small = e.fcmp("olt", e.intrinsic("fabs", a), e.fconst(2.0 ** (1 - f.bias), "float"))
        code = e.select(small, e.cast("fptosi", e.select(small, added, e.fconst(0.0, "double")), "i32"), code)
    sign_bit = max(f.sign.bit_length() - 1, width - 1 if width > 8 else 0)
    sign = e.band(e.lshr(e.as_int(a), e.const(31 - sign_bit, "i32")), e.const(1 << sign_bit, "i32"))
    code = e.bor(e.intrinsic("umin", code, e.const(largest, "i32")), sign)
    nan = e.const(f.nan if f.nan is not None else f.largest, "i32")  # without NaN: the largest, positive
    return e.select(e.fcmp("uno", a, a), nan, code)
