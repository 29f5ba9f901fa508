"""Calls: parameters, direct and indirect calls, and the functions that the device runtime itself provides (vprintf, malloc, ...).

A device function becomes void f(warp, lanes, frame, return values..., parameters...): every return value and parameter is a pointer to memory in
which the 32 lanes' values lie one after the other. `frame` is where the function's own .local variables begin in a lane's local memory.
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.codegen import warp_loop
from gpuvirt.soft.codegen.addressing import Where
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import load, store
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.device_runtime import CHILD_BUFFER, CHILD_LAUNCH, LAST_ERROR, SET_CONDITION
from gpuvirt.soft.ptx.layout import FUNCTION_BASE, SYSCALLS, address_taken
from gpuvirt.soft.ptx.module import Func
from gpuvirt.soft.ptx.parser import Addr, Call, Ins, Name, Operand, Reg, Sym
from gpuvirt.soft.ptx.types import LANES

W = Val("%w", "ptr")


def _where(e: Context, slot: Val, size: int, offset: int) -> Where:
    base = e.cast("ptrtoint", slot, "i64")
    if offset:
        base = e.add(base, e.const(offset, "i64"))
    return Where(base, None, Pattern(LANES, tuple(i * size for i in range(LANES)), 1))


def _symbol(operand: Operand) -> tuple[str, int] | None:
    if isinstance(operand, Addr) and isinstance(operand.base, Sym):
        return operand.base.name, operand.base.offset + operand.offset
    return None


def load_param(e: Context, ins: Ins, dsts: list[Operand], element: str) -> bool:
    """ld.param from a variable of a call sequence or the function's own parameter; False: it is memory like any other."""
    symbol = _symbol(ins.ops[1])
    if symbol is None:
        return False
    found = e.param_memory(symbol[0])
    if found is None:
        return False
    for dst, value in zip(dsts, load(e, _where(e, found[0], found[1], symbol[1]), element, len(dsts)), strict=True):
        e.wr(dst, value, ins.type.kind == "s")
    return True


def kernel_param(e: Context, ins: Ins, dsts: list[Operand], element: str) -> bool:
    """ld.param of one of the kernel's own parameters, where it can be read once for many warps."""
    symbol = _symbol(ins.ops[1])
    if symbol is None or not e.func.is_kernel:
        return False
    start = next((p.offset for p in e.func.params if p.name == symbol[0]), None)
    if start is None:
        return False
    size = ins.type.bits // 8
    values = [warp_loop.parameter(e, start + symbol[1] + i * size, element) for i in range(len(dsts))]
    for dst, value in zip(dsts, values, strict=True):
        if value is None:
            return False
        e.wr(dst, value, ins.type.kind == "s")
    return True


def store_param(e: Context, ins: Ins, sources: list[Operand]) -> bool:
    symbol = _symbol(ins.ops[0])
    if symbol is None:
        return False
    found = e.param_memory(symbol[0])
    if found is None:
        return False
    store(e, _where(e, found[0], found[1], symbol[1]), [e.splat(e.rd_int(s, ins.type.bits)) for s in sources])
    return True


def frame_after(e: Context) -> Val:
    """Where the local memory of a callee begins."""
    own = e.layout.frames[e.func.name]
    if e.func.is_kernel:
        return e.const(own, "i32")
    return e.add(Val("%frame", "i32"), e.const(max(own, 16) if e.layout.recursive else own, "i32"))


def _argument(e: Context, operand: Operand) -> Val:
    """The memory of an argument."""
    if isinstance(operand, (Sym, Name)):
        found = e.param_memory(operand.name)
        if found is not None:
            return found[0]
    value = e.splat(e.rd_int(operand, e.cfg.regs[operand.name].bits if isinstance(operand, Reg) else 32))
    memory = e.alloca(f"{value.ty}, align 64")
    e.emit(f"store {value.ty} {value.s}, ptr {memory.s}")
    return memory


def _result(e: Context, name: str) -> tuple[Val, str | None]:
    found = e.param_memory(name)
    if found is not None:
        return found[0], None
    bits = e.cfg.regs[name].bits
    return e.alloca(f"<{LANES} x i{64 if e.cfg.leaving else bits}>, align 64"), name


@emits
def call(e: Context, ins: Ins) -> None:
    parts = ins.args
    assert isinstance(parts, Call)
    results = [_result(e, r) for r in parts.returns]
    e.call_results = [memory for memory, register in results if register is not None]
    target = parts.target
    if (
        isinstance(target, (Sym, Name))
        and target.name in SYSCALLS
        and e.layout.module.funcs[target.name].start == e.layout.module.funcs[target.name].end
    ):
        _syscall(e, target.name, parts, results)
    elif isinstance(target, (Sym, Name)):
        arguments = [r for r, _ in results] + [_argument(e, a) for a in parts.args]
        _direct(e, target.name, arguments, e.exec_bits())
    else:
        arguments = [r for r, _ in results] + [_argument(e, a) for a in parts.args]
        _indirect(e, ins, target, parts, arguments)
    for memory, register in results:
        if register is not None:
            bits = e.cfg.regs[register].bits
            e.put(register, e.let(f"load <{LANES} x i{bits}>, ptr {memory.s}", f"i{bits}", True))


def _direct(e: Context, name: str, arguments: list[Val], lanes: Val) -> None:
    e.callees.add(name)
    e.call_function(name, ["ptr %w", f"i32 {lanes.s}", f"i32 {frame_after(e).s}", *(f"ptr {a.s}" for a in arguments)])


