"""Writes a function's LLVM IR: control flow under lane masks. Registers and operands are in context.py, the opcodes in ops/."""

from __future__ import annotations

from collections.abc import Callable

from gpuvirt.soft import abi
from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Loop
from gpuvirt.soft.analysis.convergence_points import find_divided
from gpuvirt.soft.analysis.sync_kinds import noticed
from gpuvirt.soft.codegen import alignment_checks, convergence, local_stack, preemption, speculative_affine, uniform_branches, warp_loop
from gpuvirt.soft.codegen.control_flow import ControlFlow
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import HANDLERS
from gpuvirt.soft.codegen.symbols import function_symbol
from gpuvirt.soft.errors import Unsupported
from gpuvirt.soft.ptx import opcodes
from gpuvirt.soft.ptx.opcodes import Access, Formula
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import INT_BITS, LANES

SPIN_YIELD = 16  # a waiting loop calls soft_yield every so many rounds
_LONG = 48  # a block of so many instructions is long
_GROUP = 4  # so many results between two groups of loads part them
_MANY = 64  # ... but not more: they do not fit anyway
_COMPUTES = (Formula.FMA, Formula.MAD, Formula.ADD, Formula.SUB, Formula.MUL)
_SPIN_PATIENCE = 64  # after so many rounds in a row the lanes that have left the loop run on first


