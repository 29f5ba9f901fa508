"""Control flow of basic blocks (basic_blocks.py): an order in which every loop is contiguous, postdominators and liveness.

The order is topological over the graph without its retreating edges, and every retreating edge leads to the first block of a
contiguous region (a loop; irreducible graphs get the same shape by the way strongly connected components are taken apart). The emitter relies on
both.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping

from gpuvirt.soft.analysis.basic_blocks import EXITED, Block, find_blocks
from gpuvirt.soft.ptx.parser import Body, Reg
from gpuvirt.soft.ptx.types import TYPES, Type


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
        self.leaving = leaving  # functions in which lanes may leave the code for 32 of them: such a call begins a block
        self.exits = exits  # functions that are called may end threads
        blocks = find_blocks(body, exits, leaving, divided)
        self.exit = blocks.exit
        self.regs: Mapping[str, Type] = {**body.regs, EXITED: TYPES["pred"]} if blocks.asks_exited else body.regs  # by name
        self.order = self._arrange(blocks.entry)
        for index, block in enumerate(self.order):
            block.idx = index
            for succ in block.succs:
                if succ.preds.count(block) == 0:
                    succ.preds.append(block)
        self.loops = self._loops()
        self._postdominators()
        self.reg_index = {name: i for i, name in enumerate(self.regs)}
        self._liveness()

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
