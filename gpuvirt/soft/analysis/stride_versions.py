"""Versions of a kernel for the usual values of strides that are parameters.

CuPy, Numba and others pass the distance between an array's elements as a parameter, so that nothing is known of an address when a kernel is compiled.
Nearly always the elements lie side by side. Where a parameter is multiplied by an index that differs between lanes, and what comes of it is the
address of an access of s bytes, the kernel is made twice: once for the parameter being s, where analysis finds plain vector loads, and once for any
value. The parameters are compared when a warp begins.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.analysis.divergence import Divergence
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.ptx.opcodes import Access, Formula
from gpuvirt.soft.ptx.parser import Addr, Ins, Operand, Reg, Sym, Vec
from gpuvirt.soft.ptx.types import LANES

_MOST = 600  # instructions of a kernel that is made twice
_MANY = 8  # parameters that are compared
_COPIES = (Formula.COPY, Formula.CONVERT)
_SCALES = (Formula.MUL, Formula.MAD)
_KEEPS = (*_COPIES, *_SCALES, Formula.ADDRESS, Formula.ADD, Formula.SUB, Formula.SHL, Formula.SHR)  # what addresses are made with


class Guess(NamedTuple):
    """A register that holds `bytes` bytes at `offset` of the kernel's parameters, and the value it is taken to have."""

    register: str
    offset: int
    bytes: int
    value: int


def guesses(an: Divergence) -> list[Guess]:
    """The assumptions on a kernel's parameters that make accesses contiguous."""
    cfg = an.cfg
    instructions = [ins for block in cfg.order for ins in block.ins]
    if not cfg.body.func.is_kernel or len(instructions) > _MOST or an.waiting_loops:
        return []
    made: dict[str, list[Ins]] = {}
    for ins in instructions:
        for name in ins.dsts:
            made.setdefault(name, []).append(ins)
    offsets = {p.name: p.offset for p in cfg.body.func.params}
    found = []
    for ins in instructions:
        for name, offset, size in _parameters(ins, offsets):
            if len(made[name]) != 1:
                continue
            value = _access(an, instructions, made, name)
            if value is not None:
                found.append(Guess(name, offset, size, value))
    return found if len(found) <= _MANY else []


def _parameters(ins: Ins, offsets: dict[str, int]) -> list[tuple[str, int, int]]:
    """(register, offset, bytes) of the integers that an instruction loads from the kernel's parameters."""
    if ins.traits.access is not Access.LOAD or ins.mods[0] != "param" or ins.pred is not None or ins.type.kind not in "bus" or ins.type.bits < 32:
        return []
    place = ins.ops[1]
    if not (isinstance(place, Addr) and isinstance(place.base, Sym) and place.base.name in offsets):
        return []
    size = ins.type.bits // 8
    items = ins.ops[0].items if isinstance(ins.ops[0], Vec) else (ins.ops[0],)
    start = offsets[place.base.name] + place.base.offset + place.offset
    return [(o.name, start + i * size, size) for i, o in enumerate(items) if isinstance(o, Reg)]


def _access(an: Divergence, instructions: list[Ins], made: dict[str, list[Ins]], register: str) -> int | None:
    """The bytes of an access whose address is made of lanes' indices times the register."""
    same = {register}
    reached: set[str] = set()
    changed = True
    while changed:
        changed = False
        for ins in instructions:
            formula = ins.traits.formula
            if len(ins.dsts) != 1 or formula not in _KEEPS or ins.dsts[0] in reached or ins.dsts[0] in same:
                continue
            sources = [o.name for o in ins.ops[1:] if isinstance(o, Reg)]
            name = ins.dsts[0]
            if formula in _COPIES and sources and sources[0] in same and len(made[name]) == 1:
                same.add(name)
            elif any(s in reached for s in sources) or (formula in _SCALES and _scales(an, ins.ops[1], ins.ops[2], same)):
                reached.add(name)
            else:
                continue
            changed = True
    # What is compared is a number of elements (a matrix's width, say), not the distance between two.
    if any(ins.traits.formula is Formula.COMPARE and any(isinstance(o, Reg) and o.name in same for o in ins.ops) for ins in instructions):
        return None
    for ins in instructions:
        if ins.traits.access in (Access.LOAD, Access.STORE) and "param" not in ins.mods and "local" not in ins.mods:
            place, data = _place(ins)
            if isinstance(place, Addr) and isinstance(place.base, Reg) and place.base.name in reached:
                return (len(data.items) if isinstance(data, Vec) else 1) * ins.type.bits // 8
    return None


def _place(ins: Ins) -> tuple[Operand, Operand]:
    """A load's or store's operands for address and data."""
    return (ins.ops[1], ins.ops[0]) if ins.traits.access is Access.LOAD else (ins.ops[0], ins.ops[1])


def _scales(an: Divergence, a: Operand, b: Operand, same: set[str]) -> bool:
    """Whether one factor is the parameter and the other differs between lanes in a known way."""
    pairs = [(a.name, b.name), (b.name, a.name)] if isinstance(a, Reg) and isinstance(b, Reg) else []
    return any(one in same and other in an.patterns for one, other in pairs)


def plain(an: Divergence) -> int:
    """The number of accesses that are known to be contiguous over the lanes."""
    count = 0
    for block in an.cfg.order:
        for ins in block.ins:
            if ins.traits.access not in (Access.LOAD, Access.STORE) or "param" in ins.mods or "local" in ins.mods:
                continue
            place, data = _place(ins)
            if isinstance(place, Addr) and isinstance(place.base, Reg):
                size = (len(data.items) if isinstance(data, Vec) else 1) * ins.type.bits // 8
                p: Pattern | None = an.patterns.get(place.base.name)
                count += p is not None and p.group == LANES and all(s == i * size for i, s in enumerate(p.steps))
    return count
