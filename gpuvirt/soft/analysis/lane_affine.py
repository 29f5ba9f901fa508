"""Lane patterns: what is known at compile time about how a value differs between the lanes of a warp.

A pattern says value[lane] = base(group) + steps[lane] for groups of `group` lanes, where base is a multiple of `align` (a power of two). With group
32 the value can be kept as one scalar, the value of lane 0; smaller groups tell memory accesses that they fall into a few contiguous runs.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.ptx.block_shape import Shape, many_warps
from gpuvirt.soft.ptx.types import LANES

BIG = 1 << 256  # "base is zero": a multiple of everything
_TOP = 1 << 64  # as far as the alignment of a base that is not known to be zero is followed; no register holds more bits
_NEAR = 1 << 20


class Pattern(NamedTuple):
    group: int
    steps: tuple[int, ...]
    align: int

    @property
    def constant(self) -> int | None:
        """The value, when it is known and the same in all lanes."""
        return self.steps[0] if self.align == BIG and self.group == LANES and self.flat else None

    @property
    def flat(self) -> bool:
        return self.group == LANES and all(s == self.steps[0] for s in self.steps)


ZERO = (0,) * LANES
UNIFORM = Pattern(LANES, ZERO, 1)
ANY = "?"  # not yet known: the optimistic start of the iteration
Known = Pattern | None | str


def constant(value: int) -> Pattern:
    return Pattern(LANES, (value,) * LANES, BIG)


def low_bit(value: int) -> int:
    return BIG if value == 0 else value & -value


def normalise(p: Pattern) -> Pattern:
    """The same knowledge with steps[0] == 0."""
    first = p.steps[0]
    if first == 0:
        return p
    return Pattern(p.group, tuple(s - first for s in p.steps), min(p.align, low_bit(first)))


def regroup(p: Pattern, group: int) -> Pattern:
    if p.group == group:
        return p
    return Pattern(group, tuple(s - p.steps[i // group * group] for i, s in enumerate(p.steps)), 1)


def join(p: Pattern, q: Pattern) -> Pattern | None:
    """What holds of a value that is either."""
    if p == q:
        return p
    # Where they differ, what each says of its base (that a constant is 1, say) holds no longer: only the steps and the alignment are compared.
    p, q = normalise(p), normalise(q)
    group = min(p.group, q.group)
    while group >= 4:
        a, b = regroup(p, group), regroup(q, group)
        if a.steps == b.steps:
            return Pattern(group, a.steps, min(a.align, b.align))
        group //= 2
    return None


def add(p: Pattern, q: Pattern, sign: int = 1) -> Pattern:
    group = min(p.group, q.group)
    a, b = regroup(p, group), regroup(q, group)
    return Pattern(group, tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True)), min(a.align, b.align))


def multiply(p: Pattern, q: Pattern) -> Pattern | None:
    if p.constant is not None:
        p, q = q, p
    c = q.constant
    if c is not None:
        return Pattern(p.group, tuple(s * c for s in p.steps), BIG if BIG in (p.align, low_bit(c)) else min(_TOP, p.align * low_bit(c)))
    if q.flat and p.flat:
        a, b = min(p.align, low_bit(p.steps[0])), min(q.align, low_bit(q.steps[0]))
        return Pattern(LANES, ZERO, min(_TOP, a * b))
    if p.flat:
        p, q = q, p
    if not q.flat:
        return None
    group = p.group
    while group >= 4:
        if all(s == p.steps[i // group * group] for i, s in enumerate(p.steps)):
            return Pattern(group, ZERO, 1)
        group //= 2
    return None


def shift_left(p: Pattern, count: int) -> Pattern:
    return Pattern(p.group, tuple(s << count for s in p.steps), BIG if p.align == BIG else min(_TOP, p.align << count))


def no_carry(p: Pattern) -> bool:
    """Adding the steps to the base changes no bit of the base: then zero extension, shifts and masks act on both separately."""
    return min(p.steps) >= 0 and max(p.steps) < p.align


def fits(p: Pattern, bits: int, signed: bool) -> bool:
    """Whether a register of `bits` bits holds base and steps apart from each other: no step reaches the sign (or runs over the top) by itself.

    Steps are followed without bounds, so that a hash of the lane number has steps far beyond the register that wraps them.
    """
    return no_carry(p) and max(p.steps) < 1 << (bits - 1 if signed else bits)


def widens(p: Pattern, bits: int, signed: bool) -> bool:
    """Whether extending a value of `bits` bits extends every lane's by the same steps.

    For 32-bit signed indices with small steps it assumes that no warp crosses 2**31 (addresses are made of such indices).
    """
    if fits(p, bits, signed):
        return True
    if not signed or bits < 32:
        return False
    if p.align >= 1 << bits:
        return -(1 << (bits - 1)) <= min(p.steps) and max(p.steps) < 1 << (bits - 1)
    return max(p.steps) - min(p.steps) < _NEAR


def shift_right(p: Pattern, count: int, bits: int, signed: bool) -> Pattern | None:
    if not fits(p, bits, signed):
        return None
    if p.align < (1 << count):  # the steps fall out at the lower end
        return Pattern(p.group, ZERO, 1)
    return Pattern(p.group, tuple(s >> count for s in p.steps), p.align if p.align == BIG else max(1, p.align >> count))


def _split(p: Pattern, value: int, bits: int) -> tuple[int, int]:
    """The bits of a constant that meet the base, and those that meet the steps."""
    value &= (1 << bits) - 1
    low = value & (p.align - 1)
    return value - low, low


def bit_and(p: Pattern, mask: int, bits: int) -> Pattern | None:
    if not no_carry(p):
        return None
    high, low = _split(p, mask, bits)
    steps = tuple(s & low for s in p.steps)
    return Pattern(p.group, steps, p.align) if high else Pattern(LANES, steps, BIG)


def bit_or(p: Pattern, value: int, bits: int, xor: bool) -> Pattern | None:
    if not no_carry(p):
        return None
    low = _split(p, value, bits)[1]
    return Pattern(p.group, tuple((s ^ low) if xor else (s | low) for s in p.steps), p.align)


def disjoint(p: Pattern, q: Pattern) -> Pattern | None:
    """p | q and p ^ q where no bit is set in both: all of one's bits are its steps', the other's are its base's."""
    if p.align != BIG:
        p, q = q, p
    if p.align == BIG and p.group == q.group == LANES and not any(q.steps) and min(p.steps) >= 0 and max(p.steps) < q.align:
        return Pattern(LANES, p.steps, q.align)
    return None


def same_side(p: Pattern, limit: int, bits: int, signed: bool) -> bool:
    """Whether `value < limit` has the same answer in all lanes, whatever the base."""
    if p.group != LANES or not fits(p, bits, signed):
        return False
    rest = limit % p.align
    return rest <= min(p.steps) or rest > max(p.steps)


def never_equal(p: Pattern, value: int, bits: int) -> bool:
    """Whether no lane's value can be that constant."""
    return p.group == LANES and fits(p, bits, False) and value % p.align not in p.steps


