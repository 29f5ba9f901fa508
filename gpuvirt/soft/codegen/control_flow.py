"""Control flow under lane masks: where lanes wait, where code goes on after a block, which lanes a branch sends where."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Loop
from gpuvirt.soft.analysis.convergence_points import converges_next
from gpuvirt.soft.analysis.divergence import Divergence, Edge
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import ModuleText, Val
from gpuvirt.soft.ptx.layout import Layout
from gpuvirt.soft.ptx.opcodes import Sync


class LaneFallback(ABC):
    """Where code for 32 lanes is left for code for one (lane_fallback.py): what the emitter writes at each such place."""

    @abstractmethod
    def call(self, e: ControlFlow, text: str) -> None:
        """A call of a function in which lanes may leave."""

    @abstractmethod
    def exchange_check(self, e: ControlFlow, block: Block) -> None:
        """Before an exchange between some lanes of the warp."""

    @abstractmethod
    def loop_check(self, e: ControlFlow, loop: Loop, bits: Val, again: Val, after: str) -> None:
        """Behind the last block of a loop that waits for memory to change."""

    @abstractmethod
    def prologue(self) -> list[str]:
        """What the function begins with, known once all of it is written: how large the memory is in which lanes leave what they need."""

    @abstractmethod
    def pending(self, e: ControlFlow, position: int, around: Loop | None) -> list[int]:
        """Blocks at which lanes may be behind a block, inside the loop `around`."""


class ControlFlow(Context):
    """The blocks of one function, as code sees them."""

    def __init__(self, module: ModuleText, analysis: Divergence, layout: Layout, symbol: str, loops: bool = False) -> None:
        super().__init__(module, analysis, layout, symbol, loops)
        self.fallback: LaneFallback | None = None  # where lanes may leave this code and go on one by one
        self.convergence_points = analysis.active_convergence_points
        self.targets = {e.target.idx for e in analysis.edges if e.target is not self.cfg.exit}  # blocks at which lanes may wait
        self._prepare_edges()

    def mask_slot(self, block: Block) -> str:
        """Where the lanes that wait at a block are noted (32 bits)."""
        found = self.masks.get(block.idx)
        if found is None:
            found = self.masks[block.idx] = f"%m{block.idx}"
            self.allocas.append(f"  {found} = alloca i32")
            self.prologue.append(f"  store i32 0, ptr {found}")
        return found

    def send(self, target: Block, bits: Val) -> None:
        """Adds lanes to those waiting at a block."""
        if target is self.cfg.exit:
            return
        slot = self.mask_slot(target)
        old = self.let(f"load i32, ptr {slot}", "i32")
        self.emit(f"store i32 {self.bor(old, bits).s}, ptr {slot}")

    def _prepare_edges(self) -> None:
        """For every position of the order: the blocks ahead at which lanes may wait, and the loops whose first block may have waiting lanes."""
        n = len(self.cfg.order)
        ahead: list[set[int]] = [set() for _ in range(n)]
        looped: set[int] = set()
        for edge in self.an.edges:
            if edge.target.idx > edge.source.idx:
                self._mark(ahead, edge)
            else:
                looped.add(edge.target.idx)
        self.waiting_ahead = [sorted(a) for a in ahead]
        self.looped = looped

    def _mark(self, ahead: list[set[int]], edge: Edge) -> None:
        for i in range(min(edge.first, edge.source.idx), edge.target.idx):
            ahead[i].add(edge.target.idx)

    def chain(self, position: int, after: Loop | None = None) -> str:
        """The label at which to go on after the block at `position` (or after the end of the loop `after`) when lanes may wait anywhere ahead."""
        loop = self.cfg.loop_of[position] if after is None else after.parent
        limit = position if after is None else after.last
        targets = [t for t in self.waiting_ahead[limit] if t > limit]
        target = targets[0] if targets else None
        while loop is not None:
            if loop.first in self.looped and (target is None or target > loop.last):
                return f"l{loop.first}"
            if loop.last >= (target if target is not None else len(self.cfg.order)):
                break
            loop = loop.parent
        if target is None or target == self.cfg.exit.idx:
            return "done"
        block = self.cfg.order[target]
        if block.idx not in self.an.masked and not self.convergence_points:
            # All lanes reconverge there when it postdominates; then there is nothing to ask, unless some may be delayed at a barrier before it.
            p: Block | None = self.cfg.order[limit]
            while p is not None and p.idx < target:
                following = p.ipdom
                p = None if following is p else following
            if p is block:
                return f"b{target}"
        return f"c{target}"

    def go(self, block: Block, target: Block) -> None:
        """All lanes of the block go to one target."""
        if target is self.cfg.exit and not self.parted:
            self.emit("br label %done")
            return
        if self.parted:
            self.send(target, self.bits_of(self.mask))
            self.emit(f"br label %{self.chain(block.idx)}")
            return
        if target.idx in self.copies:
            self.emit(f"br label %uniform{target.idx}")
            return
        if target.idx in self.an.masked:
            self.emit(f"store i32 {self.bits_of(self.full).s}, ptr {self.mask_slot(target)}")
        self.emit(f"br label %b{target.idx}")

    def switch(self, block: Block, selector: Val) -> None:
        """brx.idx"""
        n = self.n = self.n + 1
        if selector.v or self.parted:
            for i, succ in enumerate(block.succs):
                hit = self.icmp("eq", selector, self.const(i, "i32"))
                self.send(succ, self.bits_of(self.band(self.mask, self.splat(hit))))
            self.emit(f"br label %{self.chain(block.idx)}")
            return
        cases = " ".join(f"i32 {i}, label %x{n}.{i}" for i in range(len(block.succs)))
        self.emit(f"switch i32 {selector.s}, label %x{n}.0 [ {cases} ]")
        for i, succ in enumerate(block.succs):
            self.lines.append(f"x{n}.{i}:")
            self.forget()
            self.go(block, succ)

    # The lane fallback --------------------------------------------------------------------------------------------------------------------------

    def leaves(self) -> bool:
        """Whether the function tells its caller if lanes have left for the lane fallback in it."""
        return self.fallback is not None and not self.func.is_kernel

    def returns(self) -> str:
        return "ret i1 false" if self.leaves() else "ret void"

    def may_leave(self, loop: Loop) -> bool:
        """Whether lanes may leave for the lane fallback at the end of the loop."""
        if self.fallback is None or loop.first not in self.an.waiting_loops or loop.first not in self.looped or self.delays_lanes(loop):
            return False
        # Who asks which lanes are beside it counts on those with whom it came, also after it has waited for another warp.
        if any(i.traits.sync is Sync.OBSERVE for block in self.cfg.order for i in block.ins):
            return False
        # Lanes that stay at a convergence point of the whole warp until those in the loop come cannot help these.
        waiting = self.fallback.pending(self, loop.last, loop)
        return not self.func.is_kernel or any(t != loop.first and not converges_next(self.cfg, self.an.convergence_points, t) for t in waiting)

    def delays_lanes(self, loop: Loop) -> bool:
        """Whether the lanes that stay in the loop are put off after some rounds."""
        return any(head.idx == loop.first for _, head in self.an.resume)
