"""Where a load or store goes: its address as the compiler knows it, for the warp, for groups of lanes or for each lane."""

from __future__ import annotations

from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.codegen import alignment_checks
from gpuvirt.soft.codegen.context import Context, SpeculativeAffine
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Sym
from gpuvirt.soft.ptx.types import LANES

SPACES = ("global", "shared", "local", "param", "const")
VOLATILE = {"volatile", "relaxed", "acquire", "release", "mmio", "cv", "wt"}


def space_of(ins: Ins) -> str:
    """The state space of a memory instruction; "" is generic."""
    for mod in ins.mods:
        base = mod.split("::")[0]
        if base in SPACES:
            return base
    return ""


def width(ins: Ins) -> int:
    return next((int(m[1]) for m in ins.mods if m in ("v2", "v4", "v8")), 1)


class Where:
    """An address: either one scalar for the warp, or per lane, perhaps with a pattern (group, steps)."""

    def __init__(self, scalar: Val | None, lanes: Val | None, pattern: Pattern | None, start: Val | None = None, offset: int = 0) -> None:
        self.firsts: list[Val] = []  # of each group of the pattern the first lane's address less the offset, where the address is kept by groups
        self.scattered = False  # the lanes' places are known not to lie side by side
        self.scalar = scalar  # the address of lane 0, for uniform and affine addresses
        self.lanes = lanes
        self.pattern = pattern  # None: uniform (scalar only) or irregular (lanes only)
        self.speculative: SpeculativeAffine | None = None  # a pattern that the lanes probably follow
        self.start, self.offset = start, offset  # the scalar is their sum, where start is there

    def at(self, e: Context, more: int = 0) -> Val:
        """A pointer to lane 0's place and so many bytes on; constant parts stay constant, for the processor's addressing."""
        if self.start is not None:
            return e.offset(e.pointer(self.start), self.offset + more)
        assert self.scalar is not None
        return e.offset(e.pointer(self.scalar), more)

    def of_lane(self, e: Context, lane: int) -> Val:
        """A pointer to the place of a group's lane, by the pattern."""
        assert self.pattern is not None
        if self.scalar is not None:
            return self.at(e, self.pattern.steps[lane])
        if self.firsts:
            return e.offset(e.pointer(self.firsts[lane // self.pattern.group]), self.offset + self.pattern.steps[lane])
        return e.pointer(e.extract(spread(e, self), lane))


def address(e: Context, ins: Ins, operand: Operand, space: str, size: int | None = None, only: int = -1) -> Where:
    """The generic (host) address of [base + offset].

    Args:
        size: bytes that must be aligned; by default those that the instruction moves.
        only: the lanes whose addresses count.
    """
    if not isinstance(operand, Addr):
        raise e.fail("no address")
    base, offset = operand.base, operand.offset
    pattern: Pattern | None = None
    e.lead = False
    vary_local = space == "local"
    if isinstance(base, Reg) and base.name in e.an.grouped:
        return _by_groups(e, ins, base, offset, space, only)
    if isinstance(base, Reg):
        name = base.name
        if name in e.an.affine and not vary_local:
            e.lead = True
            value = e.get(name)
            pattern = e.an.patterns[name]
        else:
            value = e.get(name)
            if name in e.an.affine:
                value = e.get_lanes(name)
            elif value.v:
                pattern = e.an.patterns.get(name)
        e.lead = False
        own = value
        # Sign extension: an address just below 0 stays just below it, so that lane 0's address serves as base also when that lane does not take part.
        value = e.resize(value, "i64", space in ("shared", "local"))
    elif isinstance(base, Imm):
        value = own = e.const(base.value, "i64")
        if space == "shared":
            value = own = e.in_own_block(value)
    elif isinstance(base, Sym):
        value = own = e.symbol_address(base)
    else:
        raise e.fail("no address")
    if size is None:
        size = ins.type.bits // 8 * width(ins)
    if size > 1 and space != "param":
        volatile = not VOLATILE.isdisjoint(ins.mods)
        alignment_checks.require(e, base, own, offset, size, space, only, now=volatile and size == 16)
    start = value
    if offset:
        value = e.add(value, e.const(offset, "i64"))
    if space == "shared":
        value, start = e.add(value, e.shared_base()), e.add(start, e.shared_base())
    elif vary_local:
        where = Where(None, e.add(value, e.local_base()), None)
        where.scattered = True
        return where
    if value.v:
        where = Where(None, value, pattern, start, offset)
        if pattern is None and space in ("", "global", "const") and isinstance(base, Reg):
            where.speculative = e.speculative.get(base.name)
        return where
    return Where(value, None, pattern, start, offset)


def _by_groups(e: Context, ins: Ins, base: Reg, offset: int, space: str, only: int) -> Where:
    """An address that is kept as one scalar for each group of lanes."""
    pattern = e.an.patterns[base.name]
    size = ins.type.bits // 8 * width(ins)
    if size > 1:
        alignment_checks.require(e, base, None, offset, size, space, only, now=size == 16 and not VOLATILE.isdisjoint(ins.mods))
    where = Where(None, None, pattern, None, offset)
    for lane in range(0, LANES, pattern.group):
        first = e.resize(e.of_lane(base.name, lane), "i64", space == "shared")
        where.firsts.append(e.add(first, e.shared_base()) if space == "shared" else first)
    return where


def spread(e: Context, where: Where) -> Val:
    """The address of every lane."""
    if where.lanes is None and where.firsts:
        assert where.pattern is not None
        parts = [e.let(f"insertelement {vec('i64', where.pattern.group)} poison, i64 {first.s}, i32 0", "i64") for first in where.firsts]
        parts = [shuffle(e, part.s, "i64", where.pattern.group, [0] * where.pattern.group) for part in parts]
        bases = concat(e, parts, "i64", where.pattern.group)
        where.lanes = e.add(bases, e.lanes([s + where.offset for s in where.pattern.steps], "i64"))
    if where.lanes is None:
        assert where.scalar is not None
        where.lanes = e.splat(where.scalar)
        if where.pattern is not None:
            where.lanes = e.add(where.lanes, e.lanes(where.pattern.steps, "i64"))
    return where.lanes


def vec(t: str, n: int) -> str:
    return f"<{n} x {t}>"


def shuffle(e: Context, a: str, t: str, n: int, picks: list[int]) -> Val:
    index = ", ".join(f"i32 {p}" for p in picks)
    return Val(e.let(f"shufflevector {vec(t, n)} {a}, {vec(t, n)} poison, <{len(picks)} x i32> <{index}>", t).s, t, len(picks) == LANES)


def concat(e: Context, parts: list[Val], t: str, size: int) -> Val:
    """Vectors of `size` elements joined pairwise to one of 32."""
    while len(parts) > 1:
        joined = []
        for i in range(0, len(parts), 2):
            index = ", ".join(f"i32 {k}" for k in range(2 * size))
            a, b = parts[i], parts[i + 1]
            joined.append(e.let(f"shufflevector {vec(t, size)} {a.s}, {vec(t, size)} {b.s}, <{2 * size} x i32> <{index}>", t))
        parts, size = joined, size * 2
    return Val(parts[0].s, t, True)
