"""How instructions order threads: which of them wait for what others write, which are noticed by others, and which bring lanes together."""

from __future__ import annotations

from gpuvirt.soft.ptx.opcodes import BARRIERS, Access, Flow, Polls, Sync
from gpuvirt.soft.ptx.parser import Body, Call, Imm, Ins, Name, Sym

_READS_ONLY = {"add": 0, "or": 0, "xor": 0, "and": -1}  # atom.OP with this operand

_COMMON = {"param", "const", "local", "nc"}  # spaces in which no lane sees what another does

# Kinds of convergence points: a block's barrier that each thread passes for itself, one that a warp passes as a whole, a __syncwarp that has others
# beside it, an exchange of the whole warp, one of some lanes. At the first and third lanes may converge with lanes at another; the second and fourth
# bring the warp together.
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


def noticed(ins: Ins) -> str:
    """How lanes may notice one another by an instruction: "r", it reads what others write, "w", it writes or does something else that they notice."""
    if ins.traits.flow is Flow.CALL:
        return "w"
    if not _COMMON.isdisjoint(m.split("::")[0] for m in ins.mods):
        return ""
    if ins.traits.access is Access.LOAD or ins.traits.polls is Polls.ALWAYS:
        return "r" if ins.traits.access not in (Access.STORE, Access.WRITES) else "w"
    return "w" if ins.traits.access in (Access.STORE, Access.WRITES) else ""


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


def collective(ins: Ins) -> bool:
    """Whether lanes that the instruction names take part in it together."""
    return ins.pred is None and ins.traits.sync in (Sync.EXCHANGE, Sync.MEMBERS) and "sync" in ins.mods and bool(ins.ops)


def _loose(ins: Ins) -> bool:
    """Whether the instruction is a barrier of the block to which the lanes of a warp may come one after the other."""
    return ins.traits.sync in (Sync.LOOSE, Sync.REDUCE) and "aligned" not in ins.mods


class Splitter:
    """Says which instructions must be the first of their block, because they may be convergence points."""

    def __init__(self, instructions: list[Ins], leaving: frozenset[str] = frozenset(), divided: bool = False) -> None:
        self.leaving = leaving
        self.polls = any(reads_again(i) for i in instructions)
        self.splits = self.polls or divided or any(_loose(i) for i in instructions)

    def before(self, ins: Ins, block: list[Ins]) -> bool:
        """Whether a new block begins with `ins`, which would otherwise come after `block`."""
        if not block:
            return False
        if calls_one_of(ins, self.leaving):
            return True
        if not self.splits:
            return False
        if collective(ins):  # those who have just exchanged something are still together
            return not (collective(block[0]) and block[0].traits.sync is ins.traits.sync is Sync.EXCHANGE and block[0].ops[-1] == ins.ops[-1])
        return _loose(ins) or (self.polls and ins.traits.sync in BARRIERS)
