"""Lane fallback (independent thread scheduling).

Where a warp waits for itself, its lanes leave the code for 32 lanes and go on in code for one (class LaneEmitter), each on a stack of its own. They
are kept in step as a GPU keeps them: before each instruction that others notice a lane says where it is, and the engine lets lanes run so that those
that a branch divided reconverge where their ways join. That is the last resort: it serves every program, at the speed of one lane.

Vector code leaves at a loop that waits for memory to change, once some lanes have waited there for long while others wait elsewhere (loop_check). It
writes down what each lane needs to go on: the block at which it waits, and the registers that may be read from there. Code for one lane begins with
that block. In calls under way each function writes down its own part and returns to its caller (native/backend/soft/engine/lanes.c has the rest).
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Cfg, Loop
from gpuvirt.soft.analysis.sync_kinds import OPEN, noticed, reads_again
from gpuvirt.soft.codegen.control_flow import ControlFlow, LaneFallback
from gpuvirt.soft.codegen.emitter import SPIN_YIELD, Emitter
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.symbols import function_symbol, lane_symbol
from gpuvirt.soft.errors import Unsupported
from gpuvirt.soft.ptx.opcodes import BARRIERS, OPCODES, Access, Flow, Sync
from gpuvirt.soft.ptx.parser import Addr, Call, Ins, Name, Operand, Sym
from gpuvirt.soft.ptx.types import INT_BITS, LANES

W = Val("%w", "ptr")
V32 = f"<{LANES} x i32>"
_BLOCKS = 64  # where a frame has each lane's block, and where its values begin
_VALUES = _BLOCKS + 4 * LANES
CALLING = 1 << 30  # beside a block's number: the lane is inside the call that the block begins with
PASSED = 1 << 29  # the lane has passed the barrier that the block begins with
_AREA_VALUES = 144  # AREA_VALUES in lanes.c
_BARRIERS = (*BARRIERS, Sync.ARRIVE, Sync.CLUSTER, Sync.WARPGROUP)
_COLLECTIVE = (Sync.EXCHANGE, Sync.MEMBERS, Sync.WARP)  # what lanes do together, lanes at the same opcode
_KEYS = [name for name, row in OPCODES.items() if any(t.sync in _COLLECTIVE for t in row.all)]
_SYNC, _ARRIVE, _CLUSTER_ARRIVE, _CLUSTER_WAIT, _WARPGROUP = 3, 4, 5, 6, 7


_NO_LOOP = -1
LOOPS = "lane.loops"


def _stored(bits: int) -> int:
    """Bits of a register's lane in a frame: predicates take a byte."""
    return max(bits, 8)


