"""The video instructions, one number at a time and several, against Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from soft.ptx_op import Case, check, product, tiers

pytestmark = pytest.mark.sampled(5)

NUMBERS = np.array([0, 1, 2, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x12345678, 0x7FFFFFFF, 0x80000000, 0x89ABCDEF, 0xFFFFFF80, 0xFFFFFFFF], np.uint32)
FEW = np.array([0, 1, 0x80, 0x7FFFFFFF, 0x80000000, 0x89ABCDEF, 0xFFFFFFFF], np.uint32)
PARTS = {"": (0, 32), "b0": (0, 8), "b1": (8, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16)}


def part(x: int, kind: str, select: str = "") -> int:
    """A part of a word, signed if so."""
    shift, bits = PARTS[select]
    value = x >> shift & ((1 << bits) - 1)
    return value - (1 << bits) if kind == "s32" and value >> (bits - 1) else value


def clamp(x: int, kind: str) -> int:
    low, high = (-(1 << 31), (1 << 31) - 1) if kind == "s32" else (0, (1 << 32) - 1)
    return max(low, min(high, x))


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vabsdiff": lambda a, b: abs(a - b), "vmin": min, "vmax": max,
    "vshl.clamp": lambda a, b: a << min(b, 32), "vshl.wrap": lambda a, b: a << (b & 31),
    "vshr.clamp": lambda a, b: a >> min(b, 32), "vshr.wrap": lambda a, b: a >> (b & 31),
}  # fmt: skip


def over(function: Callable[..., int]) -> Callable[..., Any]:
    return lambda *columns: np.array([function(*map(int, row)) & 0xFFFFFFFF for row in zip(*columns, strict=True)], np.uint32)


SECOND: dict[str, Callable[[int, int], int]] = {"add": lambda x, c: x + c, "min": min, "max": max}
COMPARE: dict[str, Callable[[int, int], bool]] = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}


def case(text: str, want: Callable[..., int], *lists: Any) -> Case:
    return Case(text, np.dtype(np.uint32), product(*lists), over(want))


def two_operands() -> Iterator[Case]:
    types = [("u32", "u32"), ("s32", "s32"), ("s32", "u32"), ("u32", "s32")]
    for (name, f), (to, ta), sat in itertools.product(OPERATIONS.items(), types, ("", ".sat")):
        op, _, mode = name.partition(".")
        tb = "u32" if mode else ta

        def want(a: int, b: int, f: Any = f, to: str = to, ta: str = ta, tb: str = tb, sat: str = sat) -> int:
            value = f(part(a, ta), part(b, tb))
            return clamp(value, to) if sat else value

        yield case(f"{op}.{to}.{ta}.{tb}{sat}{'.' + mode if mode else ''} $d, $a, $b;", want, NUMBERS, NUMBERS)


def parts_of_operands() -> Iterator[Case]:
    for (x, y), kinds in itertools.product([("b1", "h0"), ("b3", "b0"), ("h1", "")], [("u32", "s32"), ("s32", "u32")]):
        a_text, b_text = (f"${n}{'.' + s if s else ''}" for n, s in (("a", x), ("b", y)))
        want = lambda a, b, x=x, y=y, k=kinds: part(a, k[0], x) - part(b, k[1], y)  # noqa: E731
        yield case(f"vsub.s32.{kinds[0]}.{kinds[1]} $d, {a_text}, {b_text};", want, NUMBERS, NUMBERS)


def second_operations() -> Iterator[Case]:
    for (name, f), second, to in itertools.product(OPERATIONS.items(), SECOND, ("u32", "s32")):
        op, _, mode = name.partition(".")
        tb = "u32" if mode else to

        def want(a: int, b: int, c: int, f: Any = f, g: Any = SECOND[second], to: str = to, tb: str = tb) -> int:
            return g(part(clamp(f(part(a, to, "b1"), part(b, tb)), to) & 0xFFFFFFFF, to), part(c, to))

        modes = f"{'.' + mode if mode else ''}.{second}"
        yield case(f"{op}.{to}.{to}.{tb}.sat{modes} $d, $a.b1, $b, $c;", want, FEW, FEW, FEW)
    for second, g in SECOND.items():
        yield case(f"vset.s32.s32.lt.{second} $d, $a, $b, $c;", lambda a, b, c, g=g: g(int(part(a, "s32") < part(b, "s32")), c), FEW, FEW, FEW)


def merges() -> Iterator[Case]:
    for select in ("b0", "b3", "h1"):
        shift, width = PARTS[select]
        mask = ((1 << width) - 1) << shift
        want = lambda a, b, c, s=shift, m=mask: (max(a, b) << s & m) | (c & ~m)  # noqa: E731
        yield case(f"vmax.u32.u32.u32 $d.{select}, $a, $b, $c;", want, FEW, FEW, FEW)


def multiplications() -> Iterator[Case]:
    forms = [(f, s) for f in ("", ".sat", ".sat.shr7", ".shr15") for s in ("   ", "-  ", "  -")] + [(".po", "   ")]
    for (form, signs), kinds in itertools.product(forms, [("u32", "u32"), ("s32", "s32"), ("u32", "s32")]):
        a_text, b_text, c_text = (f"{s.strip()}${n}" for s, n in zip(signs, "abc", strict=True))
        signed = "s32" in kinds or "-" in signs

        def want(a: int, b: int, c: int, form: str = form, signs: str = signs, kinds: Any = kinds, signed: bool = signed) -> int:
            product_ = part(a, kinds[0]) * part(b, kinds[1])
            addend = part(c, "s32" if signed else "u32")
            value = (-product_ if signs[0] == "-" else product_) + (-addend if signs[2] == "-" else addend) + (form == ".po")
            value >>= 7 if "shr7" in form else 15 if "shr15" in form else 0
            return clamp(value, "s32" if signed else "u32") if ".sat" in form else value

        yield case(f"vmad.{'s32' if signed else 'u32'}.{kinds[0]}.{kinds[1]}{form} $d, {a_text}, {b_text}, {c_text};", want, FEW, FEW, FEW)


def comparisons() -> Iterator[Case]:
    for (name, f), kinds in itertools.product(COMPARE.items(), [("u32", "u32"), ("s32", "s32"), ("s32", "u32")]):
        want = lambda a, b, f=f, k=kinds: int(f(part(a, k[0]), part(b, k[1], "h0")))  # noqa: E731
        yield case(f"vset.{kinds[0]}.{kinds[1]}.{name} $d, $a, $b.h0;", want, NUMBERS, NUMBERS)


# Two halves or four bytes at a time.

SIMD: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vabsdiff": lambda a, b: abs(a - b), "vmin": min, "vmax": max,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}  # fmt: skip
WORDS = np.array([0, 0x01020304, 0x7F80FF01, 0x80007FFF, 0xFFFFFFFF, 0x12345678, 0xFEDCBA98, 0x00FF8001], np.uint32)


def pieces(x: int, count: int, kind: str) -> list[int]:
    bits = 32 // count
    values = [x >> bits * i & ((1 << bits) - 1) for i in range(count)]
    return [v - (1 << bits) if kind == "s32" and v >> (bits - 1) else v for v in values]


def simd(function: Callable[[int, int], int], count: int, kinds: tuple[str, str, str], picks: tuple[Any, Any], taken: Any, sat: bool, add: bool) -> Callable[..., int]:
    """The definition: parts of a and b side by side are chosen from, results put into their places of c or added to it."""
    bits = 32 // count
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kinds[0] == "s32" else (0, (1 << bits) - 1)

    def one(a: int, b: int, c: int) -> int:
        first = pieces(a, count, kinds[1]) + pieces(b, count, kinds[1])
        second = pieces(a, count, kinds[2]) + pieces(b, count, kinds[2])
        results = [function(first[p], second[q]) for p, q in zip(*picks, strict=True)]
        results = [max(low, min(high, r)) for r in results] if sat else results
        if add:
            return c + sum(r for i, r in enumerate(results) if i in taken)
        rest = pieces(c, count, "u32")
        return sum(((r if i in taken else rest[i]) & ((1 << bits) - 1)) << bits * i for i, r in enumerate(results))

    return one


FORMS = [("", "", "", "", False), (".sat", "", "", "", False), ("", "", "", ".add", True), ("", "{1}", "{2}", "", False), (".sat", "{2}", "{1}", ".add", True)]


def several() -> Iterator[Case]:
    for name, count, form in itertools.product([*SIMD, "vset"], (2, 4), FORMS):
        sat, a_select, b_select, second, add = form
        letter, every = "hb"[count == 4], tuple(range(count))
        reverse = "".join(map(str, range(count)))  # the highest first: result 0 takes the last
        mixed = "31" if count == 2 else "7052"
        selects = {"": "", "{1}": f".{letter}{reverse}", "{2}": f".{letter}{mixed}"}
        chosen = {"": None, "{1}": [int(c) for c in reverse[::-1]], "{2}": [int(c) for c in mixed[::-1]]}
        picks = (chosen[a_select] or list(every), chosen[b_select] or [count + i for i in every])
        for mask, taken in (("", every), (f".{letter}{count - 1}", (count - 1,)), (f".{letter}10", (0, 1))):
            operands = f"$d{mask}, $a{selects[a_select]}, $b{selects[b_select]}, $c;"
            if name != "vset":
                kinds = ("s32", "s32", "u32") if sat else ("u32", "u32", "u32") if mask else ("s32", "u32", "s32")
                want = simd(SIMD[name], count, kinds, picks, taken, bool(sat), add)
                yield case(f"{name}{count}.{'.'.join(kinds)}{sat}{second} {operands}", want, WORDS, WORDS, WORDS[:3])
            elif not sat:
                for comparison, f in COMPARE.items():
                    if comparison in ("lt", "eq") or not mask:
                        want = simd(lambda x, y, f=f: int(f(x, y)), count, ("u32", "s32", "u32"), picks, taken, False, add)
                        yield case(f"vset{count}.s32.u32.{comparison}{second} {operands}", want, WORDS, WORDS, WORDS[:3])


CASES = [c for make in (two_operands, parts_of_operands, second_operations, merges, multiplications, comparisons, several) for c in make()]


@pytest.mark.parametrize("case", tiers(CASES))
def test_video(case: Case) -> None:
    check(case)
