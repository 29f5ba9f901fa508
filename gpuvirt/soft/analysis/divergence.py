"""Which blocks may run with only some of a warp's lanes, which registers vary between lanes, and which of those follow a lane pattern.

Lanes that a divergent branch sent elsewhere *wait* at a block while others run. For each block, `waits` is the set of registers that some waiting
lane may still read: only those need their old value kept when the block writes them. A register that only running lanes can read is overwritten, so a
loop counter stays one scalar though lanes leave the loop at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuvirt.soft.analysis import affine_registers, lane_affine, subwarp_scalars
from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Cfg, Loop
from gpuvirt.soft.analysis.convergence_points import find_convergence_points
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.analysis.spin_loops import find_loops
from gpuvirt.soft.analysis.sync_kinds import GATHERING, OPEN
from gpuvirt.soft.ptx.block_shape import Shape
from gpuvirt.soft.ptx.opcodes import Varies
from gpuvirt.soft.ptx.parser import CARRY, Addr, FloatImm, Imm, Ins, Name, Operand, Pair, Reg, Special, Sym, Vec
from gpuvirt.soft.ptx.types import LANES

_VARYING_SPECIALS = ("%tid", "%laneid", "%lanemask")


class Edge(NamedTuple):
    """Lanes may wait at `target` after leaving `source`, while the blocks `first`..`last` of the order run."""

    source: Block
    target: Block
    first: int
    last: int


@dataclass(frozen=True)
class Divergence:
    """What is known of one function for one block shape. Blocks are given by their numbers in the graph's order."""

    cfg: Cfg
    shape: Shape
    own_params: frozenset[str]  # of a device function: they differ between lanes
    assumed: Mapping[str, int]  # registers whose value is taken for granted (stride_versions.py)
    one_lane: bool = False  # it is of code for a single lane
    varying: frozenset[str] = frozenset()  # registers that may differ between lanes
    masked: frozenset[int] = frozenset()  # blocks that may run with some of the lanes only
    waits: tuple[int, ...] = ()  # for each block the registers (bits, by Cfg.reg_index) that waiting lanes may still read
    diverging: frozenset[int] = frozenset()  # blocks whose end may divide the lanes
    edges: tuple[Edge, ...] = ()
    resume: tuple[tuple[Loop, Block], ...] = ()  # loops in which lanes are put off, and where those go on
    delayed: bool = False  # lanes may be put off while others go on
    waiting_loops: frozenset[int] = frozenset()  # first blocks of the loops that may wait for memory to change
    convergence_points: Mapping[int, str] = field(default_factory=dict)  # the blocks that begin with one, and its kind (sync_kinds.py)
    active_convergence_points: Mapping[int, str] = field(default_factory=dict)  # those at which lanes may really arrive one after the other
    one_sided: frozenset[int] = frozenset()  # comparisons (ids) of values that differ between lanes and that all lanes answer alike
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    affine: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # steps of the registers with a pattern over the whole warp
    grouped: Mapping[str, int] = field(default_factory=dict)  # registers that are kept as one scalar for each group of so many lanes

    def operand_varies(self, operand: Operand) -> bool:
        return operand_varies(operand, self.varying, self.shape, self.own_params)

    def broadcast(self, ins: Ins) -> bool:
        """A shuffle that gives every lane the value of one lane."""
        return not self.one_lane and broadcast(ins, self.operand_varies)


def analyze(cfg: Cfg, shape: Shape, forced: Set[str] = frozenset(), assumed: Mapping[str, int] | None = None) -> Divergence:
    """Divergence, uniformity and patterns of a function.

    Args:
        forced: registers that vary, whatever is found.
        assumed: registers whose value is taken for granted.
    """
    return _Solver(cfg, shape, forced, assumed or {}).solve()


def of_one_lane(cfg: Cfg, shape: Shape, waiting_loops: Set[int]) -> Divergence:
    """For one lane nothing differs between lanes."""
    return Divergence(cfg, shape, own_params(cfg), {}, True, waits=(0,) * len(cfg.order), waiting_loops=frozenset(waiting_loops))


def own_params(cfg: Cfg) -> frozenset[str]:
    func = cfg.body.func
    return frozenset() if func.is_kernel else frozenset(p.name for p in func.params + func.returns)


def broadcast(ins: Ins, varies: Callable[[Operand], bool]) -> bool:
    """Whether a shuffle gives every lane the value of one lane."""
    clamp = ins.ops[3].value if isinstance(ins.ops[3], Imm) else None
    return "idx" in ins.mods and not varies(ins.ops[2]) and clamp is not None and clamp & 0x1F00 == 0


