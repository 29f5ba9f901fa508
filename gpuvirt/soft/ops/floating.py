"""Floating-point arithmetic: f32, f64, f16, bf16 and their pairs, with rounding modes, ftz and sat."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.float_formats import canonical, clean, flush, flushed, halves, narrow, pack_halves, saturate, step, widen
from gpuvirt.soft.ptx.parser import FloatImm, Ins
from gpuvirt.soft.ptx.types import INT_BITS, LANES, TYPES, Type

MODES = ("rn", "rz", "rm", "rp", "rna")


def fma(e: Context, a: Val, b: Val, c: Val) -> Val:
    return e.intrinsic("fma", a, b, c)


def _nearest(e: Context, op: str, args: list[Val]) -> Val:
    if op in ("fma", "mad"):
        return fma(e, *args)
    return e.op({"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}[op], args[0], args[1])


def two_sum(e: Context, a: Val, b: Val) -> tuple[Val, Val]:
    """a + b and its rounding error, exactly."""
    s = e.fadd(a, b)
    bb = e.fsub(s, a)
    return s, e.fadd(e.fsub(a, e.fsub(s, bb)), e.fsub(b, bb))


def directed(e: Context, op: str, args: list[Val], mode: str) -> Val:
    """An operation rounded towards zero, down or up: the nearest result, moved by the sign of its error."""
    t = args[0].t
    if e.can_round() and t in ("float", "double"):
        return e.round_op(op, args, mode)
    if op == "sub":
        args = [args[0], e.fneg(args[1])]
        op = "add"
    if t == "float" and op in ("add", "mul", "fma", "mad"):
        # In double the product is exact and the sum's error is known.
        wide = [e.cast("fpext", x, "double") for x in args]
        if op == "mul":
            exact, error = e.fmul(wide[0], wide[1]), None
        elif op == "add":
            exact, error = two_sum(e, wide[0], wide[1])
        else:
            exact, error = two_sum(e, e.fmul(wide[0], wide[1]), wide[2])
        nearest = e.cast("fptrunc", exact, "float")
        back = e.cast("fpext", nearest, "double")
        above, below = e.fcmp("ogt", back, exact), e.fcmp("olt", back, exact)
        if error is not None:
            equal = e.fcmp("oeq", back, exact)
            zero = e.fconst(0.0, "double")
            above = e.bor(above, e.band(equal, e.fcmp("olt", error, zero)))
            below = e.bor(below, e.band(equal, e.fcmp("ogt", error, zero)))
        result = step(e, nearest, above, below, mode)
        if op != "mul" and mode == "rm":
            result = _zero_down(e, result, exact, wide[0] if op == "add" else e.fmul(wide[0], wide[1]), wide[-1])
        return result
    if t == "float":  # div: the quotient's distance from the exact one has the sign of a residual that double holds exactly
        a, b = (e.cast("fpext", x, "double") for x in args)
        nearest = e.cast("fptrunc", e.fdiv(a, b), "float")
        residual = fma(e, e.fneg(e.cast("fpext", nearest, "double")), b, a)
        zero = e.fconst(0.0, "double")
        error = e.select(e.fcmp("olt", b, zero), e.fneg(residual), residual)
        above, below = _overflow(e, nearest, args, e.fcmp("olt", error, zero), e.fcmp("ogt", error, zero))
        by_zero = e.fcmp("oeq", b, zero)
        return step(e, nearest, e.band(above, e.invert(by_zero)), e.band(below, e.invert(by_zero)), mode)
    return by_processor(e, op, args, mode)


_PROCESSOR_OPS = {"mul": 0, "div": 1, "fma": 2, "mad": 2, "sqrt": 3, "add": 4}
_PROCESSOR_MODES = {"rm": 1, "rp": 2, "rz": 3}


def by_processor(e: Context, op: str, args: list[Val], mode: str) -> Val:
    """An operation in double, rounded by the processor as `mode` says: lane after lane, in the engine."""
    values = e.unify(*args)
    v = values[0].v
    kind = f"<{LANES} x double>" if v else "double"
    places = []
    for value in values:
        places.append(e.alloca(f"{kind}, align 64"))
        e.emit(f"store {kind} {value.s}, ptr {places[-1].s}")
    out = e.alloca(f"{kind}, align 64")
    operands = [*places, *([places[0]] * (3 - len(places))), out]
    lanes = e.const(-1 if v else 1, "i32")
    e.call("soft_f64", "void", [e.const(_PROCESSOR_OPS[op], "i32"), e.const(_PROCESSOR_MODES[mode], "i32"), lanes, *operands], declare=True)
    return e.let(f"load {kind}, ptr {out.s}", "double", v)


def _zero_down(e: Context, result: Val, total: Val, a: Val, b: Val) -> Val:
    """Rounding down, a sum of zero is -0 unless both of its terms are positive."""
    width = f"i{INT_BITS[total.t]}"
    negative = e.icmp("slt", e.bor(e.as_int(a), e.as_int(b)), e.const(0, width))
    is_zero = e.band(e.fcmp("oeq", total, e.fconst(0.0, total.t)), negative)
    return e.select(is_zero, e.fconst(-0.0, result.t), result)


def _overflow(e: Context, nearest: Val, args: list[Val], above: Val, below: Val) -> tuple[Val, Val]:
    """An infinite result of finite operands lies beyond the exact one, whatever its error was computed to be."""
    infinity = e.fconst(float("inf"), nearest.t)
    too_big, too_small = e.fcmp("oeq", nearest, infinity), e.fcmp("oeq", nearest, e.fneg(infinity))
    for a in args:
        finite = e.fcmp("olt", e.intrinsic("fabs", a), infinity)
        too_big, too_small = e.band(too_big, finite), e.band(too_small, finite)
    return e.bor(above, too_big), e.bor(below, too_small)


def _finish16(e: Context, ins: Ins, value: Val, element: Type) -> Val:
    if "sat" in ins.mods:
        value = saturate(e, value)
    if "relu" in ins.mods:
        zero = e.fconst(0.0, value.t)
        value = e.select(e.fcmp("uno", value, value), value, e.select(e.fcmp("ogt", value, zero), value, zero))
    return narrow(e, value, element)


def _arithmetic16(e: Context, ins: Ins, element: Type, args: list[Val]) -> Val:
    """One element of f16 or bf16 arithmetic, in float; the sum of products goes through double so that it is rounded once."""
    op = ins.op
    if op in ("fma", "mad"):
        wide = [e.cast("fpext", widen(e, x, element), "double") for x in args]
        exact, error = two_sum(e, e.fmul(wide[0], wide[1]), wide[2])
        single = e.cast("fptrunc", exact, "float")
        back = e.cast("fpext", single, "double")
        # Round to odd on the way, so that the second rounding cannot go wrong.
        zero = e.fconst(0.0, "double")
        equal = e.fcmp("oeq", back, exact)
        above = e.bor(e.fcmp("ogt", back, exact), e.band(equal, e.fcmp("olt", error, zero)))
        below = e.bor(e.fcmp("olt", back, exact), e.band(equal, e.fcmp("ogt", error, zero)))
        truncated = step(e, single, above, below, "rz")
        inexact = e.bor(above, below)
        odd = e.bor(e.as_int(truncated), e.cast("zext", inexact, "i32"))
        return _finish16(e, ins, e.bitcast(odd, "float"), element)
    return _finish16(e, ins, _nearest(e, op, [widen(e, x, element) for x in args]), element)


def arithmetic(e: Context, ins: Ins) -> None:
    """add, sub, mul, fma, mad and div of all floating types."""
    t = ins.type
    count = 3 if ins.op in ("fma", "mad") else 2
    operands = ins.ops[1 : 1 + count]
    mixed = [TYPES[m] for m in ins.mods if m in TYPES]
    if len(mixed) == 2 and mixed[0].name == "f32" and t.bits == 16:  # add.f32.f16 and its like: the 16-bit operands are widened
        wide = [widen(e, e.rd(o, t), t) for o in operands[:-1]] + [e.rd(operands[-1], TYPES["f32"])]
        e.wr(ins.ops[0], _finish(e, ins, _rounded(e, ins, wide)))
        return
    if t.name in ("f16x2", "bf16x2"):
        element = TYPES[t.name[:-2]]
        pairs = [halves(e, o, element) for o in operands]
        low = _arithmetic16(e, ins, element, [p[0] for p in pairs])
        high = _arithmetic16(e, ins, element, [p[1] for p in pairs])
        e.wr(ins.ops[0], pack_halves(e, low, high))
        return
    if t.bits == 16:
        e.wr(ins.ops[0], _arithmetic16(e, ins, t, [e.rd(o, t) for o in operands]))
        return
    if t.name == "f32x2":
        values = [e.rd_int(o, 64) for o in operands]
        parts = []
        for shift in (0, 32):
            args = [e.bitcast(e.resize(e.lshr(v, e.const(shift, "i64")), "i32"), "float") for v in values]
            args = [flushed(e, a) for a in args] if "ftz" in ins.mods else args
            parts.append(e.cast("zext", e.as_int(_finish(e, ins, _rounded(e, ins, args))), "i64"))
        e.wr(ins.ops[0], e.bor(parts[0], e.shl(parts[1], e.const(32, "i64"))))
        return
    args = [e.rd(o, t) for o in operands]
    if "ftz" in ins.mods:
        args = [flushed(e, a) for a in args]
    e.wr(ins.ops[0], _finish(e, ins, _rounded(e, ins, args)))


def _rounded(e: Context, ins: Ins, args: list[Val]) -> Val:
    mode = next((m for m in ins.mods if m in MODES), "rn")
    return _nearest(e, ins.op, args) if mode == "rn" else directed(e, ins.op, args, mode)


def _finish(e: Context, ins: Ins, value: Val) -> Val:
    if "ftz" in ins.mods:
        # Rounding by steps, and products and sums that the optimiser may take away, can leave a subnormal number.
        whole = next((m for m in ins.mods if m in MODES), "rn") == "rn" or e.can_round()
        value = clean(e, flushed(e, value)) if whole and not _idle(ins) and value.t == "float" else flush(e, value)
    if "sat" in ins.mods:
        value = saturate(e, value)
    return value


def _idle(ins: Ins) -> bool:
    """Whether the optimiser may take an operand for the result: x * 1, x / 1, x + 0."""
    sizes = {o.pattern & 0x7FFFFFFF for o in ins.ops if isinstance(o, FloatImm)}
    one, zero = 0x3F800000 in sizes, 0 in sizes
    return zero if ins.op in ("add", "sub") else one if ins.op in ("mul", "div") else one and zero


@emits
def fma_op(e: Context, ins: Ins) -> None:
    arithmetic(e, ins)


def _min_max(e: Context, ins: Ins, a: Val, b: Val) -> Val:
    """PTX's min and max: a NaN gives the other operand, with .NaN it gives NaN; -0 is less than +0."""
    name = ("minimum" if ins.op == "min" else "maximum") if "NaN" in ins.mods else ("minnum" if ins.op == "min" else "maxnum")
    if "xorsign" in ins.mods:
        sign = e.bxor(e.as_int(a), e.as_int(b))
        a, b = e.intrinsic("fabs", a), e.intrinsic("fabs", b)
    elif "abs" in ins.mods:
        a, b = e.intrinsic("fabs", a), e.intrinsic("fabs", b)
    if name in ("minimum", "maximum"):
        result = e.intrinsic(name, a, b)
    elif a.t == "float" and a.v | b.v and "avx512dq" in e.m.features:
        # The processor has it in one instruction, but for signalling NaNs.
        result = e.wide_op("llvm.x86.avx512.mask.range.ps.512", [a, b], f"i32 {4 if ins.op == 'min' else 5}", masked=True)
        result = e.select(e.fcmp("uno", result, result), e.select(e.fcmp("uno", a, a), b, a), result)
    else:
        better = e.fcmp("olt" if ins.op == "min" else "ogt", a, b)
        result = e.select(better, a, b)
        # Equal zeros of different sign: the sign bits decide. A NaN in b: a.
        ai, bi = e.as_int(a), e.as_int(b)
        equal = e.fcmp("oeq", a, b)
        result = e.select(equal, e.bitcast(e.op("or" if ins.op == "min" else "and", ai, bi), a.t), result)
        result = e.select(e.fcmp("uno", b, b), a, result)
    if "xorsign" in ins.mods:
        width = INT_BITS[a.t]
        top = e.const(1 << (width - 1), f"i{width}")
        result = e.bitcast(e.bor(e.band(e.as_int(result), e.invert(top)), e.band(sign, top)), a.t)
    return result


