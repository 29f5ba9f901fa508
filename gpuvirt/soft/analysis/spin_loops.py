"""Where threads wait for one another: loops that wait for memory to change, and the meetings of lanes at barriers.

From sm_70 on every thread makes progress by itself. Here the lanes of a warp go together, so wherever some of them wait for others of their own warp
they must be put off until those have come along. Two kinds of places are told apart from ordinary code, for that has its price:

*Spin loops*: one of the loop's exits depends on a value that it reads again and again from the same place (a volatile or atomic load, a
compare-and-swap that does not try again with what it found, a barrier object's test).

*Meetings*: barriers and exchanges between lanes, to which the lanes of a warp may come one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuvirt.soft.ptx.opcodes import BARRIERS, Access, Polls, Sync
from gpuvirt.soft.ptx.parser import Addr, Call, Imm, Ins, Name, Reg, Sym

if TYPE_CHECKING:
    from gpuvirt.soft.analysis.cfg import Block, Cfg, Loop
    from gpuvirt.soft.ptx.parser import Body

_READS_ONLY = {"add": 0, "or": 0, "xor": 0, "and": -1}  # atom.OP with this operand
_SPACES = {"param", "const", "local", "nc"}  # where nobody else writes

# Kinds of meetings: a block's barrier that each thread passes for itself, one that a warp passes as a whole, a __syncwarp that has others beside
# it, an exchange of the whole warp, one of some lanes. The first and third may be met by lanes at another; the second and fourth bring the warp
# together.
BLOCK, ALIGNED, WARP, FULL, PART = "block", "aligned", "warp", "full", "part"
OPEN = (BLOCK, WARP)
GATHERING = (ALIGNED, FULL)


def reads_again(ins: Ins) -> bool:
    """Whether the instruction reads what others may write meanwhile."""
    polls = ins.traits.polls
    if polls is not Polls.NEUTRAL:
        return polls is Polls.ALWAYS
    name = next((m for m in ins.mods if m in _READS_ONLY), None)
    operand = ins.ops[2] if len(ins.ops) > 2 else None
    return (
        name is not None
        and isinstance(operand, Imm)
        and (operand.value == _READS_ONLY[name] or operand.value & 0xFFFFFFFF == _READS_ONLY[name] & 0xFFFFFFFF)
    )


def _registers(operand: object) -> set[str]:
    if isinstance(operand, Reg):
        return {operand.name}
    if isinstance(operand, Addr):
        return _registers(operand.base)
    return set()


def readers(bodies: dict[str, Body], calls: dict[str, set[str]]) -> frozenset[str]:
    """The functions that read what others may write meanwhile, themselves or in functions that they call."""
    found = {name for name, body in bodies.items() if any(reads_again(i) for _, block in body.blocks for i in block)}
    size = -1
    while size != len(found):
        size = len(found)
        found |= {name for name, called in calls.items() if called & found}
    return frozenset(found)


def calls_one_of(ins: Ins, names: frozenset[str]) -> bool:
    """Whether the instruction may call one of the functions."""
    if not names or not isinstance(ins.args, Call):
        return False
    target = ins.args.target
    return target.name in names if isinstance(target, (Sym, Name)) else True


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


def _spins(cfg: Cfg, loop: Loop, blocks: list[Block], reads: list[Ins]) -> bool:
    changing = {d for b in blocks for i in b.ins for d in i.dsts if cfg.order[loop.first].live_in >> cfg.reg_index[d] & 1}
    steps = [(set(i.srcs), i.dsts) for b in blocks for i in b.ins]
    exits = set()
    for block in blocks:  # a conditional way back is an exit as well, of a loop inside that begins with the same block
        if len(block.succs) > 1 and any(not loop.first < s.idx <= loop.last or s.idx <= block.idx for s in block.succs):
            exits |= {block.pred} if block.pred else _registers(block.selector)
    for ins in reads:
        place = ins.ops[1] if len(ins.ops) > 1 else None
        if _registers(place) & changing:
            continue  # each round looks elsewhere: that is a search
        tainted = set(ins.dsts)
        size = -1
        while size != len(tainted):
            size = len(tainted)
            for srcs, dsts in steps:
                if not tainted.isdisjoint(srcs):
                    tainted.update(dsts)
        if "cas" in ins.mods and _registers(ins.ops[2]) & tainted:
            continue  # it tries again with what it found: somebody always succeeds
        if exits & tainted:
            return True
    return False


def find_meetings(cfg: Cfg) -> dict[int, str]:
    """The blocks that begin with a meeting, by number, and its kind. Those that are not OPEN only matter where lanes are apart for another reason."""
    found: dict[int, str] = {}
    for block in cfg.order:
        if not block.ins:
            continue
        first = block.ins[0]
        if _collective(first):
            named = first.ops[-1]
            found[block.idx] = FULL if isinstance(named, Imm) and named.value & 0xFFFFFFFF == 0xFFFFFFFF else PART
        elif first.traits.sync in BARRIERS:
            found[block.idx] = BLOCK if first.traits.sync is Sync.LOOSE else ALIGNED
    return found


def meets_next(cfg: Cfg, meetings: dict[int, str], number: int) -> bool:
    """Whether lanes that are at a block come to a meeting of the whole warp before they do anything that others notice."""
    block = cfg.order[number]
    while meetings.get(block.idx) not in GATHERING:
        if len(block.succs) != 1 or block.succs[0].idx <= block.idx or any(i.traits.acts or reads_again(i) for i in block.ins):
            return False
        block = block.succs[0]
    return True


def exchanges(cfg: Cfg) -> bool:
    """Whether lanes exchange something anywhere."""
    return any(_collective(i) for block in cfg.order for i in block.ins)


def find_divided(cfg: Cfg, meetings: dict[int, str]) -> set[int]:
    """Blocks in which only some of the warp's lanes may exchange something, while others that it names come to another such place: in a branch beside
    it; for a __syncwarp, which may pair with any other, anywhere."""
    places: dict[str, list[Block]] = {}
    for block in cfg.order:
        for op in dict.fromkeys(i.op for i in block.ins if _collective(i)):
            places.setdefault("bar" if op == "barrier" else op, []).append(block)
    found: set[int] = set()
    if not any(b.div for blocks in places.values() for b in blocks):
        return found
    after: list[int] | None = None
    for op, blocks in places.items():
        if len(blocks) > 1 and any(b.div for b in blocks):
            after = after or _reach(cfg)
            for a in blocks:
                if any(b is not a and not after[a.idx] >> b.idx & 1 and not after[b.idx] >> a.idx & 1 for b in blocks):
                    found.add(a.idx)
        if op == "bar":
            found.update(b.idx for b in blocks if not meetings and (len(blocks) > 1 or cfg.loop_of[b.idx] is not None))
    return {i for i in found if cfg.order[i].div}


def _reach(cfg: Cfg) -> list[int]:
    """For each block the blocks ahead that can be reached from it without going back."""
    after = [0] * len(cfg.order)
    for block in reversed(cfg.order):
        for succ in block.succs:
            if succ.idx > block.idx:
                after[block.idx] |= 1 << succ.idx | after[succ.idx]
    return after


def _collective(ins: Ins) -> bool:
    return ins.pred is None and ins.traits.sync in (Sync.EXCHANGE, Sync.MEMBERS) and "sync" in ins.mods and bool(ins.ops)


class Splitter:
    """Says which instructions must be the first of their block, because they may be meetings."""

    def __init__(self, instructions: list[Ins], leaving: frozenset[str] = frozenset(), divided: bool = False) -> None:
        self.leaving = leaving
        self.waits = any(reads_again(i) for i in instructions)
        loose = any(i.op == "barrier" and "aligned" not in i.mods for i in instructions)
        self.apart = self.waits or loose or divided

    def before(self, ins: Ins, block: list[Ins]) -> bool:
        """Whether a new block begins with `ins`, which would otherwise come after `block`."""
        if not block:
            return False
        if calls_one_of(ins, self.leaving):
            return True
        if not self.apart:
            return False
        if _collective(ins):  # those who have just exchanged something are still together
            return not (_collective(block[0]) and block[0].traits.sync is ins.traits.sync is Sync.EXCHANGE and block[0].ops[-1] == ins.ops[-1])
        if ins.traits.sync not in BARRIERS:
            return False
        return self.waits or (ins.op == "barrier" and "aligned" not in ins.mods)
