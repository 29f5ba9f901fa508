"""What addresses are multiples of.

It is followed through the instructions that make an address. Nearly always that is a pointer that came as a parameter of the kernel (a *root*) plus
multiples of the access's size, or of other parameters: then the parameters' own low bits say it all.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.ptx.layout import Layout
from gpuvirt.soft.ptx.opcodes import Access, Formula
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Sym, Vec
from gpuvirt.soft.ptx.types import TYPES

_MOST = 40  # low bits that are followed: indices are sign-extended by shifting them 32 bits up and down
_ROOTS = 6  # parameters that one value may come from
LOCAL_BITS = 4  # a lane's local memory begins at a multiple of 16, and so does a kernel's parameter block


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


def zeros_of(value: int) -> int:
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

    def __init__(self, cfg: Cfg, layout: Layout, careful: bool) -> None:
        """careful: nothing is taken for granted of parameters."""
        self.func, self.layout, self.careful = cfg.body.func, layout, careful
        self.known: dict[str, Known] = {}
        sites = [ins for block in cfg.order for ins in block.ins if ins.dsts]
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
            return multiple(zeros_of(operand.value))
        if isinstance(operand, Sym):
            return multiple(self._symbol(operand))
        if isinstance(operand, Vec):
            return self.of(operand.items[0])
        return NOTHING

    def _symbol(self, sym: Sym) -> int:
        layout, func = self.layout, self.func
        if sym.name in layout.offsets:
            return zeros_of(layout.offsets[sym.name] + sym.offset)
        if sym.name in layout.locals:
            return min(LOCAL_BITS, zeros_of(layout.locals[sym.name] + sym.offset))
        for param in func.params:
            if param.name == sym.name:
                return min(LOCAL_BITS, zeros_of(param.offset + sym.offset)) if func.is_kernel else 0
        variable = layout.module.variables.get(sym.name)
        return min(zeros_of(variable.align), zeros_of(sym.offset)) if variable is not None else 0

    def _transfer(self, ins: Ins) -> Known | None:
        """What an instruction's result is a multiple of."""
        formula, mods, ops = ins.traits.formula, ins.mods, ins.ops
        if len(ops) < 2 or len(ins.dsts) != 1 or not isinstance(ops[0], Reg):
            return NOTHING
        if formula in (Formula.ADDRESS, Formula.COPY):
            found = self.of(ops[1])
            return found if found is None or "local" not in mods else _both(found, multiple(LOCAL_BITS))
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
        if "param" not in (m.split("::")[0] for m in ins.mods) or not self.func.is_kernel or not isinstance(source, Addr) or t.bits < 32:
            return NOTHING
        if self.careful or not isinstance(source.base, Sym):
            return NOTHING
        if isinstance(ins.ops[0], Vec) and len(ins.ops[0].items) != len(ins.dsts):
            return NOTHING
        offset = source.base.offset + source.offset + number * t.bits // 8
        if not any(p.name == source.base.name and 0 <= offset <= p.size - t.bits // 8 for p in self.func.params):
            return NOTHING
        return Known(frozenset([Root(source.base.name, offset, 0)]), _MOST)
