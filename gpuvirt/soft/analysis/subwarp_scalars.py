"""Registers that are kept as one scalar for each half or quarter of a warp.

In a block of 16 x 16 threads a warp has two rows of 16 lanes, and an address follows a pattern in each of them. Loads and stores need no more than
where each row begins: as vectors of 32 such addresses would take four of the processor's registers each, and be saved and restored at every barrier.
So what serves addresses only is kept as one scalar a group, the value of the group's first lane.
"""

from __future__ import annotations

from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.ptx.opcodes import Access
from gpuvirt.soft.ptx.parser import Addr, Ins, Reg

_LEAST = 8  # lanes a group: with less there are as many scalars as there were vectors


def find(cfg: Cfg, patterns: dict[str, Pattern]) -> dict[str, int]:
    """The registers, and the lanes of their groups: those with such a pattern that nothing but addresses is made of."""
    regs = cfg.regs
    found = {name: p.group for name, p in patterns.items() if _LEAST <= p.group < len(p.steps) and regs[name].bits in (32, 64)}
    changed = bool(found)
    while changed:
        others: set[str] = set()
        for block in cfg.order:
            if isinstance(block.selector, Reg):
                others.add(block.selector.name)
            for ins in block.ins:
                if len(ins.dsts) != 1 or ins.dsts[0] not in found:
                    others.update(_read(ins))
        changed = not others.isdisjoint(found)
        for name in others:
            found.pop(name, None)
    return found


def _read(ins: Ins) -> set[str]:
    """What an instruction reads, but for the address that it loads from or stores to."""
    read = set(ins.srcs)
    access = ins.traits.access
    if access in (Access.LOAD, Access.STORE) and not any(m.split("::")[0] in ("local", "param") for m in ins.mods):
        values = ins.ops[1:] if access is Access.STORE else []
        for operand in ins.ops[:1] if access is Access.STORE else ins.ops[1:2]:
            if isinstance(operand, Addr) and isinstance(operand.base, Reg) and not any(_names(v, operand.base.name) for v in values):
                read.discard(operand.base.name)
    return read


def _names(operand: object, name: str) -> bool:
    items = getattr(operand, "items", None)
    return any(_names(o, name) for o in items) if items is not None else isinstance(operand, Reg) and operand.name == name