def _fits(func: Func, returns: list[int], params: list[int]) -> bool:
    return [p.size for p in func.returns] == returns and [p.size for p in func.params] == params


def _indirect(e: Context, ins: Ins, target: Operand, parts: Call, arguments: list[Val]) -> None:
    """Lanes may call different functions: one call for each function that some lane names."""
    module = e.layout.module
    prototype = e.body.prototypes.get(parts.prototype or "")
    if prototype is None:
        raise e.fail("an indirect call without a prototype")
    returns, params = [p.size for p in prototype[0]], [p.size for p in prototype[1]]
    names = list(module.funcs)
    candidates = sorted(n for n in address_taken(module) if _fits(module.funcs[n], returns, params) and module.funcs[n].start != module.funcs[n].end)
    address = e.splat(e.rd_int(target, 64))
    bits = e.exec_bits()
    left = e.alloca("i32")
    e.emit(f"store i32 {bits.s}, ptr {left.s}")
    e.calls_left = left
    for name in candidates:
        token = FUNCTION_BASE + 16 * (names.index(name) + 1)
        here = e.band(e.bits_of(e.icmp("eq", address, e.const(token, "i64"))), bits)
        n = e.n = e.n + 1
        some = e.icmp("ne", here, e.const(0, "i32"))
        before = e.let(f"load i32, ptr {left.s}", "i32")
        e.emit(f"store i32 {e.band(before, e.invert(here)).s}, ptr {left.s}")
        e.emit(f"br i1 {some.s}, label %call{n}, label %skip{n}")
        e.lines.append(f"call{n}:")
        _direct(e, name, arguments, here)
        e.emit(f"br label %skip{n}")
        e.lines.append(f"skip{n}:")
    e.calls_left = None
    rest = e.let(f"load i32, ptr {left.s}", "i32")
    bad = e.icmp("ne", rest, e.const(0, "i32"))
    n = e.n = e.n + 1
    e.emit(f"br i1 {bad.s}, label %bad{n}, label %good{n}")
    e.lines.append(f"bad{n}:")
    e.call("soft_trap", "void", [W, rest, e.const(abi.TRAP_BAD_PC, "i32")], declare=True)
    e.emit(f"br label %good{n}")
    e.lines.append(f"good{n}:")


def _syscall(e: Context, name: str, parts: Call, results: list[tuple[Val, str | None]]) -> None:
    """Device runtime functions that the engine provides, lane by lane."""
    arguments = [_argument(e, a) for a in parts.args]
    e.m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    texts = {
        "vprintf": ("i32 @soft_vprintf(ptr, i32, ptr, ptr)", ("ptr", "ptr"), "i32"),
        "malloc": ("ptr @soft_malloc(ptr, i32, i64)", ("i64",), "ptr"),
        "free": ("void @soft_free(ptr, i32, ptr)", ("ptr",), ""),
        CHILD_BUFFER: ("ptr @soft_child_buffer(ptr, i32, i64)", ("i64",), "ptr"),
        CHILD_LAUNCH: ("i32 @soft_child_launch(ptr, i32, ptr, i64)", ("ptr", "i64"), "i32"),
        LAST_ERROR: ("i32 @soft_last_error(ptr, i32, i32, i32)", ("i32", "i32"), "i32"),
        SET_CONDITION: ("void @soft_set_condition(ptr, i32, i64, i32)", ("i64", "i32"), ""),
        "__assertfail": ("void @soft_assert_fail(ptr, i32, ptr, ptr, i32, ptr)", ("ptr", "ptr", "i32", "ptr"), ""),
    }
    declaration, kinds, ret = texts[name]
    symbol = declaration.split("@")[1].split("(")[0]
    e.m.declare(symbol, f"declare {declaration}")
    n = e.n = e.n + 1
    bits = e.exec_bits()
    rest = e.alloca("i32")
    e.emit(f"store i32 {bits.s}, ptr {rest.s}")
    e.emit(f"br label %sys{n}")
    e.lines.append(f"sys{n}:")
    m = e.let(f"load i32, ptr {rest.s}", "i32")
    some = e.icmp("ne", m, e.const(0, "i32"))
    e.emit(f"br i1 {some.s}, label %do{n}, label %end{n}")
    e.lines.append(f"do{n}:")
    lane = e.intrinsic("cttz", m, tail="i1 false")
    e.emit(f"store i32 {e.band(m, e.sub(m, e.const(1, 'i32'))).s}, ptr {rest.s}")
    lane64 = e.cast("zext", lane, "i64")
    values = []
    for memory, kind in zip(arguments, kinds, strict=False):
        t = "i64" if kind == "ptr" else kind
        place = e.let(f"getelementptr {t}, ptr {memory.s}, i64 {lane64.s}", "ptr")
        value = e.let(f"load {t}, ptr {place.s}", t)
        values.append(e.cast("inttoptr", value, "ptr") if kind == "ptr" else value)
    text = ", ".join(["ptr %w", f"i32 {lane.s}", *(f"{v.t} {v.s}" for v in values)])
    if ret:
        result = e.let(f"call {ret} @{symbol}({text})", ret)
        if ret == "ptr":
            result = e.cast("ptrtoint", result, "i64")
        if results:
            place = e.let(f"getelementptr {result.t}, ptr {results[0][0].s}, i64 {lane64.s}", "ptr")
            e.emit(f"store {result.t} {result.s}, ptr {place.s}")
    else:
        e.emit(f"call void @{symbol}({text})")
    e.emit(f"br label %sys{n}")
    e.lines.append(f"end{n}:")
