"""Memory that a thread takes from its stack (alloca), and the end of a thread inside a device function (exit).

The lanes that `exit` inside a function are noted in the warp (struct soft_warp); after every call the caller sends them to its own end.
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.local_stack import pointer_slot
from gpuvirt.soft.codegen.memory_access import gather, scatter
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.parser import Imm, Ins

W = Val("%w", "ptr")


@emits
def alloca(e: Context, ins: Ins) -> None:
    """alloca p, size, alignment"""
    ops = ins.ops
    alignment = ops[2].value if len(ops) > 2 and isinstance(ops[2], Imm) else 8
    size = e.rd_int(ops[1], 64)
    mask = e.exec_mask()
    before = e.cast("zext", gather(e, pointer_slot(e), "i32", 4, mask), "i64")
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
    scatter(e, pointer_slot(e), e.splat(e.resize(after, "i32")), 4, mask)
    e.wr(ops[0], e.splat(after))


@emits
def stacksave(e: Context, ins: Ins) -> None:
    e.wr(
        ins.ops[0],
        e.cast("zext", gather(e, pointer_slot(e), "i32", 4, e.exec_mask()), f"i{ins.type.bits}")
        if ins.type.bits > 32
        else gather(e, pointer_slot(e), "i32", 4, e.exec_mask()),
    )


@emits
def stackrestore(e: Context, ins: Ins) -> None:
    scatter(e, pointer_slot(e), e.splat(e.rd_int(ins.ops[0], 32)), 4, e.exec_mask())


def _exited(e: Context) -> Val:
    return e.let(f"getelementptr i8, ptr %w, i64 {abi.OFFSETS['exited']}", "ptr")


@emits
def exit_in_function(e: Context, ins: Ins) -> None:
    """`exit` inside a device function; in a kernel it is the flow graph's."""
    place = _exited(e)
    old = e.let(f"load i32, ptr {place.s}", "i32")
    e.emit(f"store i32 {e.bor(old, e.exec_bits()).s}, ptr {place.s}")


@emits
def exited(e: Context, ins: Ins) -> None:
    """After a call: the lanes that ended in it."""
    bits = e.let(f"load i32, ptr {_exited(e).s}", "i32")
    e.wr(ins.ops[0], e.mask_of(bits))