def min_max(e: Context, ins: Ins) -> None:
    t = ins.type
    operands = ins.ops[1:]
    if t.name in ("f16x2", "bf16x2") or t.bits == 16:
        element = TYPES[t.name[:-2]] if t.kind == "x" else t
        packs = [halves(e, o, element) if t.kind == "x" else (e.rd(o, t),) for o in operands]
        parts = []
        for i in range(len(packs[0])):
            value = widen(e, packs[0][i], element)
            for pack in packs[1:]:
                value = _min_max(e, ins, value, widen(e, pack[i], element))
            parts.append(narrow(e, value, element))
        e.wr(ins.ops[0], pack_halves(e, parts[0], parts[1]) if len(parts) == 2 else parts[0])
        return
    args = [e.rd(o, t) for o in operands]
    if "ftz" in ins.mods:
        # The processor's own min and max take subnormal numbers for zeros in that mode; comparing and selecting would hand one through.
        whole = "avx512dq" in e.m.features and any(a.v for a in args) and "NaN" not in ins.mods
        args = [flushed(e, a) if whole else flush(e, a) for a in args]
    value = args[0]
    for other in args[1:]:
        value = _min_max(e, ins, value, other)
    e.wr(ins.ops[0], canonical(e, value))


def neg_abs(e: Context, ins: Ins) -> None:
    t = ins.type
    if t.kind == "x" or t.bits == 16:
        a = e.rd_int(ins.ops[1], t.bits)
        sign = 0x8000 if t.bits == 16 else 0x80008000
        if t.name == "f32x2":
            sign = 0x8000000080000000
        width = f"i{t.bits}"
        e.wr(ins.ops[0], e.bxor(a, e.const(sign, width)) if ins.op == "neg" else e.band(a, e.const(~sign, width)))
        return
    a = e.rd(ins.ops[1], t)
    if "ftz" in ins.mods:
        a = flush(e, a)
    result = e.fneg(a) if ins.op == "neg" else e.intrinsic("fabs", a)
    e.wr(ins.ops[0], clean(e, result) if a.s in e.clean else result)


