"""The stack that `alloca` takes from.

Above what functions declare, a lane's local memory has a piece from which `alloca` takes downwards, and behind it the offset it has come to. A
function that returns gives back what it took.
"""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import gather, scatter
from gpuvirt.soft.ptx.opcodes import Access


def pointer_slot(e: Context) -> Val:
    """Where each lane's stack pointer is."""
    offset = e.layout.stack_pointer
    assert offset is not None
    return e.add(e.local_base(), e.const(offset, "i64"))


def _takes(e: Context) -> bool:
    return any(ins.traits.access is Access.TAKES for block in e.cfg.order for ins in block.ins)


def enter(e: Context) -> None:
    """At a kernel's start the stack is empty; a function that takes from it notes how far it had come."""
    if e.layout.stack_pointer is None or not (e.func.is_kernel or _takes(e)):
        return
    lines, e.lines = e.lines, e.prologue
    if e.func.is_kernel:
        scatter(e, pointer_slot(e), e.splat(e.const(e.layout.stack_pointer, "i32")), 4, e.full)
    else:
        e.fields["stack at entry"] = gather(e, pointer_slot(e), "i32", 4, e.full)
    e.lines = lines
    e.forget()


def leave(e: Context) -> None:
    """At a function's end."""
    if "stack at entry" in e.fields:
        scatter(e, pointer_slot(e), e.fields["stack at entry"], 4, e.full)
