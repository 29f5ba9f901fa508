"""Matrix instructions on fragments without a known layout: wmma.

A and B lie in their registers as in memory: line after line, a row of a `.row` matrix or a column of a `.col` one, so that they are loaded in pieces
as long as a line. Element i * 32 + l of C and D, row after row, is element i of lane l.

Programs have such products by the thousand, each with 4,096 multiplications, so all of it is in functions that are called. A product reads A and B as
floating-point numbers from memory: of A one number at a time, which the processor spreads over the columns as it multiplies; of B a row at a time.
Products of integers are sums of at most 16 numbers below 2^16, exact in float. An operand's numbers are put there when it is used first, and stay
until so many others, as _SLOTS says, were used.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.codegen.addressing import Where, address, concat, shuffle, space_of, spread, vec
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import SUFFIX, Val
from gpuvirt.soft.codegen.memory_access import gather, store
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.float_formats import widen
from gpuvirt.soft.ops.fragments import ELEMENT_BITS, accumulators, fragment, items, shape_of, write_accumulators
from gpuvirt.soft.ptx.parser import Ins, Operand
from gpuvirt.soft.ptx.types import LANES, TYPES

_SLOTS = {"a": 2, "b": 4}  # operands kept: a program multiplies a few of A by a few of B
_ROWS = 8  # of C at a time: so many sums do not wait for each other, and fit the processor's registers beside B
_REGISTER = {32: "i32", 64: "double"}


class Matrix(NamedTuple):
    """How a matrix lies in memory: so many lines of so many elements."""

    lines: int
    length: int
    bits: int


@emits
def wmma(e: Context, ins: Ins) -> None:
    m, n, k = shape_of(ins)
    kinds = [x for x in ins.mods if x in ELEMENT_BITS or x in ("s32", "b1", "s4", "u4")]
    if any(x in ("b1", "s4", "u4") for x in kinds):
        raise e.fail()
    what, part = ins.mods[:2]
    if what == "mma":
        _multiply(e, ins, (m, n, k), kinds)
        return
    kind = kinds[-1]
    bits = 32 if kind in ("s32", "f32", "tf32") else ELEMENT_BITS[kind]
    size = {"a": (m, k), "b": (k, n)}.get(part, (m, n))
    row_major = "row" in ins.mods
    matrix = Matrix(*(size if row_major else size[::-1]), bits)
    memory, values = ins.ops[:2] if what == "store" else ins.ops[1::-1]
    where = address(e, ins, memory, space_of(ins), 1)
    base = where.scalar if where.scalar is not None else e.extract(spread(e, where), 0)
    stride = e.resize(e.rd_int(ins.ops[2], 32), "i64") if len(ins.ops) > 2 else e.const(matrix.length, "i64")
    if stride.v:
        stride = e.extract(stride, 0)
    if part in "ab" or (row_major and bits >= 32):
        move = _store_lines if what == "store" else _load_lines
        move(e, values, matrix, base, stride)
    else:
        _move_elements(e, ins, values, matrix, row_major, base, stride)


# ---- between memory and registers --------------------------------------------------------------------------------------------------------------


def _scratch(e: Context, name: str, size: int, at: int = 0) -> Val:
    """Byte `at` of stack memory of so many bytes, the same for all that name it alike. Computed in the prologue: whenever a use of stack memory
    changes, LLVM looks at all of them."""
    memory = e.once(f"wmma.{name}.{size}", f"alloca [{size} x i8], align 64", "ptr")
    return e.once(f"wmma.{name}.{size}.{at}", f"getelementptr i8, ptr {memory.s}, i64 {at}", "ptr") if at else memory


def _bytes(t: str) -> int:
    """Of a register of all lanes."""
    return LANES * (8 if t == "double" else 4)


def _load_lines(e: Context, values: Operand, x: Matrix, base: Val, stride: Val) -> None:
    """Registers full of lines; what there are more, of 16-bit numbers, stays 0."""
    first, step = e.pointer(base), e.mul(stride, e.const(x.bits // 8, "i64"))
    t, wide = _REGISTER[max(x.bits, 32)], max(x.bits, 32) // 8
    name = f'"wmma.load.{x.lines}.{x.length}.{x.bits}"'
    e.m.helper(name, lambda: _load_function(e, name, x, t, wide))
    size = x.lines * x.length * x.bits // 8
    e.emit(f"call void @{name}(ptr {_scratch(e, 'registers', size).s}, ptr {first.s}, i64 {step.s})")
    for i, register in enumerate(items(values)):
        value = e.splat(e.const(0, t))
        if i * _bytes(t) < size:
            value = e.let(f"load {vec(t, LANES)}, ptr {_scratch(e, 'registers', size, i * _bytes(t)).s}, align 64", t, True)
        e.wr(register, value)


def _load_function(e: Context, name: str, x: Matrix, t: str, wide: int) -> str:
    words = x.length * x.bits // 8 // wide  # of a line
    with e.aside() as text:
        for first in range(0, x.lines, max(LANES // words, 1)):
            parts = []
            for line in range(first, first + max(LANES // words, 1)):
                at = e.let(f"mul i64 %step, {line}", "i64")
                pointer = e.let(f"getelementptr i8, ptr %from, i64 {at.s}", "ptr")
                parts.append(e.let(f"load {vec(t, words)}, ptr {pointer.s}, align {x.bits // 8}", t))
            register = concat(e, parts, t, words)
            e.emit(f"store {register.ty} {register.s}, ptr {e.offset(Val('%out', 'ptr'), first * words * wide).s}, align 64")
    body = "\n".join(text)
    return f"define internal void @{name}(ptr noalias %out, ptr %from, i64 %step) #1 {{\n{body}\n  ret void\n}}"


def _store_lines(e: Context, values: Operand, x: Matrix, base: Val, stride: Val) -> None:
    first, step = e.pointer(base), e.mul(stride, e.const(x.bits // 8, "i64"))
    for i, register in enumerate(items(values)):
        value = e.splat(e.rd_int(register, x.bits))
        for at in range(0, LANES, x.length):
            line = shuffle(e, value.s, value.t, LANES, list(range(at, at + x.length)))
            pointer = e.let(f"getelementptr i8, ptr {first.s}, i64 {e.mul(step, e.const((i * LANES + at) // x.length, 'i64')).s}", "ptr")
            e.emit(f"store {vec(value.t, x.length)} {line.s}, ptr {pointer.s}, align {x.bits // 8}")


def _move_elements(e: Context, ins: Ins, values: Operand, x: Matrix, row_major: bool, base: Val, stride: Val) -> None:
    """C or D of 16-bit numbers or column after column, element by element."""
    per, width = max(32 // x.bits, 1), f"i{x.bits}"
    columns = x.length if row_major else x.lines

    def addresses(i: int) -> Val:
        """Of element i of every lane."""
        cells = [divmod(i * LANES + lane, columns) for lane in range(LANES)]
        line = e.lanes([r if row_major else c for r, c in cells], "i64")
        position = e.lanes([c if row_major else r for r, c in cells], "i64")
        return e.add(e.splat(base), e.mul(e.add(e.mul(e.splat(stride), line), position), e.const(x.bits // 8, "i64")))

    for index, register in enumerate(items(values)):
        if ins.mods[0] == "store":
            value = e.splat(e.rd_int(register, max(x.bits, 32)))
            for j in range(per):
                piece = e.resize(e.lshr(value, e.const(x.bits * j, value.t)) if j else value, width)
                store(e, Where(None, addresses(index * per + j), None), [piece])
            continue
        pieces = [gather(e, addresses(index * per + j), width, x.bits // 8, e.exec_mask()) for j in range(per)]
        total = pieces[0]
        for j in range(1, per):
            total = e.bor(e.resize(total, "i32"), e.shl(e.resize(pieces[j], "i32"), e.const(x.bits * j, "i32")))
        e.wr(register, total)


# ---- products ------------------------------------------------------------------------------------------------------------------------------------


def _multiply(e: Context, ins: Ins, shape: tuple[int, int, int], kinds: list[str]) -> None:
    m, n, k = shape
    if len(kinds) == 2:  # d and c of f16 inputs
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    d_kind, a_kind, b_kind, c_kind = kinds[-4:]
    a_order, b_order = [x for x in ins.mods if x in ("row", "col")]
    a = _operand(e, "a", ins.ops[1], Matrix(m, k, ELEMENT_BITS[a_kind]), a_kind, False)
    b = _operand(e, "b", ins.ops[2], Matrix(k, n, ELEMENT_BITS[b_kind]), b_kind, b_order == "col")
    sums = accumulators(e, ins.ops[3], c_kind)
    t = sums[0].t
    memory = [_scratch(e, "sums", len(sums) * _bytes(t), i * _bytes(t)).s for i in range(len(sums))]
    for value, place in zip(sums, memory, strict=True):
        e.emit(f"store {value.ty} {value.s}, ptr {place}, align 64")
    saturate = "satfinite" in ins.mods and t == "i32"
    name = f'"wmma.{m}.{n}.{k}.{t}.{a_order}{".sat" if saturate else ""}"'
    e.m.helper(name, lambda: _product_function(e, name, shape, t, a_order == "row", saturate))
    e.emit(f"call void @{name}(ptr {memory[0]}, ptr {a.s}, ptr {b.s})")
    made = [e.let(f"load {v.ty}, ptr {place}, align 64", t, True) for v, place in zip(sums, memory, strict=True)]
    write_accumulators(e, ins.ops[0], d_kind, made)


def _operand(e: Context, part: str, registers: Operand, x: Matrix, kind: str, turned: bool) -> Val:
    """Memory with the numbers of A or B, as floats or doubles; `turned`: rows of x are made of columns."""
    name = f'"wmma.{part}.{x.lines}.{x.length}.{kind}{".col" if turned else ""}"'
    count = x.lines * x.length * x.bits // 32 // LANES if x.bits < 64 else x.lines * x.length // LANES
    values = [e.splat(fragment(e, r, kind)) for r in items(registers)[:count]]
    holds = (name, *(v.s for v in values))
    size = x.lines * x.length * max(x.bits, 32) // 8
    slots = [f"{part}{i}.{size}" for i in range(_SLOTS[part])]
    slot = next((s for s in slots if e.in_slots.get(s) == holds), None)
    known = slot is not None
    if slot is None:
        slot = next((s for s in slots if s not in e.in_slots), None) or next(s for s in e.in_slots if s in slots)
    e.in_slots.pop(slot, None)
    e.in_slots[slot] = holds
    memory = _scratch(e, slot, size)
    if known:
        return memory
    for i, value in enumerate(values):
        e.emit(f"store {value.ty} {value.s}, ptr {_scratch(e, slot, size, i * _bytes(value.t)).s}, align 64")
    if kind not in ("f64", "f32") or turned:
        e.m.helper(name, lambda: _operand_function(e, name, x, kind, turned, [v.t for v in values]))
        e.emit(f"call void @{name}(ptr {memory.s})")
    return memory


def _numbers(e: Context, raw: Val, kind: str) -> list[Val]:
    """The numbers of a register of each lane, one after the other."""
    if kind == "f64":
        return [raw]
    if kind == "tf32":  # the lower 13 bits do not take part
        return [e.bitcast(e.band(raw, e.const(~0x1FFF, "i32")), "float")]
    bits = ELEMENT_BITS[kind]
    count = 32 // bits * LANES
    all_ = e.let(f"bitcast {raw.ty} {raw.s} to {vec(f'i{bits}', count)}", f"i{bits}").s
    parts = [shuffle(e, all_, f"i{bits}", count, list(range(at, at + LANES))) for at in range(0, count, LANES)]
    if bits == 16:
        return [widen(e, p, TYPES[kind]) for p in parts]
    return [e.cast("sitofp", e.cast("sext" if kind == "s8" else "zext", p, "i32"), "float") for p in parts]


def _operand_function(e: Context, name: str, x: Matrix, kind: str, turned: bool, types: list[str]) -> str:
    """Turns registers in memory into the numbers that are in them, in place."""
    memory = Val("%x", "ptr")
    with e.aside() as text:
        raw = [e.let(f"load {vec(t, LANES)}, ptr {e.offset(memory, i * _bytes(t)).s}, align 64", t, True) for i, t in enumerate(types)]
        numbers = [v for r in raw for v in _numbers(e, r, kind)]
        t, half = numbers[0].t, len(numbers) // 2
        for _ in range((x.length - 1).bit_length() if turned else 0):  # a shuffle turns the bits of an element's number around by one
            if half:
                numbers = [v for a, b in zip(numbers[:half], numbers[half:], strict=True) for v in _shuffled(e, a, b)]
            else:
                numbers = [shuffle(e, numbers[0].s, t, LANES, [i // 2 + i % 2 * (LANES // 2) for i in range(LANES)])]
        for i, v in enumerate(numbers):
            e.emit(f"store {v.ty} {v.s}, ptr {e.offset(memory, i * _bytes(t)).s}, align 64")
    body = "\n".join(text)
    return f"define internal void @{name}(ptr %x) #1 {{\n{body}\n  ret void\n}}"


def _shuffled(e: Context, a: Val, b: Val) -> list[Val]:
    """Two vectors, element by element in turns, as two vectors."""
    picks = [", ".join(f"i32 {start + i // 2 + i % 2 * LANES}" for i in range(LANES)) for start in (0, LANES // 2)]
    return [e.let(f"shufflevector {a.ty} {a.s}, {b.ty} {b.s}, <{LANES} x i32> <{p}>", a.t, True) for p in picks]


def _product_function(e: Context, name: str, shape: tuple[int, int, int], t: str, a_rows: bool, saturate: bool) -> str:
    """Adds a product to the sums in memory."""
    m, n, k = shape
    number, size = ("double", 8) if t == "double" else ("float", 4)
    lanes = min(n, 64 // size)
    kind, sums_kind = vec(number, lanes), vec(t, lanes)
    fma = f"llvm.fma.v{lanes}{SUFFIX[number]}"
    e.m.declare(fma, f"declare {kind} @{fma}({kind}, {kind}, {kind})")
    add = f"llvm.sadd.sat.v{lanes}i32"
    if saturate:
        e.m.declare(add, f"declare {sums_kind} @{add}({sums_kind}, {sums_kind})")

    def place(memory: str, index: int) -> str:
        return e.offset(Val(memory, "ptr"), index * size).s

    with e.aside() as text:
        for column in range(0, n, lanes):
            b = [e.let(f"load {kind}, ptr {place('%b', step * n + column)}, align {lanes * size}", number).s for step in range(k)]
            for first in range(0, m, _ROWS):
                places = {row: place("%sums", row * n + column) for row in range(first, first + _ROWS)}
                before = {row: e.let(f"load {sums_kind}, ptr {p}, align {lanes * size}", t).s for row, p in places.items()}
                total = dict.fromkeys(places, "zeroinitializer") if t == "i32" else dict(before)
                for step in range(k):
                    for row in places:
                        a = e.let(f"load {number}, ptr {place('%a', row * k + step if a_rows else step * m + row)}, align {size}", number).s
                        one = e.let(f"insertelement {kind} poison, {number} {a}, i32 0", number).s
                        all_ = e.let(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer", number).s
                        total[row] = e.let(f"call {kind} @{fma}({kind} {all_}, {kind} {b[step]}, {kind} {total[row]})", number).s
                for row, p in places.items():
                    if t == "i32":
                        whole = e.let(f"fptosi {kind} {total[row]} to {sums_kind}", t).s
                        sums = f"{sums_kind} {before[row]}, {sums_kind} {whole}" if saturate else f"{sums_kind} {before[row]}, {whole}"
                        total[row] = e.let(f"call {sums_kind} @{add}({sums})" if saturate else f"add {sums}", t).s
                    e.emit(f"store {sums_kind} {total[row]}, ptr {p}, align {lanes * size}")
    body = "\n".join(text)
    return f"define internal void @{name}(ptr noalias %sums, ptr noalias readonly %a, ptr noalias readonly %b) #1 {{\n{body}\n  ret void\n}}"
