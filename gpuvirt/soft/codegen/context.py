"""A function under translation: its state, the warp's fields, registers, operands, the lanes that execute. emitter.py goes through it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from gpuvirt.soft import abi
from gpuvirt.soft.analysis import lane_affine
from gpuvirt.soft.analysis.cfg import Block
from gpuvirt.soft.analysis.divergence import Analysis
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.codegen import alignment_checks, warp_loop
from gpuvirt.soft.codegen.ir_builder import Builder, ModuleText, Val
from gpuvirt.soft.codegen.speculative_affine import Near
from gpuvirt.soft.errors import BadPtx, UniformityLost
from gpuvirt.soft.ptx.layout import Layout
from gpuvirt.soft.ptx.parser import FloatImm, Imm, Ins, Not, Operand, Reg, Special, Sym, Vec
from gpuvirt.soft.ptx.types import INT_BITS, LANES, Type, llvm_type

if TYPE_CHECKING:
    from gpuvirt.soft.codegen.lane_fallback import Frame

TRUE = "splat (i1 true)"


class Values(Builder):
    """The state of emitting one function, and its values."""

    def __init__(self, module: ModuleText, analysis: Analysis, layout: Layout, symbol: str, loops: bool = False) -> None:
        super().__init__(module)
        self.an = analysis
        self.cfg = analysis.cfg
        self.body = analysis.body
        self.func = analysis.body.func
        self.layout = layout
        self.symbol = symbol
        self.shape = analysis.shape
        self.linkage = "" if analysis.body.func.is_kernel else "internal "
        self.attributes = 0
        self.allocas: list[str] = []
        self.loops = loops  # the entry runs all warps of several blocks (warp_loop.py)
        self.before: list[str] = []  # with loops: what comes before the first warp
        self.asks_local = False  # with loops: the code reads where the warp's local memory is
        self.prologue: list[str] = []
        self.slots: dict[str, tuple[str, str]] = {}
        self.cache: dict[str, Val] = {}
        self.dirty: set[str] = set()
        self.expanded: dict[str, Val] = {}
        self.block: Block = self.cfg.order[0]
        self.ins: Ins | None = None
        self.pred: Val | None = None
        self.lead = False  # what is computed is one lane's value, from which others follow
        self.leader = -1  # whose, where it is that of each group's first lane in turn
        self.by_groups: list[Val] = []  # the results of the instruction under way, which is carried out for each group
        self.uses_barrier = False
        self.waits = False
        self.callees: set[str] = set()
        self.masks: dict[int, str] = {}
        self.fields: dict[str, Val] = {}
        self.param_slots: dict[str, Val] = {}
        self.param_values: dict[tuple[int, str], Val] = {}
        self.carry: str | None = None
        self.calls_left: Val | None = None  # of a call of several functions: where the lanes are noted that are still to call
        self.call_results: list[Val] = []  # of the call under way: memory for what is returned in registers
        self.frame: Frame | None = None  # where lanes may go apart: what is written down for them then
        self.doubles = True
        self.copies: set[int] = set()  # blocks that exist a second time, for all lanes together (uniform_branches.py)
        self.whole = False  # such a copy is being emitted
        self.decides: Ins | None = None  # the comparison by which the block's lanes part
        self.sides: tuple[Val, Val] | None = None
        self.asked_so_far = [0, 0]  # questions at run time whether lanes access memory side by side: elsewhere, and in copies for all lanes
        self.alignment = alignment_checks.Alignment(self)
        self.checks: dict[tuple[object, ...], alignment_checks.Check] = {}  # tests of addresses that the block's end makes
        self.checked: set[tuple[object, ...]] = set()  # and those made where the access was
        self.computed: list[str] = []  # registers with results of arithmetic since the last load
        self.ahead_of: dict[str, Val] = {}  # of registers with addresses, in this block: how far ahead to prefetch (prefetch.py)
        self.rounds: dict[tuple[int, int], int] = {}
        self.defined: dict[int, dict[str, list[Ins]]] = {}  # by a loop's first block: what each register is made by in it
        self.near: dict[str, Near] = {}  # registers of this block with addresses that follow a pattern unless an index wraps
        self.turned: set[tuple[int, bool]] = set()  # loops that let other warps have their turn
        total = self.shape[0] * self.shape[1] * self.shape[2]
        self.full_warp = self.func.is_kernel and total % LANES == 0
        self.full: Val = Val(TRUE, "i1", True, True)
        self.mask: Val = self.full

    # The warp's fields -----------------------------------------------------------------------------------------------------------------------

    def field(self, name: str, t: str, index: int = 0) -> Val:
        """A field of struct soft_warp; loaded once, at the function's start."""
        key = f"{name}{index}"
        found = self.fields.get(key)
        if found is None and self.loops:
            found = warp_loop.changing(self, name, index)
        if found is None:
            offset = abi.OFFSETS[name] + index * INT_BITS[t] // 8
            lines = self.before if self.loops else self.prologue
            # A device function may be put into the kernel's loop over warps.
            same = "" if name in warp_loop.CHANGING and not self.func.is_kernel else ", !invariant.load !0"
            lines.append(f"  %w.{key}.p = getelementptr i8, ptr %w, i64 {offset}")
            lines.append(f"  %w.{key} = load {t}, ptr %w.{key}.p{same}")
            found = self.fields[key] = Val(f"%w.{key}", t)
        return found

    def once(self, key: str, text: str, t: str, v: bool = False) -> Val:
        """A value computed once in the function's prologue (from fields and constants)."""
        found = self.fields.get(key)
        if found is None:
            (self.allocas if text.startswith("alloca") else self.prologue).append(f"  %{key} = {text}")
            found = self.fields[key] = Val(f"%{key}", t, v)
        return found

    def alloca(self, text: str) -> Val:
        """Stack memory for the whole call."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {text}")
        return Val(name, "ptr")

    def shared_base(self) -> Val:
        return self.field("shared", "i64")

    def local_base(self) -> Val:
        """The generic address of each lane's local memory."""
        base, stride = self.field("local", "i64"), self.field("local_stride", "i64")
        found = self.fields.get("lbase")
        if found is None:
            lanes = self.lanes(range(LANES), "i64").s
            v = f"<{LANES} x i64>"
            self.prologue += [
                f"  %lb0 = insertelement {v} poison, i64 {stride.s}, i32 0",
                f"  %lb1 = shufflevector {v} %lb0, {v} poison, <{LANES} x i32> zeroinitializer",
                f"  %lb2 = mul {v} %lb1, {lanes}",
                f"  %lb3 = insertelement {v} poison, i64 {base.s}, i32 0",
                f"  %lb4 = shufflevector {v} %lb3, {v} poison, <{LANES} x i32> zeroinitializer",
                f"  %lbase = add {v} %lb2, %lb4",
            ]
            found = self.fields["lbase"] = Val("%lbase", "i64", True)
        return found

    def lane_ids(self) -> Val:
        return self.lanes(range(LANES), "i32")

    # Registers -------------------------------------------------------------------------------------------------------------------------------

    def is_vector(self, name: str) -> bool:
        return name in self.an.varying and name not in self.an.affine

    def slot(self, name: str) -> tuple[str, str]:
        """The stack slot of a register that lives across blocks, and its type."""
        found = self.slots.get(name)
        if found is None:
            bits = self.body.regs[name].bits
            t = f"<{LANES} x i{bits}>" if self.is_vector(name) else f"i{bits}"
            text = f"%r{len(self.slots)}"
            self.allocas.append(f"  {text} = alloca {t}")
            self.prologue.append(f"  store {t} {'zeroinitializer' if t[0] == '<' else 'false' if bits == 1 else '0'}, ptr {text}")
            found = self.slots[name] = (text, t)
        return found

    def get(self, name: str) -> Val:
        """A register's value in its own width, as kept: scalar for uniform and affine registers."""
        if name in self.an.grouped:
            return self.put_together(name)
        found = self.cache.get(name)
        if found is None:
            if name not in self.body.regs:
                raise BadPtx(f"the register '{name}' is not declared ({self.ins})")
            text, t = self.slot(name)
            bits = self.body.regs[name].bits
            found = self.cache[name] = self.let(f"load {t}, ptr {text}", f"i{bits}", t[0] == "<")
        return found

    def get_lanes(self, name: str) -> Val:
        """A register's value; an affine one is spread over the lanes unless one lane's value is being computed."""
        steps = self.an.affine.get(name)
        if self.leader >= 0 and name in self.an.grouped:
            return self.of_lane(name, self.leader)
        value = self.get(name)
        if self.leader >= 0:
            if value.v:
                return self.extract(value, self.leader)
            return self.add(value, self.const(steps[self.leader], value.t)) if steps is not None and steps[self.leader] else value
        if steps is None or self.lead:
            return value
        found = self.expanded.get(name)
        if found is None:
            found = self.expanded[name] = self.add(self.splat(value), self.lanes(steps, value.t))
        return found

    def group_slot(self, name: str, first: int) -> tuple[str, str]:
        """The stack slot of one group's value of a register that is kept by groups, and its type."""
        found = self.slots.get(f"{name}#{first}")
        if found is None:
            t = f"i{self.body.regs[name].bits}"
            text = f"%r{len(self.slots)}"
            self.allocas.append(f"  {text} = alloca {t}")
            self.prologue.append(f"  store {t} 0, ptr {text}")
            found = self.slots[f"{name}#{first}"] = (text, t)
        return found

    def of_lane(self, name: str, lane: int) -> Val:
        """One lane's value of a register that is kept by groups."""
        first = lane // self.an.grouped[name] * self.an.grouped[name]
        key = f"{name}#{first}"
        found = self.cache.get(key)
        if found is None:
            text, t = self.group_slot(name, first)
            found = self.cache[key] = self.let(f"load {t}, ptr {text}", t)
        step = self.an.patterns[name].steps[lane]
        return self.add(found, self.const(step, found.t)) if step else found

    def put_together(self, name: str) -> Val:
        """All lanes' values of a register that is kept by groups."""
        found = self.expanded.get(name)
        if found is None:
            size = self.an.grouped[name]
            firsts = [self.of_lane(name, first) for first in range(0, LANES, size)]
            t, n = firsts[0].t, len(firsts)
            text = "poison"
            for i, first in enumerate(firsts):
                text = self.let(f"insertelement <{n} x {t}> {text}, {t} {first.s}, i32 {i}", t).s
            picks = ", ".join(f"i32 {lane // size}" for lane in range(LANES))
            spread = self.let(f"shufflevector <{n} x {t}> {text}, <{n} x {t}> poison, <{LANES} x i32> <{picks}>", t, True)
            found = self.expanded[name] = self.add(spread, self.lanes(self.an.patterns[name].steps, t))
        return found

    def put_groups(self, name: str, values: list[Val]) -> None:
        """Writes a register that is kept by groups."""
        size = self.an.grouped[name]
        for i, value in enumerate(values):
            self.cache[f"{name}#{i * size}"] = value
        self.expanded.pop(name, None)
        self.dirty.add(name)

    @property
    def parted(self) -> bool:
        """Whether what is being emitted may run with some of the lanes only."""
        return self.block.div and not self.whole

    def put(self, name: str, value: Val) -> None:
        """Writes a register (value in its own width) under the instruction's guard, keeping what waiting lanes may still read."""
        if name == "_":
            return
        if name in self.an.assumed:
            value = self.const(self.an.assumed[name], value.t)
        if name in self.an.grouped:
            if value.v:
                value = self.extract(value, self.leader)
            if self.pred is not None:
                value = self.select(self.pred, value, self.of_lane(name, self.leader))
            self.by_groups.append(value)
            return
        vector = self.is_vector(name)
        if value.v and not vector:
            raise UniformityLost(name, str(self.ins))
        if vector:
            value = self.splat(value)
            condition: Val | None = None
            if not self.whole and self.block.waits >> self.cfg.reg_index[name] & 1:
                condition = self.mask
            if self.pred is not None:
                condition = self.pred if condition is None else self.band(condition, self.pred)
            if condition is not None and not (condition.c and condition.s == TRUE):
                value = self.select(self.splat(condition), value, self.get(name))
        elif self.pred is not None:
            value = self.select(self.pred, value, self.get(name))
        self.cache[name] = value
        self.expanded.pop(name, None)
        self.dirty.add(name)

    def flush(self) -> None:
        """Stores what later blocks, or waiting lanes, may read."""
        live = self.block.live_out | self.block.waits
        index = self.cfg.reg_index
        for name in sorted(self.dirty):
            if live >> index[name] & 1:
                if name in self.an.grouped:
                    for first in range(0, LANES, self.an.grouped[name]):
                        text, t = self.group_slot(name, first)
                        self.emit(f"store {t} {self.cache[f'{name}#{first}'].s}, ptr {text}")
                    continue
                text, t = self.slot(name)
                self.emit(f"store {t} {self.cache[name].s}, ptr {text}")
        self.dirty.clear()

    def reset(self) -> None:
        """At a new block."""
        self.cache.clear()
        self.expanded.clear()
        self.dirty.clear()
        self.forget()
        self.computed.clear()
        self.ahead_of.clear()
        self.near.clear()
        self.checked.clear()

    # Operands --------------------------------------------------------------------------------------------------------------------------------

    def rd_int(self, operand: Operand, bits: int, signed: bool = False) -> Val:
        """An operand as an integer of `bits` bits (wider registers are cut, narrower ones extended)."""
        if isinstance(operand, Reg):
            return self.resize(self.get_lanes(operand.name), f"i{bits}", signed)
        if isinstance(operand, Imm):
            return self.const(operand.value, f"i{bits}")
        if isinstance(operand, FloatImm):
            pattern = operand.pattern
            if operand.bits == 64 and bits == 32:
                pattern = struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", pattern))[0]))[0]
            elif operand.bits == 32 and bits == 64:
                pattern = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", pattern))[0]))[0]
            return self.const(pattern, f"i{bits}")
        if isinstance(operand, Special):
            return self.resize(self.special(operand.name), f"i{bits}")
        if isinstance(operand, Sym):
            return self.resize(self.symbol_address(operand), f"i{bits}")
        if isinstance(operand, Vec):
            return self.pack(operand, bits)
        raise BadPtx(f"cannot read the operand {operand} in '{self.ins}'")

    def rd(self, operand: Operand, t: Type, signed: bool | None = None) -> Val:
        """An operand as PTX type `t`."""
        if isinstance(operand, Imm) and t.kind == "f":
            return self.fconst(float(operand.value), llvm_type(t))
        value = self.rd_int(operand, t.bits, t.kind == "s" if signed is None else signed)
        return self.bitcast(value, llvm_type(t))

    def rd_pred(self, operand: Operand) -> Val:
        """A predicate, negated if written so."""
        if isinstance(operand, Not):
            return self.invert(self.rd_pred(operand.reg))
        if isinstance(operand, Imm):
            return self.const(1 if operand.value else 0, "i1")
        if isinstance(operand, Reg):
            return self.get(operand.name)
        if isinstance(operand, Special) and operand.name == "%is_explicit_cluster":
            return self.special(operand.name)
        raise BadPtx(f"cannot read the predicate {operand} in '{self.ins}'")

    def wr(self, operand: Operand, value: Val, signed: bool = False) -> None:
        """Writes a value to a register operand; narrower values are extended."""
        if isinstance(operand, Reg):
            if operand.name == "_":
                return
            if operand.name not in self.body.regs:
                raise BadPtx(f"the register '{operand.name}' is not declared ({self.ins})")
            bits = self.body.regs[operand.name].bits
            self.put(operand.name, self.resize(self.as_int(value), f"i{bits}", signed))
        elif isinstance(operand, Vec):
            self.unpack(operand, self.as_int(value))
        else:
            raise BadPtx(f"cannot write the operand {operand} in '{self.ins}'")

    def pack(self, vec: Vec, bits: int) -> Val:
        """{a, b, ...} as one integer, a lowest."""
        part = bits // len(vec.items)
        total: Val | None = None
        for i, item in enumerate(vec.items):
            value = self.resize(self.rd_int(item, part), f"i{bits}")
            if i:
                value = self.shl(value, self.const(part * i, f"i{bits}"))
            total = value if total is None else self.bor(total, value)
        assert total is not None
        return total

    def unpack(self, vec: Vec, value: Val) -> None:
        part = INT_BITS[value.t] // len(vec.items)
        for i, item in enumerate(vec.items):
            piece = self.lshr(value, self.const(part * i, value.t)) if i else value
            self.wr(item, self.resize(piece, f"i{part}"))

    def pattern_of(self, operand: Operand) -> Pattern | None:
        """The lane pattern of an operand that varies."""
        if isinstance(operand, Reg):
            return self.an.patterns.get(operand.name)
        return None

    def special(self, name: str) -> Val:
        from gpuvirt.soft.codegen.special_registers import read_special

        value = read_special(self, name)
        if self.leader >= 0:
            if value.v:
                return self.extract(value, self.leader)
            p = lane_affine.special(name, self.shape)
            step = p.steps[self.leader] - p.steps[0] if isinstance(p, Pattern) else 0
            return self.add(value, self.const(step, value.t)) if step else value
        return value

    def symbol_address(self, sym: Sym) -> Val:
        """The address of a variable in its own space, or of a function or parameter."""
        offset = sym.offset
        if sym.name in self.layout.offsets:
            return self.const(self.layout.offsets[sym.name] + offset, "i64")
        if sym.name in self.layout.locals:
            constant = self.const(self.layout.locals[sym.name] + offset, "i64")
            return constant if self.func.is_kernel else self.add(self.cast("zext", Val("%frame", "i32"), "i64"), constant)
        for param in self.func.params:
            if param.name == sym.name:
                if self.func.is_kernel:
                    return self.add(self.field("params", "i64"), self.const(param.offset + offset, "i64"))
                return self.param_address(param.name, param.size, offset)
        if sym.name in self.layout.functions:
            return self.const(self.layout.functions[sym.name], "i64")
        variable = self.layout.module.variables.get(sym.name)
        if variable is not None and variable.space in ("global", "const"):
            if variable.linkage == "extern" or variable.unsized:
                raise BadPtx(f"the variable '{sym.name}' is declared but not defined in this module")
            slot = self.m.global_slot(sym.name)
            address = self.once(f"g{slot}", f"load i64, ptr getelementptr (i8, ptr @gv_globals, i64 {8 * slot}), !invariant.load !0", "i64")
            return self.add(address, self.const(offset, "i64")) if offset else address
        raise BadPtx(f"the symbol '{sym.name}' is not declared ({self.ins})")

    def param_address(self, name: str, size: int, offset: int) -> Val:
        """The generic address of a device function's own parameter, per lane: parameters lie lane after lane."""
        base = self.cast("ptrtoint", self.param_slots[name], "i64")
        step = self.lanes([i * size for i in range(LANES)], "i64")
        return self.add(self.add(self.splat(base), step), self.const(offset, "i64"))

    # Masks -----------------------------------------------------------------------------------------------------------------------------------

    def exec_mask(self) -> Val | None:
        """The lanes for which the instruction executes; None: all 32."""
        mask = self.mask
        if self.pred is not None:
            mask = self.band(mask, self.splat(self.pred))
        return None if mask.c and mask.s == TRUE else mask

    def exec_bits(self) -> Val:
        mask = self.exec_mask()
        return self.const(-1, "i32") if mask is None else self.bits_of(mask)