def special(name: str, shape: Shape) -> Known:
    """The pattern of a special register for a block shape; None: varies without one. Registers that are the same in all lanes are UNIFORM."""
    nx, ny, nz = shape
    lanes = range(LANES)
    if name == "%laneid":
        return Pattern(LANES, tuple(lanes), BIG)
    if name.startswith("%ntid"):
        threads = dict(x=nx, y=ny, z=nz).get(name[-1], 0)
        return Pattern(LANES, ZERO, -threads) if threads < 0 else constant(threads)
    if name.startswith("%lanemask_"):
        return None
    if not name.startswith("%tid"):
        return UNIFORM
    axis = name[-1]
    if not many_warps(shape):
        values = {"x": [i % nx for i in lanes], "y": [i // nx % ny for i in lanes], "z": [i // (nx * ny) for i in lanes]}
        return Pattern(LANES, tuple(values[axis]), BIG)
    if axis == "x":
        if nx % LANES == 0 or (ny == 1 and nz == 1):
            return Pattern(LANES, tuple(lanes), LANES)
        if nx > 0 and LANES % nx == 0:
            return Pattern(LANES, tuple(i % nx for i in lanes), BIG)
    elif axis == "y":
        if ny == 1:
            return constant(0)
        if nx % LANES == 0:
            return UNIFORM
        if LANES % nx == 0 and (nz == 1 or ny % (LANES // nx) == 0):
            return Pattern(LANES, tuple(i // nx for i in lanes), LANES // nx)
    else:
        if nz == 1:
            return constant(0)
        if nx * ny % LANES == 0:
            return UNIFORM
    return None
