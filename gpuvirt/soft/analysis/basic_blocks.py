"""Basic blocks of a function: where they begin, how each ends, which follow which."""

from __future__ import annotations

from dataclasses import dataclass

from gpuvirt.soft.analysis.sync_kinds import Splitter
from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.opcodes import Flow
from gpuvirt.soft.ptx.parser import Body, Ins, Name, Operand, Reg

EXITED = "$exited"  # a predicate register of the analysis: which lanes have ended inside a device function
_EXIT = "$exit"
_NEXT = None  # as a target: the block that follows in the text


class Block:
    """A basic block. `kind`: br (one successor), cbr (successors: taken, not taken), brx, exit."""

    __slots__ = ("idx", "ins", "ipdom", "kind", "live_in", "live_out", "name", "neg", "pred", "preds", "selector", "succs")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ins: list[Ins] = []
        self.kind = ""
        self.pred: str | None = None
        self.neg = False
        self.selector: Operand = None
        self.succs: list[Block] = []
        self.preds: list[Block] = []
        self.idx = -1
        self.ipdom: Block | None = None
        self.live_in = 0
        self.live_out = 0

    def __repr__(self) -> str:
        return f"<{self.idx}:{self.name}>"


@dataclass(frozen=True)
class BasicBlocks:
    """The blocks of a function, connected. `asks_exited`: calls are followed by a branch on EXITED."""

    entry: Block
    exit: Block
    asks_exited: bool


def find_blocks(body: Body, exits: bool, leaving: frozenset[str], divided: bool) -> BasicBlocks:
    """Cuts a function into basic blocks.

    Args:
        exits: functions that are called may end threads.
        leaving: functions in which lanes may leave the code for 32 of them; a call of one begins a block.
        divided: exchanges between lanes begin blocks.

    Raises:
        BadPtx: a branch to a label that is not declared.
    """
    return _Cutter(body, exits, leaving, divided).run()


class _Cutter:
    """Goes through a function's instructions and begins a block where one must begin."""

    def __init__(self, body: Body, exits: bool, leaving: frozenset[str], divided: bool) -> None:
        self.body = body
        self.exits = exits
        self.splitter = Splitter([i for _, b in body.blocks for i in b], leaving, divided)
        self.exit = Block(_EXIT)
        self.exit.kind = "exit"
        self.blocks: dict[str, Block] = {}
        self.sequence: list[Block] = []  # in the order of the text
        self.ended: list[tuple[Block, list[str | None]]] = []  # blocks that end with a branch, and its targets
        self.asks_exited = False
        self.counter = 0
        self.block: Block  # to which the next instruction is added, unless it has ended

    def run(self) -> BasicBlocks:
        for label, instructions in self.body.blocks:
            self.begin(label)
            for ins in instructions:
                if self.block.kind or self.splitter.before(ins, self.block.ins):
                    self.split()
                self.add(ins)
        self.blocks[_EXIT] = self.exit
        self.connect()
        return BasicBlocks(self.sequence[0], self.exit, self.asks_exited)

    # Where blocks begin and end ----------------------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        self.block = self.blocks[name] = Block(name)
        self.sequence.append(self.block)

    def split(self) -> None:
        self.counter += 1
        self.begin(f"$s{self.counter}")

    def end(self, kind: str, targets: list[str | None], pred: str | None = None, neg: bool = False) -> None:
        """The block ends; where to is settled once all blocks are known."""
        self.block.kind = kind
        if pred is not None:
            self.block.pred, self.block.neg = pred, neg
        self.ended.append((self.block, targets))

    def branch(self, ins: Ins, target: str) -> None:
        """The block ends with a jump under the instruction's guard, if it has one."""
        if ins.pred:
            self.end("cbr", [target, _NEXT], ins.pred, ins.neg)
        else:
            self.end("br", [target])

    def skip_unless(self, ins: Ins) -> str:
        """Ends the block with a branch around what the guard controls, and begins a block for that. Returns the label behind it."""
        self.counter += 1
        behind = f"$k{self.counter}"
        self.end("cbr", [behind, _NEXT], ins.pred, not ins.neg)
        self.split()
        return behind

    # Instructions ------------------------------------------------------------------------------------------------------------------------------

    def add(self, ins: Ins) -> None:
        flow = ins.traits.flow
        if flow is Flow.JUMP:
            target = ins.ops[0]
            assert isinstance(target, Name)
            self.branch(ins, target.name)
        elif flow in (Flow.RETURN, Flow.EXIT):
            if flow is Flow.EXIT and not self.body.func.is_kernel:
                self.block.ins.append(ins)
            self.branch(ins, _EXIT)
        elif flow is Flow.INDEXED:
            self.add_indexed(ins)
        elif ins.pred and flow in (Flow.BRANCHED, Flow.CALL, Flow.TRAP):
            behind = self.skip_unless(ins)
            self.block.ins.append(_without_guard(ins))
            if flow is Flow.TRAP:
                self.end("br", [_EXIT])
            self.begin(behind)
        else:
            self.block.ins.append(ins)
            if flow is Flow.TRAP:
                self.end("br", [_EXIT])
        if flow is Flow.CALL and self.exits:
            self.ask_exited()

    def add_indexed(self, ins: Ins) -> None:
        """brx.idx: a jump to one of a list of labels."""
        behind = self.skip_unless(ins) if ins.pred else None
        target = ins.ops[-1]
        assert isinstance(target, Name)
        labels = self.body.label_lists.get(target.name)
        if labels is None:
            raise BadPtx(f"the branch targets '{target.name}' are not declared")
        self.block.selector = ins.ops[0]
        self.end("brx", list(labels))
        if behind is not None:
            self.begin(behind)

    def ask_exited(self) -> None:
        """After a call: the lanes that have ended in it go to the end here too."""
        self.asks_exited = True
        ended = Ins(EXITED, (), [Reg(EXITED)], None, False, "lanes that ended in a call")
        ended.dsts = [EXITED]
        self.block.ins.append(ended)
        self.end("cbr", [_EXIT, _NEXT], EXITED)

    # Successors --------------------------------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        following = dict(zip(self.sequence, [*self.sequence[1:], self.exit], strict=True))
        for block in self.sequence:
            if not block.kind:
                block.kind = "br"
                block.succs = [following[block]]
        for block, targets in self.ended:
            for target in targets:
                if target is not _NEXT and target not in self.blocks:
                    raise BadPtx(f"the label '{target}' is not declared")
            block.succs = [following[block] if t is _NEXT else self.blocks[t] for t in targets]
            if block.kind == "cbr" and block.succs[0] is block.succs[1]:
                block.kind, block.pred = "br", None
                block.succs = block.succs[:1]


def _without_guard(ins: Ins) -> Ins:
    bare = Ins(ins.op, ins.mods, ins.ops, None, False, ins.text)
    bare.dsts, bare.srcs, bare.args = ins.dsts, [s for s in ins.srcs if s != ins.pred], ins.args
    return bare
