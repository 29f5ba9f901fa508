"""Uniform-branch fast path (BOSCC): emits divergent blocks twice, masked and unmasked.

Branches like `if (i < n)` usually take all lanes of a warp the same way. A branch in an unmasked copy tests at run time whether all lanes agree
and, if so, stays in unmasked copies; otherwise it enters the masked blocks, until the lanes reconverge. Comparisons of an affine index with a
uniform bound are evaluated for the first and the last lane only.
"""

from __future__ import annotations

from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.codegen.control_flow import ControlFlow
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.opcodes import Formula
from gpuvirt.soft.ptx.parser import Imm, Ins, Operand, Reg
from gpuvirt.soft.ptx.types import TYPES

_MOST = 600  # instructions of a function that are emitted twice
_LOWER = {"lt": "lt", "le": "le", "lo": "lt", "ls": "le"}
_UPPER = {"gt": "gt", "ge": "ge", "hi": "gt", "hs": "ge"}


def copied_blocks(e: ControlFlow) -> set[int]:
    """The blocks that get a uniform copy."""
    if not e.func.is_kernel or e.convergence_points or e.an.delayed or e.an.resume or e.an.waiting_loops or e.cfg.exits:
        return set()
    blocks = [b for b in e.cfg.order if b.idx in e.an.masked and b is not e.cfg.exit]
    if sum(len(b.ins) for b in blocks) > _MOST or any(b.kind == "brx" for b in e.cfg.order):
        return set()
    return {b.idx for b in blocks}


def deciding(block: Block) -> Ins | None:
    """The instruction of a block that computes the predicate of its branch."""
    if block.kind != "cbr":
        return None
    for ins in reversed(block.ins):
        if block.pred in ins.dsts:
            return ins if ins.traits.formula is Formula.COMPARE and ins.pred is None and len(ins.dsts) == 1 and len(ins.ops) == 3 else None
    return None


def sides(e: ControlFlow, ins: Ins) -> tuple[Val, Val] | None:
    """(all lanes say yes, all lanes say no) of a comparison of an index with a bound; None where that is not known of two lanes."""
    t = TYPES.get(ins.mods[-1])
    name = ins.mods[0]
    index, bound = ins.ops[1], ins.ops[2]
    if t is None or t.kind not in "bus" or t.bits < 32 or (name not in _LOWER and name not in _UPPER):
        return None
    if not (isinstance(index, Reg) and index.name in e.an.affine and e.cfg.regs[index.name].bits == t.bits and _uniform(e, bound)):
        return None
    steps = e.an.affine[index.name]
    most = max(steps)
    if min(steps) < 0 or most >= 1 << 20:
        return None
    signed = t.kind == "s"
    first = e.get(index.name)
    limit = e.rd_int(bound, t.bits, signed)
    letter = "s" if signed else "u"
    last = e.add(first, e.const(most, first.t))
    ordered = e.icmp(f"{letter}ge", last, first)  # the lanes' values do not wrap around
    less = name in _LOWER
    condition = f"{letter}{_LOWER[name] if less else _UPPER[name]}"
    a, b = e.icmp(condition, first, limit), e.icmp(condition, last, limit)
    every, some = (b, a) if less else (a, b)
    return e.band(ordered, every), e.band(ordered, e.invert(some))


def _uniform(e: ControlFlow, operand: Operand) -> bool:
    return isinstance(operand, Imm) or (isinstance(operand, Reg) and operand.name not in e.an.varying)


def branch(e: ControlFlow, block: Block, condition: Val, known: tuple[Val, Val] | None) -> None:
    """The end of a block in which all lanes are together, by a condition that may divide them."""
    n = e.n = e.n + 1
    yes, no = block.succs
    if known is not None:
        every, none = known if not block.neg else known[::-1]
    else:
        taken = e.bits_of(e.band(e.mask, condition))
        every = e.icmp("eq", taken, e.bits_of(e.full))
        none = e.icmp("eq", taken, e.const(0, "i32"))
    # A jump ahead is mostly not taken: it leaves, or leads around something.
    ways = [(every, yes, "every"), (none, no, "none")]
    for way, (some, target, letter) in enumerate(ways if yes.idx <= block.idx else ways[::-1]):
        following = f"some{n}" if way == 0 else f"diverged{n}"
        e.emit(f"br i1 {some.s}, label %{letter}{n}, label %{following}" + (", !prof !2" if way else ""))
        e.lines.append(f"{letter}{n}:")
        e.go(block, target)
        e.lines.append(f"{following}:")
    e.forget()
    taken = e.bits_of(e.band(e.mask, condition))
    e.send(yes, taken)
    e.send(no, e.bxor(taken, e.bits_of(e.full)))
    e.emit(f"br label %{e.chain(block.idx)}")


__all__ = ["branch", "copied_blocks", "deciding", "sides"]
