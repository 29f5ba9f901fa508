"""Which registers differ between lanes in a known way (lane_affine.py), followed through a function's instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from gpuvirt.soft.analysis import lane_affine
from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.analysis.lane_affine import ANY, UNIFORM, Known, Pattern
from gpuvirt.soft.ptx.block_shape import Shape
from gpuvirt.soft.ptx.opcodes import Formula
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Special, Sym, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES, Type

Varies = Callable[[Operand], bool]
_INTEGER = "busx"
_LOGIC = (Formula.AND, Formula.OR, Formula.XOR)
_FOLLOWED = (*_LOGIC, Formula.ADD, Formula.SUB, Formula.MUL, Formula.MAD, Formula.SHL, Formula.SHR)


def find_patterns(
    cfg: Cfg, shape: Shape, varying: Set[str], waits: list[int], operand_varies: Varies, assumed: Mapping[str, int]
) -> dict[str, Known]:
    """The lane pattern of each register; of none when the iteration does not converge.

    Args:
        waits: for each block the registers that waiting lanes may still read.
        assumed: registers whose value is assumed.
    """
    index = cfg.reg_index
    regs = cfg.regs
    known: dict[str, Known] = {}
    defs: dict[str, list[tuple[Block, Ins]]] = {}
    for block in cfg.order:
        for ins in block.ins:
            for dst in ins.dsts:
                defs.setdefault(dst, []).append((block, ins))
    barred: set[str] = set()
    for name, number in assumed.items():
        known[name] = lane_affine.constant(number)
        del defs[name]
    for name, sites in defs.items():
        if regs[name].kind not in _INTEGER or regs[name].bits < 16:
            known[name] = None
            continue
        for block, ins in sites:
            if waits[block.idx] >> index[name] & 1 or (ins.pred is not None and ins.pred in varying):
                barred.add(name)
        known[name] = None if name in barred else ANY
    for name in regs:
        known.setdefault(name, UNIFORM if name not in varying else None)

    def get(operand: Operand) -> Known:
        if isinstance(operand, Reg):
            found = known.get(operand.name)
            if found is None and operand.name not in varying:
                return UNIFORM
            return found
        if isinstance(operand, Imm):
            return lane_affine.constant(operand.value)
        if isinstance(operand, Special):
            return lane_affine.special(operand.name, shape)
        if isinstance(operand, Sym):
            return None if operand_varies(operand) else Pattern(LANES, lane_affine.ZERO, 16 if operand.offset % 16 == 0 else 1)
        return None if operand_varies(operand) else UNIFORM

    for _round in range(60):
        changed = False
        for name, sites in defs.items():
            old = known[name]
            if old is None:
                continue
            new: Known = ANY
            for _, ins in sites:
                value = _transfer(regs, ins, get) if len(ins.dsts) == 1 else None
                if value is None and name not in varying:
                    value = UNIFORM
                if value == ANY:
                    continue
                if value is None:
                    new = None
                    break
                assert isinstance(value, Pattern)
                new = value if new == ANY else lane_affine.join(new, value)  # type: ignore[arg-type]
                if new is None:
                    break
            if new is not None and new != ANY and isinstance(old, Pattern):
                new = lane_affine.join(old, new)  # type: ignore[arg-type]
            if new != old:
                known[name] = new
                changed = True
        if not changed:
            break
    else:
        return {}
    return known


def in_lanes(known: dict[str, Known], varying: Set[str]) -> dict[str, Pattern]:
    """For each register that varies by a known pattern: its steps, from the group's first lane on."""
    found = {}
    for name, value in known.items():
        if isinstance(value, Pattern) and name in varying:
            steps = tuple(s - value.steps[i // value.group * value.group] for i, s in enumerate(value.steps))
            found[name] = Pattern(value.group, steps, value.align)
    return found


def _transfer(regs: Mapping[str, Type], ins: Ins, get: Callable[[Operand], Known]) -> Known:
    """The pattern of an instruction's result."""
    formula, mods, ops = ins.traits.formula, ins.mods, ins.ops
    if len(ops) < 2 or isinstance(ops[0], (Vec, Addr)) or isinstance(ops[1], (Vec, Addr)) or not mods:
        return None
    if formula is Formula.ADDRESS:
        return None if "local" in mods else get(ops[1])
    if mods[-1] not in TYPES:
        return None
    t = TYPES[mods[-1]]
    if formula is Formula.COPY:
        return get(ops[1]) if t.kind in _INTEGER else None
    if formula is Formula.CONVERT:
        to = TYPES.get(mods[-2]) if len(mods) > 1 else None
        if to is None or t.kind not in "us" or to.kind not in "us" or "sat" in mods or t.bits < 16 or to.bits < 16:
            return None
        p = get(ops[1])
        if not isinstance(p, Pattern):
            return p
        if to.bits > t.bits and not lane_affine.widens(p, t.bits, t.kind == "s"):
            return None
        if isinstance(ops[0], Reg) and regs[ops[0].name].bits > to.bits and not lane_affine.widens(p, to.bits, to.kind == "s"):
            return None
        return p
    if t.kind not in "bus" or t.bits < 16:
        return None
    if formula not in _FOLLOWED:
        return None
    if "cc" in mods or "sat" in mods or "hi" in mods or "x2" in mods:
        return None
    a, b = get(ops[1]), get(ops[2])
    if a is None or b is None:
        return None
    if not isinstance(a, Pattern) or not isinstance(b, Pattern):
        return ANY
    if formula is Formula.ADD:
        return lane_affine.add(a, b)
    if formula is Formula.SUB:
        return lane_affine.add(a, b, -1)
    if formula in (Formula.MUL, Formula.MAD):
        if "wide" in mods and not (lane_affine.widens(a, t.bits, t.kind == "s") and lane_affine.widens(b, t.bits, t.kind == "s")):
            return None
        product = lane_affine.multiply(a, b)
        if product is None or formula is Formula.MUL:
            return product
        addend = get(ops[3])
        if not isinstance(addend, Pattern):
            return addend
        return lane_affine.add(product, addend)
    c = b.constant
    if formula in _LOGIC and c is None and a.constant is not None:
        a, c = b, a.constant
    if c is None:
        return lane_affine.disjoint(a, b) if formula is not Formula.AND and formula in _LOGIC else None
    if formula is Formula.SHL:
        return lane_affine.shift_left(a, c) if 0 <= c < t.bits else None
    if formula is Formula.SHR:
        return lane_affine.shift_right(a, c, t.bits, t.kind == "s") if 0 <= c < t.bits else None
    if formula is Formula.AND:
        return lane_affine.bit_and(a, c, t.bits)
    return lane_affine.bit_or(a, c, t.bits, formula is Formula.XOR)


def one_sided(cfg: Cfg, varying: Set[str], known: dict[str, Known]) -> set[int]:
    """Comparisons of varying values with a constant whose result is the same in all lanes."""
    found = set()
    for block in cfg.order:
        for ins in block.ins:
            if ins.traits.formula is not Formula.COMPARE or len(ins.ops) != 3 or len(ins.dsts) != 1 or ins.dsts[0] not in varying:
                continue
            if not isinstance(ins.ops[1], Reg):
                continue
            t = TYPES.get(ins.mods[-1])
            c, p = _constant(known, ins.ops[2]), known.get(ins.ops[1].name)
            if t is None or t.kind not in "bus" or t.bits < 32 or c is None or not isinstance(p, Pattern) or not _affine(p, ins.ops[1].name, varying):
                continue
            name, signed = ins.mods[0], t.kind == "s" and ins.mods[0] in ("lt", "le", "gt", "ge")
            c = c if signed else c & ((1 << t.bits) - 1)
            if name in ("lt", "ge", "lo", "hs"):
                good = lane_affine.same_side(p, c, t.bits, signed)
            elif name in ("gt", "le", "hi", "ls"):
                good = lane_affine.same_side(p, c + 1, t.bits, signed)
            else:
                good = name in ("eq", "ne") and lane_affine.never_equal(p, c, t.bits)
            if good:
                found.add(id(ins))
    return found


def _affine(p: Pattern, name: str, varying: Set[str]) -> bool:
    return p.group == LANES and name in varying


def _constant(known: dict[str, Known], operand: Operand) -> int | None:
    if isinstance(operand, Reg):
        p = known.get(operand.name)
        return p.constant if isinstance(p, Pattern) else None
    return operand.value if isinstance(operand, Imm) else None
