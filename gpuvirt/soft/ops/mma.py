"""Matrix instructions on register fragments: mma, ldmatrix, stmatrix, movmatrix; wmma.py has those on fragments without a known layout.

With g = lane / 4 and t = lane % 4, and E elements in a register, an mma's operands lie like this: register i of A holds row g + 8 * (i % 2) (of 16
rows) and the columns from (i / 2) * 4E + t * E on; register i of B holds column g and the rows from i * 4E + t * E on; C and D hold row g (+ 8) and
columns 2t, 2t + 1. So, for one k, all that every lane needs of A and B is one register, moved between lanes in a fixed way.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.codegen.addressing import address, concat, spread
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import fp8
from gpuvirt.soft.ops.float_formats import narrow, pack_halves, widen
from gpuvirt.soft.ptx.parser import Ins, Operand, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES

ELEMENT_BITS = {"f64": 64, "tf32": 32, "f32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
ELEMENT_BITS |= {"e2m3": 8, "e3m2": 8, "e2m1": 8, "s4": 4, "u4": 4, "b1": 1}  # kind::f8f6f4 gives every element of its formats a byte
_INTEGERS = ("s8", "u8", "s4", "u4")
_MANY = 8  # so many products in one block are calls of a function
_BITS = {"float": 32, "double": 64, "i32": 32}


def moved(e: Context, value: Val, picks: list[int]) -> Val:
    """value[picks[lane]] for constant picks."""
    value = e.splat(value)
    index = ", ".join(f"i32 {p}" for p in picks)
    return e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{LANES} x i32> <{index}>", value.t, True)


def items(operand: Operand) -> list[Operand]:
    return list(operand.items) if isinstance(operand, Vec) else [operand]


def fragment(e: Context, register: Operand, kind: str) -> Val:
    """A fragment register as it is."""
    return e.splat(e.rd(register, TYPES["f64"]) if ELEMENT_BITS[kind] == 64 else e.rd_int(register, 32))


def elements(e: Context, raw: Val, kind: str) -> list[Val]:
    """The elements of one fragment register in the type in which products are made: float, double or i32."""
    bits = ELEMENT_BITS[kind]
    if bits == 64:
        return [raw]
    if kind == "tf32":  # the lower 13 bits do not take part
        return [e.bitcast(e.band(raw, e.const(~0x1FFF, "i32")), "float")]
    if kind == "f32":
        return [e.bitcast(raw, "float")]
    out = []
    for i in range(32 // bits):
        if kind in _INTEGERS:
            top = e.shl(raw, e.const(32 - bits - bits * i, "i32"))
            out.append(e.op("ashr" if kind[0] == "s" else "lshr", top, e.const(32 - bits, "i32")))
        elif bits == 8:
            shift = 8 * i + (2 if kind == "e2m1" else 0)  # its 4 bits lie in the byte's middle
            byte = e.resize(e.band(e.lshr(raw, e.const(shift, "i32")), e.const(15 if kind == "e2m1" else 255, "i32")), "i16")
            out.append(e.cast("fpext", fp8.decode(e, byte, kind), "float"))
        else:
            out.append(widen(e, e.resize(e.lshr(raw, e.const(16 * i, "i32")), "i16"), TYPES[kind]))
    return out


def accumulators(e: Context, operand: Operand, kind: str) -> list[Val]:
    out: list[Val] = []
    for register in items(operand):
        if kind == "s32":
            out.append(e.splat(e.rd_int(register, 32)))
        elif kind == "f32":
            out.append(e.splat(e.rd(register, TYPES["f32"])))
        else:
            out.extend(elements(e, fragment(e, register, kind), kind))
    return out


def write_accumulators(e: Context, operand: Operand, kind: str, values: list[Val]) -> None:
    registers = items(operand)
    if kind in ("f16", "bf16"):
        for i, register in enumerate(registers):
            low, high = (narrow(e, v, TYPES[kind]) for v in values[2 * i : 2 * i + 2])
            e.wr(register, pack_halves(e, low, high))
        return
    for register, value in zip(registers, values, strict=True):
        e.wr(register, value)


def accumulate(e: Context, a: Val, b: Val, c: Val, saturate: bool) -> Val:
    if a.t == "i32":
        product = e.mul(a, b)
        return e.intrinsic("sadd.sat", c, product) if saturate else e.add(c, product)
    return e.intrinsic("fma", a, b, c)


def shape_of(ins: Ins) -> tuple[int, int, int]:
    import re

    for mod in ins.mods:
        found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", mod)
        if found:
            return int(found.group(1)), int(found.group(2)), int(found.group(3))
    raise ValueError("no shape")


@emits
def mma(e: Context, ins: Ins) -> None:
    m, n, k = shape_of(ins)
    kinds = [x for x in ins.mods if x in ELEMENT_BITS or x == "s32"]
    if (
        len(kinds) < 4
        or "sp" in ins.mods
        or "sp::ordered_metadata" in ins.mods
        or n != 8
        or m not in (8, 16)
        or "col" not in ins.mods
        or "row" not in ins.mods
    ):
        raise e.fail()
    d_kind, a_kind, b_kind, c_kind = kinds[-4:]
    if (m == 8 and a_kind == "f16") or ("kind::f8f6f4" not in ins.mods and not {"e2m1", "e2m3", "e3m2"}.isdisjoint((a_kind, b_kind))):
        raise e.fail()
    if a_kind == "b1":
        _mma_bits(e, ins, m // 8)
        return
    left, right = items(ins.ops[1]), items(ins.ops[2])
    per = max(32 // ELEMENT_BITS[a_kind], 1)
    if len(left) * per * LANES != m * k or len(right) * per * LANES != n * k:
        raise e.fail("fragment sizes")
    product = Product(m // 8, k, a_kind, b_kind, "satfinite" in ins.mods)
    if "avx512f" in e.m.features and sum(i.op == "mma" for i in e.block.ins) >= _MANY:
        a_raw, b_raw = [fragment(e, r, a_kind) for r in left], [fragment(e, r, b_kind) for r in right]
        total = _call(e, product, accumulators(e, ins.ops[3], c_kind), a_raw, b_raw)
    else:
        a_regs = [elements(e, fragment(e, r, a_kind), a_kind) for r in left]
        b_regs = [elements(e, fragment(e, r, b_kind), b_kind) for r in right]
        total = _multiply(e, product, accumulators(e, ins.ops[3], c_kind), a_regs, b_regs)
    write_accumulators(e, ins.ops[0], d_kind, total)


class Product(NamedTuple):
    """A kind of product: 8 * rows by k times k by 8."""

    rows: int
    k: int
    a_kind: str
    b_kind: str
    saturate: bool


def _multiply(e: Context, p: Product, total: list[Val], a_regs: list[list[Val]], b_regs: list[list[Val]]) -> list[Val]:
    """The sums with the product added, from the elements of the fragments' registers."""
    rows = p.rows
    per = max(32 // ELEMENT_BITS[p.a_kind], 1)
    for step in range(p.k):
        block, t, part = step // (4 * per), step // per % 4, step % per
        a = [moved(e, a_regs[block * rows + h][part], [lane // 4 * 4 + t for lane in range(LANES)]) for h in range(rows)]
        b = [moved(e, b_regs[block][part], [(lane % 4 * 2 + odd) * 4 + t for lane in range(LANES)]) for odd in range(2)]
        for i in range(2 * rows):
            total[i] = accumulate(e, a[i // 2], b[i % 2], total[i], p.saturate)
    return total


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
        total = _multiply(e, p, given[:sums], a_regs, b_regs)
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
    total = accumulators(e, ins.ops[3], "s32")
    for block, register in enumerate(b_regs):
        for t in range(4):
            b = [moved(e, register, [(lane % 4 * 2 + odd) * 4 + t for lane in range(LANES)]) for odd in range(2)]
            a = [moved(e, a_regs[block * rows + h], [lane // 4 * 4 + t for lane in range(LANES)]) for h in range(rows)]
            for i in range(2 * rows):
                total[i] = e.add(total[i], e.intrinsic("ctpop", e.op(op, a[i // 2], b[i % 2])))
    write_accumulators(e, ins.ops[0], "s32", total)


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


@emits
def ldmatrix(e: Context, ins: Ins) -> None:
    if "m8n8" not in ins.mods or "b16" not in ins.mods:
        raise e.fail()
    registers = items(ins.ops[0])
    pointers = _rows(e, ins, ins.ops[1], len(registers))
    for i, register in enumerate(registers):
        rows = [e.let(f"load <4 x i32>, ptr {pointers[8 * i + r].s}, align 4", "i32") for r in range(8)]
        value = concat(e, rows, "i32", 4)
        e.wr(register, transposed(e, value) if "trans" in ins.mods else value)


@emits
def stmatrix(e: Context, ins: Ins) -> None:
    if "m8n8" not in ins.mods or "b16" not in ins.mods:
        raise e.fail()
    registers = items(ins.ops[1])
    pointers = _rows(e, ins, ins.ops[0], len(registers))
    for i, register in enumerate(registers):
        value = e.splat(e.rd_int(register, 32))
        if "trans" in ins.mods:
            value = transposed(e, value)
        for r in range(8):
            index = ", ".join(f"i32 {4 * r + j}" for j in range(4))
            row = e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <4 x i32> <{index}>", "i32").s
            e.emit(f"store <4 x i32> {row}, ptr {pointers[8 * i + r].s}, align 4")


@emits
def movmatrix(e: Context, ins: Ins) -> None:
    e.wr(ins.ops[0], transposed(e, e.rd_int(ins.ops[1], 32)))
