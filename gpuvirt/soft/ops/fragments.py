"""Fragments of matrices in registers of a warp: where their elements lie, and products of them.

With g = lane / 4 and t = lane % 4, and E elements in a register, an mma's operands lie like this: register i of A holds row g + 8 * (i % 2) (of 16
rows) and the columns from (i / 2) * 4E + t * E on; register i of B holds column g and the rows from i * 4E + t * E on; C and D hold row g (+ 8) and
columns 2t, 2t + 1. So, for one k, all that every lane needs of A and B is one register, moved between lanes in a fixed way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ops import fp8
from gpuvirt.soft.ops.float_formats import narrow, pack_halves, widen
from gpuvirt.soft.ptx.parser import Ins, Operand, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES

ELEMENT_BITS = {"f64": 64, "tf32": 32, "f32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
ELEMENT_BITS |= {"e2m3": 8, "e3m2": 8, "e2m1": 8, "s4": 4, "u4": 4, "b1": 1}  # kind::f8f6f4 gives every element of its formats a byte
PACKED = "packed e2m1"  # the kinds for that format alone put eight of them into a register
ELEMENT_BITS[PACKED] = 4
_INTEGERS = ("s8", "u8", "s4", "u4")
VECTOR = 4 * LANES  # bytes of a register of all lanes


def moved(e: Context, value: Val, picks: list[int]) -> Val:
    """value[picks[lane]] for constant picks."""
    value = e.splat(value)
    index = ", ".join(f"i32 {p}" for p in picks)
    return e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{LANES} x i32> <{index}>", value.t, True)


def buffer(e: Context, name: str, vectors: int) -> Val:
    """Memory of the function for so many registers of all lanes; the next instruction uses it again."""
    return e.once(f"matrix.{name}.{vectors}", f"alloca [{vectors * VECTOR} x i8], align 64", "ptr")


def vector(e: Context, memory: Val, number: int, t: str = "i32") -> Val:
    """A register of all lanes that lies in such memory."""
    return e.let(f"load <{LANES} x {t}>, ptr {e.offset(memory, number * VECTOR).s}, align 64", t, True)


def of_warp(e: Context, value: Val) -> Val:
    """A value that all lanes that execute have, once."""
    if not value.v:
        return value
    return e.extract(value, e.band(e.intrinsic("cttz", e.exec_bits(), tail="i1 false"), e.const(LANES - 1, "i32")))


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
        if kind == PACKED:
            code = e.resize(e.band(e.lshr(raw, e.const(4 * i, "i32")), e.const(15, "i32")), "i16")
            out.append(e.cast("fpext", fp8.decode(e, code, "e2m1"), "float"))
        elif kind in _INTEGERS:
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
    for mod in ins.mods:
        found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", mod)
        if found:
            return int(found.group(1)), int(found.group(2)), int(found.group(3))
    raise ValueError("no shape")


class Product(NamedTuple):
    """A kind of product: 8 * rows by k times k by 8."""

    rows: int
    k: int
    a_kind: str
    b_kind: str
    saturate: bool


def multiply(e: Context, p: Product, total: list[Val], a_regs: list[list[Val]], b_regs: list[list[Val]], steps: range | None = None) -> list[Val]:
    """The sums with the product added, or what of it some k make, from the elements of the fragments' registers."""
    rows = p.rows
    per = max(32 // ELEMENT_BITS[p.a_kind], 1)
    for step in range(p.k) if steps is None else steps:
        block, t, part = step // (4 * per), step // per % 4, step % per
        a = [moved(e, a_regs[block * rows + h][part], [lane // 4 * 4 + t for lane in range(LANES)]) for h in range(rows)]
        b = [moved(e, b_regs[block][part], [(lane % 4 * 2 + odd) * 4 + t for lane in range(LANES)]) for odd in range(2)]
        for i in range(2 * rows):
            total[i] = accumulate(e, a[i // 2], b[i % 2], total[i], p.saturate)
    return total


def multiply_bits(e: Context, rows: int, op: str, total: list[Val], a_regs: list[Val], b_regs: list[Val]) -> list[Val]:
    for block, register in enumerate(b_regs):
        for t in range(4):
            b = [moved(e, register, [(lane % 4 * 2 + odd) * 4 + t for lane in range(LANES)]) for odd in range(2)]
            a = [moved(e, a_regs[block * rows + h], [lane // 4 * 4 + t for lane in range(LANES)]) for h in range(rows)]
            for i in range(2 * rows):
                total[i] = e.add(total[i], e.intrinsic("ctpop", e.op(op, a[i // 2], b[i % 2])))
    return total


def out_of_line(e: Context, name: str, inputs: list[Val], results: int, make: Callable[[list[Val]], list[Val]]) -> list[Val]:
    """What `make` makes of the inputs, registers of all lanes of 32 bits each, in a function @NAME: the first `results` of them are replaced.

    Inputs and results go through memory. A kernel with a hundred products has them in one block, where LLVM takes the square of their number.
    """
    size = 4 * LANES
    memory = e.once(f"out_of_line.{len(inputs)}", f"alloca [{len(inputs) * size} x i8], align 64", "ptr")
    types = [v.t for v in inputs]
    for i, value in enumerate(inputs):
        v = e.splat(value)
        e.emit(f"store {v.ty} {v.s}, ptr {e.offset(memory, i * size).s}, align 64")

    def at(place: Val, i: int) -> Val:
        return e.let(f"load <{LANES} x {types[i]}>, ptr {e.offset(place, i * size).s}, align 64", types[i], True)

    def function() -> str:
        place = Val("%memory", "ptr")
        with e.aside() as lines:
            for i, value in enumerate(make([at(place, i) for i in range(len(inputs))])):
                e.emit(f"store {value.ty} {value.s}, ptr {e.offset(place, i * size).s}, align 64")
        body = "\n".join(lines)
        return f"define internal void @{name}(ptr %memory) #1 {{\n{body}\n  ret void\n}}"

    e.m.helper(name, function)
    e.emit(f"call void @{name}(ptr {memory.s})")
    return [at(memory, i) for i in range(results)]
