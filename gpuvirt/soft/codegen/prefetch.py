"""Prefetching in loops: what a load of global memory will read some rounds later is asked for now.

A warp walks through memory in strides of a block or of the whole grid, which the processor's own prefetchers do not follow: half of the time of a
tiled matrix product went into waiting for them. How far a round goes is seen at run time, from where lane 0 read the last time, so that it does not
matter how the address came about. A prefetch never faults, and a wrong one costs next to nothing.
"""

from __future__ import annotations

import itertools

from gpuvirt.soft.analysis.cfg import Loop
from gpuvirt.soft.codegen.addressing import Where
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.block_shape import many_warps
from gpuvirt.soft.ptx.opcodes import BARRIERS, Access, Formula, Sync
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Special, Sym
from gpuvirt.soft.ptx.types import LANES

_BARRIERS = (*BARRIERS, Sync.ARRIVE, Sync.CLUSTER, Sync.WARPGROUP, Sync.MEMBERS)
_LINE = 64
_ACCESSES = 8  # accesses of a loop that are prefetched at once: lines a power of two apart share a few cache sets
_LENGTH = 256  # instructions that take about as long as a memory access
_SMALL = 8192  # bytes an iteration that the processor's own prefetchers follow
_DEEP = 8
_MOST = 4  # loads of a loop; the processor overlaps more than that by itself
_MOST_SHARED = 16  # the same where the loop has barriers