class Emitter(ControlFlow):
    """Emits one function."""

    def run(self) -> str:
        """The function's text."""
        self.copies = uniform_branches.copied_blocks(self) if self.uniform_copies else set()
        order = self.cfg.order
        self.divided = find_divided(self.cfg, self.convergence_points, self.an.masked) if self.fallback is not None and self.cfg.divided else set()
        self.setup()
        convergence.begin(self)
        ends: dict[int, list[Loop]] = {}
        for loop in self.cfg.loops:
            ends.setdefault(loop.last, []).append(loop)
        for block in order[:-1]:
            self.emit_block(block)
            if block.idx in self.copies:
                self.emit_uniform_copy(block)
            for loop in sorted(ends.get(block.idx, []), key=lambda x: -x.first):
                if loop.first in self.looped:
                    self.emit_loop_check(loop)
        self.reset()
        self.lines.append("done:")
        self.emit_late()
        if not self.func.is_kernel:
            local_stack.leave(self)
        if self.fallback is not None:
            self.prologue += self.fallback.prologue()
        if self.loops:
            first, last = warp_loop.around(self)
        else:
            first, last = [], [f"  {self.returns()}"]
        returned = "i1" if self.leaves() else "void"
        head_text = f"define {self.linkage}{returned} @{self.symbol}({self.signature()}) #{self.attributes} {{\nentry:"
        start = self.first()
        return "\n".join([head_text, *self.allocas, *self.before, *first, *self.prologue, *start, *self.lines, *last, "}"])

    def call_function(self, name: str, arguments: list[str]) -> None:
        """Calls a device function."""
        text = f"@{function_symbol(name)}({', '.join(arguments)})"
        if self.fallback is not None and name in self.cfg.leaving:
            self.fallback.call(self, text)
        else:
            self.emit(f"call void {text}")

    def first(self) -> list[str]:
        """How the function begins, after its prologue."""
        return ["  br label %b0"]

    def emit_late(self) -> None:
        """At the function's end: delayed lanes, of spin loops and convergence points, go on, in turn."""
        late = sorted({head.idx for _, head in self.an.resume} | set(self.convergence_points))
        if not late:
            return
        turn = self.once("turn", "alloca i32", "ptr")
        self.prologue.append(f"  store i32 -1, ptr {turn.s}")
        last = self.let(f"load i32, ptr {turn.s}", "i32")
        pending = [self.icmp("ne", self.let(f"load i32, ptr {self.mask_slot(self.cfg.order[n])}", "i32"), self.const(0, "i32")) for n in late]
        for i, (number, some) in enumerate([*zip(late, pending, strict=True)] * 2):
            if i < len(late):
                some = self.band(some, self.icmp("slt", last, self.const(number, "i32")))
            self.emit(f"br i1 {some.s}, label %delayed{i}, label %delayed{i}.next")
            self.lines.append(f"delayed{i}:")
            self.emit(f"store i32 {number}, ptr {turn.s}")
            self.emit(f"br label %b{number}")
            self.lines.append(f"delayed{i}.next:")

    def signature(self) -> str:
        if self.func.is_kernel:
            return "ptr %w"
        names = [f"ptr %p{i}" for i in range(len(self.func.params) + len(self.func.returns))]
        return ", ".join(["ptr %w", "i32 %mask", "i32 %frame", *names])

    def setup(self) -> None:
        """What every block may rely on: the mask of all lanes of this call, and the stack that `alloca` takes from."""
        if self.func.is_kernel:
            if not self.full_warp:
                bits = self.field("lanes", "i32")
                self.full = self.once("full", f"bitcast i32 {bits.s} to <{LANES} x i1>", "i1", True)
        else:
            self.full = self.once("full", f"bitcast i32 %mask to <{LANES} x i1>", "i1", True)
            for i, param in enumerate(self.func.returns + self.func.params):
                self.param_slots[param.name] = Val(f"%p{i}", "ptr")
            self._check_frame()
        local_stack.enter(self)

    def _check_frame(self) -> None:
        """At the start of a device function: its local variables must fit the lane's local memory."""
        own = self.layout.frames[self.func.name]
        if not self.layout.recursive:
            return
        self.m.declare("soft_trap", "declare void @soft_trap(ptr, i32, i32)")
        # A function without local variables recurses on the host's stack alone, so every call counts for something (frame_after).
        self.prologue.append(f"  %deep = icmp ugt i32 %frame, {self.layout.local_bytes - max(own, 16)}")
        self.prologue.append("  br i1 %deep, label %stack, label %fits")
        self.prologue.append("stack:")
        self.prologue.append(f"  call void @soft_trap(ptr %w, i32 %mask, i32 {abi.TRAP_STACK})")
        self.prologue.append(f"  {self.returns()}")
        self.prologue.append("fits:")

    def emit_block(self, block: Block) -> None:
        self.reset()
        self.block = block
        asked = block.idx in self.targets
        if asked:
            self.lines.append(f"c{block.idx}:")
            bits = self.let(f"load i32, ptr {self.mask_slot(block)}", "i32")
            some = self.icmp("ne", bits, self.const(0, "i32"))
            self.emit(f"br i1 {some.s}, label %b{block.idx}, label %{self.chain(block.idx)}")
        self.lines.append(f"b{block.idx}:")
        if block.idx in self.divided:
            assert self.fallback is not None
            self.fallback.exchange_check(self, block)
        if block.idx in self.convergence_points:
            convergence.emit_point(self, block)
            for ins in block.ins[1:]:
                self.instruction(ins)
            self.terminate(block)
            return
        if block.idx in self.an.masked:
            bits = self.let(f"load i32, ptr {self.mask_slot(block)}", "i32")
            self.emit(f"store i32 0, ptr {self.mask_slot(block)}")
            self.mask = self.mask_of(bits)
        else:
            if block.idx in self.targets:
                self.emit(f"store i32 0, ptr {self.mask_slot(block)}")
            self.mask = self.full
        self.body_of(block)

    def emit_uniform_copy(self, block: Block) -> None:
        """The copy of a block for all lanes together."""
        self.reset()
        self.block, self.mask, self.in_uniform_copy = block, self.full, True
        self.lines.append(f"uniform{block.idx}:")
        self.body_of(block)
        self.in_uniform_copy = False

    def body_of(self, block: Block) -> None:
        self.sides = None
        divides = self.copies and not self.parted and block.pred in self.an.varying
        self.decides = uniform_branches.deciding(block) if divides else None
        for ins in block.ins:
            self.instruction(ins)
        self.terminate(block)

    def emit_loop_check(self, loop: Loop) -> None:
        self.reset()
        head = self.cfg.order[loop.first]
        self.lines.append(f"l{loop.first}:")
        bits = self.let(f"load i32, ptr {self.mask_slot(head)}", "i32")
        again = self.icmp("ne", bits, self.const(0, "i32"))
        after = self.chain(loop.last, loop)
        if self.delays_lanes(loop):
            count = self.spin_counter(f"s{loop.first}")
            patient = self.icmp("ult", count, self.const(_SPIN_PATIENCE, "i32"))
            # Else the lanes that have left go first (they may hold what the others wait for); the function's end brings the others back.
            again = self.band(again, patient)
            self.emit(f"store i32 {self.select(again, count, self.const(0, 'i32')).s}, ptr %s{loop.first}")
        elif self.may_leave(loop):
            assert self.fallback is not None
            self.fallback.loop_check(self, loop, bits, again, after)
            self.reset()
            return
        self.emit(f"br i1 {again.s}, label %b{loop.first}, label %{after}")

    def spin_yield(self, block: Block) -> None:
        """In a loop that waits for memory: lets others run now and then."""
        self.uses_barrier = self.waits = True
        count = self.spin_counter(f"y{block.idx}")
        turn = self.icmp("eq", self.band(count, self.const(SPIN_YIELD - 1, "i32")), self.const(0, "i32"))
        self.m.declare("soft_yield", "declare void @soft_yield(ptr)")
        n = self.n = self.n + 1
        self.emit(f"br i1 {turn.s}, label %yield{n}, label %yielded{n}")
        self.lines.append(f"yield{n}:")
        self.emit("call void @soft_yield(ptr %w)")
        self.emit(f"br label %yielded{n}")
        self.lines.append(f"yielded{n}:")

    def terminate(self, block: Block) -> None:
        self.pred = None
        self.lead = False
        alignment_checks.settle(self)
        if block.kind == "cbr":
            assert block.pred is not None
            condition = self.get(block.pred)
            if block.neg:
                condition = self.invert(condition)
        else:
            condition = None
        selector = self.rd_int(block.selector, 32) if block.kind == "brx" else None
        if any(s.idx <= block.idx and s.idx in self.an.waiting_loops and not self._asks_later(block, s) for s in block.succs):
            self.spin_yield(block)
        self.flush()
        if block.kind == "br":
            self.go(block, block.succs[0])
        elif block.kind == "brx":
            assert selector is not None
            self.switch(block, selector)
        else:
            assert condition is not None
            if condition.v and self.copies and not self.parted:
                uniform_branches.branch(self, block, condition, self.sides)
            elif condition.v:
                taken = self.bits_of(self.band(self.mask, condition))
                other = self.bits_of(self.band(self.mask, self.invert(condition)))
                self.send(block.succs[0], taken)
                self.send(block.succs[1], other)
                self.emit(f"br label %{self.chain(block.idx)}")
            elif self.parted:
                bits = self.bits_of(self.mask)
                zero = self.const(0, "i32")
                self.send(block.succs[0], self.select(condition, bits, zero))
                self.send(block.succs[1], self.select(condition, zero, bits))
                self.emit(f"br label %{self.chain(block.idx)}")
            else:
                n = self.n = self.n + 1
                self.emit(f"br i1 {condition.s}, label %t{n}, label %f{n}")
                for label, succ in ((f"t{n}", block.succs[0]), (f"f{n}", block.succs[1])):
                    self.lines.append(f"{label}:")
                    self.forget()
                    self.go(block, succ)

    def _asks_later(self, block: Block, head: Block) -> bool:
        """Whether the lanes that go back come by the loop's end, where others are let in."""
        if self.fallback is None or not (block.idx in self.an.masked or block.idx in self.an.diverging):
            return False
        loop = self.cfg.loop_of[block.idx]
        while loop is not None and loop.first != head.idx:
            loop = loop.parent
        return loop is not None and self.may_leave(loop)

    # Instructions ----------------------------------------------------------------------------------------------------------------------------

    def instruction(self, ins: Ins) -> None:
        handler = HANDLERS.get(ins.op)
        if handler is None:
            raise Unsupported(f"unsupported PTX instruction '{'.'.join((ins.op, *ins.mods))}' ({ins.text})")
        modifier = opcodes.unknown(ins.op, ins.mods)
        if modifier is not None:
            raise Unsupported(f"unsupported PTX instruction '{'.'.join((ins.op, *ins.mods))}': .{modifier} ({ins.text})")
        self.ins = ins
        self.lead = False
        self.pred = None
        self.preemption_point(ins)
        if ins.pred is not None:
            pred = self.get(ins.pred)
            self.pred = self.invert(pred) if ins.neg else pred
        if len(ins.dsts) == 1 and (ins.dsts[0] in self.an.affine or (id(ins) in self.an.one_sided and ins.dsts[0] not in self.an.varying)):
            self.lead = True
        loads = ins.traits.access is Access.LOAD and ins.mods[0] != "param"
        if loads and self.computed:
            self._finish_before_loads()
        if ins is self.decides:
            self.lead = False
            self.sides = uniform_branches.sides(self, ins)
        if len(ins.dsts) == 1 and ins.dsts[0] in self.an.grouped:
            self._by_groups(ins, handler)
        else:
            handler(self, ins)
        if ins.dsts:
            self.lead = False
            speculative_affine.follow(self, ins)
        if ins.traits.formula in _COMPUTES and ins.type.kind == "f" and ins.type.bits >= 32 and len(self.block.ins) >= _LONG:
            self.computed.extend(ins.dsts)

    def preemption_point(self, ins: Ins) -> None:
        if self.m.preemptible and noticed(ins):
            preemption.point(self)

    def _by_groups(self, ins: Ins, handler: Callable[[Emitter, Ins], None]) -> None:
        """An instruction whose result is kept as one scalar for each group of lanes."""
        name = ins.dsts[0]
        self.lead = True
        self.by_groups = []
        for first in range(0, LANES, self.an.grouped[name]):
            self.leader = first
            handler(self, ins)
        self.leader = -1
        self.put_groups(name, self.by_groups)

    def _finish_before_loads(self) -> None:
        """In long blocks LLVM moves all loads to the front, far more than there are registers, and spills what they got. A group of loads that
        follows arithmetic is kept behind it: empty assembler code that needs the results and that no load may pass."""
        names = dict.fromkeys(self.computed)
        self.computed.clear()
        if not _GROUP <= len(names) <= _MANY:
            return
        bits = 512 if "avx512f" in self.m.features else 256 if "avx" in self.m.features else 128
        for name in names:
            value = self.cache.get(name)
            if value is None or not value.v or value.c:
                continue
            n = bits // INT_BITS[value.t]
            for start in range(0, LANES, n):
                picks = ", ".join(f"i32 {start + i}" for i in range(n))
                part = self.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{n} x i32> <{picks}>", value.t)
                self.emit(f'call void asm sideeffect "", "{"v" if bits == 512 else "x"}"(<{n} x {value.t}> {part.s})')
        self.emit('call void asm sideeffect "", "~{memory}"()')
