"""Loads and stores of all spaces, and the instructions that only order or prefetch memory."""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.codegen import alignment_checks, prefetch, single_copy_access
from gpuvirt.soft.codegen.addressing import VOLATILE, address, space_of
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import load, store
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.codegen.special_registers import read_special
from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ops import async_copy
from gpuvirt.soft.ops.call import kernel_param, load_param, store_param
from gpuvirt.soft.ptx.parser import Ins, Vec
from gpuvirt.soft.ptx.types import LANES


@emits
def ld(e: Context, ins: Ins) -> None:
    t = ins.type
    space = space_of(ins)
    dst = ins.ops[0]
    dsts = list(dst.items) if isinstance(dst, Vec) else [dst]
    element = f"i{t.bits}"
    if space == "param" and (load_param(e, ins, dsts, element) or kernel_param(e, ins, dsts, element)):
        return
    where = address(e, ins, ins.ops[1], space)
    volatile = not VOLATILE.isdisjoint(ins.mods)
    if space == "global" and not volatile:
        prefetch.prefetch(e, ins, where, t.bits // 8 * len(dsts))
    # Pairs that are read past the caches are read while others write them: a sum whose bits say whether it is there yet, with no flag beside it.
    if (volatile or ("cg" in ins.mods and len(dsts) == 2)) and single_copy_access.is_single_copy(element, len(dsts)):
        values = single_copy_access.load_single_copy(e, where, element, len(dsts), volatile)
    else:
        values = load(e, where, element, len(dsts), volatile, space == "param" and e.func.is_kernel)
    if "acquire" in ins.mods:
        e.emit("fence acquire")
    for d, value in zip(dsts, values, strict=True):
        e.wr(d, value, t.kind == "s")


@emits
def st(e: Context, ins: Ins) -> None:
    if "async" in ins.mods or "bulk" in ins.mods:
        (async_copy.asynchronous if "async" in ins.mods else async_copy.bulk_store)(e, ins)
        return
    t = ins.type
    space = space_of(ins)
    if space == "const":
        raise BadPtx(f"constant memory cannot be written ('{ins}')")
    src = ins.ops[1]
    sources = list(src.items) if isinstance(src, Vec) else [src]
    if space == "param" and store_param(e, ins, sources):
        return
    where = address(e, ins, ins.ops[0], space)
    values = [e.rd_int(s, t.bits) for s in sources]
    if "release" in ins.mods:
        e.emit("fence release")
    volatile = not VOLATILE.isdisjoint(ins.mods)
    if volatile and single_copy_access.is_single_copy(values[0].t, len(values)):
        single_copy_access.store_single_copy(e, where, values)
    else:
        store(e, where, values, volatile)


@emits
def fence(e: Context, ins: Ins) -> None:
    e.emit("fence seq_cst")


@emits
def ignored(e: Context, ins: Ins) -> None:
    """Hints, and what has no effect here."""


@emits
def createpolicy(e: Context, ins: Ins) -> None:
    e.wr(ins.ops[0], e.const(0, "i64"))


@emits
def isspacep(e: Context, ins: Ins) -> None:
    a = e.rd_int(ins.ops[1], 64)
    kind = space_of(ins)
    own = e.icmp("ult", e.sub(a, e.field("shared", "i64")), e.cast("zext", e.field("shared_bytes", "i32"), "i64"))
    if kind == "shared" and "shared::cluster" not in ins.mods:
        e.wr(ins.ops[0], own)
        return
    shared = e.bor(own, _in_cluster(e, a))
    if kind == "shared":
        e.wr(ins.ops[0], shared)
        return
    extent = e.mul(e.field("local_stride", "i64"), e.const(LANES, "i64"))
    local = e.icmp("ult", e.sub(a, e.field("local", "i64")), extent)
    if kind == "local":
        e.wr(ins.ops[0], local)
    elif kind == "global":
        e.wr(ins.ops[0], e.invert(e.bor(shared, local)))
    else:
        e.wr(ins.ops[0], e.const(0, "i1"))


def _in_cluster(e: Context, address: Val) -> Val:
    """Whether a generic address lies in the shared memory of a block of the cluster."""
    offset = e.sub(address, e.field("window", "i64"))
    blocks = e.resize(read_special(e, "%cluster_nctarank"), "i64")
    inside = e.band(offset, e.const((1 << abi.RANK_SHIFT) - 1, "i64"))
    bounded = e.icmp("ult", inside, e.resize(e.field("shared_bytes", "i32"), "i64"))
    return e.band(e.icmp("ult", offset, e.shl(blocks, e.const(abi.RANK_SHIFT, "i64"))), bounded)


@emits
def nanosleep(e: Context, ins: Ins) -> None:
    e.uses_barrier = e.waits = True
    ns = e.rd_int(ins.ops[0], 32)
    if ns.v:
        masked = e.select(e.mask, ns, e.const(0, "i32"))
        name = f"llvm.vector.reduce.umax.v{LANES}i32"
        e.m.declare(name, f"declare i32 @{name}(<{LANES} x i32>)")
        ns = e.let(f"call i32 @{name}({masked.ty} {masked.s})", "i32")
    e.call("soft_nanosleep", "void", [Val("%w", "ptr"), ns], declare=True)


@emits
def trap(e: Context, ins: Ins) -> None:
    alignment_checks.settle(e)
    e.call("soft_trap", "void", [Val("%w", "ptr"), e.exec_bits(), e.const(0, "i32")], declare=True)
