"""Misaligned accesses, found at next to no cost.

What an address is a multiple of is followed through the instructions that make it. Nearly always it is a pointer that came as a parameter of the
kernel (a *root*) plus multiples of the access's size, or of other parameters: then the parameters' own low bits say it all. They are looked at once a
launch, outside of the code: what it takes for granted is listed (`ModuleText.needs`), and a launch whose parameters break it gets other code for the
kernel, *careful* code, that tests the addresses where the accesses are (which may not happen after all). Addresses that are made in ways not followed
are always tested: one that is the same in all lanes, or has a pattern, at the end of its basic block, those of lanes that differ where the access is.
What runs when such a test fails looks exactly, at the lanes that take part; it is out of the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.opcodes import Access, Formula
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Sym, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES

if TYPE_CHECKING:
    from gpuvirt.soft.codegen.context import Values
    from gpuvirt.soft.codegen.emitter import Emitter

_MOST = 40  # low bits that are followed: indices are sign-extended by shifting them 32 bits up and down
_ROOTS = 6  # parameters that one value may come from
_LOCAL = 4  # a lane's local memory begins at a multiple of 16, and so does a kernel's parameter block
_SPACES = {"shared": 1, "local": 2}


class Root(NamedTuple):
    """The part of a kernel's parameter at `offset`, shifted left."""

    name: str
    offset: int
    shift: int


class Known(NamedTuple):
    """As far as all `roots` are multiples of a power of two up to 2**zeros, the value is."""

    roots: frozenset[Root]
    zeros: int


def multiple(zeros: int) -> Known:
    """A multiple of 2**zeros whatever the parameters are."""
    return Known(frozenset(), zeros)


NOTHING = multiple(0)
_EITHER = (Formula.ADD, Formula.SUB, Formula.CHOOSE, Formula.OR, Formula.XOR)  # a multiple of what both operands are multiples of


def _zeros(value: int) -> int:
    return min(_MOST, (value & -value).bit_length() - 1) if value else _MOST


def _both(a: Known, b: Known) -> Known:
    """What holds of a sum, and of a value that is either."""
    roots = a.roots | b.roots
    zeros = min(a.zeros, b.zeros)
    return Known(roots, zeros) if zeros and len(roots) <= _ROOTS else NOTHING


def _shifted(a: Known, by: int) -> Known:
    roots = frozenset(r._replace(shift=r.shift + by) for r in a.roots if r.shift + by < _MOST)
    return Known(roots, min(_MOST, a.zeros + by))


def _product(a: Known, b: Known) -> Known:
    if not a.roots:
        return _shifted(b, a.zeros)
    if not b.roots:
        return _shifted(a, b.zeros)
    return min(a, b, key=lambda k: len(k.roots))  # it is a multiple of either


