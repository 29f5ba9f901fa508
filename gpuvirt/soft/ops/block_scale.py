"""Products of blocks with scales (mma with .block_scale): each 16 or 32 elements of a row of A, and of a column of B, have a factor of their own;
twice as many where A is sparse.

The scales of rows g and g + 8 are in the first and the second lane of the pair of a quad that A's thread number names, those of column g in the lane
of the quad that B's names; the byte number says at which byte of the register they begin.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ops import fp8, sparse
from gpuvirt.soft.ops.fragments import PACKED, Product, elements, items, moved, multiply, out_of_line
from gpuvirt.soft.ops.warp import permute
from gpuvirt.soft.ptx.parser import Ins, Operand, Vec
from gpuvirt.soft.ptx.types import LANES

_VECTORS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}
# Of each kind: its k, the formats of its elements (None: any of 8, 6 and 4 bits, a byte each), the scales that it may have and their formats.
_KINDS: dict[str, tuple[int, str | None, dict[int, tuple[str, ...]]]] = {
    "kind::mxf8f6f4": (32, None, {1: ("ue8m0",)}),
    "kind::mxf4": (64, "e2m1", {2: ("ue8m0",)}),
    "kind::mxf4nvf4": (64, "e2m1", {2: ("ue8m0",), 4: ("ue4m3",)}),
}


def element_kind(e: Context, ins: Ins, k: int, a_kind: str, b_kind: str) -> str | None:
    """How the elements lie, where that is not what their format says; refuses what is no such product."""
    name, (wanted, only, vectors) = next((item for item in _KINDS.items() if item[0] in ins.mods), ("", (0, None, {})))
    count = _count(ins, vectors)
    thin = sparse.is_sparse(ins)
    if k != wanted * (1 + thin) or len(ins.ops) != 8 + 2 * thin:
        raise e.fail(name)
    if count not in vectors or ins.mods[-1] not in vectors[count] or (only and (a_kind, b_kind) != (only, only)):
        raise e.fail(name)
    return PACKED if only else None


def _count(ins: Ins, vectors: dict[int, tuple[str, ...]]) -> int:
    """The scales of a row: said, or the only number that the kind has."""
    return next((n for word, n in _VECTORS.items() if word in ins.mods), min(vectors, default=0))


def _of_format(e: Context, code: Val, name: str) -> Val:
    """A scale, in the low 8 bits of an i32, as a double."""
    if name == "ue4m3":
        half = fp8.decode(e, e.resize(e.band(code, e.const(0x7F, "i32")), "i16"), "e4m3")
        return e.cast("fpext", half, "double")
    bits = e.shl(e.add(e.resize(code, "i64"), e.const(1023 - 127, "i64")), e.const(52, "i64"))
    return e.bitcast(e.select(e.icmp("eq", code, e.const(0xFF, "i32")), e.const(0x7FF8 << 48, "i64"), bits), "double")


def _words(e: Context, data: Operand, numbers: Operand, lanes: int) -> list[Val]:
    """The words of scales that every lane needs, from their lowest byte on: of its rows g and g + 8 (`lanes` 2), or of its two columns (1)."""
    if not isinstance(numbers, Vec) or len(numbers.items) != 2:
        raise e.fail("no byte and thread")
    (word,) = items(data)
    value = e.splat(e.rd_int(word, 32))
    byte, thread = (e.band(e.rd_int(item, 32), e.const(3, "i32")) for item in numbers.items)
    value = e.lshr(value, e.shl(byte, e.const(3, "i32")))
    quads = e.lanes([lane // 4 * 4 for lane in range(LANES)], "i32")
    if lanes == 2:  # rows: of this lane's quad
        first = e.add(quads, e.shl(thread, e.const(1, "i32")))
        return [permute(e, value, e.band(e.add(first, e.const(half, "i32")), e.const(31, "i32"))) for half in range(2)]
    column = permute(e, value, e.band(e.add(quads, thread), e.const(31, "i32")))
    return [moved(e, column, [(lane % 4 * 2 + odd) * 4 for lane in range(LANES)]) for odd in range(2)]  # columns 2t and 2t + 1


def _scaled(
    e: Context,
    p: Product,
    count: int,
    name: str,
    total: list[Val],
    a_raw: list[Val],
    b_raw: list[Val],
    words: list[Val],
    metadata: tuple[Val, Operand] | None,
) -> list[Val]:
    """Of each block the sum of its products, times both scales."""
    a_regs, b_regs = [elements(e, r, p.a_kind) for r in a_raw], [elements(e, r, p.b_kind) for r in b_raw]
    total = list(total)
    size = p.k // count
    for block in range(count):
        zeros = [e.splat(e.fconst(0.0, "float")) for _ in total]
        if metadata is None:
            parts = multiply(e, p, zeros, a_regs, b_regs, range(block * size, (block + 1) * size))
        else:
            parts = sparse.multiply(e, p, zeros, a_regs, b_regs, *metadata, range(block * size // 2, (block + 1) * size // 2))
        scales = [_of_format(e, e.band(e.lshr(word, e.const(8 * block, "i32")), e.const(0xFF, "i32")), name) for word in words]
        for i, part in enumerate(parts):
            # In double, which has room for the product of any two scales.
            scaled = e.fmul(e.cast("fpext", part, "double"), e.fmul(scales[i // 2], scales[2 + i % 2]))
            total[i] = e.cast("fptrunc", e.fadd(e.cast("fpext", total[i], "double"), scaled), "float")
    return total


def product(e: Context, ins: Ins, p: Product, total: list[Val], a_raw: list[Val], b_raw: list[Val]) -> list[Val]:
    """The sums of 16 by 8 with the product added, from the registers as they are."""
    vectors = next(vectors for name, (_, _, vectors) in _KINDS.items() if name in ins.mods)
    count, form = _count(ins, vectors), ins.mods[-1]
    a_data, a_numbers, b_data, b_numbers = ins.ops[-4:]
    words = [*_words(e, a_data, a_numbers, 2), *_words(e, b_data, b_numbers, 1)]
    sums, left = len(total), len(a_raw)
    thin = [e.splat(e.rd_int(items(ins.ops[4])[0], 32))] if sparse.is_sparse(ins) else []  # the metadata

    def make(values: list[Val]) -> list[Val]:
        metadata = (values.pop(), ins.ops[5]) if thin else None
        return _scaled(e, p, count, form, values[:sums], values[sums : sums + left], values[sums + left : -4], values[-4:], metadata)

    of = f".sparse{sparse.Metadata(e, p, thin[0], ins.ops[5]).first}" if thin else ""
    name = f'"scaled.{p.k}.{p.a_kind}.{p.b_kind}.{count}.{form}{of}"'
    return out_of_line(e, name, [*total, *a_raw, *b_raw, *words, *thin], sums, make)