def operand_varies(operand: Operand, varying: Set[str], shape: Shape, params: Set[str]) -> bool:
    """Whether an operand may differ between lanes; `params`: a device function's own parameters, which do."""
    if isinstance(operand, Reg):
        return operand.name in varying
    if isinstance(operand, Special):
        if not operand.name.startswith(_VARYING_SPECIALS):
            return False
        known = lane_affine.special(operand.name, shape)
        return not (isinstance(known, Pattern) and known.flat)
    if isinstance(operand, Vec):
        return any(operand_varies(o, varying, shape, params) for o in operand.items)
    if isinstance(operand, Addr):
        return operand_varies(operand.base, varying, shape, params)
    if isinstance(operand, (Imm, FloatImm, Name)):
        return False
    if hasattr(operand, "first"):
        return operand_varies(operand.first, varying, shape, params) or operand_varies(operand.second, varying, shape, params)  # type: ignore[attr-defined]
    if hasattr(operand, "reg"):
        return operand_varies(operand.reg, varying, shape, params)
    return isinstance(operand, Sym) and operand.name in params


class _Solver:
    """Finds a Divergence, step by step."""

    def __init__(self, cfg: Cfg, shape: Shape, forced: Set[str], assumed: Mapping[str, int]) -> None:
        self.cfg = cfg
        self.shape = shape
        self.forced, self.assumed = forced, assumed
        self.is_kernel = cfg.body.func.is_kernel
        self.param_names = {p.name for p in cfg.body.func.params + cfg.body.func.returns}
        self.own_params = own_params(cfg)
        # First blocks of the loops that may wait for memory to change, and of those whose lanes may wait for one another.
        self.waiting_loops, self.spin_loops = find_loops(cfg)
        self.convergence_points = find_convergence_points(cfg)
        self.one_sided: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self.varying: set[str] = set(self.forced)
        self.masked: set[int] = set()
        self.waits = [0] * len(self.cfg.order)
        self.edges: list[Edge] = []
        self.resume: list[tuple[Loop, Block]] = []
        self.diverging: set[int] = set()
        self.delayed = False

    def solve(self) -> Divergence:
        while True:
            self._begin()
            self._spread()
            known = affine_registers.find_patterns(self.cfg, self.shape, self.varying, self.waits, self.operand_varies, self.assumed)
            # With fewer branches that diverge more is known: once more.
            found = affine_registers.one_sided(self.cfg, self.varying, known)
            if found <= self.one_sided:
                break
            self.one_sided |= found
        patterns = affine_registers.in_lanes(known, self.varying)
        return Divergence(
            cfg=self.cfg,
            shape=self.shape,
            own_params=self.own_params,
            assumed=self.assumed,
            varying=frozenset(self.varying),
            masked=frozenset(self.masked),
            waits=tuple(self.waits),
            diverging=frozenset(self.diverging),
            edges=tuple(self.edges),
            resume=tuple(self.resume),
            delayed=self.delayed,
            waiting_loops=frozenset(self.waiting_loops),
            convergence_points=self.convergence_points,
            active_convergence_points=self.active_convergence_points(),
            one_sided=frozenset(self.one_sided),
            patterns=patterns,
            affine={name: p.steps for name, p in patterns.items() if p.group == LANES},
            grouped=subwarp_scalars.find(self.cfg, patterns),
        )

    def operand_varies(self, operand: Operand) -> bool:
        return operand_varies(operand, self.varying, self.shape, self.own_params)

    def result_varies(self, ins: Ins) -> bool:
        """Whether an instruction's results may differ between lanes, its guard aside."""
        varies = ins.traits.varies
        if varies in (Varies.ALWAYS, Varies.ELECTED):
            return True
        if varies is Varies.NEVER or id(ins) in self.one_sided:
            return False
        if varies is Varies.MEMBERS:
            return self.groups_vary(ins)
        if varies is Varies.SHUFFLE:
            # Also when all lanes hold the same value, whether the source lane exists differs between them.
            return not broadcast(ins, self.operand_varies) and (self.operand_varies(ins.ops[1]) or isinstance(ins.ops[0], Pair))
        if varies is Varies.PARAMETER:
            base = ins.ops[1].base if isinstance(ins.ops[1], Addr) else None
            if isinstance(base, Sym) and not (self.is_kernel and base.name in self.param_names):
                return True
        if CARRY in ins.srcs and CARRY in self.varying:
            return True
        return any(self.operand_varies(o) for o in ins.ops[1:])

    def groups_vary(self, ins: Ins) -> bool:
        """A collective instruction whose member mask may differ between lanes: parts of the warp that each take part in one of their own."""
        return "sync" in ins.mods and self.operand_varies(ins.ops[-1])

    def _spread(self) -> None:
        cfg, index = self.cfg, self.cfg.reg_index
        order = cfg.order
        varying = self.varying
        changed = True
        while changed:
            changed = False
            self._find_waits()
            for block in order:
                for ins in block.ins:
                    dsts = ins.dsts
                    if not dsts:
                        continue
                    varies = (ins.pred is not None and ins.pred in varying) or self.result_varies(ins)
                    for dst in dsts:
                        if dst not in varying and (varies or self.waits[block.idx] >> index[dst] & 1):
                            same = ins.traits.varies is Varies.ELECTED and dst not in _pair_second(ins) and not self.groups_vary(ins)
                            if same and not self.waits[block.idx] >> index[dst] & 1:
                                continue
                            varying.add(dst)
                            changed = True
                branch = block.pred in varying if block.kind == "cbr" else block.kind == "brx" and self.operand_varies(block.selector)
                if branch and block.idx not in self.diverging:
                    self.diverging.add(block.idx)
                    changed = True
                    self._diverge(block)

    def _diverge(self, block: Block) -> None:
        region = self._region(block, block.ipdom)
        loop = self.cfg.loop_of[block.idx]
        spins = any(b.idx in self.spin_loops for b in region)
        while loop is not None and not spins:
            spins = loop.first in self.spin_loops
            loop = loop.parent
        if spins or any(self.convergence_points.get(b.idx) in OPEN for b in region):
            # Lanes may be put off there and come back late: only what the whole warp does at once brings them together.
            self.delayed = True
            stop = block.ipdom
            while stop is not None and stop is not self.cfg.exit and self.convergence_points.get(stop.idx) not in GATHERING:
                stop = stop.ipdom
            region = self._region(block, stop or self.cfg.exit)
        for b in region:
            if b is not self.cfg.exit:
                self.masked.add(b.idx)

    @staticmethod
    def _region(block: Block, stop: Block | None) -> set[Block]:
        """The blocks that can be reached from a branch before `stop`."""
        stack = list(block.succs)
        seen: set[Block] = set()
        while stack:
            b = stack.pop()
            if b is stop or b in seen:
                continue
            seen.add(b)
            stack.extend(b.succs)
        return seen

    def active_convergence_points(self) -> dict[int, str]:
        """The convergence points at which lanes may really arrive one after the other."""
        if not self.delayed:
            return {}
        targets = {e.target.idx for e in self.edges}
        return {i: kind for i, kind in self.convergence_points.items() if i in targets and (kind in GATHERING or i in self.masked)}

    def _find_waits(self) -> None:
        """Recomputes the edges at whose ends lanes may wait, and from them `waits`."""
        cfg = self.cfg
        order = cfg.order
        edges: list[Edge] = []
        self.resume = []
        for block in order:
            if block.idx not in self.diverging and block.idx not in self.masked:
                continue
            for succ in block.succs:
                if succ.idx > block.idx:
                    first = block.idx + 1
                    loop = cfg.loop_of[block.idx]
                    while loop is not None and loop.last < succ.idx:
                        first = loop.first
                        loop = loop.parent
                    # A jump into a loop's middle from before it waits through the loop's earlier blocks too: they are between the two.
                    edges.append(Edge(block, succ, first, succ.idx - 1))
                else:
                    target = cfg.loop_of[block.idx]
                    while target is not None and target.first != succ.idx:
                        target = target.parent
                    last = target.last if target is not None else len(order) - 1
                    if target is not None and succ.idx in self.spin_loops and block.idx in self.masked:
                        last = len(order) - 1
                        if (target, succ) not in self.resume:
                            self.resume.append((target, succ))
                    edges.append(Edge(block, succ, block.idx + 1, last))
        for loop, head in self.resume:  # lanes put off in a waiting loop: anything may run meanwhile, from the loop's start
            edges.append(Edge(order[loop.last], head, loop.last + 1, len(order) - 1))
        self.edges = edges
        waits = [0] * len(order)
        by_target: dict[int, list[tuple[int, int]]] = {}
        for edge in edges:
            if edge.target.live_in and edge.first <= edge.last:
                by_target.setdefault(edge.target.idx, []).append((edge.first, edge.last))
        for number, spans in by_target.items():
            live = order[number].live_in
            spans.sort()
            done = -1
            for first, last in spans:
                for i in range(max(first, done + 1), last + 1):
                    waits[i] |= live
                done = max(done, last)
        late = 0  # what lanes may still read that wait where they were put off: everywhere but where all lanes are together
        for _, head in self.resume:
            late |= head.live_in
        for number in self.active_convergence_points():
            late |= order[number].live_in
        self.waits = [w | (late if i in self.masked else 0) for i, w in enumerate(waits)]


def _pair_second(ins: Ins) -> tuple[str, ...]:
    first = ins.ops[0]
    second = getattr(first, "second", None)
    return (second.name,) if isinstance(second, Reg) else ()
