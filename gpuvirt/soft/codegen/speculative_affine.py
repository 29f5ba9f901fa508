"""Addresses from unsigned 32-bit indices, affine in the lane unless the index wraps within the warp.

`base + 4 * (uint64_t)i` follows i's lane pattern as long as no lane's i wraps at 2**32; wraparound is rare but legal. Beside the vector of addresses
lane 0's address is computed, and a flag that the pattern holds: one scalar comparison of the index instead of one of all lanes' addresses at every
load. Both are tracked within a block.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context, SpeculativeAffine
from gpuvirt.soft.ptx.opcodes import Formula
from gpuvirt.soft.ptx.parser import Imm, Ins, Operand, Reg, Vec
from gpuvirt.soft.ptx.types import LANES

_FAR = 1 << 20  # largest step between lanes' indices


def follow(e: Context, ins: Ins) -> None:
    """After each instruction: what is known of the register it wrote."""
    found = _result(e, ins) if ins.pred is None and len(ins.dsts) == 1 else None
    for name in ins.dsts:
        e.speculative.pop(name, None)
    if found is not None and e.is_vector(ins.dsts[0]) and ins.dsts[0] not in e.an.patterns:
        e.speculative[ins.dsts[0]] = found


def _result(e: Context, ins: Ins) -> SpeculativeAffine | None:
    formula, mods, ops = ins.traits.formula, ins.mods, ins.ops
    if not mods or len(ops) < 2 or not isinstance(ops[0], Reg) or isinstance(ops[1], Vec) or e.cfg.regs[ops[0].name].bits != 64:
        return None
    if formula in (Formula.MUL, Formula.MAD) and "wide" in mods and mods[-1] == "u32":
        scale = ops[2]
        if not isinstance(scale, Imm) or not 0 < scale.value < _FAR:
            return None
        found = _extended(e, ops[1])
        if found is None:
            return None
        c = scale.value
        found = SpeculativeAffine(e.mul(found.lead, e.const(c, "i64")), found.holds, tuple(s * c for s in found.steps))
        return found if formula is Formula.MUL else _sum(e, found, ops[3])
    if formula is Formula.CONVERT and mods[-2:] in (("u64", "u32"), ("s64", "u32")):
        return _extended(e, ops[1])
    if formula is Formula.ADD and mods in (("s64",), ("u64",)):
        for one, other in ((ops[1], ops[2]), (ops[2], ops[1])):
            if isinstance(one, Reg) and one.name in e.speculative:
                return _sum(e, e.speculative[one.name], other)
    if formula is Formula.SHL and isinstance(ops[1], Reg) and ops[1].name in e.speculative and isinstance(ops[2], Imm) and 0 <= ops[2].value < 8:
        known, count = e.speculative[ops[1].name], ops[2].value
        return SpeculativeAffine(e.shl(known.lead, e.const(count, "i64")), known.holds, tuple(s << count for s in known.steps))
    return None


def _extended(e: Context, operand: Operand) -> SpeculativeAffine | None:
    """A 32-bit index without its sign, in 64 bits."""
    if not isinstance(operand, Reg) or operand.name not in e.an.affine or e.cfg.regs[operand.name].bits != 32:
        return None
    steps = e.an.affine[operand.name]
    if min(steps) < 0 or max(steps) >= _FAR:
        return None
    lead = e.get(operand.name)
    holds = e.icmp("ule", lead, e.const((1 << 32) - 1 - max(steps), "i32"))
    return SpeculativeAffine(e.cast("zext", lead, "i64"), e.let(f"freeze i1 {holds.s}", "i1"), steps)


def _sum(e: Context, known: SpeculativeAffine, operand: Operand) -> SpeculativeAffine | None:
    if isinstance(operand, Imm):
        return SpeculativeAffine(e.add(known.lead, e.const(operand.value, "i64")), known.holds, known.steps)
    if not isinstance(operand, Reg) or e.is_vector(operand.name) or e.cfg.regs[operand.name].bits != 64:
        return None
    steps = e.an.affine.get(operand.name, (0,) * LANES)
    return SpeculativeAffine(e.add(known.lead, e.get(operand.name)), known.holds, tuple(a + b for a, b in zip(known.steps, steps, strict=True)))
