"""Convergence points in code for 32 lanes: a block that begins with a barrier or an exchange, to which lanes may come one after the other.

Lanes that come before others whom it concerns wait in the block's mask slot; the others run on first, and the last to come release all of them. Lanes
may come to different barriers, as if these were one: those at the others are noted in %passed, and go on behind theirs later, without a second wait.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.sync_kinds import ALIGNED, BLOCK, OPEN, PART, WARP
from gpuvirt.soft.codegen.control_flow import ControlFlow
from gpuvirt.soft.codegen.ir_builder import Val

_ALIKE = {BLOCK: (BLOCK, ALIGNED), ALIGNED: (BLOCK, ALIGNED), WARP: (WARP,)}  # kinds at which lanes wait for the same


class Lanes(NamedTuple):
    """Masks of lanes (i32), as they are when a convergence point is entered."""

    here: Val
    passed: Val  # at any convergence point, released by others at one like it
    under_way: Val  # elsewhere, still to come
    met: Val  # waiting at other convergence points of the same kind


def begin(e: ControlFlow) -> None:
    """At a function's start: no lane has passed anything."""
    if _has_open(e):
        e.once("passed", "alloca i32", "ptr")
        e.prologue.append("  store i32 0, ptr %passed")


def emit_point(e: ControlFlow, block: Block) -> None:
    """The block's first instruction, for the lanes that need wait no longer; the code behind it runs with `e.mask`."""
    kind = e.convergence_points[block.idx]
    here = e.let(f"load i32, ptr {e.mask_slot(block)}", "i32")
    passed = e.const(0, "i32")
    if _has_open(e):
        slot = e.once("passed", "alloca i32", "ptr")
        passed = e.let(f"load i32, ptr {slot.s}", "i32")
    n = e.n = e.n + 1
    gone = _let_pass(e, block, here, passed, n) if kind in OPEN else None
    lanes = Lanes(here, passed, *_elsewhere(e, block, kind, passed))
    going, met = _released(e, block, kind, lanes)
    _wait(e, block, lanes, going, n)
    e.mask = e.mask_of(going) if block.idx in e.an.masked else e.full
    e.instruction(block.ins[0])
    if gone is not None:
        e.emit(f"store i32 {e.bor(passed, met).s}, ptr %passed")
        e.emit(f"br label %converge{n}.on")
        e.reset()
        e.lines.append(f"converge{n}.on:")
        e.mask = e.mask_of(e.let(f"phi i32 [ {gone.s}, %converge{n}.passed ], [ {going.s}, %converge{n}.all ]", "i32"))


def _has_open(e: ControlFlow) -> bool:
    return any(kind in OPEN for kind in e.convergence_points.values())


def _let_pass(e: ControlFlow, block: Block, here: Val, passed: Val, n: int) -> Val:
    """Lanes that others have released go on behind the barrier, without the rest."""
    own = e.mask_slot(block)
    gone = e.band(here, passed)
    e.emit(f"br i1 {e.icmp('ne', gone, e.const(0, 'i32')).s}, label %converge{n}.passed, label %converge{n}.new")
    e.lines.append(f"converge{n}.passed:")
    e.emit(f"store i32 {e.band(passed, e.invert(gone)).s}, ptr %passed")
    e.emit(f"store i32 {e.band(here, e.invert(gone)).s}, ptr {own}")
    e.emit(f"br label %converge{n}.on")
    e.lines.append(f"converge{n}.new:")
    return gone


def _elsewhere(e: ControlFlow, block: Block, kind: str, passed: Val) -> tuple[Val, Val]:
    """The lanes that are still to come, and those that wait at other points of the kind."""
    under_way, met = passed, e.const(0, "i32")
    alike = _ALIKE.get(kind, ())
    for number in sorted(e.targets - {block.idx}):
        waiting = e.let(f"load i32, ptr {e.mask_slot(e.cfg.order[number])}", "i32")
        if e.convergence_points.get(number) in alike:
            met = e.bor(met, waiting)
        else:
            under_way = e.bor(under_way, waiting)
    return under_way, met


def _released(e: ControlFlow, block: Block, kind: str, lanes: Lanes) -> tuple[Val, Val]:
    """The lanes that need wait no longer: of those here, and of those at other points."""
    zero = e.const(0, "i32")
    point = block.ins[0]
    e.ins, e.pred, e.lead = point, None, False
    if kind not in (WARP, PART):
        return e.select(e.icmp("eq", lanes.under_way, zero), lanes.here, zero), lanes.met
    e.mask = e.mask_of(lanes.here)  # each lane waits for those that it names
    named = e.rd_int(point.ops[-1], 32)
    ready = e.icmp("eq", e.band(named, lanes.under_way), zero)
    if not ready.v:
        return e.select(ready, lanes.here, zero), e.band(lanes.met, named)
    going = e.band(lanes.here, e.bits_of(ready))
    if kind == PART:
        return going, zero
    first = e.band(e.intrinsic("cttz", lanes.here, tail="i1 false"), e.const(31, "i32"))
    return going, e.band(lanes.met, e.extract(named, first))


def _wait(e: ControlFlow, block: Block, lanes: Lanes, going: Val, n: int) -> None:
    """Unless all have come: lanes stay in the block's mask slot, and code goes on with those elsewhere."""
    zero = e.const(0, "i32")
    wait = e.icmp("eq", going, zero) if block.idx in e.an.masked else e.icmp("ne", lanes.under_way, zero)
    e.emit(f"br i1 {wait.s}, label %{e.chain(block.idx)}, label %converge{n}.all")
    e.lines.append(f"converge{n}.all:")
    e.emit(f"store i32 {e.band(lanes.here, e.invert(going)).s}, ptr {e.mask_slot(block)}")
