"""Single-copy atomic accesses: volatile and relaxed vectors, and pairs read past the caches, move each lane's 8 or 16 bytes in one access, because
other threads may read or write the same bytes."""

from __future__ import annotations

from gpuvirt.soft.codegen import helpers
from gpuvirt.soft.codegen.addressing import Where, spread
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import guarded, last_lane, load, store
from gpuvirt.soft.ptx.types import LANES

V64 = f"<{LANES} x i64>"
PAIR = "<2 x i64>"  # aligned, the processor moves it at once


def is_single_copy(t: str, n: int) -> bool:
    """Whether n elements of type t are such a vector."""
    return n > 1 and n * int(t[1:]) in (64, 128)


def load_single_copy(e: Context, where: Where, t: str, n: int, volatile: bool = True) -> list[Val]:
    """n elements of type t per lane; scalars when the address is uniform."""
    bits = int(t[1:])
    halves = load(e, where, "i64", 1, volatile) if n * bits == 64 else _load_pair(e, where)
    return [e.resize(e.lshr(halves[k * bits // 64], e.const(k * bits % 64, "i64")), t) for k in range(n)]


def store_single_copy(e: Context, where: Where, values: list[Val]) -> None:
    """The values of each lane, side by side in memory."""
    bits = int(values[0].t[1:])
    halves: list[Val] = []
    for k, value in enumerate(values):
        part = e.shl(e.resize(value, "i64"), e.const(k * bits % 64, "i64"))
        if k * bits % 64:
            halves[-1] = e.bor(halves[-1], part)
        else:
            halves.append(part)
    if len(halves) == 1:
        store(e, where, halves, True)
    else:
        _store_pair(e, where, *halves)


def _load_pair(e: Context, where: Where) -> list[Val]:
    if where.pattern is None and where.scalar is not None:
        pointer = guarded(e, e.pointer(where.scalar))
        pair = e.let(f"load volatile {PAIR}, ptr {pointer.s}, align 16", "i64")
        return [e.let(f"extractelement {PAIR} {pair.s}, i32 {i}", "i64") for i in range(2)]
    e.m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    setup = f"  %ab = alloca {V64}\n  store {V64} %addr, ptr %ab\n  store {V64} zeroinitializer, ptr %low\n  store {V64} zeroinitializer, ptr %high"
    body = f"{helpers.ADDRESS}\n  %x = load volatile {PAIR}, ptr %p, align 16\n"
    for i, half in enumerate(("low", "high")):
        body += f"  %x{i} = extractelement {PAIR} %x, i32 {i}\n  %o{i} = getelementptr i64, ptr %{half}, i64 %j\n  store i64 %x{i}, ptr %o{i}\n"
    params = f"{V64} %addr, i32 %mask, ptr %low, ptr %high"
    name = e.m.helper("gather.pair", lambda: helpers.lane_loop("gather.pair", "void", params, setup, body, "  ret void"))
    low, high = e.alloca(f"{V64}, align 64"), e.alloca(f"{V64}, align 64")
    e.call(name, "void", [spread(e, where), e.exec_bits(), low, high])
    return [e.let(f"load {V64}, ptr {half.s}", "i64", True) for half in (low, high)]


def _store_pair(e: Context, where: Where, low: Val, high: Val) -> None:
    if where.pattern is None and where.scalar is not None:
        pointer = guarded(e, e.pointer(where.scalar))
        if low.v or high.v:  # all lanes write one place: the last active lane's values stay
            last = last_lane(e)
            low, high = e.extract(e.splat(low), last), e.extract(e.splat(high), last)
        first = e.let(f"insertelement {PAIR} poison, i64 {low.s}, i32 0", "i64")
        both = e.let(f"insertelement {PAIR} {first.s}, i64 {high.s}, i32 1", "i64")
        e.emit(f"store volatile {PAIR} {both.s}, ptr {pointer.s}, align 16")
        return
    e.m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    setup = f"  %ab = alloca {V64}\n  store {V64} %addr, ptr %ab"
    body = f"{helpers.ADDRESS}\n"
    for i, half in enumerate(("low", "high")):
        setup += f"\n  %b{i} = alloca {V64}\n  store {V64} %{half}, ptr %b{i}"
        body += f"  %o{i} = getelementptr i64, ptr %b{i}, i64 %j\n  %x{i} = load i64, ptr %o{i}\n"
        body += f"  %v{i} = insertelement {PAIR} {'%v0' if i else 'poison'}, i64 %x{i}, i32 {i}\n"
    body += f"  store volatile {PAIR} %v1, ptr %p, align 16"
    name = e.m.helper(
        "scatter.pair",
        lambda: helpers.lane_loop("scatter.pair", "void", f"{V64} %addr, {V64} %low, {V64} %high, i32 %mask", setup, body, "  ret void"),
    )
    e.call(name, "void", [spread(e, where), e.splat(low), e.splat(high), e.exec_bits()])
