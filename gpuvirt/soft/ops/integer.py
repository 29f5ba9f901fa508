"""Integer and logic instructions."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Builder, Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.parser import CARRY, Imm, Ins, Pair, Sym, Vec
from gpuvirt.soft.ptx.types import Type


@emits
def mov(e: Context, ins: Ins) -> None:
    dst, src = ins.ops
    t = ins.type
    if t.kind == "p":
        e.wr(dst, e.rd_pred(src))
        return
    if isinstance(dst, Vec) and isinstance(src, Vec):
        for d, s in zip(dst.items, src.items, strict=True):
            e.wr(d, e.rd_int(s, t.bits))
        return
    if isinstance(src, Sym) and not e.lead and src.name in e.layout.locals:
        e.wr(dst, e.symbol_address(src))
        return
    e.wr(dst, e.rd_int(src, t.bits))


@emits
def cvta(e: Context, ins: Ins) -> None:
    dst, src = ins.ops[0], ins.ops[1]
    value = e.rd_int(src, 64)
    to = "to" in ins.mods
    spaces = {m.split("::")[0] for m in ins.mods}
    if "shared" in spaces:
        value = e.op("sub" if to else "add", value, e.shared_base())
    elif "local" in spaces:
        value = e.op("sub" if to else "add", value, e.local_base())
    e.wr(dst, e.resize(value, f"i{ins.type.bits}"))


def packed16(e: Context, ins: Ins, t: Type, operation: str) -> None:
    """add/min/max on two 16-bit integers in 32 bits."""
    a, b = e.rd_int(ins.ops[1], 32), e.rd_int(ins.ops[2], 32)
    parts = []
    for shift in (0, 16):
        x, y = (e.resize(e.lshr(v, e.const(shift, "i32")), "i16") for v in (a, b))
        r = e.add(x, y) if operation == "add" else e.intrinsic(("s" if t.name[0] == "s" else "u") + operation, x, y)
        if "relu" in ins.mods:
            r = e.intrinsic("smax", r, e.const(0, "i16"))
        parts.append(e.shl(e.resize(r, "i32"), e.const(shift, "i32")))
    e.wr(ins.ops[0], e.bor(parts[0], parts[1]))


def add_sub(e: Context, ins: Ins) -> None:
    t = ins.type
    if t.name in ("u16x2", "s16x2"):
        packed16(e, ins, t, ins.op)
        return
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    if "sat" in ins.mods:
        e.wr(ins.ops[0], e.intrinsic(f"{'s' if t.kind == 's' else 'u'}{ins.op}.sat", a, b), t.kind == "s")
        return
    if "cc" in ins.mods:
        set_carry(e, ins.op, a, b, None, ins)
        return
    e.wr(ins.ops[0], e.op(ins.op, a, b), t.kind == "s")


# Carry: PTX's CC.CF, kept as one more register. It is the carry of an addition for subtractions too (a - b is a + ~b + 1), set where nothing was
# borrowed, as on a GPU. That shows where the two are mixed: the 128-bit division of CUDA's library subtracts and asks by `addc` for the sign.


def read_carry(e: Context) -> Val:
    return e.get(CARRY)


def set_carry(e: Context, op: str, a: Val, b: Val, carry_in: Val | None, ins: Ins, write: bool = True) -> None:
    bits = a.t
    wide = f"i{int(bits[1:]) * 2}"
    x, y = e.cast("zext", a, wide), e.cast("zext", b, wide)
    total = e.op(op, x, y)
    if carry_in is not None:
        total = e.op(op, total, e.cast("zext", e.invert(carry_in) if op == "sub" else carry_in, wide))
    if write:
        out = e.resize(e.band(e.lshr(total, e.const(int(bits[1:]), wide)), e.const(1, wide)), "i1")
        e.put(CARRY, e.invert(out) if op == "sub" else out)
    e.wr(ins.ops[0], e.resize(total, bits))


@emits
def addc(e: Context, ins: Ins) -> None:
    t = ins.type
    set_carry(e, ins.op[:3], e.rd(ins.ops[1], t), e.rd(ins.ops[2], t), read_carry(e), ins, "cc" in ins.mods)


def mul_mad(e: Context, ins: Ins) -> None:
    t = ins.type
    mods, signed = ins.mods, t.kind == "s"
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    wide_t = f"i{t.bits * 2}"
    extend = "sext" if signed else "zext"
    if ins.op in ("mul24", "mad24"):
        eight = e.const(8, "i32")
        a, b = (e.op("ashr" if signed else "lshr", e.shl(x, eight), eight) for x in (a, b))
        if "hi" in mods:
            product = e.mul(e.cast(extend, a, "i64"), e.cast(extend, b, "i64"))
            result = e.resize(e.lshr(product, e.const(16, "i64")), "i32")
        else:
            result = e.mul(a, b)
    elif "wide" in mods:
        result = e.mul(e.cast(extend, a, wide_t), e.cast(extend, b, wide_t))
    elif "hi" in mods:
        product = e.mul(e.cast(extend, a, wide_t), e.cast(extend, b, wide_t))
        result = e.resize(e.lshr(product, e.const(t.bits, wide_t)), f"i{t.bits}")
    else:
        result = e.mul(a, b)
    if ins.op in ("mad", "mad24", "madc"):
        c = e.rd_int(ins.ops[3], int(result.t[1:]), signed)
        if "cc" in mods or ins.op == "madc":
            set_carry(e, "add", result, c, read_carry(e) if ins.op == "madc" else None, ins, "cc" in mods)
            return
        result = e.intrinsic("sadd.sat", result, c) if "sat" in mods else e.add(result, c)
    e.wr(ins.ops[0], result, signed)


@emits
def sad(e: Context, ins: Ins) -> None:
    t = ins.type
    s = "s" if t.kind == "s" else "u"
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    difference = e.sub(e.intrinsic(s + "max", a, b), e.intrinsic(s + "min", a, b))
    e.wr(ins.ops[0], e.add(difference, e.rd(ins.ops[3], t)))


def div_rem(e: Context, ins: Ins) -> None:
    t = ins.type
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    zero = e.icmp("eq", b, e.imm(0, b))
    bad = zero
    if t.kind == "s":  # the smallest number over -1 has no result either
        lowest = e.icmp("eq", a, e.imm(1 << (t.bits - 1), a))
        minus = e.icmp("eq", b, e.imm(-1, b))
        overflow = e.band(lowest, minus)
        bad = e.bor(zero, overflow)
    safe = e.select(bad, e.imm(1, b), b)
    result = e.op(("s" if t.kind == "s" else "u") + ins.op, a, safe)
    if ins.op == "div":
        result = e.select(zero, e.imm(-1, a), result)  # a GPU gives all ones
    else:
        result = e.select(zero, a, result)
        if t.kind == "s":
            result = e.select(overflow, e.imm(0, a), result)
    e.wr(ins.ops[0], result, t.kind == "s")


def min_max(e: Context, ins: Ins) -> None:
    t = ins.type
    if t.name in ("u16x2", "s16x2"):
        packed16(e, ins, t, ins.op)
        return
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    result = e.intrinsic(("s" if t.kind == "s" else "u") + ins.op, a, b)
    if "relu" in ins.mods:
        result = e.intrinsic("smax", result, e.imm(0, result))
    e.wr(ins.ops[0], result, t.kind == "s")


def neg_abs(e: Context, ins: Ins) -> None:
    t = ins.type
    a = e.rd(ins.ops[1], t)
    result = e.sub(e.imm(0, a), a) if ins.op == "neg" else e.intrinsic("abs", a, tail="i1 false")
    e.wr(ins.ops[0], result, True)


@emits
def logic(e: Context, ins: Ins) -> None:
    t = ins.type
    if t.kind == "p":
        e.wr(ins.ops[0], e.op(ins.op, e.rd_pred(ins.ops[1]), e.rd_pred(ins.ops[2])))
        return
    e.wr(ins.ops[0], e.op(ins.op, e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)))


@emits
def bit_not(e: Context, ins: Ins) -> None:
    t = ins.type
    e.wr(ins.ops[0], e.invert(e.rd_pred(ins.ops[1]) if t.kind == "p" else e.rd(ins.ops[1], t)))


@emits
def cnot(e: Context, ins: Ins) -> None:
    a = e.rd(ins.ops[1], ins.type)
    e.wr(ins.ops[0], e.cast("zext", e.icmp("eq", a, e.imm(0, a)), a.t))


@emits
def shift(e: Context, ins: Ins) -> None:
    t = ins.type
    bits = t.bits
    a = e.rd(ins.ops[1], t)
    kind = "shl" if ins.op == "shl" else "ashr" if t.kind == "s" else "lshr"
    amount = ins.ops[2]
    if isinstance(amount, Imm):
        count = amount.value & 0xFFFFFFFF
        if kind == "ashr":
            count = min(count, bits - 1)
        e.wr(ins.ops[0], e.imm(0, a) if count >= bits else e.op(kind, a, e.imm(count, a)), t.kind == "s")
        return
    n = e.rd_int(amount, 32)
    if kind == "ashr":
        n = e.intrinsic("umin", n, e.const(bits - 1, "i32"))
        e.wr(ins.ops[0], e.op(kind, a, e.resize(n, a.t)), True)
        return
    fits = e.icmp("ult", n, e.const(bits, "i32"))
    safe = e.select(fits, n, e.const(0, "i32"))
    result = e.op(kind, a, e.resize(safe, a.t))
    e.wr(ins.ops[0], e.select(fits, result, e.imm(0, result)))


@emits
def shf(e: Context, ins: Ins) -> None:
    low, high, n = (e.rd_int(o, 32) for o in ins.ops[1:4])
    left = "l" in ins.mods
    if "clamp" in ins.mods:
        n = e.intrinsic("umin", n, e.const(32, "i32"))
        whole = e.icmp("eq", n, e.const(32, "i32"))
        shifted = e.intrinsic("fshl" if left else "fshr", high, low, n)
        e.wr(ins.ops[0], e.select(whole, low if left else high, shifted))
        return
    e.wr(ins.ops[0], e.intrinsic("fshl" if left else "fshr", high, low, n))


def lut3(b: Builder, a: Val, c: Val, d: Val, table: int) -> Val:
    """Any logic function of three inputs; bit i of `table` is its value for (a, c, d) = the bits of i."""
    na, nc, nd = b.invert(a), b.invert(c), b.invert(d)
    total: Val | None = None
    if table in (0, 255):
        return b.imm(0 if table == 0 else -1, a)
    for hi in range(2):  # Shannon expansion over a, then over c
        quarter = table >> (4 * hi) & 15
        if quarter == 0:
            continue
        inner: Val | None = None
        if quarter != 15:
            for mid in range(2):
                pair = quarter >> (2 * mid) & 3
                if pair == 0:
                    continue
                term = (c if mid else nc) if pair == 3 else b.band(c if mid else nc, d if pair == 2 else nd)
                inner = term if inner is None else b.bor(inner, term)
        selected = a if hi else na
        if inner is not None:
            selected = b.band(selected, inner)
        total = selected if total is None else b.bor(total, selected)
    assert total is not None
    return total


@emits
def lop3(e: Context, ins: Ins) -> None:
    ops = ins.ops
    a, b, c = (e.rd_int(o, 32) for o in ops[1:4])
    table = ops[4]
    if not isinstance(table, Imm):
        raise e.fail("the table is not a constant")
    result = lut3(e, a, b, c, table.value & 255)
    if "BoolOp" in ins.mods or "or" in ins.mods or "and" in ins.mods:
        p = e.icmp("ne", result, e.imm(0, result))
        q = e.rd_pred(ops[5])
        combined = e.op("or" if "or" in ins.mods else "and", p, q)
        if isinstance(ops[0], Pair):
            e.wr(ops[0].first, result)
            e.wr(ops[0].second, combined)
        return
    e.wr(ops[0], result)


@emits
def count_bits(e: Context, ins: Ins) -> None:
    t = ins.type
    a = e.rd(ins.ops[1], t)
    if ins.op == "brev":
        e.wr(ins.ops[0], e.intrinsic("bitreverse", a))
        return
    if ins.op == "popc":
        result = e.intrinsic("ctpop", a)
    elif ins.op == "clz":
        result = e.intrinsic("ctlz", a, tail="i1 false")
    else:
        if t.kind == "s":  # position of the first bit that differs from the sign
            a = e.bxor(a, e.ashr(a, e.imm(t.bits - 1, a)))
        zeros = e.intrinsic("ctlz", a, tail="i1 false")
        found = zeros if "shiftamt" in ins.mods else e.sub(e.imm(t.bits - 1, zeros), zeros)
        result = e.select(e.icmp("eq", a, e.imm(0, a)), e.imm(-1, a), found)
        e.wr(ins.ops[0], e.resize(result, "i32", True))
        return
    e.wr(ins.ops[0], e.resize(result, "i32"))


@emits
def fns(e: Context, ins: Ins) -> None:
    """The n-th set bit from a position: n > 0 upwards, n < 0 downwards, n == 0: the position itself if set."""
    mask, base, n = (e.rd_int(o, 32) for o in ins.ops[1:4])
    zero, ones = e.const(0, "i32"), e.const(-1, "i32")
    base = e.band(base, e.const(31, "i32"))
    up = e.icmp("sgt", n, zero)
    here = e.icmp("ne", e.band(e.lshr(mask, base), e.const(1, "i32")), zero)
    upper = e.band(mask, e.shl(ones, base))
    lower = e.intrinsic("bitreverse", e.band(mask, e.lshr(ones, e.sub(e.const(31, "i32"), base))))
    bits = e.select(up, upper, lower)
    count = e.intrinsic("abs", n, tail="i1 false")
    for i in range(31):  # drop the lowest set bit n - 1 times
        drop = e.icmp("sgt", count, e.const(i + 1, "i32"))
        bits = e.select(drop, e.band(bits, e.sub(bits, e.const(1, "i32"))), bits)
    found = e.intrinsic("cttz", bits, tail="i1 false")
    position = e.select(up, found, e.sub(e.const(31, "i32"), found))
    position = e.select(e.bor(e.icmp("eq", bits, zero), e.icmp("sgt", count, e.const(32, "i32"))), ones, position)
    e.wr(ins.ops[0], e.select(e.icmp("eq", n, zero), e.select(here, base, ones), position))


def _field(e: Context, operand: object) -> Val:
    return e.band(e.rd_int(operand, 32), e.const(255, "i32"))


@emits
def bfe(e: Context, ins: Ins) -> None:
    t = ins.type
    bits = t.bits
    a = e.rd(ins.ops[1], t)
    position, length = _field(e, ins.ops[2]), _field(e, ins.ops[3])
    limit = e.const(bits, "i32")
    one = e.imm(1, a)
    if t.kind == "s":  # what would come from beyond the top bit is the sign
        shifted = e.ashr(a, e.resize(e.intrinsic("umin", position, e.const(bits - 1, "i32")), a.t))
    else:
        inside = e.icmp("ult", position, limit)
        shift_by = e.resize(e.select(inside, position, e.const(0, "i32")), a.t)
        shifted = e.select(inside, e.lshr(a, shift_by), e.imm(0, a))
    short = e.icmp("ult", length, limit)
    n = e.resize(e.select(short, length, e.const(0, "i32")), a.t)
    field_mask = e.select(short, e.sub(e.shl(one, n), one), e.imm(-1, a))
    result = e.band(shifted, field_mask)
    if t.kind == "s":
        # The sign is the bit at min(position + length - 1, bits - 1); with length 0 the result is 0.
        top = e.intrinsic("umin", e.sub(e.add(position, length), e.const(1, "i32")), e.const(bits - 1, "i32"))
        sign = e.band(e.lshr(a, e.resize(top, a.t)), one)
        negative = e.band(e.icmp("ne", sign, e.imm(0, a)), e.icmp("ne", length, e.const(0, "i32")))
        # A field that runs past the top is filled from where the number ends.
        there = e.intrinsic("umin", length, e.intrinsic("usub.sat", limit, position))
        whole = e.icmp("eq", there, limit)
        known = e.select(whole, e.imm(-1, a), e.sub(e.shl(one, e.resize(e.select(whole, e.const(0, "i32"), there), a.t)), one))
        result = e.select(negative, e.bor(result, e.invert(known)), result)
    e.wr(ins.ops[0], result, t.kind == "s")


@emits
def bfi(e: Context, ins: Ins) -> None:
    t = ins.type
    a, b = e.rd(ins.ops[1], t), e.rd(ins.ops[2], t)
    position, length = _field(e, ins.ops[3]), _field(e, ins.ops[4])
    limit = e.const(t.bits, "i32")
    one = e.imm(1, a)
    inside = e.icmp("ult", position, limit)
    short = e.icmp("ult", length, limit)
    n = e.resize(e.select(short, length, e.const(0, "i32")), a.t)
    ones = e.select(short, e.sub(e.shl(one, n), one), e.imm(-1, a))
    shift_by = e.resize(e.select(inside, position, e.const(0, "i32")), a.t)
    mask = e.select(inside, e.shl(ones, shift_by), e.imm(0, a))
    e.wr(ins.ops[0], e.bor(e.band(e.shl(a, shift_by), mask), e.band(b, e.invert(mask))))


@emits
def bmsk(e: Context, ins: Ins) -> None:
    a, b = e.rd_int(ins.ops[1], 32), e.rd_int(ins.ops[2], 32)
    if "wrap" in ins.mods:
        a, b = (e.band(x, e.const(31, "i32")) for x in (a, b))
    zero, limit = e.const(0, "i32"), e.const(32, "i32")
    inside, short = e.icmp("ult", a, limit), e.icmp("ult", b, limit)
    one = e.const(1, "i32")
    ones = e.select(short, e.sub(e.shl(one, e.select(short, b, zero)), one), e.const(-1, "i32"))
    e.wr(ins.ops[0], e.select(inside, e.shl(ones, e.select(inside, a, zero)), zero))


@emits
def szext(e: Context, ins: Ins) -> None:
    a, n = e.rd_int(ins.ops[1], 32), e.rd_int(ins.ops[2], 32)
    n = e.band(n, e.const(31, "i32")) if "wrap" in ins.mods else e.intrinsic("umin", n, e.const(32, "i32"))
    zero = e.icmp("eq", n, e.const(0, "i32"))
    by = e.band(e.sub(e.const(32, "i32"), n), e.const(31, "i32"))
    result = e.op("ashr" if ins.type.kind == "s" else "lshr", e.shl(a, by), by)
    e.wr(ins.ops[0], e.select(zero, e.const(0, "i32"), result))


@emits
def prmt(e: Context, ins: Ins) -> None:
    a, b = e.rd_int(ins.ops[1], 32), e.rd_int(ins.ops[2], 32)
    selector = ins.ops[3]
    mode = next((m for m in ins.mods if m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), None)
    if mode is not None:
        n = e.band(e.rd_int(selector, 32), e.const(3, "i32"))
        tables = {
            "f4e": [0x3210, 0x4321, 0x5432, 0x6543],
            "b4e": [0x5670, 0x6701, 0x7012, 0x0123],
            "rc8": [0x0000, 0x1111, 0x2222, 0x3333],
            "ecl": [0x3210, 0x3211, 0x3222, 0x3333],
            "ecr": [0x0000, 0x1110, 0x2210, 0x3210],
            "rc16": [0x1010, 0x3232, 0x1010, 0x3232],
        }[mode]
        value = e.const(tables[3], "i32")
        for i in (2, 1, 0):
            value = e.select(e.icmp("eq", n, e.const(i, "i32")), e.const(tables[i], "i32"), value)
        e.wr(ins.ops[0], _permute(e, a, b, value))
        return
    if isinstance(selector, Imm):
        parts: Val | None = None
        for i in range(4):
            nibble = selector.value >> (4 * i) & 15
            source = a if nibble & 7 < 4 else b
            byte = e.lshr(source, e.const(8 * (nibble & 3), "i32")) if nibble & 3 else source
            if nibble & 8:
                byte = e.ashr(e.shl(byte, e.const(24, "i32")), e.const(31, "i32"))
            byte = e.band(byte, e.const(255, "i32"))
            byte = e.shl(byte, e.const(8 * i, "i32")) if i else byte
            parts = byte if parts is None else e.bor(parts, byte)
        assert parts is not None
        e.wr(ins.ops[0], parts)
        return
    e.wr(ins.ops[0], _permute(e, a, b, e.rd_int(selector, 32)))


def _permute(e: Context, a: Val, b: Val, selector: Val) -> Val:
    both = e.bor(e.cast("zext", a, "i64"), e.shl(e.cast("zext", b, "i64"), e.const(32, "i64")))
    total: Val | None = None
    for i in range(4):
        nibble = e.lshr(selector, e.const(4 * i, "i32"))
        shift_by = e.cast("zext", e.shl(e.band(nibble, e.const(7, "i32")), e.const(3, "i32")), "i64")
        byte = e.resize(e.lshr(both, shift_by), "i32")
        sign = e.icmp("ne", e.band(nibble, e.const(8, "i32")), e.const(0, "i32"))
        spread = e.ashr(e.shl(byte, e.const(24, "i32")), e.const(31, "i32"))
        byte = e.band(e.select(sign, spread, byte), e.const(255, "i32"))
        byte = e.shl(byte, e.const(8 * i, "i32"))
        total = byte if total is None else e.bor(total, byte)
    assert total is not None
    return total


@emits
def dot(e: Context, ins: Ins) -> None:
    kinds = [m for m in ins.mods if m in ("u32", "s32")]
    a, b, total = (e.rd_int(o, 32) for o in ins.ops[1:4])

    def piece(value: Val, index: int, width: int, signed: bool) -> Val:
        moved = e.shl(value, e.const(32 - width * (index + 1), "i32"))
        return e.op("ashr" if signed else "lshr", moved, e.const(32 - width, "i32"))

    sa, sb = kinds[0] == "s32", kinds[1] == "s32"
    if ins.op == "dp4a":
        for i in range(4):
            total = e.add(total, e.mul(piece(a, i, 8, sa), piece(b, i, 8, sb)))
    else:
        first = 2 if "hi" in ins.mods else 0
        for i in range(2):
            total = e.add(total, e.mul(piece(a, i, 16, sa), piece(b, first + i, 8, sb)))
    e.wr(ins.ops[0], total)
