"""Special functions: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh, as vector code.

The approximate forms promise an error bound, not a result; these stay inside it and give exact results where the formats do (powers of two, special
values). Polynomials were fitted on the reduced ranges with the Chebyshev nodes; tests/soft/ops/test_vector_math.py checks them
over all of each range.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.convert import saturated
from gpuvirt.soft.ops.float_formats import clean, flush, flushed, halves, narrow, pack_halves, step, widen
from gpuvirt.soft.ops.floating import MODES, by_processor, directed, fma
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import TYPES


def _horner(e: Context, x: Val, coefficients: list[float]) -> Val:
    """Coefficients from the highest power down."""
    total = e.fconst(coefficients[0], x.t)
    for c in coefficients[1:]:
        total = e.intrinsic("fma", e.splat(total) if x.v else total, x, e.fconst(c, x.t))
    return total


def exp2(e: Context, x: Val) -> Val:
    """2**x of a float; about 1 ulp, subnormal results included."""
    coefficients = [1.5316464e-05, 1.5398798e-04, 1.3333558e-03, 9.6180975e-03, 5.5504110e-02, 2.4022651e-01, 6.9314718e-01, 1.0]
    if "avx512dq" in e.m.features:
        # x = whole sixteenths + r, downwards; 2**x = 2**floor(x) * table[sixteenths] * 2**r. The low bits of x + 3 * 2**18, rounded downwards, count
        # sixteenths; of numbers too large for that, infinite ones too, r is 0, and scaling by the processor goes beyond all bounds.
        index = e.as_int(e.round_op("add", [x, e.fconst(786432.0, "float")], "rm"))
        r = e.wide_op("llvm.x86.avx512.mask.reduce.ps.512", [x], "i32 73", masked=True)
        table = Val("<" + ", ".join(f"float {e.fconst(2.0 ** (i % 16 / 16), 'float').s}" for i in range(32)) + ">", "float", True, True)
        root = e.wide_op("llvm.x86.avx512.permvar.sf.512", [table, index], "")
        p = e.intrinsic("fma", e.fmul(root, r), _horner(e, r, [0.056414664, 0.24020511, 0.69314724]), root)
        return e.wide_op("llvm.x86.avx512.mask.scalef.ps.512", [p, x], "", masked=True)
    limited = e.intrinsic("minnum", e.intrinsic("maxnum", x, e.fconst(-160.0, "float")), e.fconst(160.0, "float"))
    whole = e.intrinsic("roundeven", limited)
    f = e.fsub(limited, whole)
    p = _horner(e, f, coefficients)
    n = e.cast("fptosi", whole, "i32")
    # Two factors, so that results below the normal range are scaled (and rounded) once, at the end.
    half = e.ashr(n, e.const(1, "i32"))
    rest = e.sub(n, half)

    def power(k: Val) -> Val:
        return e.bitcast(e.shl(e.add(k, e.const(127, "i32")), e.const(23, "i32")), "float")

    result = e.fmul(e.fmul(p, power(half)), power(rest))
    return e.select(e.fcmp("uno", x, x), x, result)


def log2(e: Context, x: Val) -> Val:
    """log2 of a float: error below 2**-22 near 1, about 1 ulp elsewhere."""
    tiny = e.fcmp("olt", x, e.fbits(0x3810000000000000, "float"))  # subnormal: scale by 2**24
    scaled = e.select(tiny, e.fmul(x, e.fconst(16777216.0, "float")), x)
    bits = e.as_int(scaled)
    # Mantissa in [sqrt(1/2), sqrt(2)).
    shifted = e.sub(bits, e.const(0x3F3504F3, "i32"))
    n = e.ashr(shifted, e.const(23, "i32"))
    m = e.bitcast(e.sub(bits, e.shl(n, e.const(23, "i32"))), "float")
    f = e.fsub(m, e.fconst(1.0, "float"))
    # log(1 + f) = 2 atanh(s), s = f / (2 + f)
    s = e.fdiv(f, e.fadd(f, e.fconst(2.0, "float")))
    z = e.fmul(s, s)
    p = _horner(e, z, [0.32980648, 0.41198458, 0.57707803, 0.96179670, 2.8853901])
    result = e.fmul(s, p)
    exponent = e.fsub(e.cast("sitofp", n, "float"), e.select(tiny, e.fconst(24.0, "float"), e.fconst(0.0, "float")))
    result = e.fadd(result, exponent)
    zero, inf = e.fconst(0.0, "float"), e.fconst(float("inf"), "float")
    result = e.select(e.fcmp("oeq", x, inf), inf, result)
    result = e.select(e.fcmp("oeq", x, zero), e.fconst(float("-inf"), "float"), result)
    bad = e.bor(e.fcmp("olt", x, zero), e.fcmp("uno", x, x))
    return e.select(bad, e.f32bits(0x7FFFFFFF), result)


def sin_cos(e: Context, x: Val, cosine: bool) -> Val:
    """sin or cos of a float, reduced in double: good for any argument that the approximate instructions are used for."""
    wide = e.cast("fpext", x, "double")
    turns = e.intrinsic("roundeven", e.fmul(wide, e.fconst(0.6366197723675814, "double")))
    r = e.intrinsic("fma", turns, e.fconst(-1.5707963267948966, "double"), wide)
    r = e.intrinsic("fma", turns, e.fconst(-6.123233995736766e-17, "double"), r)
    f = e.cast("fptrunc", r, "float")
    quadrant = saturated(e, turns, 32, True)
    if cosine:
        quadrant = e.add(quadrant, e.const(1, "i32"))
    z = e.fmul(f, f)
    s = e.intrinsic("fma", e.fmul(f, z), _horner(e, z, [2.7183114e-06, -1.9839334e-04, 8.3333310e-03, -1.6666667e-01]), f)
    c = _horner(e, z, [2.4390449e-05, -1.3886763e-03, 4.1666646e-02, -0.5, 1.0])
    odd = e.icmp("ne", e.band(quadrant, e.const(1, "i32")), e.const(0, "i32"))
    value = e.select(odd, c, s)
    sign = e.shl(e.band(quadrant, e.const(2, "i32")), e.const(30, "i32"))
    result = e.bitcast(e.bxor(e.as_int(value), sign), "float")
    infinite = e.fcmp("oeq", e.intrinsic("fabs", x), e.fconst(float("inf"), "float"))
    return e.select(e.bor(infinite, e.fcmp("uno", x, x)), e.f32bits(0x7FFFFFFF), result)


def tanh(e: Context, x: Val) -> Val:
    """tanh(x) = (1 - t) / (1 + t) with t = exp(-2|x|); for small x a polynomial."""
    size = e.intrinsic("fabs", x)
    t = exp2(e, e.fmul(size, e.fconst(-2.8853900817779268, "float")))
    one = e.fconst(1.0, "float")
    big = e.fdiv(e.fsub(one, t), e.fadd(one, t))
    z = e.fmul(x, x)
    small = e.fmul(size, _horner(e, z, [0.021869488, -0.053968254, 0.13333334, -0.33333334, 1.0]))
    result = e.select(e.fcmp("olt", size, e.fconst(0.35, "float")), small, big)
    result = e.intrinsic("copysign", result, x)
    return e.select(e.fcmp("uno", x, x), x, result)


def _rounded_unary(e: Context, op: str, a: Val, mode: str) -> Val:
    """rcp or sqrt with a rounding mode."""
    one = e.fconst(1.0, a.t)
    if mode != "rn" and e.can_round():
        return e.round_op("div", [one, a], mode) if op == "rcp" else e.round_op("sqrt", [a], mode)
    if op == "rcp" and mode != "rn":
        return directed(e, "div", [one, a], mode)
    nearest = e.fdiv(one, a) if op == "rcp" else e.intrinsic("sqrt", a)
    if mode == "rn":
        return nearest
    if a.t == "float":  # double holds the square of a float exactly
        back, wide = e.cast("fpext", nearest, "double"), e.cast("fpext", a, "double")
        residual = fma(e, e.fneg(back), back, wide)
        zero = e.fconst(0.0, "double")
        return step(e, nearest, e.fcmp("olt", residual, zero), e.fcmp("ogt", residual, zero), mode)
    return by_processor(e, "sqrt", [a], mode)


@emits
def special(e: Context, ins: Ins) -> None:
    t = ins.type
    op = ins.op
    if t.kind == "x" or t.bits == 16:
        element = TYPES[t.name[:-2]] if t.kind == "x" else t
        parts = halves(e, ins.ops[1], element) if t.kind == "x" else (e.rd(ins.ops[1], t),)
        results = [narrow(e, _compute(e, op, widen(e, p, element), "rn"), element) for p in parts]
        e.wr(ins.ops[0], pack_halves(e, results[0], results[1]) if len(results) == 2 else results[0])
        return
    a = e.rd(ins.ops[1], t)
    ftz = "ftz" in ins.mods
    if ftz and t.bits == 32 and op != "ex2":  # 2**x is 1 anyway
        a = flushed(e, a)
    if t.bits == 64 and op in ("rcp", "rsqrt") and ftz:  # rcp.approx.ftz.f64: only the upper half of the result counts
        result = _compute(e, op, a, "rn")
        bits = e.band(e.as_int(result), e.const(~0xFFFFFFFF, "i64"))
        e.wr(ins.ops[0], bits)
        return
    mode = next((m for m in ins.mods if m in MODES), "rn")
    result = _compute(e, op, a, mode)
    if ftz and t.bits == 32:
        result = clean(e, flushed(e, result)) if mode == "rn" or e.can_round() else flush(e, result)
    e.wr(ins.ops[0], result)


def _compute(e: Context, op: str, a: Val, mode: str) -> Val:
    if op in ("rcp", "sqrt"):
        return _rounded_unary(e, op, a, mode)
    if op == "rsqrt":
        return e.fdiv(e.fconst(1.0, a.t), e.intrinsic("sqrt", a))
    if a.t == "double":
        raise e.fail()
    if op == "ex2":
        return exp2(e, a)
    if op == "lg2":
        return log2(e, a)
    if op == "tanh":
        return tanh(e, a)
    return sin_cos(e, a, op == "cos")
