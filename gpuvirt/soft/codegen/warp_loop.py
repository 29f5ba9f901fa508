"""The loop over warps and blocks around the code of one warp.

A call of the entry costs more than what a small kernel does in one warp. So the entry of a kernel whose warps do not wait for each other runs all
warps of as many blocks as the engine says (`blocks` in struct soft_warp; 0: only the one warp), one after the other, and what is the same for all of
them (parameters, the grid's shape, what is computed of those) is read and computed once.

What struct soft_warp says of the warp is kept up to date all the while: the engine names the warp in messages, device functions and the engine's
functions read it.
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.analysis.basic_blocks import EXITED
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.block_shape import Shape, full_warps, many_warps
from gpuvirt.soft.ptx.layout import Program
from gpuvirt.soft.ptx.opcodes import BARRIERS, Sync
from gpuvirt.soft.ptx.types import LANES

_TURNS = (*BARRIERS, Sync.ARRIVE, Sync.CLUSTER, Sync.WARPGROUP, Sync.OBJECT, Sync.SLEEP)  # where other warps of the block may run
MOST_PARAMS = 24  # parameters read before the first warp: more do not fit the processor's registers


def possible(program: Program, shape: Shape) -> bool:
    """Whether the warps of a block may run one after the other."""
    if not many_warps(shape):
        return True
    for body in program.bodies.values():
        for _, block in body.blocks:
            for ins in block:
                if ins.traits.sync in _TURNS:
                    return False
    return True


def _field(name: str, t: str, offset: int, same: bool = False) -> list[str]:
    return [
        f"  %run.{name}.p = getelementptr i8, ptr %w, i64 {offset}",
        f"  %run.{name} = load {t}, ptr %run.{name}.p{', !invariant.load !0' if same else ''}",
    ]


def around(e: Context) -> tuple[list[str], list[str]]:
    """What comes before the code of one warp, and after it (there the block `done` goes on)."""
    # Code may ask whether an address is local, and access what would be, in a kernel that has no local memory.
    local = e.layout.local_bytes > 0 or e.asks_local
    many = many_warps(e.shape)
    first = _read_state(e, many, local) + _begin_block()
    if many:
        first += _begin_warp(e, local)
    if any(ins.op == EXITED for block in e.cfg.order for ins in block.ins):
        first += [f"  %run.exited.p = getelementptr i8, ptr %w, i64 {abi.OFFSETS['exited']}", "  store i32 0, ptr %run.exited.p"]
    last = ["  br label %run.out", "run.out:"]
    if many:
        last += _next_warp()
    return first, last + _next_block()


def _read_state(e: Context, many: bool, local: bool) -> list[str]:
    """What the engine says of the first warp and its block, and where the loop ends."""
    at = abi.OFFSETS
    lines: list[str] = []
    for i in range(3):
        lines += _field(f"ctaid{i}.0", "i32", at["ctaid"] + 4 * i)
    for i in range(2):
        lines += _field(f"nctaid{i}", "i32", at["nctaid"] + 4 * i, True)
    lines += _field("blocks", "i32", at["blocks"])
    lines += _field("stop", "ptr", at["stop"], True)
    if many:
        lines += _field("warp.0", "i32", at["warp"])
        for name in ("warp", "first_thread", "lanes", "local"):
            lines.append(f"  %run.{name}.p = getelementptr i8, ptr %w, i64 {at[name]}")
        lines += [
            "  %run.single = icmp eq i32 %run.blocks, 0",
            "  %run.second = add i32 %run.warp.0, 1",
            f"  %run.end = select i1 %run.single, i32 %run.second, i32 {e.warps().s}",
        ]
        if not full_warps(e.shape):
            lines += _last_warp(e)
        if local:
            lines += _local_of_warp_0()
    elif local:
        lines += _field("local", "i64", at["local"])
    return lines


def _last_warp(e: Context) -> list[str]:
    """%run.last: the number of the block's last warp, in which not every lane is a thread; %run.tail.lanes: those that are."""
    return [
        f"  %run.last = add i32 {e.warps().s}, -1",
        f"  %run.threads.xy = mul i32 {e.threads(0).s}, {e.threads(1).s}",
        f"  %run.threads = mul i32 %run.threads.xy, {e.threads(2).s}",
        f"  %run.tail.n = and i32 %run.threads, {LANES - 1}",
        "  %run.tail.bit = shl i32 1, %run.tail.n",
        "  %run.tail.lanes = add i32 %run.tail.bit, -1",
    ]


