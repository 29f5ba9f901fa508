"""Control flow: basic blocks, an order in which every loop is contiguous, postdominators and liveness.

The order is topological over the graph without its retreating edges, and every retreating edge leads to the first block of a
contiguous region (a loop; irreducible graphs get the same shape by the way strongly connected components are taken apart). The emitter relies on
both.
"""

from __future__ import annotations

import heapq
import sys

from gpuvirt.soft.analysis.sync_kinds import Splitter
from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.opcodes import Flow
from gpuvirt.soft.ptx.parser import Body, Ins, Name, Operand, Reg
from gpuvirt.soft.ptx.types import TYPES

EXITED = "$exited"  # which lanes have ended inside a device function


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


class Loop:
    """A contiguous region of the order, `first`..`last`, to whose first block all its retreating edges lead."""

    __slots__ = ("first", "last", "parent")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.parent: Loop | None = None


class Cfg:
    """The flow graph of a function."""

    def __init__(self, body: Body, exits: bool = False, leaving: frozenset[str] = frozenset(), divided: bool = False) -> None:
        self.body = body
        self.divided = divided  # exchanges between lanes begin blocks
        self.leaving = leaving  # functions in which lanes may go apart: such a call begins a block
        self.exits = exits  # functions that are called may end threads
        self.exit = Block("$exit")
        self.exit.kind = "exit"
        entry = self._build(divided)
        self.order = self._arrange(entry)
        for index, block in enumerate(self.order):
            block.idx = index
            for succ in block.succs:
                if succ.preds.count(block) == 0:
                    succ.preds.append(block)
        self.loops = self._loops()
        self._postdominators()
        self.reg_index = {name: i for i, name in enumerate(body.regs)}
        self._liveness()

    def _build(self, divided: bool) -> Block:
        blocks: dict[str, Block] = {}
        sequence: list[Block] = []
        pending: list[tuple[Block, list[str | None]]] = []
        counter = 0

        def new(name: str) -> Block:
            block = Block(name)
            sequence.append(block)
            blocks[name] = block
            return block

        def split() -> Block:
            nonlocal counter
            counter += 1
            return new(f"$s{counter}")

        def finish(block: Block, kind: str, targets: list[str | None], ins: Ins | None = None) -> None:
            block.kind = kind
            if ins is not None and ins.pred is not None:
                block.pred, block.neg = ins.pred, ins.neg
            pending.append((block, targets))

        splitter = Splitter([i for _, b in self.body.blocks for i in b], self.leaving, divided)
        for label, instructions in self.body.blocks:
            block = new(label)
            for ins in instructions:
                if block.kind or splitter.before(ins, block.ins):
                    block = split()
                flow = ins.traits.flow
                if flow is Flow.JUMP:
                    target = ins.ops[0]
                    assert isinstance(target, Name)
                    finish(block, "cbr" if ins.pred else "br", [target.name, None] if ins.pred else [target.name], ins)
                elif flow in (Flow.RETURN, Flow.EXIT):
                    if flow is Flow.EXIT and not self.body.func.is_kernel:
                        block.ins.append(ins)
                    finish(block, "cbr" if ins.pred else "br", ["$exit", None] if ins.pred else ["$exit"], ins)
                elif flow is Flow.INDEXED:
                    if ins.pred:
                        counter += 1
                        skip = f"$k{counter}"
                        finish(block, "cbr", [skip, None], Ins("bra", (), [], ins.pred, not ins.neg, ""))
                        block = split()
                        self._brx(block, ins, pending)
                        new(skip)
                        block = blocks[skip]
                    else:
                        self._brx(block, ins, pending)
                elif ins.pred and flow in (Flow.BRANCHED, Flow.CALL, Flow.TRAP):
                    counter += 1
                    skip = f"$k{counter}"
                    finish(block, "cbr", [skip, None], Ins("bra", (), [], ins.pred, not ins.neg, ""))
                    block = split()
                    bare = Ins(ins.op, ins.mods, ins.ops, None, False, ins.text)
                    bare.dsts, bare.srcs, bare.args = ins.dsts, [s for s in ins.srcs if s != ins.pred], ins.args
                    block.ins.append(bare)
                    if flow is Flow.TRAP:
                        finish(block, "br", ["$exit"])
                    block = new(skip)
                elif flow is Flow.TRAP:
                    block.ins.append(ins)
                    finish(block, "br", ["$exit"])
                else:
                    block.ins.append(ins)
                if flow is Flow.CALL and self.exits:  # the lanes that have ended in it go to the end here too
                    self.body.regs[EXITED] = TYPES["pred"]
                    ended = Ins(EXITED, (), [Reg(EXITED)], None, False, "lanes that ended in a call")
                    ended.dsts = [EXITED]
                    block.ins.append(ended)
                    finish(block, "cbr", ["$exit", None], Ins("bra", (), [], EXITED, False, ""))
        blocks["$exit"] = self.exit
        following = {id(b): sequence[i + 1] if i + 1 < len(sequence) else self.exit for i, b in enumerate(sequence)}
        for block in sequence:
            if not block.kind:
                block.kind = "br"
                block.succs = [following[id(block)]]
        for block, targets in pending:
            for target in targets:
                if target is not None and target not in blocks:
                    raise BadPtx(f"the label '{target}' is not declared")
            block.succs = [following[id(block)] if t is None else blocks[t] for t in targets]
            if block.kind == "cbr" and block.succs[0] is block.succs[1]:
                block.kind, block.pred = "br", None
                block.succs = block.succs[:1]
        return sequence[0]

    def _brx(self, block: Block, ins: Ins, pending: list[tuple[Block, list[str | None]]]) -> None:
        target = ins.ops[-1]
        assert isinstance(target, Name)
        labels = self.body.label_lists.get(target.name)
        if labels is None:
            raise BadPtx(f"the branch targets '{target.name}' are not declared")
        block.kind = "brx"
        block.selector = ins.ops[0]
        pending.append((block, list(labels)))

    # Order -----------------------------------------------------------------------------------------------------------------------------------

    def _arrange(self, entry: Block) -> list[Block]:
        post: list[Block] = []
        seen = {entry}
        stack: list[tuple[Block, int]] = [(entry, 0)]
        while stack:
            block, i = stack.pop()
            if i < len(block.succs):
                stack.append((block, i + 1))
                # The last successor first: then the taken side of a branch comes later in the reversed postorder than the code that follows it.
                succ = block.succs[i]
                if succ not in seen:
                    seen.add(succ)
                    stack.append((succ, 0))
            else:
                post.append(block)
        rpo = post[::-1]
        position = {b: i for i, b in enumerate(rpo)}
        if self.exit in position:
            rpo.remove(self.exit)
        self.regions: list[tuple[Block, list[Block]]] = []
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 20000))
        order = self._order(rpo, entry, position)
        order.append(self.exit)
        return order

    def _order(self, nodes: list[Block], entry: Block | None, position: dict[Block, int]) -> list[Block]:
        """Nodes in topological order of their strongly connected components, each component contiguous and begun by its first block."""
        components = _components(nodes)
        if len(components) == 1 and len(nodes) == 1 and nodes[0] not in nodes[0].succs:
            return nodes
        owner = {b: i for i, c in enumerate(components) for b in c}
        edges: list[set[int]] = [set() for _ in components]
        indegree = [0] * len(components)
        for block in nodes:
            for succ in block.succs:
                if succ in owner and owner[succ] != owner[block] and owner[succ] not in edges[owner[block]]:
                    edges[owner[block]].add(owner[succ])
                    indegree[owner[succ]] += 1
        key = [min(position[b] for b in c) for c in components]
        ready = [(key[i], i) for i in range(len(components)) if indegree[i] == 0]
        heapq.heapify(ready)
        out: list[Block] = []
        while ready:
            _, i = heapq.heappop(ready)
            component = components[i]
            if len(component) == 1 and component[0] not in component[0].succs:
                out.append(component[0])
            else:
                head = min(component, key=lambda b: position[b])
                rest = [b for b in component if b is not head]
                inner = [head, *self._order(rest, None, position)] if rest else [head]
                self.regions.append((head, inner))
                out.extend(inner)
            for j in edges[i]:
                indegree[j] -= 1
                if indegree[j] == 0:
                    heapq.heappush(ready, (key[j], j))
        return out

    def _loops(self) -> list[Loop]:
        loops = [Loop(head.idx, inner[-1].idx) for head, inner in self.regions]
        loops.sort(key=lambda x: (x.first, -x.last))
        self.loop_of: list[Loop | None] = [None] * len(self.order)
        stack: list[Loop] = []
        j = 0
        for i in range(len(self.order)):
            while stack and stack[-1].last < i:
                stack.pop()
            while j < len(loops) and loops[j].first == i:
                loops[j].parent = stack[-1] if stack else None
                stack.append(loops[j])
                j += 1
            self.loop_of[i] = stack[-1] if stack else None
        return loops

    # Postdominators --------------------------------------------------------------------------------------------------------------------------

    def _postdominators(self) -> None:
        """Immediate postdominators; None for blocks from which no path leads to the exit."""
        post: list[Block] = []
        seen = {self.exit}
        stack: list[tuple[Block, int]] = [(self.exit, 0)]
        while stack:
            block, i = stack.pop()
            if i < len(block.preds):
                stack.append((block, i + 1))
                if block.preds[i] not in seen:
                    seen.add(block.preds[i])
                    stack.append((block.preds[i], 0))
            else:
                post.append(block)
        rpo = post[::-1]
        number = {b: i for i, b in enumerate(rpo)}
        idom: dict[Block, Block] = {self.exit: self.exit}
        changed = True
        while changed:
            changed = False
            for block in rpo[1:]:
                new: Block | None = None
                for succ in block.succs:
                    if succ in idom:
                        if new is None:
                            new = succ
                        else:
                            a, b = succ, new
                            while a is not b:
                                while number[a] > number[b]:
                                    a = idom[a]
                                while number[b] > number[a]:
                                    b = idom[b]
                            new = a
                if new is not None and idom.get(block) is not new:
                    idom[block] = new
                    changed = True
        stuck = [b for b in self.order if b not in number and b is not self.exit]
        for block in self.order:
            block.ipdom = idom.get(block) if block is not self.exit else None
        self.has_endless = bool(stuck)
        if stuck:  # lanes may never arrive at a join beyond an endless loop
            for block in self.order:
                if any(s in set(stuck) for s in block.succs) and block not in stuck:
                    block.ipdom = self.exit

    # Liveness --------------------------------------------------------------------------------------------------------------------------------

    def _liveness(self) -> None:
        index = self.reg_index
        use: dict[Block, int] = {}
        kill: dict[Block, int] = {}
        for block in self.order:
            u = k = 0
            for ins in block.ins:
                for src in ins.srcs:
                    bit = 1 << index[src]
                    if not k & bit:
                        u |= bit
                for dst in ins.dsts:
                    bit = 1 << index[dst]
                    if ins.pred is None:
                        k |= bit
                    elif not k & bit:
                        u |= bit
            for name in (block.pred, block.selector.name if isinstance(block.selector, Reg) else None):
                if name is not None and not k & (1 << index[name]):
                    u |= 1 << index[name]
            use[block], kill[block] = u, k
            block.live_in = u
        work = list(reversed(self.order))
        queued = set(work)
        work.reverse()
        while work:
            block = work.pop()
            queued.discard(block)
            out = 0
            for succ in block.succs:
                out |= succ.live_in
            block.live_out = out
            new = use[block] | (out & ~kill[block])
            if new != block.live_in:
                block.live_in = new
                for pred in block.preds:
                    if pred not in queued:
                        queued.add(pred)
                        work.append(pred)


def _components(nodes: list[Block]) -> list[list[Block]]:
    """Strongly connected components of the subgraph (Tarjan, without recursion)."""
    inside = set(nodes)
    index: dict[Block, int] = {}
    low: dict[Block, int] = {}
    on_stack: set[Block] = set()
    stack: list[Block] = []
    out: list[list[Block]] = []
    for root in nodes:
        if root in index:
            continue
        work: list[tuple[Block, int]] = [(root, 0)]
        while work:
            block, i = work.pop()
            if i == 0:
                index[block] = low[block] = len(index)
                stack.append(block)
                on_stack.add(block)
            descended = False
            while i < len(block.succs):
                succ = block.succs[i]
                i += 1
                if succ not in inside:
                    continue
                if succ not in index:
                    work.append((block, i))
                    work.append((succ, 0))
                    descended = True
                    break
                if succ in on_stack:
                    low[block] = min(low[block], index[succ])
            if descended:
                continue
            if low[block] == index[block]:
                component = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.append(member)
                    if member is block:
                        break
                out.append(component)
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[block])
    return out
