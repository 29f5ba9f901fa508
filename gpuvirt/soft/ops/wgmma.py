"""wgmma: products of a warpgroup, four warps, whose right factor, and perhaps the left, lies in shared memory.

Each warp makes 16 rows of the product: those of its number in the group. It does so when the instruction comes, so a product is over before it is
waited for; that nobody goes on while another warp of the group still reads the matrices, the engine sees to where the warps meet (.wait_group).
Fragments lie as mma's do: the accumulators of every 8 columns are an mma's, and 256 bits of a row are an mma's k.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import sparse
from gpuvirt.soft.ops.fragments import (
    ELEMENT_BITS,
    VECTOR,
    Product,
    accumulators,
    buffer,
    elements,
    fragment,
    items,
    multiply,
    multiply_bits,
    of_warp,
    shape_of,
    vector,
    write_accumulators,
)
from gpuvirt.soft.ptx.parser import Imm, Ins, Operand, Vec
from gpuvirt.soft.ptx.types import LANES

W = Val("%w", "ptr")
_SIGNS = {"f16": 0x80008000, "bf16": 0x80008000, "tf32": 1 << 31, "e4m3": 0x80808080, "e5m2": 0x80808080}  # of the elements in a register
_FORMATS = {  # of the left factor: those of the right one, and of the product
    "f16": (("f16",), ("f16", "f32")), "bf16": (("bf16",), ("f32",)), "tf32": (("tf32",), ("f32",)), "b1": (("b1",), ("s32",)),
    "e4m3": (("e4m3", "e5m2"), ("f16", "f32")), "e5m2": (("e4m3", "e5m2"), ("f16", "f32")), "s8": (("s8", "u8"), ("s32",)),
    "u8": (("s8", "u8"), ("s32",)),
}  # fmt: skip
_REGISTERS = 4  # of an accumulator's 8 columns, and of the left factor
_PIECES = 2  # of 128 bytes, of 8 rows of a matrix; 4 of the right factor where the left one is sparse


@emits
def wgmma(e: Context, ins: Ins) -> None:
    what = ins.mods[0]
    if what == "mma_async":
        _product(e, ins)
    elif what in ("fence", "wait_group"):
        e.uses_barrier = True
        e.call("soft_warpgroup_sync", "void", [W], declare=True)
    elif what != "commit_group":
        raise e.fail()


def _immediate(e: Context, operand: Operand) -> int:
    if not isinstance(operand, Imm):
        raise e.fail("no constant")
    return operand.value


def _product(e: Context, ins: Ins) -> None:
    m, n, k = shape_of(ins)
    d_kind, a_kind, b_kind = [x for x in ins.mods if x in ELEMENT_BITS or x == "s32"][:3]
    right, sums = _FORMATS.get(a_kind, ((), ()))
    thin = "sp" in ins.mods  # half of the left factor is not there
    if b_kind not in right or d_kind not in sums or k * ELEMENT_BITS[a_kind] != 256 * (1 + thin) or (thin and a_kind == "b1"):
        raise e.fail()
    if (a_kind == "b1") != ({"and", "popc"} <= set(ins.mods)):
        raise e.fail()
    d, a, b, metadata, more = ins.ops[0], ins.ops[1], ins.ops[2], ins.ops[3:5] if thin else [], ins.ops[6 if thin else 4 :]
    scales = [_immediate(e, o) for o in more[:2]] if a_kind in _SIGNS else []
    turned = [_immediate(e, o) for o in more[2:]]
    from_shared = not isinstance(a, Vec)
    if (
        len(turned) != (1 + from_shared if ELEMENT_BITS[a_kind] == 16 else 0)
        or any(s not in (1, -1) for s in scales)
        or any(t not in (0, 1) for t in turned)
    ):
        raise e.fail("operands")
    p = Product(m // 32, k, a_kind, b_kind, "satfinite" in ins.mods)
    blocks = n // 8

    total = accumulators(e, d, d_kind)
    if len(total) != blocks * _REGISTERS:
        raise e.fail("the number of registers")
    keep = e.rd_pred(ins.ops[5 if thin else 3])
    total = [e.select(keep, t, e.splat(e.fconst(0.0, "float") if t.t == "float" else e.const(0, "i32"))) for t in total]
    sums_at = buffer(e, "sums", blocks * _REGISTERS)
    for i, value in enumerate(total):
        e.emit(f"store {value.ty} {value.s}, ptr {e.offset(sums_at, i * VECTOR).s}, align 64")

    left_at = buffer(e, "left", _REGISTERS + 1)  # the metadata last
    if from_shared:
        pieces = buffer(e, "pieces", _REGISTERS)
        row = e.shl(e.band(e.field("warp", "i32"), e.const(3, "i32")), e.const(4, "i32"))
        _load(e, a, row, 2, _PIECES, turned[0] if turned else 0, pieces)
        registers = [vector(e, pieces, i % 2 * _PIECES + i // 2) for i in range(_REGISTERS)]
    else:
        registers = [fragment(e, r, a_kind) for r in items(a)]
    if len(registers) != _REGISTERS:
        raise e.fail("fragment sizes")
    if thin:
        word = e.rd_int(metadata[0], 32)
        e.emit(f"store <{LANES} x i32> {e.splat(word).s}, ptr {e.offset(left_at, _REGISTERS * VECTOR).s}, align 64")
    for i, value in enumerate(registers):
        if scales and scales[0] != scales[1]:
            value = e.bxor(value, e.const(_SIGNS[a_kind], "i32"))
        e.emit(f"store {value.ty} {e.splat(value).s}, ptr {e.offset(left_at, i * VECTOR).s}, align 64")

    pieces_of_b = _PIECES * (1 + thin)
    right_at = buffer(e, "right", blocks * pieces_of_b)
    _load(e, b, e.const(0, "i32"), blocks, pieces_of_b, turned[-1] if turned else 0, right_at)
    name = f'"wgmma.{k}.{a_kind}.{b_kind}.{int(p.saturate)}{f".sparse{_immediate(e, metadata[1])}" if thin else ""}"'
    e.m.helper(name, lambda: _function(e, name, p, metadata[1] if thin else None))
    e.emit(f"call void @{name}(ptr {sums_at.s}, ptr {left_at.s}, ptr {right_at.s}, i64 {blocks})")
    result = [vector(e, sums_at, i, t.t) for i, t in enumerate(total)]
    write_accumulators(e, d, d_kind, result)


def _load(e: Context, descriptor: Operand, first: Val, blocks: int, pieces: int, turned: int, to: Val) -> None:
    d = of_warp(e, e.rd_int(descriptor, 64))
    e.call("soft_matrix_load", "void", [W, d, first, *(e.const(n, "i32") for n in (blocks, pieces, turned)), to], declare=True)


def _function(e: Context, name: str, p: Product, selector: Operand | None) -> str:
    """@wgmma.<...>(sums, left factor, right factor, blocks of 8 columns): adds 16 rows of the product to the sums.

    In memory, because a product of 256 columns has more sums than there are registers, and as a loop, because its code would be as long.
    """
    t = "i32" if p.a_kind in ("s8", "u8", "b1") else "float"
    with e.aside() as lines:
        left = [vector(e, Val("%left", "ptr"), i) for i in range(_REGISTERS)]
        word = vector(e, Val("%left", "ptr"), _REGISTERS) if selector is not None else None
        pieces = _PIECES * (1 + (word is not None))
        a_regs = [[r] if p.a_kind == "b1" else elements(e, r, p.a_kind) for r in left]
        e.emit("br label %block")
        e.lines.append("block:")
        e.emit("%i = phi i64 [ 0, %entry ], [ %next, %block ]")
        sums_at = e.let(f"getelementptr [{_REGISTERS * VECTOR} x i8], ptr %sums, i64 %i", "ptr")
        right_at = e.let(f"getelementptr [{pieces * VECTOR} x i8], ptr %right, i64 %i", "ptr")
        total = [vector(e, sums_at, i, t) for i in range(_REGISTERS)]
        right = [vector(e, right_at, i) for i in range(pieces)]
        if p.a_kind == "b1":
            total = multiply_bits(e, 2, "and", total, left, right)
        else:
            b_regs = [elements(e, r, p.b_kind) for r in right]
            if word is not None and selector is not None:
                total = sparse.multiply(e, p, total, a_regs, b_regs, word, selector)
            else:
                total = multiply(e, p, total, a_regs, b_regs)
        for i, value in enumerate(total):
            e.emit(f"store {value.ty} {value.s}, ptr {e.offset(sums_at, i * VECTOR).s}, align 64")
        e.emit("%next = add i64 %i, 1")
        e.emit("%more = icmp ult i64 %next, %blocks")
        e.emit("br i1 %more, label %block, label %end")
        e.lines.append("end:")
    body = "\n".join(lines)
    return f"define internal void @{name}(ptr %sums, ptr %left, ptr %right, i64 %blocks) #1 {{\nentry:\n{body}\n  ret void\n}}"
