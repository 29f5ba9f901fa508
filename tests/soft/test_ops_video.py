"""The scalar video instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft.ptx_op import Case, check, product

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


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("types", [("u32", "u32"), ("s32", "s32"), ("s32", "u32"), ("u32", "s32")])
@pytest.mark.parametrize("sat", ["", ".sat"])
def test_two_operands(name: str, types: tuple[str, str], sat: str) -> None:
    op, _, mode = name.partition(".")
    to, ta = types
    tb = "u32" if mode else ta
    text = f"{op}.{to}.{ta}.{tb}{sat}{'.' + mode if mode else ''} $d, $a, $b;"

    def want(a: int, b: int) -> int:
        value = OPERATIONS[name](part(a, ta), part(b, tb))
        return clamp(value, to) if sat else value

    check(Case(text, np.dtype(np.uint32), product(NUMBERS, NUMBERS), over(want)))


@pytest.mark.parametrize("selects", [("b1", "h0"), ("b3", "b0"), ("h1", "")])
@pytest.mark.parametrize("kinds", [("u32", "s32"), ("s32", "u32")])
def test_parts(selects: tuple[str, str], kinds: tuple[str, str]) -> None:
    a_text, b_text = (f"${n}{'.' + s if s else ''}" for n, s in zip("ab", selects, strict=True))
    text = f"vsub.s32.{kinds[0]}.{kinds[1]} $d, {a_text}, {b_text};"
    check(Case(text, np.dtype(np.uint32), product(NUMBERS, NUMBERS), over(lambda a, b: part(a, kinds[0], selects[0]) - part(b, kinds[1], selects[1]))))


@pytest.mark.parametrize("second", ["add", "min", "max"])
@pytest.mark.parametrize("to", ["u32", "s32"])
def test_second_operation(second: str, to: str) -> None:
    def want(a: int, b: int, c: int) -> int:
        first = clamp(part(a, to, "b1") + part(b, to), to)
        c = part(c, to)
        return first + c if second == "add" else (min if second == "min" else max)(first, c)

    check(Case(f"vadd.{to}.{to}.{to}.sat.{second} $d, $a.b1, $b, $c;", np.dtype(np.uint32), product(FEW, FEW, FEW), over(want)))


@pytest.mark.parametrize("select", ["b0", "b3", "h1"])
def test_merge(select: str) -> None:
    shift, bits = PARTS[select]
    mask = ((1 << bits) - 1) << shift

    def want(a: int, b: int, c: int) -> int:
        return (max(a, b) << shift & mask) | (c & ~mask)

    check(Case(f"vmax.u32.u32.u32 $d.{select}, $a, $b, $c;", np.dtype(np.uint32), product(FEW, FEW, FEW), over(want)))


@pytest.mark.parametrize(("form", "signs"), [(f, s) for f in ("", ".sat", ".sat.shr7", ".shr15") for s in ("   ", "-  ", "  -")] + [(".po", "   ")])
@pytest.mark.parametrize("kinds", [("u32", "u32"), ("s32", "s32"), ("u32", "s32")])
def test_multiply(form: str, kinds: tuple[str, str], signs: str) -> None:
    a_text, b_text, c_text = (f"{s.strip()}${n}" for s, n in zip(signs, "abc", strict=True))
    signed = "s32" in kinds or "-" in signs

    def want(a: int, b: int, c: int) -> int:
        product_ = part(a, kinds[0]) * part(b, kinds[1])
        addend = part(c, "s32" if signed else "u32")
        value = (-product_ if signs[0] == "-" else product_) + (-addend if signs[2] == "-" else addend) + (form == ".po")
        value >>= 7 if "shr7" in form else 15 if "shr15" in form else 0
        return clamp(value, "s32" if signed else "u32") if ".sat" in form else value

    text = f"vmad.{'s32' if signed else 'u32'}.{kinds[0]}.{kinds[1]}{form} $d, {a_text}, {b_text}, {c_text};"
    check(Case(text, np.dtype(np.uint32), product(FEW, FEW, FEW), over(want)))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("kinds", [("u32", "u32"), ("s32", "s32"), ("s32", "u32")])
def test_compare(name: str, kinds: tuple[str, str]) -> None:
    test = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}[name]
    text = f"vset.{kinds[0]}.{kinds[1]}.{name} $d, $a, $b.h0;"
    check(Case(text, np.dtype(np.uint32), product(NUMBERS, NUMBERS), over(lambda a, b: int(test(part(a, kinds[0]), part(b, kinds[1], "h0"))))))


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


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", [*SIMD, "vset"])
def test_simd(name: str, count: int) -> None:
    letter, every = "hb"[count == 4], tuple(range(count))
    reverse = "".join(map(str, range(count)))  # the highest first: result 0 takes the last
    mixed = "31" if count == 2 else "7052"
    for sat, a_select, b_select, second, add in FORMS:
        selects = {"": "", "{1}": f".{letter}{reverse}", "{2}": f".{letter}{mixed}"}
        chosen = {"": None, "{1}": [int(c) for c in reverse[::-1]], "{2}": [int(c) for c in mixed[::-1]]}
        picks = (chosen[a_select] or list(every), chosen[b_select] or [count + i for i in every])
        for mask, taken in (("", every), (f".{letter}{count - 1}", (count - 1,)), (f".{letter}10", (0, 1))):
            if name == "vset":
                if sat:
                    continue
                for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
                    f = COMPARE[comparison]
                    text = f"vset{count}.s32.u32.{comparison}{second} $d{mask}, $a{selects[a_select]}, $b{selects[b_select]}, $c;"
                    want = simd(lambda x, y, f=f: int(f(x, y)), count, ("u32", "s32", "u32"), picks, taken, False, add)
                    if comparison in ("lt", "eq") or not mask:
                        check(Case(text, np.dtype(np.uint32), product(WORDS, WORDS, WORDS[:3]), over(want)))
                continue
            kinds = ("s32", "s32", "u32") if sat else ("u32", "u32", "u32") if mask else ("s32", "u32", "s32")
            text = f"{name}{count}.{'.'.join(kinds)}{sat}{second} $d{mask}, $a{selects[a_select]}, $b{selects[b_select]}, $c;"
            want = simd(SIMD[name], count, kinds, picks, taken, bool(sat), add)
            check(Case(text, np.dtype(np.uint32), product(WORDS, WORDS, WORDS[:3]), over(want)))


COMPARE: dict[str, Callable[[int, int], bool]] = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}
