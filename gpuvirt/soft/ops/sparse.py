"""Products with a sparse left factor (mma.sp): of every chunk of a row only some elements are there, and metadata says which.

Of 4 elements of 16 or 8 bits 2 are there, of 2 of tf32 one, of 8 of 4 bits two pairs. The fragment of those that are there lies like a dense one of
half as many columns. A chunk has 4 bits of metadata: two places of 2 bits, the first element's lower (tf32: the place is bit 1). The lanes of a
quad that the selector names have the metadata of rows g and g + 8, chunk by chunk from the lowest bits on: with 16 bits and tf32 each lane four
chunks of both rows, the second row's above; otherwise each lane eight chunks of one row, rows in turn.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ops.fragments import ELEMENT_BITS, Product, accumulate, elements, moved, out_of_line
from gpuvirt.soft.ptx.parser import Imm, Ins, Operand
from gpuvirt.soft.ptx.types import LANES


def is_sparse(ins: Ins) -> bool:
    """Whether half of the left factor is not there."""
    return not {"sp", "sp::ordered_metadata"}.isdisjoint(ins.mods)


class Metadata:
    """The places that metadata names; `selector`: which lanes of every four have it."""

    def __init__(self, e: Context, p: Product, word: Val, selector: Operand) -> None:
        self.e, self.word = e, e.splat(word)
        self.bits = ELEMENT_BITS[p.a_kind]
        self.width = {32: 2, 4: 8}.get(self.bits, 4)  # elements of a chunk; half of them are there
        chunks = p.k // self.width
        self.both = self.bits >= 16  # a lane has both rows'
        lanes = 2 * chunks // 8  # of every four
        if lanes not in (1, 2, 4) or not isinstance(selector, Imm) or not 0 <= selector.value < 4 // lanes:
            raise e.fail("selector")
        self.first = selector.value * lanes
        self.words: dict[int, Val] = {}  # as every lane of a quad needs them, by the lane that has them

    def _of_quad(self, row: int, chunk: int) -> tuple[Val, int]:
        """The word that every lane needs for its row g (0) or g + 8 (1), and where in it the chunk's bits begin."""
        lane, at = (chunk // 4, 16 * row + chunk % 4 * 4) if self.both else (row + chunk // 8 * 2, chunk % 8 * 4)
        if lane not in self.words:
            self.words[lane] = moved(self.e, self.word, [i // 4 * 4 + self.first + lane for i in range(LANES)])
        return self.words[lane], at

    def place(self, row: int, chunk: int, number: int) -> Val:
        """Where in its chunk the element of that number lies, in elements, or in pairs of 4 bits."""
        word, at = self._of_quad(row, chunk)
        shift, mask = (at + 1, 1) if self.bits == 32 else (at + 2 * (number // 2 if self.bits == 4 else number), 3)
        return self.e.band(self.e.lshr(word, self.e.const(shift, "i32")), self.e.const(mask, "i32"))

    def candidates(self, number: int) -> list[int]:
        """The elements of a chunk that it may be, in the order of the places."""
        if self.bits == 4:
            return [2 * pair + number % 2 for pair in range(4)]
        return list(range(self.width))


def multiply(
    e: Context,
    p: Product,
    total: list[Val],
    a_regs: list[list[Val]],
    b_regs: list[list[Val]],
    word: Val,
    selector: Operand,
    steps: range | None = None,
) -> list[Val]:
    """The sums of 16 by 8 with the product added, from the elements of the fragments' registers; `steps`: some of the elements of a row."""
    metadata = Metadata(e, p, word, selector)
    per = 32 // metadata.bits

    def right(k: int, odd: int) -> Val:
        return moved(e, b_regs[k // (4 * per)][k % per], [(lane % 4 * 2 + odd) * 4 + k // per % 4 for lane in range(LANES)])

    there = metadata.width // 2
    total = list(total)
    for step in steps or range(p.k // 2):
        block, t, part = step // (4 * per), step // per % 4, step % per
        chunk, number = divmod(step, there)
        choices = [[right(chunk * metadata.width + c, odd) for c in metadata.candidates(number)] for odd in range(2)]
        for row in range(2):
            a = moved(e, a_regs[block * 2 + row][part], [lane // 4 * 4 + t for lane in range(LANES)])
            place = metadata.place(row, chunk, number)
            for odd in range(2):
                b = choices[odd][0]
                for i, other in enumerate(choices[odd][1:], 1):
                    b = e.select(e.icmp("eq", place, e.const(i, "i32")), other, b)
                at = 2 * row + odd
                total[at] = accumulate(e, a, b, total[at], p.saturate)
    return total


def product(e: Context, p: Product, total: list[Val], a_raw: list[Val], b_raw: list[Val], word: Val, selector: Operand) -> list[Val]:
    """The same from the registers as they are."""
    sums, left = len(total), len(a_raw)

    def make(values: list[Val]) -> list[Val]:
        a, b = values[sums : sums + left], values[sums + left : -1]
        return multiply(e, p, values[:sums], [elements(e, r, p.a_kind) for r in a], [elements(e, r, p.b_kind) for r in b], values[-1], selector)

    first = Metadata(e, p, word, selector).first
    name = f'"sparse.{p.k}.{p.a_kind}.{p.b_kind}.{int(p.saturate)}.{first}.{total[0].t}"'
    return out_of_line(e, name, [*total, *a_raw, *b_raw, word], sums, make)
