"""Loops that wait for memory to change.

From sm_70 on every thread makes progress by itself. Here the lanes of a warp go together, so wherever some of them wait for others of their own warp
they must be put off until those have come along. Only such loops delay lanes, because a delay costs time: one of a spin loop's exits
depends on a value that it reads again and again from the same place (a volatile or atomic load, a compare-and-swap that does not try again with what
it found, a barrier object's test).
"""

from __future__ import annotations

from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Cfg, Loop
from gpuvirt.soft.analysis.sync_kinds import calls_one_of, reads_again
from gpuvirt.soft.ptx.opcodes import Access
from gpuvirt.soft.ptx.parser import Addr, Ins, Reg

_SPACES = {"param", "const", "local", "nc"}  # spaces that no other thread writes


def _registers(operand: object) -> set[str]:
    if isinstance(operand, Reg):
        return {operand.name}
    if isinstance(operand, Addr):
        return _registers(operand.base)
    return set()


def find_loops(cfg: Cfg) -> tuple[set[int], set[int]]:
    """First blocks of the loops that may wait for memory to change, and of those among them whose lanes may wait for one another."""
    waiting: set[int] = set()
    spins: set[int] = set()
    for loop in cfg.loops:
        blocks = cfg.order[loop.first : loop.last + 1]
        reads = [i for b in blocks for i in b.ins if reads_again(i)]
        calls = cfg.leaving and any(calls_one_of(i, cfg.leaving) for b in blocks for i in b.ins)
        if _only_looks(cfg, loop, blocks):
            waiting.add(loop.first)
        if not reads and not calls:
            continue
        if calls or any(cfg.loop_of[b.idx] is loop for b in blocks if any(reads_again(i) for i in b.ins)):
            waiting.add(loop.first)
        # Loops around plain volatile loads would belong here too. But those of prefix sums look back in just that way at other blocks, and going on
        # apart after each look costs them a hundredfold.
        if (cfg.body.func.is_kernel or not cfg.leaving) and _spins(cfg, loop, blocks, [i for i in reads if i.traits.access is not Access.LOAD]):
            spins.add(loop.first)
            waiting.add(loop.first)
    return waiting, spins


def _only_looks(cfg: Cfg, loop: Loop, blocks: list[Block]) -> bool:
    """Whether each round does the same as the last: it ends when plain loads, which a fence or assembler repeats, find something else."""
    if any(i.traits.acts for b in blocks for i in b.ins):
        return False
    carried = cfg.order[loop.first].live_in
    if any(carried >> cfg.reg_index[d] & 1 for b in blocks for i in b.ins for d in i.dsts):
        return False
    return any(i.traits.access is Access.LOAD and _SPACES.isdisjoint(i.mods) for b in blocks for i in b.ins)


def find_looking(cfg: Cfg) -> set[int]:
    """First blocks of the loops that end by what they read again and again, wherever they look in each round: of those that may wait for memory to
    change (find_loops) the ones whose lanes others must not wait for without end."""
    found = set()
    for loop in cfg.loops:
        blocks = cfg.order[loop.first : loop.last + 1]
        reads = [i for b in blocks for i in b.ins if reads_again(i)]
        calls = any(calls_one_of(i, cfg.leaving) for b in blocks for i in b.ins)
        if calls or _only_looks(cfg, loop, blocks) or _spins(cfg, loop, blocks, reads, searches=True):
            found.add(loop.first)
    return found


def _spins(cfg: Cfg, loop: Loop, blocks: list[Block], reads: list[Ins], searches: bool = False) -> bool:
    """Whether an exit of the loop depends on one of these reads; not on one that looks elsewhere in each round, unless `searches`."""
    changing = {d for b in blocks for i in b.ins for d in i.dsts if cfg.order[loop.first].live_in >> cfg.reg_index[d] & 1}
    steps = [(set(i.srcs), i.dsts) for b in blocks for i in b.ins]
    exits = set()
    for block in blocks:  # a conditional way back is an exit as well, of a loop inside that begins with the same block
        if len(block.succs) > 1 and any(not loop.first < s.idx <= loop.last or s.idx <= block.idx for s in block.succs):
            exits |= {block.pred} if block.pred else _registers(block.selector)
    for ins in reads:
        place = ins.ops[1] if len(ins.ops) > 1 else None
        if not searches and _registers(place) & changing:
            continue  # each iteration reads another address: a search
        tainted = set(ins.dsts)
        size = -1
        while size != len(tainted):
            size = len(tainted)
            for srcs, dsts in steps:
                if not tainted.isdisjoint(srcs):
                    tainted.update(dsts)
        if "cas" in ins.mods and _registers(ins.ops[2]) & tainted:
            continue  # it tries again with the value it found: some thread always succeeds
        if exits & tainted:
            return True
    return False