def prefetch(e: Context, ins: Ins, where: Where, stride: int) -> None:
    """Before a load of `stride` bytes a lane."""
    loop = e.cfg.loop_of[e.block.idx]
    operand = ins.ops[1]
    if loop is None or (where.start is None and not where.firsts) or not isinstance(operand, Addr) or not isinstance(operand.base, Reg):
        return
    step = _step(e, loop, operand.base.name, ())
    if step is not None and abs(step) <= _SMALL:
        return
    rounds = _rounds(e, loop.first, loop.last)
    if where.lanes is None and where.pattern is None:
        return
    if (loop.first, e.in_uniform_copy) not in e.turned:
        e.turned.add((loop.first, e.in_uniform_copy))
        _turn(e, loop, rounds)
    if not rounds:
        return
    starts = [0] if where.pattern is None or where.scalar is not None else list(range(0, LANES, where.pattern.group))
    speculative = where.speculative
    known = where.pattern or speculative
    steps = known.steps if known is not None else tuple(i * stride for i in range(LANES))
    addresses = where.firsts if speculative is None else [speculative.lead]
    if not addresses and where.start is not None:
        addresses = [e.extract(where.start, i) for i in starts]
    name = operand.base.name
    far = e.prefetch_distance.get(name)
    if far is None:
        before, none = _before(e, addresses[0]), e.const(0, "i64")
        far = e.select(e.icmp("eq", before, none), none, e.sub(addresses[0], before))  # in the first round nothing is known
        if where.pattern is None and speculative is None:  # unknown pattern: prefetch only if the stride repeats
            far = e.select(e.icmp("eq", far, _before(e, far)), far, none)
        far = e.prefetch_distance[name] = far if rounds == 1 else e.mul(far, e.const(rounds, "i64"))
    e.m.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    for first, address in zip(starts, addresses, strict=True):
        target = e.offset(e.pointer(e.add(address, far)), where.offset)
        lanes = steps if len(starts) == 1 else steps[first : first + LANES // len(starts)]
        for place in _lines(lanes, stride):
            e.emit(f"call void @llvm.prefetch.p0(ptr {e.offset(target, place).s}, i32 0, i32 3, i32 1)")


def _turn(e: Context, loop: Loop, rounds: int) -> None:
    """The warps of a block read side by side: only when they do it at about the same time, memory's rows and the processor's prefetchers are used
    well. So a loop that reads on and on hands over to the next warp every few rounds, in kernels whose barriers give each warp a stack of its own."""
    if not e.func.is_kernel or not many_warps(e.shape) or loop.first in e.an.waiting_loops:
        return
    barriers = {b.idx for b in e.cfg.order for i in b.ins if i.traits.sync in _BARRIERS}
    if not barriers or not barriers.isdisjoint(range(loop.first, loop.last + 1)):
        return
    every = 1
    while every < rounds:
        every *= 2
    count = e.spin_counter(f"turn{loop.first}")
    now = e.icmp("eq", e.band(count, e.const(every - 1, "i32")), e.const(0, "i32"))
    n = e.n = e.n + 1
    e.m.declare("soft_turn", "declare void @soft_turn(ptr)")
    e.emit(f"br i1 {now.s}, label %turn{n}, label %on{n}, !prof !1")
    e.lines.append(f"turn{n}:")
    e.emit("call void @soft_turn(ptr %w)")
    e.emit(f"br label %on{n}")
    e.lines.append(f"on{n}:")


def _before(e: Context, value: Val) -> Val:
    """The value of the last iteration; stores this one."""
    slot = e.alloca("i64")
    e.prologue.append(f"  store i64 0, ptr {slot.s}")
    last = e.let(f"load i64, ptr {slot.s}", "i64")
    e.emit(f"store i64 {value.s}, ptr {slot.s}")
    return last


def _step(e: Context, loop: Loop, name: str, above: tuple[str, ...]) -> int | None:
    """The constant by which a register grows in each iteration of a loop, else None."""
    sites = e.defined.get(loop.first)
    if sites is None:
        sites = e.defined[loop.first] = {}
        for block in e.cfg.order[loop.first : loop.last + 1]:
            for ins in block.ins:
                for dst in ins.dsts:
                    sites.setdefault(dst, []).append(ins)
    made = sites.get(name, [])
    if not made:
        return 0
    ins = made[0]
    if len(made) > 1 or ins.pred is not None or len(ins.dsts) > 1 or name in above or len(above) > _DEEP:
        return None

    def of(operand: Operand) -> int | None:
        if isinstance(operand, (Imm, Sym, Special)):
            return 0
        return _step(e, loop, operand.name, (*above, name)) if isinstance(operand, Reg) else None

    ops = ins.ops
    formula = ins.traits.formula
    if formula in (Formula.COPY, Formula.CONVERT, Formula.ADDRESS):
        return of(ops[1])
    if formula in (Formula.ADD, Formula.SUB):
        sign = 1 if formula is Formula.ADD else -1
        if isinstance(ops[1], Reg) and ops[1].name == name and isinstance(ops[2], Imm):
            return sign * ops[2].value
        a, b = of(ops[1]), of(ops[2])
        return None if a is None or b is None else a + sign * b
    if formula in (Formula.MUL, Formula.MAD, Formula.SHL) and "hi" not in ins.mods:
        a = of(ops[1])
        if isinstance(ops[2], Imm):
            a = None if a is None else a << min(ops[2].value, 64) if formula is Formula.SHL else a * ops[2].value
        elif a != 0 or of(ops[2]) != 0:
            return None
        c = of(ops[3]) if formula is Formula.MAD else 0
        return None if a is None or c is None else a + c
    return None


def _rounds(e: Context, first: int, last: int) -> int:
    """How many iterations ahead a loop's loads are prefetched; 0: not at all."""
    found = e.rounds.get((first, last))
    if found is None:
        body = list(itertools.chain.from_iterable(b.ins for b in e.cfg.order[first : last + 1]))
        loads = sum(i.traits.access is Access.LOAD and "global" in i.mods for i in body)
        if any(i.traits.sync in _BARRIERS for i in body):  # the other warps have their turn meanwhile
            found = int(loads <= _MOST_SHARED)
        elif loads > _MOST:
            found = 0
        else:
            found = max(1, min(_ACCESSES // max(loads, 1), _LENGTH // max(len(body), 1)))
        e.rounds[first, last] = found
    return found


def _lines(steps: tuple[int, ...], stride: int) -> list[int]:
    """Offsets from lane 0's place, one for each cache line that lanes touch (were lane 0's at a line's start)."""
    return sorted({(s + b) // _LINE * _LINE for s in steps for b in range(0, stride, _LINE)})
