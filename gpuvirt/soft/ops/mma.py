"""Matrix instructions on register fragments: mma, ldmatrix, stmatrix, movmatrix; wmma.py has those on fragments without a known layout, wgmma.py
those of four warps, sparse.py products with a sparse factor, block_scale.py those with scales."""

from __future__ import annotations

from gpuvirt.soft.codegen.addressing import address, concat, spread
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import block_scale, sparse
from gpuvirt.soft.ops.fragments import (
    ELEMENT_BITS,
    Product,
    accumulators,
    elements,
    fragment,
    items,
    moved,
    multiply,
    multiply_bits,
    shape_of,
    write_accumulators,
)
from gpuvirt.soft.ptx.parser import Ins, Operand
from gpuvirt.soft.ptx.types import LANES

_MANY = 8  # so many products in one block are calls of a function
_BITS = {"float": 32, "double": 64, "i32": 32}


@emits
def mma(e: Context, ins: Ins) -> None:
    m, n, k = shape_of(ins)
    kinds = [x for x in ins.mods if x in ELEMENT_BITS or x == "s32"]
    if len(kinds) < 4 or n != 8 or m not in (8, 16) or "col" not in ins.mods or "row" not in ins.mods:
        raise e.fail()
    d_kind, a_kind, b_kind, c_kind = kinds[-4:]
    scales = "block_scale" in ins.mods
    small = scales or "kind::f8f6f4" in ins.mods
    if (m == 8 and a_kind == "f16") or (not small and not {"e2m1", "e2m3", "e3m2"}.isdisjoint((a_kind, b_kind))):
        raise e.fail()
    if a_kind == "b1":
        _mma_bits(e, ins, m // 8)
        return
    left, right = items(ins.ops[1]), items(ins.ops[2])
    if scales:
        packed = block_scale.element_kind(e, ins, k, a_kind, b_kind)
        a_kind, b_kind = packed or a_kind, packed or b_kind
    per = max(32 // ELEMENT_BITS[a_kind], 1)
    thin = sparse.is_sparse(ins)
    if len(left) * per * LANES * (1 + thin) != m * k or len(right) * per * LANES != n * k or (thin and m != 16):
        raise e.fail("fragment sizes")
    product = Product(m // 8, k, a_kind, b_kind, "satfinite" in ins.mods)
    total = accumulators(e, ins.ops[3], c_kind)
    a_raw, b_raw = [fragment(e, r, a_kind) for r in left], [fragment(e, r, b_kind) for r in right]
    many = "avx512f" in e.m.features and sum(i.op == "mma" for i in e.block.ins) >= _MANY
    if many and not thin and not scales:
        write_accumulators(e, ins.ops[0], d_kind, _call(e, product, total, a_raw, b_raw))
        return
    if scales:
        total = block_scale.product(e, ins, product, total, a_raw, b_raw)
    elif thin:
        total = sparse.product(e, product, total, a_raw, b_raw, e.rd_int(ins.ops[4], 32), ins.ops[5])
    else:
        total = multiply(e, product, total, [elements(e, r, a_kind) for r in a_raw], [elements(e, r, b_kind) for r in b_raw])
    write_accumulators(e, ins.ops[0], d_kind, total)


def _call(e: Context, p: Product, total: list[Val], a_regs: list[Val], b_regs: list[Val]) -> list[Val]:
    """The same in a function. Of a block with a hundred products LLVM does one step of each after the other, so that all sums come from memory and go
    back at every step, and their code is larger than the processor's caches for code."""
    values = [*total, *b_regs, *a_regs]
    pieces = [(v.t, text) for v in values for text in _pieces(e, v)]
    results = [t for v in total for t in [f"<{512 // _BITS[v.t]} x {v.t}>"] * (LANES * _BITS[v.t] // 512)]
    kind = "{ " + ", ".join(results) + " }"
    name = f'"mma.{p.rows}.{p.k}.{p.a_kind}.{p.b_kind}.{int(p.saturate)}"'
    e.m.helper(name, lambda: _function(e, name, p, kind, values, len(total), len(b_regs)))
    arguments = ", ".join(f"<{512 // _BITS[t]} x {t}> {text}" for t, text in pieces)
    all_ = e.let(f"call x86_regcallcc {kind} @{name}({arguments})", "").s
    made = [e.let(f"extractvalue {kind} {all_}, {i}", "").s for i in range(len(results))]
    return _joined(e, made, [v.t for v in total])


def _pieces(e: Context, value: Val) -> list[str]:
    """A vector as registers of the processor."""
    n = 512 // _BITS[value.t]
    picks = [", ".join(f"i32 {start + i}" for i in range(n)) for start in range(0, LANES, n)]
    return [e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{n} x i32> <{p}>", value.t).s for p in picks]


def _joined(e: Context, pieces: list[str], types: list[str]) -> list[Val]:
    out, at = [], 0
    for t in types:
        n = 512 // _BITS[t]
        parts = [Val(text, t) for text in pieces[at : at + LANES // n]]
        out.append(concat(e, parts, t, n))
        at += LANES // n
    return out


def _function(e: Context, name: str, p: Product, kind: str, values: list[Val], sums: int, right: int) -> str:
    types = [v.t for v in values]
    names = [(f"%x{i}.{j}", t) for i, t in enumerate(types) for j in range(LANES * _BITS[t] // 512)]
    with e.aside() as lines:
        given = _joined(e, [text for text, _ in names], types)
        a_regs, b_regs = [elements(e, r, p.a_kind) for r in given[sums + right :]], [elements(e, r, p.b_kind) for r in given[sums : sums + right]]
        total = multiply(e, p, given[:sums], a_regs, b_regs)
        made = [(v.t, text) for v in total for text in _pieces(e, v)]
        last = "poison"
        for i, (t, text) in enumerate(made):
            last = e.let(f"insertvalue {kind} {last}, <{512 // _BITS[t]} x {t}> {text}, {i}", "").s
    parameters = ", ".join(f"<{512 // _BITS[t]} x {t}> {text}" for text, t in names)
    body = "\n".join(lines)
    return f"define internal x86_regcallcc {kind} @{name}({parameters}) #1 {{\n{body}\n  ret {kind} {last}\n}}"


def _mma_bits(e: Context, ins: Ins, rows: int) -> None:
    """Products of single bits: for each register, how many bits of a ^ b or a & b are set."""
    op = "xor" if "xor" in ins.mods else "and"
    a_regs = [e.splat(e.rd_int(r, 32)) for r in items(ins.ops[1])]
    b_regs = [e.splat(e.rd_int(r, 32)) for r in items(ins.ops[2])]
    if len(a_regs) != rows * len(b_regs):
        raise e.fail("fragment sizes")
    write_accumulators(e, ins.ops[0], "s32", multiply_bits(e, rows, op, accumulators(e, ins.ops[3], "s32"), a_regs, b_regs))


# 8 x 8 matrices of 16-bit elements, as ldmatrix gives them: register of lane l holds row l / 4, columns 2 (l % 4) and the next.


def transposed(e: Context, value: Val) -> Val:
    value = e.splat(value)
    wide = e.let(f"bitcast {value.ty} {value.s} to <64 x i16>", "i16").s
    index = ", ".join(f"i32 {(2 * (lane % 4) + h) * 8 + lane // 4}" for lane in range(LANES) for h in range(2))
    turned = e.let(f"shufflevector <64 x i16> {wide}, <64 x i16> poison, <64 x i32> <{index}>", "i16").s
    return e.let(f"bitcast <64 x i16> {turned} to <{LANES} x i32>", "i32", True)


def _rows(e: Context, ins: Ins, operand: Operand, registers: int) -> list[Val]:
    """Pointers to the rows whose addresses the first lanes give, eight for a register."""
    lanes = 8 * registers
    addresses = spread(e, address(e, ins, operand, "shared", 16, (1 << lanes) - 1))
    return [e.pointer(e.extract(addresses, lane)) for lane in range(lanes)]


def _bytes(e: Context, value: str, count: int, picks: list[int]) -> str:
    """Bytes of a vector of `count`."""
    index = ", ".join(f"i32 {p}" for p in picks)
    return e.let(f"shufflevector <{count} x i8> {value}, <{count} x i8> poison, <{len(picks)} x i32> <{index}>", "i8").s


def _spread_fields(e: Context, value: Val, bits: int) -> Val:
    """Of each row of 16 bytes the first 16 fields of so many bits, a byte each."""
    first = [lane % 4 * 4 * bits for lane in range(LANES)]  # of a lane's four fields, in bits
    low, high = (moved(e, value, [lane // 4 * 4 + min(at // 32 + more, 3) for lane, at in enumerate(first)]) for more in (0, 1))
    shift = e.lanes([at % 32 for at in first], "i32")
    fields = e.intrinsic("fshr", high, low, shift)
    total = e.const(0, "i32")
    for i in range(4):
        one = e.band(e.lshr(fields, e.const(bits * i, "i32")), e.const((1 << bits) - 1, "i32"))
        total = e.bor(total, e.shl(one, e.const(8 * i, "i32")))
    return total


@emits
def ldmatrix(e: Context, ins: Ins) -> None:
    """Matrices of eight rows of 16 bytes, a register each; .m8n16 spreads fields of 4 or 6 bits; .m16n16 transposes 16 rows, two registers."""
    shape = next((m for m in ins.mods if m in ("m8n8", "m8n16", "m16n16")), "")
    fields = next((bits for m, bits in _FIELDS.items() if m in ins.mods), 0)
    wanted = {"m8n8": "b16" in ins.mods, "m8n16": bool(fields) and "trans" not in ins.mods, "m16n16": "b8" in ins.mods and "trans" in ins.mods}
    registers = items(ins.ops[0])
    if not wanted.get(shape) or (shape != "m8n16" and fields) or len(registers) != _number(ins) * (1 + (shape == "m16n16")) or len(registers) > 4:
        raise e.fail()
    pointers = _rows(e, ins, ins.ops[1], len(registers))
    rows = [e.let(f"load <4 x i32>, ptr {p.s}, align 4", "i32") for p in pointers]
    values = [concat(e, rows[8 * i : 8 * i + 8], "i32", 4) for i in range(len(registers))]
    if shape == "m16n16":
        for i in range(0, len(values), 2):
            both = ", ".join(f"i32 {k}" for k in range(2 * LANES))
            v = values[i].ty
            whole = e.let(f"shufflevector {v} {values[i].s}, {v} {values[i + 1].s}, <{2 * LANES} x i32> <{both}>", "i32").s
            flat = e.let(f"bitcast <{2 * LANES} x i32> {whole} to <256 x i8>", "i8").s
            for half in range(2):  # a register has four rows of column lane / 4, or of that and 8
                picks = [(lane % 4 * 4 + k) * 16 + lane // 4 + 8 * half for lane in range(LANES) for k in range(4)]
                turned = e.let(f"bitcast <128 x i8> {_bytes(e, flat, 256, picks)} to <{LANES} x i32>", "i32", True)
                e.wr(registers[i + half], turned)
        return
    for register, value in zip(registers, values, strict=True):
        if fields:
            value = _spread_fields(e, value, fields)
        e.wr(register, transposed(e, value) if "trans" in ins.mods else value)


_FIELDS = {"b4x16_p64": 4, "b6x16_p32": 6}


def _number(ins: Ins) -> int:
    return next((int(m[1:]) for m in ins.mods if m in ("x1", "x2", "x4")), 0)


@emits
def stmatrix(e: Context, ins: Ins) -> None:
    registers = items(ins.ops[1])
    eights = "m16n8" in ins.mods and "b8" in ins.mods and "trans" in ins.mods
    if not (eights or ("m8n8" in ins.mods and "b16" in ins.mods)) or len(registers) != _number(ins):
        raise e.fail()
    pointers = _rows(e, ins, ins.ops[0], len(registers))
    for i, register in enumerate(registers):
        value = e.splat(e.rd_int(register, 32))
        if eights:  # the columns of 16 by 8 bytes, which lie as an mma's accumulators do
            flat = e.let(f"bitcast {value.ty} {value.s} to <128 x i8>", "i8").s
            picks = [(m % 8 * 4 + n // 2) * 4 + n % 2 + m // 8 * 2 for n in range(8) for m in range(16)]
            value = e.let(f"bitcast <128 x i8> {_bytes(e, flat, 128, picks)} to <{LANES} x i32>", "i32", True)
        elif "trans" in ins.mods:
            value = transposed(e, value)
        for r in range(8):
            index = ", ".join(f"i32 {4 * r + j}" for j in range(4))
            row = e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <4 x i32> <{index}>", "i32").s
            e.emit(f"store <4 x i32> {row}, ptr {pointers[8 * i + r].s}, align 4")


@emits
def movmatrix(e: Context, ins: Ins) -> None:
    e.wr(ins.ops[0], transposed(e, e.rd_int(ins.ops[1], 32)))
