"""Memory that a thread takes from its stack (alloca), and the end of a thread inside a device function (exit).

Above what functions declare, a lane's local memory has a piece from which `alloca` takes downwards, and behind it the offset it has come to. A
function that returns gives back what it took.

The lanes that `exit` inside a function are noted in the warp (struct soft_warp); after every call the caller sends them to its own end.
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.codegen.emitter import Emitter
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.memory import gather, scatter
from gpuvirt.soft.ptx.opcodes import Access
from gpuvirt.soft.ptx.parser import Imm, Ins

W = Val("%w", "ptr")


def _slot(e: Emitter) -> Val:
    """Where each lane's stack pointer is."""
    offset = e.layout.stack_pointer
    assert offset is not None
    return e.add(e.local_base(), e.const(offset, "i64"))


def _takes(e: Emitter) -> bool:
    return any(ins.traits.access is Access.TAKES for block in e.cfg.order for ins in block.ins)


def enter(e: Emitter) -> None:
    """At a kernel's start the stack is empty; a function that takes from it notes how far it had come."""
    if e.layout.stack_pointer is None or not (e.func.is_kernel or _takes(e)):
        return
    lines, e.lines = e.lines, e.prologue
    if e.func.is_kernel:
        scatter(e, _slot(e), e.splat(e.const(e.layout.stack_pointer, "i32")), 4, e.full)
    else:
        e.fields["stack at entry"] = gather(e, _slot(e), "i32", 4, e.full)
    e.lines = lines
    e.forget()


def leave(e: Emitter) -> None:
    """At a function's end."""
    if "stack at entry" in e.fields:
        scatter(e, _slot(e), e.fields["stack at entry"], 4, e.full)


@emits
def alloca(e: Emitter, ins: Ins) -> None:
    """alloca p, size, alignment"""
    ops = ins.ops
    alignment = ops[2].value if len(ops) > 2 and isinstance(ops[2], Imm) else 8
    size = e.rd_int(ops[1], 64)
    mask = e.exec_mask()
    before = e.cast("zext", gather(e, _slot(e), "i32", 4, mask), "i64")
    low = e.const(e.layout.stack_low, "i64")
    room = e.sub(before, low)
    fits = e.icmp("ule", size, room)
    after = e.band(e.sub(before, size), e.const(-max(alignment, 1), "i64"))
    good = e.band(e.splat(fits), e.splat(e.icmp("sge", after, low)))
    lost = e.band(e.bits_of(e.invert(good)), e.exec_bits())
    n = e.n = e.n + 1
    some = e.icmp("ne", lost, e.const(0, "i32"))
    e.emit(f"br i1 {some.s}, label %full{n}, label %room{n}")
    e.lines.append(f"full{n}:")
    e.call("soft_trap", "void", [W, lost, e.const(abi.TRAP_STACK, "i32")], declare=True)
    e.emit(f"br label %room{n}")
    e.lines.append(f"room{n}:")
    scatter(e, _slot(e), e.splat(e.resize(after, "i32")), 4, mask)
    e.wr(ops[0], e.splat(after))


@emits
def stacksave(e: Emitter, ins: Ins) -> None:
    e.wr(
        ins.ops[0],
        e.cast("zext", gather(e, _slot(e), "i32", 4, e.exec_mask()), f"i{ins.type.bits}")
        if ins.type.bits > 32
        else gather(e, _slot(e), "i32", 4, e.exec_mask()),
    )


@emits
def stackrestore(e: Emitter, ins: Ins) -> None:
    scatter(e, _slot(e), e.splat(e.rd_int(ins.ops[0], 32)), 4, e.exec_mask())


def _exited(e: Emitter) -> Val:
    return e.let(f"getelementptr i8, ptr %w, i64 {abi.OFFSETS['exited']}", "ptr")


@emits
def exit_in_function(e: Emitter, ins: Ins) -> None:
    """`exit` inside a device function; in a kernel it is the flow graph's."""
    place = _exited(e)
    old = e.let(f"load i32, ptr {place.s}", "i32")
    e.emit(f"store i32 {e.bor(old, e.exec_bits()).s}, ptr {place.s}")


@emits
def exited(e: Emitter, ins: Ins) -> None:
    """After a call: the lanes that ended in it."""
    bits = e.let(f"load i32, ptr {_exited(e).s}", "i32")
    e.wr(ins.ops[0], e.mask_of(bits))