class Frame(LaneFallback):
    """What a function writes down when lanes leave the code for 32: where it keeps which register, and at which blocks lanes may then be."""

    def __init__(self, cfg: Cfg) -> None:
        self.cfg = cfg
        self.offsets: dict[str, int] = {}
        self.size = _VALUES
        self.blocks: set[int] = set()
        self.passed: set[int] = set()  # those of them that begin with a barrier which lanes may have passed

    def place(self, name: str, lane_bytes: int) -> int:
        """Where the lanes' values of a register, or of a parameter's memory, lie."""
        if name not in self.offsets:
            self.offsets[name] = self.size
            self.size += -(-lane_bytes * LANES // 64) * 64
        return self.offsets[name]

    def live(self, blocks: set[int]) -> list[str]:
        """The registers that are read from these blocks on."""
        live = 0
        for number in blocks:
            live |= self.cfg.order[number].live_in
        return [name for name, i in self.cfg.reg_index.items() if live >> i & 1]

    def call(self, e: ControlFlow, text: str) -> None:
        call(e, self, text)

    def exchange_check(self, e: ControlFlow, block: Block) -> None:
        exchange_check(e, self, block)

    def loop_check(self, e: ControlFlow, loop: Loop, bits: Val, again: Val, after: str) -> None:
        loop_check(e, self, loop, bits, again, after)

    def prologue(self) -> list[str]:
        return [f"  %frame.bytes = add i64 {self.size}, 0"] if self.blocks else []

    def pending(self, e: ControlFlow, position: int, around: Loop | None) -> list[int]:
        return pending(e, position, around)


def pending(e: ControlFlow, position: int, around: Loop | None) -> list[int]:
    """Blocks at which lanes may be behind a block, inside the loop `around`."""
    if e.an.resume or e.convergence_points:
        return sorted(e.targets)
    found = {t for t in e.waiting_ahead[position] if t > position and t != e.cfg.exit.idx}
    while around is not None:
        if around.first in e.looped:
            found.add(around.first)
        around = around.parent
    return sorted(found)


def loop_check(e: ControlFlow, frame: Frame, loop: Loop, bits: Val, again: Val, after: str) -> None:
    """Behind the last block of a loop that waits for memory to change: another round for the lanes that stay in it, or, now and then, a question."""
    e.uses_barrier = e.waits = True
    n = e.n = e.n + 1
    zero = e.const(0, "i32")
    counter = f"s{loop.first}"
    e.emit(f"br i1 {again.s}, label %stay{n}, label %gone{n}")
    e.lines.append(f"stay{n}:")
    count = e.spin_counter(counter)
    turn = e.icmp("eq", e.band(count, e.const(SPIN_YIELD - 1, "i32")), zero)
    e.emit(f"br i1 {turn.s}, label %ask{n}, label %b{loop.first}")
    e.lines.append(f"gone{n}:")
    e.emit(f"store i32 0, ptr %{counter}")
    e.emit(f"br label %{after}")
    e.lines.append(f"ask{n}:")
    at = pending(e, loop.last, loop)
    where = {t: e.let(f"load i32, ptr {e.mask_slot(e.cfg.order[t])}", "i32") for t in at if t != loop.first}
    long = e.call("soft_spin_wait", "i32", [W, e.lshr(count, e.const(SPIN_YIELD.bit_length() - 1, "i32"))], declare=True)
    others = zero
    for mask in where.values():
        others = e.bor(others, mask)
    if not e.func.is_kernel:  # whoever has not come along may hold what is waited for
        others = e.bor(others, e.band(e.invert(bits), e.field("lanes", "i32")))
    where[loop.first] = bits
    leave = e.band(e.icmp("ne", long, zero), e.icmp("ne", others, zero))
    e.emit(f"br i1 {leave.s}, label %diverged{n}, label %b{loop.first}")
    e.lines.append(f"diverged{n}:")
    write_frame(e, frame, where)
    depart(e)


def exchange_check(e: ControlFlow, frame: Frame, block: Block) -> None:
    """Before an exchange between some lanes of the warp: they leave for code of one lane when it names others that are elsewhere, for those may
    come to another place like it."""
    others = e.const(0, "i32")
    where = {}
    for number in pending(e, block.idx, e.cfg.loop_of[block.idx]):
        if number != block.idx:
            where[number] = e.let(f"load i32, ptr {e.mask_slot(e.cfg.order[number])}", "i32")
            others = e.bor(others, where[number])
    bits = where[block.idx] = e.let(f"load i32, ptr {e.mask_slot(block)}", "i32")
    e.ins, e.pred, e.lead = block.ins[0], None, False
    named = e.rd_int(block.ins[0].ops[-1], 32)
    missing = e.icmp("ne", e.band(named, others), e.const(0, "i32"))
    if missing.v:
        missing = e.icmp("ne", e.band(e.bits_of(missing), bits), e.const(0, "i32"))
    n = e.n = e.n + 1
    e.emit(f"br i1 {missing.s}, label %diverged{n}, label %all{n}")
    e.lines.append(f"diverged{n}:")
    write_frame(e, frame, where)
    depart(e)
    e.reset()
    e.lines.append(f"all{n}:")


def call(e: ControlFlow, frame: Frame, text: str) -> None:
    """A call of a function in which lanes may leave."""
    left = e.let(f"call i1 {text}", "i1")
    n = e.n = e.n + 1
    e.emit(f"br i1 {left.s}, label %diverged{n}, label %back{n}")
    e.lines.append(f"diverged{n}:")
    before = dict(e.cache), dict(e.expanded), dict(e._splats), dict(e._casts)
    number = e.block.idx
    where = {t: e.let(f"load i32, ptr {e.mask_slot(e.cfg.order[t])}", "i32") for t in pending(e, number, e.cfg.loop_of[number])}
    if number in where and e.block.idx not in e.an.masked:
        del where[number]
    calling = e.bits_of(e.mask)
    if e.calls_left is not None:  # lanes that call other functions, later
        rest = e.let(f"load i32, ptr {e.calls_left.s}", "i32")
        calling = e.band(calling, e.invert(rest))
        where[number] = e.bor(where[number], rest) if number in where else rest
    write_frame(e, frame, where, calling)
    depart(e)
    e.lines.append(f"back{n}:")
    e.cache, e.expanded, e._splats, e._casts = before


def _call_memory(e: ControlFlow, number: int) -> list[tuple[str, Val, int]]:
    """What a block has in memory when its first instruction, a call, is under way, and what a block reads: names, memory and bytes of a lane."""
    found: dict[str, tuple[str, Val, int]] = {}
    for ins in e.cfg.order[number].ins:
        names: list[str] = []
        if isinstance(ins.args, Call):
            names = [*ins.args.returns, *(a.name for a in ins.args.args if isinstance(a, (Name, Sym)))]
        elif ins.traits.access is Access.LOAD and isinstance(ins.ops[1], Addr) and isinstance(ins.ops[1].base, Sym):
            names = [ins.ops[1].base.name]
        for name in names:
            if name in e.body.params:
                slot = e.param_memory(name)
                assert slot is not None
                found[name] = (f"param.{name}", *slot)
    return list(found.values())


def write_frame(e: ControlFlow, frame: Frame, where: dict[int, Val], calling: Val | None = None) -> None:
    """Writes down where the lanes are (masks of lanes by block; those inside the call that this block begins with) and what they need."""
    here = {e.block.idx} if calling is not None else set()
    frame.blocks |= set(where) | here
    names = frame.live(set(where) | here)
    memory = e.let("call ptr @soft_fallback_frame(ptr %w, i64 %frame.bytes)", "ptr")
    e.m.declare("soft_fallback_frame", "declare ptr @soft_fallback_frame(ptr, i64)")
    blocks = Val("splat (i32 -1)", "i32", True, True)  # has ended, or come back from the function
    for number, bits in where.items():
        blocks = e.select(e.mask_of(bits), e.const(number, "i32"), blocks)
        if e.convergence_points.get(number) in OPEN:
            frame.passed.add(number)
            passed = e.band(bits, e.let("load i32, ptr %passed", "i32"))
            blocks = e.select(e.mask_of(passed), e.const(number | PASSED, "i32"), blocks)
    if calling is not None:
        blocks = e.select(e.mask_of(calling), e.const(e.block.idx | CALLING, "i32"), blocks)
    e.emit(f"store {V32} {e.splat(blocks).s}, ptr {e.offset(memory, _BLOCKS).s}, align 4")
    for name in names:
        value = e.splat(e.get_lanes(name))
        if value.t == "i1":
            value = e.cast("zext", value, "i8")
        place = e.offset(memory, frame.place(name, INT_BITS[value.t] // 8))
        e.emit(f"store {value.ty} {value.s}, ptr {place.s}, align 8")
    pieces = {key: (slot, size) for number in sorted(set(where) | here) for key, slot, size in _call_memory(e, number)}
    if calling is not None:
        for i, slot in enumerate(e.call_results):
            pieces[f"result.{e.block.idx}.{i}"] = (slot, 8)
    for key, (slot, size) in pieces.items():
        _copy(e, e.offset(memory, frame.place(key, size)), slot, size)


def _copy(e: ControlFlow, to: Val, source: Val, lane_bytes: int) -> None:
    e.m.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    e.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {to.s}, ptr {source.s}, i64 {lane_bytes * LANES}, i1 false)")


def depart(e: ControlFlow) -> None:
    if e.func.is_kernel:
        e.m.declare("soft_fall_back", "declare void @soft_fall_back(ptr, ptr)")
        e.emit(f"call void @soft_fall_back(ptr %w, ptr @{lane_symbol(e.symbol)})")
        e.emit("br label %run.out" if e.loops else "ret void")
    else:
        e.emit("ret i1 true")


# Code for one lane -----------------------------------------------------------------------------------------------------------------------------


class Points:
    """The numbers of a module's points (instructions that others notice) and loops, in the order in which they are written."""

    def __init__(self) -> None:
        self.count = 0
        self.loops: list[tuple[int, int, int]] = []  # first and last point, the loop around it

    def table(self) -> str:
        """The loops as the engine wants them (struct soft_lane_loop)."""
        rows = ", ".join(f"[3 x i32] [i32 {first}, i32 {last}, i32 {outer}]" for first, last, outer in self.loops)
        return f"@{LOOPS} = internal constant [{len(self.loops)} x [3 x i32]] {f'[{rows}]' if rows else 'zeroinitializer'}"


class LaneEmitter(Emitter):
    """Writes a function for one lane of a warp: the warp that it gets has no other."""

    def begin(self, frame: Frame, points: Points) -> LaneEmitter:
        self.left = frame
        self.points = points
        self.first_loop = len(points.loops)
        self.first_points: dict[int, int] = {}  # of the blocks
        self.since = {"r", "w"}  # how the lane has been noticed since the last point
        self.full_warp = False
        self.met: Val | None = None
        self.results: dict[str, Val] = {}
        return self

    def signature(self) -> str:
        return super().signature() + ", ptr %from"

    def setup(self) -> None:
        lanes = self.field("lanes", "i32")
        self.m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
        self.lane = self.once("lane", f"call i32 @llvm.cttz.i32(i32 {lanes.s}, i1 false)", "i32")
        super().setup()

    def first(self) -> list[str]:
        """The function's beginning, or where the lane was in vector code."""
        lines, self.lines = self.lines, []
        self.forget()
        if self.func.is_kernel:
            self.call("soft_lane_begin", "void", [W, Val(f"@{LOOPS}", "ptr")], declare=True)
        else:
            self.call("soft_lane_enter", "void", [W], declare=True)
        self.allocas.append("  %inner = alloca ptr")
        self.prologue.append("  store ptr null, ptr %inner")
        self.emit("%fresh = icmp eq ptr %from, null")
        self.emit("br i1 %fresh, label %b0, label %resume")
        self.lines.append("resume:")
        where = self.let(f"getelementptr i32, ptr {self.offset(Val('%from', 'ptr'), _BLOCKS).s}, i32 {self.lane.s}", "ptr")
        block = self.let(f"load i32, ptr {where.s}", "i32")
        gone = self.icmp("eq", block, self.const(-1, "i32"))
        self.emit(f"br i1 {gone.s}, label %done, label %resume.here")
        self.lines.append("resume.here:")
        for name, offset in self.left.offsets.items():
            piece = name.partition(".")[2] if name.startswith("param.") else None
            if piece is not None or name in self.results:
                memory = self.param_slots[piece] if piece is not None else self.results[name]
                size = self.body.params[piece].size if piece is not None else 8
                _copy(self, memory, self.offset(Val("%from", "ptr"), offset), size)
                continue
            text, t = self.slot(name)
            bits = _stored(INT_BITS[t])
            place = self.let(f"getelementptr i{bits}, ptr {self.offset(Val('%from', 'ptr'), offset).s}, i32 {self.lane.s}", "ptr")
            value = self.let(f"load i{bits}, ptr {place.s}", f"i{bits}")
            self.emit(f"store {t} {self.resize(value, t).s}, ptr {text}")
        inner = self.let("load ptr, ptr %from", "ptr")
        calling = self.icmp("ne", self.band(block, self.const(CALLING, "i32")), self.const(0, "i32"))
        self.emit(f"store ptr {self.select(calling, inner, Val('null', 'ptr')).s}, ptr %inner")
        if self.left.passed:
            self.allocas.append("  %skip = alloca i32")
            self.prologue.append("  store i32 0, ptr %skip")
            self.emit(f"store i32 {self.band(block, self.const(PASSED, 'i32')).s}, ptr %skip")
        number = self.band(block, self.const(PASSED - 1, "i32"))
        cases = " ".join(f"i32 {n}, label %b{n}" for n in sorted(self.left.blocks))
        self.emit(f"switch i32 {number.s}, label %done [ {cases} ]")
        out, self.lines = self.lines, lines
        return out

    def run(self) -> str:
        loops = self.cfg.loops
        numbers = {loop.first: self.first_loop + i for i, loop in enumerate(loops)}
        outer = [_NO_LOOP if loop.parent is None else numbers[loop.parent.first] for loop in loops]
        self.loop_numbers = numbers
        self.points.loops += [(0, 0, _NO_LOOP)] * len(loops)
        text = super().run()
        behind = {**self.first_points, self.cfg.exit.idx: self.points.count + 1}
        self.points.loops[self.first_loop :] = [
            (behind[loop.first], behind[loop.last + 1] - 1, around) for loop, around in zip(loops, outer, strict=True)
        ]
        return text

    def emit_block(self, block: Block) -> None:
        self.first_points[block.idx] = self.points.count + 1
        self.since = {"r", "w"}
        super().emit_block(block)

    def returns(self) -> str:
        if self.func.is_kernel:
            return "ret void"
        self.m.declare("soft_lane_leave", "declare void @soft_lane_leave(ptr)")
        return "call void @soft_lane_leave(ptr %w)\n  ret void"

    def point(self, acts: bool) -> None:
        """The next instruction is one that others notice: the lane does it when it is its turn."""
        loop = self.cfg.loop_of[self.block.idx]
        number = self.points.count = self.points.count + 1
        around = _NO_LOOP if loop is None else self.loop_numbers[loop.first]
        place = [self.const(number, "i32"), self.const(around, "i32"), self.const(int(acts), "i32")]
        self.call("soft_lane_point", "void", [W, *place], declare=True)
        self.since = set()

    def preemption_point(self, ins: Ins) -> None:
        """A lane has points of its own, and between any two of them other warps may run."""

    def spin_yield(self, block: Block) -> None:
        self.uses_barrier = self.waits = True
        for head in block.succs:
            if head.idx <= block.idx and head.idx in self.an.waiting_loops:
                self.call("soft_lane_spin_round", "void", [W, self.const(self.loop_numbers[head.idx], "i32")], declare=True)

    def call_function(self, name: str, arguments: list[str]) -> None:
        for i, memory in enumerate(self.call_results):
            self.results[f"result.{self.block.idx}.{i}"] = memory
        inner = self.let("load ptr, ptr %inner", "ptr")
        self.emit("store ptr null, ptr %inner")
        self.emit(f"call void @{lane_symbol(function_symbol(name))}({', '.join([*arguments, f'ptr {inner.s}'])})")

    def own(self, value: Val) -> Val:
        """The lane's own value."""
        return self.extract(value, self.lane) if value.v else value

    def put(self, name: str, value: Val) -> None:
        value = self.own(value)
        if self.met is not None:  # the results of an exchange belong to those who took part
            value = self.select(self.met, value, self.own(self.get(name)))
        super().put(name, value)

    def special(self, name: str) -> Val:
        return self.own(super().special(name))

    def instruction(self, ins: Ins) -> None:
        if ins.traits.sync in _BARRIERS:
            self.point(True)
            self.barrier(ins)
        elif ins.traits.sync in _COLLECTIVE:
            self.point(True)
            self.exchange(ins)
        elif ins.traits.sync is Sync.OBSERVE:
            self.point(False)
            self.observe(ins)
        else:
            how = noticed(ins)
            if how and (how == "w" or "w" in self.since) and self.since:
                self.point(ins.traits.access in (Access.STORE, Access.WRITES) and not reads_again(ins))
            super().instruction(ins)
            self.since |= {"r", "w"} if ins.traits.flow is Flow.CALL else set(how)

    def _guard(self, ins: Ins) -> Val | None:
        if ins.pred is None:
            return None
        value = self.get(ins.pred)
        return self.invert(value) if ins.neg else value

    def exchange(self, ins: Ins) -> None:
        """An instruction in which lanes take part together: each writes down its registers, and does all of it."""
        self.ins, self.pred = ins, None
        guard = self._guard(ins)
        named = self._named(ins)
        if guard is not None:
            named = self.select(guard, named, self.const(0, "i32"))
        names = list(dict.fromkeys(s for s in ins.srcs if s != ins.pred))
        if len(names) > _AREA_VALUES:
            raise Unsupported(f"unsupported PTX instruction '{ins}': too many operands")
        area = self.call("soft_lane_exchange_area", "ptr", [W], declare=True)
        for i, name in enumerate(names):
            value = self.resize(self.get(name), "i64")
            place = self.let(f"getelementptr i64, ptr {self.offset(area, 8 * LANES * i).s}, i32 {self.lane.s}", "ptr")
            self.emit(f"store i64 {value.s}, ptr {place.s}")
        met = self.call("soft_lane_exchange_begin", "i32", [W, named, self.const(1 + _KEYS.index(ins.op), "i32")], declare=True)
        before = {name: self.cache.get(name) for name in names}
        for i, name in enumerate(names):
            value = self.let(f"load <{LANES} x i64>, ptr {self.offset(area, 8 * LANES * i).s}, align 8", "i64", True)
            self.cache[name] = self.resize(value, f"i{self.cfg.regs[name].bits}")
        bare = Ins(ins.op, ins.mods, ins.ops, None, False, ins.text)
        bare.dsts, bare.srcs, bare.args = ins.dsts, names, ins.args
        self.mask, self.met = self.mask_of(met), guard
        spread = {name: self.cache[name] for name in names}
        super().instruction(bare)
        self.mask, self.met = self.full, None
        for name, old in before.items():
            if self.cache.get(name) is spread[name] and old is not None:
                self.cache[name] = old
        self.call("soft_lane_exchange_end", "void", [W, met], declare=True)

    def observe(self, ins: Ins) -> None:
        """activemask: the lanes that are kept in step with this one, not this one alone."""
        self.ins, self.pred = ins, None
        guard = self._guard(ins)
        executes = self.const(1, "i32") if guard is None else self.cast("zext", guard, "i32")
        active = self.call("soft_lane_active", "i32", [W, executes], declare=True)
        self.pred = guard
        self.wr(ins.ops[0], active)
        self.pred = None

    def _named(self, ins: Ins) -> Val:
        if "sync" in ins.mods and ins.ops and ins.traits.sync is not Sync.WARP:
            return self.rd_int(ins.ops[-1], 32)
        return self.const(-1, "i32")

    def barrier(self, ins: Ins) -> None:
        """A barrier of the block, the cluster or the warpgroup, at which the warp arrives once all its lanes have."""
        self.ins, self.pred, self.uses_barrier = ins, None, True
        ops: list[Operand] = [] if ins.traits.sync is Sync.WARPGROUP else ins.ops
        zero = self.const(0, "i32")
        if "red" in ins.mods:
            op = next(m for m in ins.mods if m in ("and", "or", "popc"))
            value = self.select(self.rd_pred(ops[-1]), self.const(1, "i32"), zero)
            threads = self.rd_int(ops[2], 32) if len(ops) == 4 else zero
            arguments = [W, self.rd_int(ops[1], 32), threads, self.const(abi.RED[op], "i32"), value]
            result = self.call("soft_lane_barrier", "i32", arguments, declare=True)
            self.wr(ops[0], result if op == "popc" else self.icmp("ne", result, zero))
            return
        number = self.rd_int(ops[0], 32) if ops else zero
        threads = self.rd_int(ops[1], 32) if len(ops) > 1 else zero
        kinds = {Sync.CLUSTER: (_CLUSTER_WAIT, _CLUSTER_ARRIVE), Sync.WARPGROUP: (_WARPGROUP,)}.get(ins.traits.sync, (_SYNC, _ARRIVE))
        kind = self.const(kinds["arrive" in ins.mods], "i32")
        skips = self.block.idx in self.left.passed and ins is self.block.ins[0]
        n = self.n = self.n + 1
        if skips:
            skip = self.icmp("ne", self.let("load i32, ptr %skip", "i32"), zero)
            self.emit("store i32 0, ptr %skip")
            self.emit(f"br i1 {skip.s}, label %skipped{n}, label %sync{n}")
            self.lines.append(f"sync{n}:")
        self.call("soft_lane_barrier", "i32", [W, number, threads, kind, zero], declare=True)
        if skips:
            self.emit(f"br label %skipped{n}")
            self.lines.append(f"skipped{n}:")


__all__ = ["Frame", "LaneEmitter"]
