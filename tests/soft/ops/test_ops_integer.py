"""Integer instructions, each for its types, against NumPy and Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft.ptx_op import Case, check, product

pytestmark = pytest.mark.sampled(5)

T = {f"{k}{b}": np.dtype(f"{'i' if k == 's' else 'u'}{b // 8}") for k in "su" for b in (16, 32, 64)}
B = {f"b{b}": np.dtype(f"u{b // 8}") for b in (16, 32, 64)}


def edges(dtype: Any, few: bool = False) -> Any:
    """Numbers at which integer code goes wrong."""
    info = np.iinfo(dtype)
    top = info.max
    numbers = [0, 1, 2, 3, 7, 31, 100, top, top - 1, top // 2, top // 2 + 1, info.min, info.min + 1, top // 3, top // 5 * 3, -1, -2, -100, 0x55, 0x80]
    if few:
        numbers = [0, 1, top, info.min, top // 3, 5, -1, -7]
    inside = sorted({n for n in numbers if info.min <= n <= info.max} | ({top - n for n in (2, 9)} if info.min == 0 else set()))
    return np.array(inside, dtype)


def each(function: Callable[..., int], dtype: Any) -> Callable[..., Any]:
    """A function of Python integers over arrays, the result cut to the type."""
    width = 8 * np.dtype(dtype).itemsize

    def over(*columns: Any) -> Any:
        raw = [function(*(int(x) for x in row)) & ((1 << width) - 1) for row in zip(*columns, strict=True)]
        return np.array(raw, f"u{width // 8}").view(dtype)

    return over


def case(text: str, out: Any, function: Callable[..., int], *lists: Any) -> Case:
    return Case(text, np.dtype(out), product(*lists), each(function, out))


def clamp(x: int, dtype: Any) -> int:
    info = np.iinfo(dtype)
    return max(int(info.min), min(int(info.max), x))


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - b * quotient(a, b)


def shifted_left(a: int, n: int, width: int) -> int:
    return 0 if n >= width else a << n


def reverse(x: int, width: int) -> int:
    return int(format(x & ((1 << width) - 1), f"0{width}b")[::-1], 2)


def bfind(x: int, amount: bool, width: int) -> int:
    if x < 0:
        x = ~x
    if x == 0:
        return -1
    position = x.bit_length() - 1
    return width - 1 - position if amount else position


def bfe(a: int, position: int, length: int, width: int, signed: bool) -> int:
    position, length = position & 255, length & 255
    a &= (1 << width) - 1
    sign = 0
    if signed and length:
        sign = a >> min(position + length - 1, width - 1) & 1
    result = 0
    for i in range(width):
        bit = sign
        if i < length and position + i < width:
            bit = a >> (position + i) & 1
        result |= bit << i
    return result


def bfi(a: int, b: int, position: int, length: int, width: int) -> int:
    position, length = position & 255, length & 255
    result = b
    for i in range(length):
        if position + i < width:
            result = result & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
    return result


def prmt(a: int, b: int, selector: int) -> int:
    both = a | b << 32
    result = 0
    for i in range(4):
        nibble = selector >> (4 * i) & 15
        byte = both >> (8 * (nibble & 7)) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << (8 * i)
    return result


def prmt_mode(mode: str, a: int, b: int, c: int) -> int:
    n = c & 3
    source = [a >> (8 * i) & 255 for i in range(4)] + [b >> (8 * i) & 255 for i in range(4)]
    picks = {
        "f4e": [(n + i) % 8 for i in range(4)],
        "b4e": [(n - i) % 8 for i in range(4)],
        "rc8": [n] * 4,
        "ecl": [max(i, n) for i in range(4)],
        "ecr": [min(i, n) for i in range(4)],
        "rc16": [2 * (n & 1), 2 * (n & 1) + 1] * 2,
    }[mode]
    return sum(source[p] << (8 * i) for i, p in enumerate(picks))


def lop3(a: int, b: int, c: int, lut: int) -> int:
    return sum((lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))


def shf(low: int, high: int, n: int, left: bool, wrap: bool) -> int:
    n = n & 31 if wrap else min(n, 32)
    both = high << 32 | low
    return both << n >> 32 if left else both >> n


def fns(mask: int, base: int, n: int) -> int:
    if n == 0:
        return base if mask >> base & 1 else -1
    span = range(base, 32) if n > 0 else range(base, -1, -1)
    found = [i for i in span if mask >> i & 1]
    return found[abs(n) - 1] if len(found) >= abs(n) else -1


def parts(x: int, width: int, signed: bool) -> list[int]:
    out = [x >> (width * i) & ((1 << width) - 1) for i in range(32 // width)]
    return [p - (1 << width) if signed and p >> (width - 1) else p for p in out]


def dp4a(a: int, b: int, c: int, sa: bool, sb: bool) -> int:
    return c + sum(x * y for x, y in zip(parts(a, 8, sa), parts(b, 8, sb), strict=True))


def dp2a(a: int, b: int, c: int, sa: bool, sb: bool, high: bool) -> int:
    return c + sum(x * y for x, y in zip(parts(a, 16, sa), parts(b, 8, sb)[2 * high :], strict=False))


def bmsk(a: int, b: int, wrap: bool) -> int:
    a, b = (a & 31, b & 31) if wrap else (min(a, 32), min(b, 32))
    return ((1 << b) - 1) << a


def szext(a: int, n: int, signed: bool, wrap: bool) -> int:
    n = n & 31 if wrap else min(n, 32)
    if n == 0:
        return 0
    a &= (1 << n) - 1
    return a - (1 << n) if signed and a >> (n - 1) else a


def packed(function: Callable[[int, int], int], signed: bool) -> Callable[[int, int], int]:
    def pair(a: int, b: int) -> int:
        return sum((function(x, y) & 0xFFFF) << (16 * i) for i, (x, y) in enumerate(zip(parts(a, 16, signed), parts(b, 16, signed), strict=True)))

    return pair


U32 = edges(np.uint32)
SHIFTS = np.array([0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 0x80000001, 0xFFFFFFFF], np.uint32)


def adder(kind: str, a: int, b: int, c: int, carry: int, width: int) -> tuple[int, int]:
    """(result, carry) of an instruction as the adder of a GPU makes it: a subtraction adds the complement, and a carry says that nothing was borrowed."""
    ones = (1 << width) - 1
    op, *mods = kind.split(".")
    if op[:3] == "sub":
        b ^= ones
    elif op[:3] == "mad":
        signed = mods[-1][0] == "s"
        x, y = (v - (v >> width - 1 << width) if signed else v for v in (a, b))
        a, b = (x * y if "lo" in mods else x * y >> width) & ones, c
    total = a + b + carry
    return total & ones, total >> width


def carry_pairs() -> list[Case]:
    """Each instruction that writes the flag before each that reads it, and what the latter leaves of it."""
    out: list[Case] = []
    for width, register in ((32, "%r"), (64, "%q")):
        numbers = np.array([0, 1, 5, (1 << width) - 1, 1 << width - 1, (1 << width) // 3], f"u{width // 8}")
        products = [f"{half}.cc.{sign}{width}" for half in ("lo", "hi") for sign in "us"]
        for first in [f"add.cc.u{width}", f"sub.cc.s{width}", *(f"mad.{p}" for p in products)]:
            for second in [f"addc.cc.s{width}", f"subc.cc.u{width}", *(f"madc.{p}" for p in products)]:

                def want(a: int, b: int, c: int, first: str = first, second: str = second, w: int = width) -> int:
                    _, carry = adder(first, a, b, c, int(first[:3] == "sub"), w)
                    result, carry = adder(second, c, a, b, carry, w)
                    return result ^ (carry << 1)

                more = [", $c" if first[:3] == "mad" else "", ", $b" if second[:3] == "mad" else ""]
                text = f"{first} {register}3, $a, $b{more[0]}; {second} {register}4, $c, $a{more[1]}; addc.u{width} {register}5, 0, 0; "
                text += f"add.u{width} {register}5, {register}5, {register}5; xor.b{width} $d, {register}4, {register}5;"
                out.append(case(text, numbers.dtype, want, numbers, numbers, numbers))
    return out


def _cases() -> list[Case]:
    out = []
    for name, t in T.items():
        e, few = edges(t), edges(t, True)
        width = 8 * t.itemsize
        for op, f in {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "min": min, "max": max, "rem": remainder}.items():
            out.append(case(f"{op}.{name} $d, $a, $b;", t, f, e, e))
        out.append(case(f"div.{name} $d, $a, $b;", t, quotient, e, e[e != 0]))
        out.append(case(f"mul.hi.{name} $d, $a, $b;", t, lambda a, b, w=width: a * b >> w, e, e))
        out.append(case(f"mad.lo.{name} $d, $a, $b, $c;", t, lambda a, b, c: a * b + c, few, few, few))
        out.append(case(f"mad.hi.{name} $d, $a, $b, $c;", t, lambda a, b, c, w=width: (a * b >> w) + c, few, few, few))
        out.append(case(f"sad.{name} $d, $a, $b, $c;", t, lambda a, b, c: abs(a - b) + c, few, few, few))
        out.append(case(f"shr.{name} $d, $a, $b;", t, lambda a, n, w=width: a >> min(n, w), e, SHIFTS))
        if width < 64:
            wide = np.dtype(f"{t.kind}{width // 4}")
            out.append(case(f"mul.wide.{name} $d, $a, $b;", wide, lambda a, b: a * b, e, e))
            out.append(case(f"mad.wide.{name} $d, $a, $b, $c;", wide, lambda a, b, c: a * b + c, few, few, edges(wide, True)))
        if width > 16:
            for suffix in ("", ".shiftamt"):
                out.append(case(f"bfind{suffix}.{name} $d, $a;", np.uint32, lambda a, s=suffix, w=width: bfind(a, bool(s), w), e))
            fields = np.array([0, 1, 8, 31, 32, 33, 63, 64, 200, 256], np.uint32)
            signed = name[0] == "s"
            out.append(case(f"bfe.{name} $d, $a, $b, $c;", t, lambda a, p, n, w=width, s=signed: bfe(a, p, n, w, s), few, fields, fields))
        if name[0] == "s":
            out.append(case(f"neg.{name} $d, $a;", t, lambda a: -a, e))
            out.append(case(f"abs.{name} $d, $a;", t, abs, e))
        for c in ("eq", "ne", "lt", "le", "gt", "ge"):
            f = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}[c]
            out.append(case(f"setp.{c}.{name} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, f, e, e))
    for name, t in B.items():
        e = edges(t)
        width = 8 * t.itemsize
        for op, f in {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}.items():
            out.append(case(f"{op}.{name} $d, $a, $b;", t, f, e, e))
        out.append(case(f"not.{name} $d, $a;", t, lambda a: ~a, e))
        out.append(case(f"cnot.{name} $d, $a;", t, lambda a: a == 0, e))
        out.append(case(f"shl.{name} $d, $a, $b;", t, lambda a, n, w=width: shifted_left(a, n, w), e, SHIFTS))
        if width > 16:
            out.append(case(f"popc.{name} $d, $a;", np.uint32, int.bit_count, e))
            out.append(case(f"clz.{name} $d, $a;", np.uint32, lambda a, w=width: w - a.bit_length(), e))
            out.append(case(f"brev.{name} $d, $a;", t, lambda a, w=width: reverse(a, w), e))
            fields = np.array([0, 1, 8, 31, 32, 64, 200], np.uint32)
            few = edges(t, True)
            out.append(case(f"bfi.{name} $d, $a, $b, $c, $e;", t, lambda a, b, p, n, w=width: bfi(a, b, p, n, w), few[:4], few[2:], fields, fields))
        for c, f in {"lo": int.__lt__, "ls": int.__le__, "hi": int.__gt__, "hs": int.__ge__}.items():
            if width > 16:
                out.append(case(f"setp.{c}.u{width} %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, f, e, e))
    s32, few = edges(np.int32), edges(np.int32, True)
    ufew = edges(np.uint32, True)
    out += [
        case("add.sat.s32 $d, $a, $b;", np.int32, lambda a, b: clamp(a + b, np.int32), s32, s32),
        case("sub.sat.s32 $d, $a, $b;", np.int32, lambda a, b: clamp(a - b, np.int32), s32, s32),
        case("mad.hi.sat.s32 $d, $a, $b, $c;", np.int32, lambda a, b, c: clamp((a * b >> 32) + c, np.int32), few, few, few),
        case("min.relu.s32 $d, $a, $b;", np.int32, lambda a, b: max(min(a, b), 0), s32, s32),
        case("max.relu.s32 $d, $a, $b;", np.int32, lambda a, b: max(a, b, 0), s32, s32),
    ]
    for signed, t in ((True, np.int32), (False, np.uint32)):
        s, e = "s32" if signed else "u32", edges(t)
        cut: Callable[[int], int] = (lambda x: ((x & 0xFFFFFF) ^ 0x800000) - 0x800000) if signed else (lambda x: x & 0xFFFFFF)
        small = edges(t, True)
        out.append(case(f"mul24.lo.{s} $d, $a, $b;", t, lambda a, b, f=cut: f(a) * f(b), e, e))
        out.append(case(f"mul24.hi.{s} $d, $a, $b;", t, lambda a, b, f=cut: f(a) * f(b) >> 16, e, e))
        out.append(case(f"mad24.lo.{s} $d, $a, $b, $c;", t, lambda a, b, c, f=cut: f(a) * f(b) + c, small, small, small))
        for wrap in (True, False):
            mode = "wrap" if wrap else "clamp"
            out.append(case(f"szext.{mode}.{s} $d, $a, $b;", t, lambda a, n, g=signed, w=wrap: szext(a, n, g, w), e, SHIFTS))
        x = "s16x2" if signed else "u16x2"
        for op, g in {"add": lambda a, b: a + b, "min": min, "max": max}.items():
            out.append(case(f"{op}.{x} $d, $a, $b;", np.uint32, packed(g, signed), U32, U32))
    for wrap in (True, False):
        mode = "wrap" if wrap else "clamp"
        out.append(case(f"bmsk.{mode}.b32 $d, $a, $b;", np.uint32, lambda a, b, w=wrap: bmsk(a, b, w), SHIFTS, SHIFTS))
        for left in (True, False):
            way = "l" if left else "r"
            out.append(case(f"shf.{way}.{mode}.b32 $d, $a, $b, $c;", np.uint32, lambda a, b, n, v=left, w=wrap: shf(a, b, n, v, w), ufew, ufew, SHIFTS))
    selectors = np.array([0x3210, 0x7654, 0x0123, 0x5140, 0x9ABC, 0xFEDC, 0x0808, 0x3F7B, 0xFFFF], np.uint32)
    words = np.array([0x01827304, 0x80FF7F00, 0xFFFFFFFF, 0x12345678], np.uint32)
    out.append(case("prmt.b32 $d, $a, $b, $c;", np.uint32, prmt, words, words, selectors))
    out += [case(f"prmt.b32 $d, $a, $b, {s};", np.uint32, lambda a, b, s=int(s): prmt(a, b, s), words, words) for s in selectors[:6]]
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        out.append(case(f"prmt.b32.{mode} $d, $a, $b, $c;", np.uint32, lambda a, b, c, m=mode: prmt_mode(m, a, b, c), words, words, SHIFTS[:8]))
    for lut in (0, 255, 0x96, 0xE8, 0xCA, 0x01, 0x80, 0x2D, 0xF0, 0xAA, 0xCC):
        out.append(case(f"lop3.b32 $d, $a, $b, $c, {lut};", np.uint32, lambda a, b, c, v=lut: lop3(a, b, c, v), words, words, words))
    text = "setp.ne.u32 %p2, $c, 0; lop3.or.b32 $d|%p1, $a, $b, $c, 0x96, %p2; selp.b32 $d, 1, 0, %p1;"
    out.append(case(text, np.uint32, lambda a, b, c: a ^ b ^ c != 0 or c != 0, ufew, ufew, ufew))
    masks = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0xA5A51234, 0x00010000], np.uint32)
    counts = np.array([0, 1, 2, 5, 31, 32, 33, -1, -2, -9, -32, -33], np.int32)
    out.append(case("fns.b32 $d, $a, $b, $c;", np.uint32, fns, masks, np.array([0, 1, 7, 16, 31], np.uint32), counts))
    pairs = (("u32", "u32"), ("s32", "u32"), ("u32", "s32"), ("s32", "s32"))
    for x, y in pairs:
        sa, sb = x == "s32", y == "s32"
        out.append(case(f"dp4a.{x}.{y} $d, $a, $b, $c;", np.uint32, lambda a, b, c, p=sa, q=sb: dp4a(a, b, c, p, q), words, words, ufew))
        for half in ("lo", "hi"):
            f = lambda a, b, c, p=sa, q=sb, h=half == "hi": dp2a(a, b, c, p, q, h)  # noqa: E731
            out.append(case(f"dp2a.{half}.{x}.{y} $d, $a, $b, $c;", np.uint32, f, words, words, ufew))
    # Carry chains: 64-bit sums and products from 32-bit halves.
    u64 = edges(np.uint64)
    split = "mov.b64 {%r3, %r4}, $a; mov.b64 {%r5, %r6}, $b; "
    out.append(case(split + "add.cc.u32 %r3, %r3, %r5; addc.u32 %r4, %r4, %r6; mov.b64 $d, {%r3, %r4};", np.uint64, lambda a, b: a + b, u64, u64))
    out.append(case(split + "sub.cc.u32 %r3, %r3, %r5; subc.u32 %r4, %r4, %r6; mov.b64 $d, {%r3, %r4};", np.uint64, lambda a, b: a - b, u64, u64))
    text = split + "add.cc.u32 %r3, %r3, %r5; addc.cc.u32 %r4, %r4, %r6; addc.u32 $d, 0, 0;"
    out.append(case(text, np.uint32, lambda a, b: (a + b) >> 64, u64, u64))
    out.extend(carry_pairs())
    text = split + "mul.lo.u32 %r7, %r3, %r5; mad.hi.u32 %r8, %r3, %r5, 0; mad.lo.cc.u32 %r8, %r4, %r5, %r8; madc.hi.u32 $d, %r4, %r5, 0;"
    out.append(case(text, np.uint32, lambda a, b: (a * (b & 0xFFFFFFFF)) >> 64, u64, u64))
    out.append(case("setp.lt.and.s32 %p1|%p2, $a, $b, %p0; selp.b32 $d, 1, 0, %p2;", np.uint32, lambda a, b: 0, s32, s32))
    out.append(case("set.lt.u32.s32 $d, $a, $b;", np.uint32, lambda a, b: -(a < b), s32, s32))
    out.append(case("slct.u32.s32 $d, $a, $b, $c;", np.uint32, lambda a, b, c: a if c >= 0 else b, ufew, ufew, few))
    out.append(case("mov.b32 {%h1, %h2}, $a; mov.b32 $d, {%h2, %h1};", np.uint32, lambda a: a >> 16 | a << 16, U32))
    return out


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_instruction(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_instruction_on_uniform_operands(case: Case) -> None:
    """Values that are the same in all lanes are computed once: other code."""
    check(case, uniform=True)
