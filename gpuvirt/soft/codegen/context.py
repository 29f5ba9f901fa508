"""The state of a function under translation: registers, operands, execution masks. Opcodes are written against it; emitter.py drives it."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import NamedTuple

from gpuvirt.soft.analysis import lane_affine
from gpuvirt.soft.analysis.alignment import Alignment
from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.divergence import Divergence
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.codegen.ir_builder import ModuleText, Val
from gpuvirt.soft.codegen.special_registers import read_special
from gpuvirt.soft.codegen.warp_state import WarpState
from gpuvirt.soft.errors import BadPtx, Unsupported
from gpuvirt.soft.ptx.block_shape import full_warps
from gpuvirt.soft.ptx.layout import Layout
from gpuvirt.soft.ptx.parser import FloatImm, Imm, Ins, Not, Operand, Reg, Special, Sym, Vec
from gpuvirt.soft.ptx.types import INT_BITS, LANES, Type, llvm_type

TRUE = "splat (i1 true)"


class SpeculativeAffine(NamedTuple):
    """A register's value is `lead` + steps[lane] in every lane, if `holds`."""

    lead: Val
    holds: Val
    steps: tuple[int, ...]


class AddressCheck(NamedTuple):
    """An alignment check of lane 0's address, due at the end of its block."""

    value: Val
    size: int
    space: int
    mask: Val
    pred: Val | None


class Context(WarpState, ABC):
    """The state of emitting one function, and its values. Opcodes are written against it."""

    def __init__(self, module: ModuleText, analysis: Divergence, layout: Layout, symbol: str, loops: bool = False) -> None:
        super().__init__(module, analysis.cfg.body.func, layout, analysis.shape, loops)
        self.an = analysis
        self.cfg = analysis.cfg
        self.body = analysis.cfg.body
        self.symbol = symbol
        self.linkage = "" if analysis.cfg.body.func.is_kernel else "internal "
        self.attributes = 0
        self.slots: dict[str, tuple[str, str]] = {}
        self.cache: dict[str, Val] = {}
        self.dirty: set[str] = set()
        self.lost: set[str] = set()  # registers assumed to be uniform that were assigned varying values: the text is discarded
        self.expanded: dict[str, Val] = {}
        self.block: Block = self.cfg.order[0]
        self.ins: Ins | None = None
        self.pred: Val | None = None
        self.leader = -1  # whose, where it is that of each group's first lane in turn
        self.by_groups: list[Val] = []  # the results of the instruction under way, which is carried out for each group
        self.uses_barrier = False
        self.waits = False
        self.callees: set[str] = set()
        self.masks: dict[int, str] = {}
        self.param_slots: dict[str, Val] = {}
        self.param_values: dict[tuple[int, str], Val] = {}
        self.carry: str | None = None
        self.calls_left: Val | None = None  # of a call of several functions: where the lanes are noted that are still to call
        self.call_results: list[Val] = []  # of the call under way: memory for what is returned in registers
        self.uniform_copies = True
        self.copies: set[int] = set()  # blocks that have a uniform copy (uniform_branches.py)
        self.in_uniform_copy = False  # a uniform copy is being emitted
        self.decides: Ins | None = None  # the comparison on which the block's lanes diverge
        self.sides: tuple[Val, Val] | None = None
        self.contiguity_checks = [0, 0]  # runtime contiguity checks emitted: elsewhere, in uniform copies
        self.alignment = Alignment(self.cfg, layout, module.careful)
        self.checks: dict[tuple[object, ...], AddressCheck] = {}  # alignment checks due at the block's end
        self.checked: set[tuple[object, ...]] = set()  # alignment checks already emitted in this block
        self.computed: list[str] = []  # registers with results of arithmetic since the last load
        self.prefetch_distance: dict[str, Val] = {}  # by address register, in this block: bytes ahead to prefetch (prefetch.py)
        self.rounds: dict[tuple[int, int], int] = {}
        self.defined: dict[int, dict[str, list[Ins]]] = {}  # by a loop's first block: what each register is made by in it
        self.speculative: dict[str, SpeculativeAffine] = {}  # address registers of this block that are affine unless an index wraps
        self.turned: set[tuple[int, bool]] = set()  # loops that let other warps have their turn
        self.full_warp = self.func.is_kernel and full_warps(self.shape)
        self.full: Val = Val(TRUE, "i1", True, True)
        self.mask: Val = self.full

    # Registers -------------------------------------------------------------------------------------------------------------------------------

    def is_vector(self, name: str) -> bool:
        return name in self.an.varying and name not in self.an.affine

    def slot(self, name: str) -> tuple[str, str]:
        """The stack slot of a register that lives across blocks, and its type."""
        found = self.slots.get(name)
        if found is None:
            bits = self.cfg.regs[name].bits
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
            if name not in self.cfg.regs:
                raise BadPtx(f"the register '{name}' is not declared ({self.ins})")
            text, t = self.slot(name)
            bits = self.cfg.regs[name].bits
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
            t = f"i{self.cfg.regs[name].bits}"
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
        return self.block.idx in self.an.masked and not self.in_uniform_copy

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
            self.lost.add(name)
            value = self.extract(value, 0)
        if vector:
            value = self.splat(value)
            condition: Val | None = None
            if not self.in_uniform_copy and self.an.waits[self.block.idx] >> self.cfg.reg_index[name] & 1:
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
        live = self.block.live_out | self.an.waits[self.block.idx]
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
        self.prefetch_distance.clear()
        self.speculative.clear()
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
            if operand.name not in self.cfg.regs:
                raise BadPtx(f"the register '{operand.name}' is not declared ({self.ins})")
            bits = self.cfg.regs[operand.name].bits
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
            return self.in_own_block(self.const(self.layout.offsets[sym.name] + offset, "i64"))
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

    # What emitters add --------------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def instruction(self, ins: Ins) -> None:
        """Emits one instruction."""

    @abstractmethod
    def call_function(self, name: str, arguments: list[str]) -> None:
        """Calls a device function."""

    @abstractmethod
    def returns(self) -> str:
        """How the function ends."""

    def param_memory(self, name: str) -> tuple[Val, int] | None:
        """(memory, bytes per lane) of a .param variable: one of a call sequence, or the device function's own."""
        if name in self.body.params:
            param = self.body.params[name]
            found = self.param_slots.get(name)
            if found is None:
                found = self.param_slots[name] = self.alloca(f"[{param.size * LANES} x i8], align 64")
            return found, param.size
        if not self.func.is_kernel:
            for own in self.func.params + self.func.returns:
                if own.name == name:
                    return self.param_slots[name], own.size
        return None

    def spin_counter(self, name: str) -> Val:
        """Counts how often the function has passed this place; the count before."""
        slot = f"%{name}"
        if f"n{name}" not in self.fields:
            self.allocas.append(f"  {slot} = alloca i32")
            self.prologue.append(f"  store i32 0, ptr {slot}")
            self.fields[f"n{name}"] = Val(slot, "ptr")
        old = self.let(f"load i32, ptr {slot}", "i32")
        new = self.add(old, self.const(1, "i32"))
        self.emit(f"store i32 {new.s}, ptr {slot}")
        return new

    def fail(self, why: str = "") -> Unsupported:
        """The error for a form of an instruction that is not supported."""
        return Unsupported(f"unsupported PTX instruction '{self.ins}'" + (f": {why}" if why else ""))
