"""What the emitter must know before it writes code: which blocks may run with only some of a warp's lanes, which registers vary between lanes, and
which of those follow a lane pattern.

Lanes that a divergent branch sent elsewhere *wait* at a block while others run. For each block, `waits` is the set of registers that some waiting
lane may still read: only those need their old value kept when the block writes them. A register that only running lanes can read is overwritten, so a
loop counter stays one scalar though lanes leave the loop at different times.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuvirt.soft.analysis import lane_affine, subwarp_scalars
from gpuvirt.soft.analysis.cfg import Block, Cfg, Loop
from gpuvirt.soft.analysis.convergence_points import find_meetings
from gpuvirt.soft.analysis.lane_affine import ANY, UNIFORM, Known, Pattern
from gpuvirt.soft.analysis.spin_loops import find_loops
from gpuvirt.soft.analysis.sync_kinds import GATHERING, OPEN
from gpuvirt.soft.ptx.opcodes import Formula, Varies
from gpuvirt.soft.ptx.parser import CARRY, Addr, FloatImm, Imm, Ins, Name, Operand, Pair, Reg, Special, Sym, Vec
from gpuvirt.soft.ptx.types import LANES, TYPES

_VARYING_SPECIALS = ("%tid", "%laneid", "%lanemask")
_INTEGER = "busx"
_LOGIC = (Formula.AND, Formula.OR, Formula.XOR)
_FOLLOWED = (*_LOGIC, Formula.ADD, Formula.SUB, Formula.MUL, Formula.MAD, Formula.SHL, Formula.SHR)


class Edge:
    """Lanes may wait at `target` after leaving `source`, while the blocks `first`..`last` of the order run."""

    __slots__ = ("first", "last", "source", "target")

    def __init__(self, source: Block, target: Block, first: int, last: int) -> None:
        self.source, self.target, self.first, self.last = source, target, first, last


class Analysis:
    """Divergence, uniformity and patterns of one function for one block shape."""

    def __init__(
        self, cfg: Cfg, shape: tuple[int, int, int], param_names: set[str], forced: set[str] | None = None, assumed: dict[str, int] | None = None
    ) -> None:
        self.cfg = cfg
        self.assumed = assumed or {}  # registers whose value is taken for granted (stride_versions.py)
        self.body = cfg.body
        self.shape = shape
        self.is_kernel = cfg.body.func.is_kernel
        self.param_names = param_names
        # First blocks of the loops that may wait for memory to change, and of those whose lanes may wait for one another.
        self.waiting_loops, self.spin_loops = find_loops(cfg)
        self.meetings = find_meetings(cfg)
        # Comparisons of values that differ between lanes, in a known way, and have one result for all of them.
        self.one_sided: set[int] = set()
        while True:
            self.varying: set[str] = set(forced or ())
            self.edges: list[Edge] = []
            self.resume: list[tuple[Loop, Block]] = []
            self.diverging: set[int] = set()
            self.apart = False  # lanes may be put off while others go on
            for block in cfg.order:
                block.div, block.waits = False, 0
            self._spread()
            self.patterns: dict[str, Pattern] = {}
            self.affine: dict[str, tuple[int, ...]] = {}
            self._patterns()
            # With fewer branches that diverge more is known: once more.
            found = self._one_sided()
            if found <= self.one_sided:
                break
            self.one_sided |= found
        self.grouped = subwarp_scalars.find(cfg, self.patterns)  # registers that are kept as one scalar for each group of so many lanes

    # Divergence ------------------------------------------------------------------------------------------------------------------------------

    def operand_varies(self, operand: Operand) -> bool:
        if isinstance(operand, Reg):
            return operand.name in self.varying
        if isinstance(operand, Special):
            if not operand.name.startswith(_VARYING_SPECIALS):
                return False
            known = lane_affine.special(operand.name, self.shape)
            return not (isinstance(known, Pattern) and known.flat)
        if isinstance(operand, Vec):
            return any(self.operand_varies(o) for o in operand.items)
        if isinstance(operand, Addr):
            return self.operand_varies(operand.base)
        if isinstance(operand, (Imm, FloatImm, Name)):
            return False
        if hasattr(operand, "first"):
            return self.operand_varies(operand.first) or self.operand_varies(operand.second)  # type: ignore[attr-defined]
        if hasattr(operand, "reg"):
            return self.operand_varies(operand.reg)
        return isinstance(operand, Sym) and not self.is_kernel and operand.name in self.param_names

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
            return not self.broadcast(ins) and (self.operand_varies(ins.ops[1]) or isinstance(ins.ops[0], Pair))
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

    def broadcast(self, ins: Ins) -> bool:
        """A shuffle that gives every lane the value of one lane."""
        clamp = self.constant(ins.ops[3])
        return "idx" in ins.mods and not self.operand_varies(ins.ops[2]) and clamp is not None and clamp & 0x1F00 == 0

    def constant(self, operand: Operand) -> int | None:
        return operand.value if isinstance(operand, Imm) else None

    def _spread(self) -> None:
        cfg, index = self.cfg, self.cfg.reg_index
        order = cfg.order
        varying = self.varying
        changed = True
        while changed:
            changed = False
            self._waits()
            for block in order:
                for ins in block.ins:
                    dsts = ins.dsts
                    if not dsts:
                        continue
                    varies = (ins.pred is not None and ins.pred in varying) or self.result_varies(ins)
                    for dst in dsts:
                        if dst not in varying and (varies or block.waits >> index[dst] & 1):
                            same = ins.traits.varies is Varies.ELECTED and dst not in _pair_second(ins) and not self.groups_vary(ins)
                            if same and not block.waits >> index[dst] & 1:
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
        if spins or any(self.meetings.get(b.idx) in OPEN for b in region):
            # Lanes may be put off there and come back late: only what the whole warp does at once brings them together.
            self.apart = True
            stop = block.ipdom
            while stop is not None and stop is not self.cfg.exit and self.meetings.get(stop.idx) not in GATHERING:
                stop = stop.ipdom
            region = self._region(block, stop or self.cfg.exit)
        for b in region:
            b.div = b is not self.cfg.exit

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

    def active_meetings(self) -> dict[int, str]:
        """The meetings at which lanes may really arrive apart."""
        if not self.apart:
            return {}
        targets = {e.target.idx for e in self.edges}
        return {i: kind for i, kind in self.meetings.items() if i in targets and (kind in GATHERING or self.cfg.order[i].div)}

    def _waits(self) -> None:
        """Recomputes the edges at whose ends lanes may wait, and from them every block's `waits`."""
        cfg = self.cfg
        order = cfg.order
        edges: list[Edge] = []
        self.resume = []
        for block in order:
            if block.idx not in self.diverging and not block.div:
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
                    if target is not None and succ.idx in self.spin_loops and block.div:
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
        for number in self.active_meetings():
            late |= order[number].live_in
        for block in order:
            block.waits = waits[block.idx] | (late if block.div else 0)

    # Patterns --------------------------------------------------------------------------------------------------------------------------------

    def _patterns(self) -> None:
        cfg, index = self.cfg, self.cfg.reg_index
        regs = self.body.regs
        known: dict[str, Known] = {}
        self._known: dict[str, Known] = {}
        defs: dict[str, list[tuple[Block, Ins]]] = {}
        for block in cfg.order:
            for ins in block.ins:
                for dst in ins.dsts:
                    defs.setdefault(dst, []).append((block, ins))
        barred: set[str] = set()
        for name, number in self.assumed.items():
            known[name] = lane_affine.constant(number)
            del defs[name]
        for name, sites in defs.items():
            if regs[name].kind not in _INTEGER or regs[name].bits < 16:
                known[name] = None
                continue
            for block, ins in sites:
                if block.waits >> index[name] & 1 or (ins.pred is not None and ins.pred in self.varying):
                    barred.add(name)
            known[name] = None if name in barred else ANY
        for name in regs:
            known.setdefault(name, UNIFORM if name not in self.varying else None)

        def get(operand: Operand) -> Known:
            if isinstance(operand, Reg):
                found = known.get(operand.name)
                if found is None and operand.name not in self.varying:
                    return UNIFORM
                return found
            if isinstance(operand, Imm):
                return lane_affine.constant(operand.value)
            if isinstance(operand, Special):
                return lane_affine.special(operand.name, self.shape)
            if isinstance(operand, Sym):
                return None if self.operand_varies(operand) else Pattern(LANES, lane_affine.ZERO, 16 if operand.offset % 16 == 0 else 1)
            return None if self.operand_varies(operand) else UNIFORM

        for _round in range(60):
            changed = False
            for name, sites in defs.items():
                old = known[name]
                if old is None:
                    continue
                new: Known = ANY
                for _, ins in sites:
                    value = self._transfer(ins, get) if len(ins.dsts) == 1 else None
                    if value is None and name not in self.varying:
                        value = UNIFORM
                    if value == ANY:
                        continue
                    if value is None:
                        new = None
                        break
                    assert isinstance(value, Pattern)
                    new = value if new == ANY else lane_affine.join(new, value)  # type: ignore[arg-type]
                    if new is None:
                        break
                if new is not None and new != ANY and isinstance(old, Pattern):
                    new = lane_affine.join(old, new)  # type: ignore[arg-type]
                if new != old:
                    known[name] = new
                    changed = True
            if not changed:
                break
        else:
            return
        self._known = known
        for name, value in known.items():
            if not isinstance(value, Pattern) or name not in self.varying:
                continue
            steps = tuple(s - value.steps[i // value.group * value.group] for i, s in enumerate(value.steps))
            self.patterns[name] = Pattern(value.group, steps, value.align)
            if value.group == LANES:
                self.affine[name] = steps

    def _transfer(self, ins: Ins, get: Callable[[Operand], Known]) -> Known:
        """The pattern of an instruction's result."""
        formula, mods, ops = ins.traits.formula, ins.mods, ins.ops
        if len(ops) < 2 or isinstance(ops[0], (Vec, Addr)) or isinstance(ops[1], (Vec, Addr)) or not mods:
            return None
        if formula is Formula.ADDRESS:
            return None if "local" in mods else get(ops[1])
        if mods[-1] not in TYPES:
            return None
        t = TYPES[mods[-1]]
        if formula is Formula.COPY:
            return get(ops[1]) if t.kind in _INTEGER else None
        if formula is Formula.CONVERT:
            to = TYPES.get(mods[-2]) if len(mods) > 1 else None
            if to is None or t.kind not in "us" or to.kind not in "us" or "sat" in mods or t.bits < 16 or to.bits < 16:
                return None
            p = get(ops[1])
            if not isinstance(p, Pattern):
                return p
            if to.bits > t.bits and not lane_affine.widens(p, t.bits, t.kind == "s"):
                return None
            if isinstance(ops[0], Reg) and self.body.regs[ops[0].name].bits > to.bits and not lane_affine.widens(p, to.bits, to.kind == "s"):
                return None
            return p
        if t.kind not in "bus" or t.bits < 16:
            return None
        if formula not in _FOLLOWED:
            return None
        if "cc" in mods or "sat" in mods or "hi" in mods or "x2" in mods:
            return None
        a, b = get(ops[1]), get(ops[2])
        if a is None or b is None:
            return None
        if not isinstance(a, Pattern) or not isinstance(b, Pattern):
            return ANY
        if formula is Formula.ADD:
            return lane_affine.add(a, b)
        if formula is Formula.SUB:
            return lane_affine.add(a, b, -1)
        if formula in (Formula.MUL, Formula.MAD):
            if "wide" in mods and not (lane_affine.widens(a, t.bits, t.kind == "s") and lane_affine.widens(b, t.bits, t.kind == "s")):
                return None
            product = lane_affine.multiply(a, b)
            if product is None or formula is Formula.MUL:
                return product
            addend = get(ops[3])
            if not isinstance(addend, Pattern):
                return addend
            return lane_affine.add(product, addend)
        c = b.constant
        if formula in _LOGIC and c is None and a.constant is not None:
            a, c = b, a.constant
        if c is None:
            return lane_affine.disjoint(a, b) if formula is not Formula.AND and formula in _LOGIC else None
        if formula is Formula.SHL:
            return lane_affine.shift_left(a, c) if 0 <= c < t.bits else None
        if formula is Formula.SHR:
            return lane_affine.shift_right(a, c, t.bits, t.kind == "s") if 0 <= c < t.bits else None
        if formula is Formula.AND:
            return lane_affine.bit_and(a, c, t.bits)
        return lane_affine.bit_or(a, c, t.bits, formula is Formula.XOR)

    def _one_sided(self) -> set[int]:
        """The comparisons with a constant that all lanes answer alike (of the values that do differ between lanes)."""
        found = set()
        for block in self.cfg.order:
            for ins in block.ins:
                if ins.traits.formula is not Formula.COMPARE or len(ins.ops) != 3 or len(ins.dsts) != 1 or ins.dsts[0] not in self.varying:
                    continue
                if not isinstance(ins.ops[1], Reg):
                    continue
                t = TYPES.get(ins.mods[-1])
                c, p = self._constant(ins.ops[2]), self._known.get(ins.ops[1].name)
                if t is None or t.kind not in "bus" or t.bits < 32 or c is None or not isinstance(p, Pattern) or ins.ops[1].name not in self.affine:
                    continue
                name, signed = ins.mods[0], t.kind == "s" and ins.mods[0] in ("lt", "le", "gt", "ge")
                c = c if signed else c & ((1 << t.bits) - 1)
                if name in ("lt", "ge", "lo", "hs"):
                    good = lane_affine.same_side(p, c, t.bits, signed)
                elif name in ("gt", "le", "hi", "ls"):
                    good = lane_affine.same_side(p, c + 1, t.bits, signed)
                else:
                    good = name in ("eq", "ne") and lane_affine.never_equal(p, c, t.bits)
                if good:
                    found.add(id(ins))
        return found

    def _constant(self, operand: Operand) -> int | None:
        if isinstance(operand, Reg):
            p = self._known.get(operand.name)
            return p.constant if isinstance(p, Pattern) else None
        return self.constant(operand)


def _pair_second(ins: Ins) -> tuple[str, ...]:
    first = ins.ops[0]
    second = getattr(first, "second", None)
    return (second.name,) if isinstance(second, Reg) else ()