@emits
def copysign(e: Context, ins: Ins) -> None:
    t = ins.type
    e.wr(ins.ops[0], e.intrinsic("copysign", e.rd(ins.ops[2], t), e.rd(ins.ops[1], t)))


@emits
def testp(e: Context, ins: Ins) -> None:
    t = ins.type
    a = e.rd(ins.ops[1], t)
    bits = e.as_int(a)
    width = bits.t
    top, inf = (0x7FFFFFFF, 0x7F800000) if t.bits == 32 else (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000)
    tiny = 0x00800000 if t.bits == 32 else 0x0010000000000000
    size = e.band(bits, e.const(top, width))
    kind = next(m for m in ins.mods if m in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    limit = e.const(inf, width)
    if kind == "finite":
        result = e.icmp("ult", size, limit)
    elif kind == "infinite":
        result = e.icmp("eq", size, limit)
    elif kind == "number":
        result = e.icmp("ule", size, limit)
    elif kind == "notanumber":
        result = e.icmp("ugt", size, limit)
    elif kind == "normal":
        result = e.band(e.icmp("ult", size, limit), e.icmp("uge", size, e.const(tiny, width)))
    else:
        result = e.band(e.icmp("ne", size, e.const(0, width)), e.icmp("ult", size, e.const(tiny, width)))
    e.wr(ins.ops[0], result)