class Alignment:
    """What every register of a function is a multiple of."""

    def __init__(self, e: Values) -> None:
        self.e = e
        self.known: dict[str, Known] = {}
        sites = [ins for block in e.cfg.order for ins in block.ins if ins.dsts]
        changed = True
        while changed:
            changed = False
            for ins in sites:
                for i, name in enumerate(ins.dsts):
                    value = self._parameter(ins, i) if ins.traits.access is Access.LOAD else self._transfer(ins)
                    if value is None:
                        continue
                    old = self.known.get(name)
                    new = value if old is None else _both(old, value)
                    if new != old:
                        self.known[name] = new
                        changed = True

    def of(self, operand: Operand) -> Known | None:
        """None: nothing has been written to it yet."""
        if isinstance(operand, Reg):
            return self.known.get(operand.name)
        if isinstance(operand, Imm):
            return multiple(_zeros(operand.value))
        if isinstance(operand, Sym):
            return multiple(self._symbol(operand))
        if isinstance(operand, Vec):
            return self.of(operand.items[0])
        return NOTHING

    def _symbol(self, sym: Sym) -> int:
        e = self.e
        if sym.name in e.layout.offsets:
            return _zeros(e.layout.offsets[sym.name] + sym.offset)
        if sym.name in e.layout.locals:
            return min(_LOCAL, _zeros(e.layout.locals[sym.name] + sym.offset))
        for param in e.func.params:
            if param.name == sym.name:
                return min(_LOCAL, _zeros(param.offset + sym.offset)) if e.func.is_kernel else 0
        variable = e.layout.module.variables.get(sym.name)
        return min(_zeros(variable.align), _zeros(sym.offset)) if variable is not None else 0

    def _transfer(self, ins: Ins) -> Known | None:
        """What an instruction's result is a multiple of."""
        formula, mods, ops = ins.traits.formula, ins.mods, ins.ops
        if len(ops) < 2 or len(ins.dsts) != 1 or not isinstance(ops[0], Reg):
            return NOTHING
        if formula in (Formula.ADDRESS, Formula.COPY):
            found = self.of(ops[1])
            return found if found is None or "local" not in mods else _both(found, multiple(_LOCAL))
        if formula is Formula.CONVERT:
            integer = len(mods) > 1 and all(m in TYPES and TYPES[m].kind in "bus" for m in mods[-2:])
            return self.of(ops[1]) if integer and "sat" not in mods else NOTHING
        if formula is Formula.SHUFFLE:
            return self.of(ops[1])
        t = TYPES.get(mods[-1]) if mods else None
        if t is None or t.kind not in "bus" or len(ops) < 3:
            return NOTHING
        a, b = self.of(ops[1]), self.of(ops[2])
        if a is None or b is None:
            return None
        if formula in _EITHER:
            return _both(a, b)
        by = ops[2].value if isinstance(ops[2], Imm) else -1
        if formula in (Formula.MUL, Formula.MAD):
            if "hi" in mods:
                return NOTHING
            product, c = _product(a, b), self.of(ops[3]) if formula is Formula.MAD else multiple(_MOST)
            return None if c is None else _both(product, c)
        if formula is Formula.SHL:
            return _shifted(a, max(by, 0))
        if formula is Formula.SHR:
            if not 0 <= by < a.zeros or any(r.shift < by for r in a.roots):
                return NOTHING
            return Known(frozenset(r._replace(shift=r.shift - by) for r in a.roots), a.zeros - by)
        if formula is Formula.AND:
            keeps = isinstance(ops[2], Imm) and by & 0xFF == 0xFF
            return a if keeps or a.zeros >= b.zeros else b
        return NOTHING

    def _parameter(self, ins: Ins, number: int) -> Known:
        """What is loaded, if from a parameter of the kernel: that never changes, and is a root."""
        source = ins.ops[1]
        t = ins.type
        if "param" not in (m.split("::")[0] for m in ins.mods) or not self.e.func.is_kernel or not isinstance(source, Addr) or t.bits < 32:
            return NOTHING
        if self.e.m.careful or not isinstance(source.base, Sym):
            return NOTHING
        if isinstance(ins.ops[0], Vec) and len(ins.ops[0].items) != len(ins.dsts):
            return NOTHING
        offset = source.base.offset + source.offset + number * t.bits // 8
        if not any(p.name == source.base.name and 0 <= offset <= p.size - t.bits // 8 for p in self.e.func.params):
            return NOTHING
        return Known(frozenset([Root(source.base.name, offset, 0)]), _MOST)


class Check(NamedTuple):
    """A test at the end of the block of an address, lane 0's."""

    value: Val
    size: int
    space: int
    mask: Val
    pred: Val | None


def require(e: Emitter, base: Operand, value: Val | None, offset: int, size: int, space: str, only: int = -1, now: bool = False) -> None:
    """The lanes that execute, and are in `only`, access `size` bytes at value + offset, in the space's own terms.

    Args:
        value: of `base`; for a register with a pattern it may be lane 0's. None: a register that is kept by groups of lanes.
        now: the test must come before the access.
    """
    if space == "local":
        size = min(size, 1 << _LOCAL)
    bits = size.bit_length() - 1
    known = e.alignment.of(base) or NOTHING
    if min(known.zeros, _zeros(offset)) >= bits:
        for root in known.roots:
            if root.shift < bits:
                place = next(p.offset for p in e.func.params if p.name == root.name) + root.offset
                e.m.needs[place] = max(e.m.needs.get(place, 1), size >> root.shift)
        return
    if value is None:
        assert isinstance(base, Reg)
        value = e.put_together(base.name)
    steps = e.an.affine.get(base.name) if isinstance(base, Reg) and not value.v else None
    if steps is not None and any(s % size for s in steps):
        value = e.add(e.splat(value), e.lanes(steps, value.t))
    if offset % size:
        value = e.add(value, e.const(offset % size, value.t))
    number = _SPACES.get(space, 0)
    if value.v:
        _at_once(e, value, size, number, only)
        return
    mask = e.mask if only == -1 else e.band(e.mask, e.mask_of(e.const(only, "i32")))
    e.checks.setdefault((value.s, size, mask.s, _key(e.pred)), Check(value, size, number, mask, e.pred))
    if now:
        settle(e)


def _key(value: Val | None) -> str:
    return "" if value is None else value.s


def settle(e: Emitter) -> None:
    """Makes the tests that are due."""
    if not e.checks:
        return
    checks = list(e.checks.values())
    e.checks.clear()
    by_size: dict[int, Val] = {}
    for check in checks:
        low = e.resize(check.value, "i8")
        old = by_size.get(check.size)
        by_size[check.size] = low if old is None else e.bor(old, low)
    bad: Val | None = None
    for size, low in by_size.items():
        part = e.band(low, e.const(size - 1, "i8"))
        bad = part if bad is None else e.bor(bad, part)
    assert bad is not None

    def look() -> None:
        for check in checks:
            address = e.resize(check.value, "i64")
            lanes = check.mask if check.pred is None else e.band(check.mask, e.splat(check.pred))
            odd = e.icmp("ne", e.band(address, e.const(check.size - 1, "i64")), e.const(0, "i64"))
            _end_if(e, e.select(odd, e.bits_of(lanes), e.const(0, "i32")), address, check.size, check.space)

    _seldom(e, e.icmp("ne", bad, e.const(0, "i8")), look)


def _at_once(e: Emitter, value: Val, size: int, space: int, only: int) -> None:
    key = (value.s, size, e.mask.s, _key(e.pred))
    if key in e.checked:
        return
    e.checked.add(key)
    value = e.let(f"freeze {value.ty} {value.s}", value.t, True)  # what lanes that are off hold may be anything
    n = 8 if value.t == "i64" else 16
    parts = []
    for start in range(0, LANES, n):
        picks = ", ".join(f"i32 {start + i}" for i in range(n))
        parts.append(e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{n} x i32> <{picks}>", value.t).s)
    vector = f"<{n} x {value.t}>"
    while len(parts) > 1:
        parts = [e.let(f"or {vector} {a}, {b}", value.t).s for a, b in zip(parts[::2], parts[1::2], strict=True)]
    low = e.let(f"and {vector} {parts[0]}, splat ({value.t} {size - 1})", value.t).s
    some = e.let(f"icmp ne {vector} {low}, zeroinitializer", "i1").s
    bits = e.let(f"bitcast <{n} x i1> {some} to i{n}", f"i{n}").s

    def look() -> None:
        taking = e.exec_bits() if only == -1 else e.band(e.exec_bits(), e.const(only, "i32"))
        odd = e.icmp("ne", e.band(value, e.const(size - 1, value.t)), e.const(0, value.t))
        lost = e.band(taking, e.bits_of(odd))
        lane = e.band(e.intrinsic("cttz", lost, tail="i1 false"), e.const(LANES - 1, "i32"))
        _end_if(e, lost, e.resize(e.extract(value, lane), "i64"), size, space)

    _seldom(e, e.let(f"icmp ne i{n} {bits}, 0", "i1"), look)


def _seldom(e: Emitter, condition: Val, look: Callable[[], None]) -> None:
    n = e.n = e.n + 1
    e.emit(f"br i1 {condition.s}, label %odd{n}, label %even{n}, !prof !1")
    e.lines.append(f"odd{n}:")
    before = dict(e._splats), dict(e._casts)
    look()
    e._splats, e._casts = before
    e.emit(f"br label %even{n}")
    e.lines.append(f"even{n}:")


def _end_if(e: Emitter, lost: Val, address: Val, size: int, space: int) -> None:
    """Ends the grid if there are such lanes. What does not return costs the rest of the function no register."""
    e.m.declare("soft_misaligned", "declare void @soft_misaligned(ptr, i32, i64, i32, i32) noreturn cold")
    n = e.n = e.n + 1
    e.emit(f"br i1 {e.icmp('ne', lost, e.const(0, 'i32')).s}, label %end{n}, label %on{n}, !prof !1")
    e.lines.append(f"end{n}:")
    e.call("soft_misaligned", "void", [Val("%w", "ptr"), lost, address, e.const(size, "i32"), e.const(space, "i32")])
    e.emit("unreachable")
    e.lines.append(f"on{n}:")