def _local_of_warp_0() -> list[str]:
    """%run.size: bytes of a warp's local memory; %run.local.0: where the block's begins."""
    return [
        *_field("stride", "i64", abi.OFFSETS["local_stride"], True),
        f"  %run.size = mul i64 %run.stride, {LANES}",
        "  %run.local.w = load i64, ptr %run.local.p",
        "  %run.warp.0w = zext i32 %run.warp.0 to i64",
        "  %run.local.off = mul i64 %run.size, %run.warp.0w",
        "  %run.local.0 = sub i64 %run.local.w, %run.local.off",
    ]


def _begin_block() -> list[str]:
    """The head of the loop over blocks: the block's index, and how many are left."""
    indices = [f"  %run.ctaid{i} = phi i32 [ %run.ctaid{i}.0, %entry ], [ %run.ctaid{i}.1, %run.next ]" for i in range(3)]
    left = "  %run.left = phi i32 [ %run.blocks, %entry ], [ %run.left.1, %run.next ]"
    return ["  br label %run.block", "run.block:", *indices, left, "  br label %run.in", "run.in:"]


def _begin_warp(e: Context, local: bool) -> list[str]:
    """The head of the loop over a block's warps: keeps struct soft_warp what it is for this one."""
    lines = [
        "  %run.warp = phi i32 [ %run.warp.0, %run.block ], [ %run.warp.1, %run.out ]",
        f"  %run.first_thread = mul i32 %run.warp, {LANES}",
        "  store volatile i32 %run.warp, ptr %run.warp.p",
        "  store i32 %run.first_thread, ptr %run.first_thread.p",
    ]
    if not full_warps(e.shape):
        lines += [
            "  %run.tail = icmp eq i32 %run.warp, %run.last",
            "  %run.lanes = select i1 %run.tail, i32 %run.tail.lanes, i32 -1",
            "  store i32 %run.lanes, ptr %run.lanes.p",
        ]
    if local:
        lines += [
            "  %run.warp.w = zext i32 %run.warp to i64",
            "  %run.local.at = mul i64 %run.size, %run.warp.w",
            "  %run.local = add i64 %run.local.0, %run.local.at",
            "  store i64 %run.local, ptr %run.local.p",
        ]
    return lines


def _next_warp() -> list[str]:
    return [
        "  %run.warp.1 = add i32 %run.warp, 1",
        "  %run.more = icmp ult i32 %run.warp.1, %run.end",
        "  br i1 %run.more, label %run.in, label %run.done",
        "run.done:",
    ]


def _next_block() -> list[str]:
    """Goes on with the block that follows in the grid, x fastest, unless that was the last one or the engine says to stop."""
    return [
        "  %run.left.1 = add i32 %run.left, -1",
        "  %run.again = icmp sgt i32 %run.left.1, 0",
        "  br i1 %run.again, label %run.ask, label %run.leave",
        "run.ask:",
        "  %run.stopped = load volatile i8, ptr %run.stop",
        "  %run.on = icmp eq i8 %run.stopped, 0",
        "  br i1 %run.on, label %run.next, label %run.leave",
        "run.next:",
        "  %run.ctaid0.i = add i32 %run.ctaid0, 1",
        "  %run.ctaid0.e = icmp eq i32 %run.ctaid0.i, %run.nctaid0",
        "  %run.ctaid0.1 = select i1 %run.ctaid0.e, i32 0, i32 %run.ctaid0.i",
        "  %run.carry0 = zext i1 %run.ctaid0.e to i32",
        "  %run.ctaid1.i = add i32 %run.ctaid1, %run.carry0",
        "  %run.ctaid1.e = icmp eq i32 %run.ctaid1.i, %run.nctaid1",
        "  %run.ctaid1.1 = select i1 %run.ctaid1.e, i32 0, i32 %run.ctaid1.i",
        "  %run.carry1 = zext i1 %run.ctaid1.e to i32",
        "  %run.ctaid2.1 = add i32 %run.ctaid2, %run.carry1",
        *(f"  store volatile i32 %run.ctaid{i}.1, ptr %run.ctaid{i}.0.p" for i in range(3)),
        "  br label %run.block",
        "run.leave:",
        "  ret void",
    ]


def parameter(e: Context, offset: int, t: str) -> Val | None:
    """A parameter of the kernel, read before the first warp."""
    size = int(t[1:]) // 8
    if not e.loops or offset < 0 or offset % size or offset + size > e.func.param_bytes:
        return None
    found = e.param_values.get((offset, t))
    if found is None and len(e.param_values) < MOST_PARAMS:
        base = e.field("params", "i64")
        name = f"%run.p{offset}.{t}"
        e.before += [
            f"  {name}.a = add i64 {base.s}, {offset}",
            f"  {name}.p = inttoptr i64 {name}.a to ptr",
            f"  {name} = load {t}, ptr {name}.p, align {size}, !invariant.load !0",
        ]
        found = e.param_values[offset, t] = Val(name, t)
    return found
