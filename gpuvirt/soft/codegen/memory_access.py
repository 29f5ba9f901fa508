"""Loads and stores of 32 lanes: one wide access where they lie side by side, pieces, or one access a lane."""

from __future__ import annotations

import itertools

from gpuvirt.soft.analysis.lane_affine import Pattern
from gpuvirt.soft.codegen import helpers
from gpuvirt.soft.codegen.addressing import Where, concat, shuffle, spread, vec
from gpuvirt.soft.codegen.context import Context, SpeculativeAffine
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.types import LANES

_MOST_CONTIGUITY_CHECKS = 40


def _wide_mask(e: Context, mask: Val, n: int) -> str:
    """A mask of 32 lanes with every bit repeated n times."""
    if n == 1:
        return mask.s
    index = ", ".join(f"i32 {i // n}" for i in range(LANES * n))
    return e.let(f"shufflevector <{LANES} x i1> {mask.s}, <{LANES} x i1> poison, <{LANES * n} x i32> <{index}>", "i1").s


def _masked_load(e: Context, pointer: Val, mask: str, t: str, n: int, align: int) -> Val:
    name = f"llvm.masked.load.v{n}{t}.p0"
    e.m.declare(name, f"declare {vec(t, n)} @{name}(ptr, i32, {vec('i1', n)}, {vec(t, n)})")
    return e.let(f"call {vec(t, n)} @{name}(ptr {pointer.s}, i32 {align}, {vec('i1', n)} {mask}, {vec(t, n)} zeroinitializer)", t, n == LANES)


def _masked_store(e: Context, value: str, pointer: Val, mask: str, t: str, n: int, align: int) -> None:
    name = f"llvm.masked.store.v{n}{t}.p0"
    e.m.declare(name, f"declare void @{name}({vec(t, n)}, ptr, i32, {vec('i1', n)})")
    e.emit(f"call void @{name}({vec(t, n)} {value}, ptr {pointer.s}, i32 {align}, {vec('i1', n)} {mask})")


def _has_gather(e: Context, t: str) -> bool:
    return t in ("i32", "i64") and "avx512f" in e.m.features


def gather(e: Context, addresses: Val, t: str, align: int, mask: Val | None, volatile: bool = False) -> Val:
    """One element per lane."""
    if _has_gather(e, t) and not volatile:
        pointers = e.cast("inttoptr", addresses, "ptr")
        name = f"llvm.masked.gather.v{LANES}{t}.v{LANES}p0"
        e.m.declare(name, f"declare {vec(t, LANES)} @{name}({vec('ptr', LANES)}, i32, {vec('i1', LANES)}, {vec(t, LANES)})")
        m = mask.s if mask is not None else "splat (i1 true)"
        text = f"call {vec(t, LANES)} @{name}({pointers.ty} {pointers.s}, i32 {align}, {vec('i1', LANES)} {m}, {vec(t, LANES)} zeroinitializer)"
        return e.let(text, t, True)
    bits = e.const(-1, "i32") if mask is None else e.bits_of(mask)
    return e.call(helpers.gather(e.m, t, align, volatile), t, [addresses, bits], True)


def scatter(e: Context, addresses: Val, value: Val, align: int, mask: Val | None, volatile: bool = False) -> None:
    """One element per lane; of lanes with the same address the last wins."""
    t = value.t
    if _has_gather(e, t) and not volatile:
        pointers = e.cast("inttoptr", addresses, "ptr")
        name = f"llvm.masked.scatter.v{LANES}{t}.v{LANES}p0"
        e.m.declare(name, f"declare void @{name}({vec(t, LANES)}, {vec('ptr', LANES)}, i32, {vec('i1', LANES)})")
        m = mask.s if mask is not None else "splat (i1 true)"
        e.emit(f"call void @{name}({value.ty} {value.s}, {pointers.ty} {pointers.s}, i32 {align}, {vec('i1', LANES)} {m})")
        return
    bits = e.const(-1, "i32") if mask is None else e.bits_of(mask)
    e.call(helpers.scatter(e.m, t, align, volatile), "void", [addresses, value, bits])


def guarded(e: Context, pointer: Val) -> Val:
    """The pointer of a scalar access, or scratch memory when the guard lets no lane through."""
    if e.pred is None:
        return pointer
    some = e.pred
    if some.v:
        some = e.icmp("ne", e.exec_bits(), e.const(0, "i32"))
    scratch = e.once("scratch", "alloca [64 x i8], align 64", "ptr")
    return e.select(some, pointer, scratch)


def load_scalar(e: Context, pointer: Val, t: str, align: int, volatile: bool) -> Val:
    if volatile and t in ("i8", "i16", "i32", "i64"):
        return e.let(f"load atomic {t}, ptr {pointer.s} acquire, align {align}", t)
    return e.let(f"load {'volatile ' if volatile else ''}{t}, ptr {pointer.s}, align {align}", t)


def load(e: Context, where: Where, t: str, n: int, volatile: bool = False, invariant: bool = False) -> list[Val]:
    """n elements of type t per lane, side by side in memory; scalars when the address is uniform."""
    size = int(t[1:]) // 8
    mask = e.exec_mask()
    if where.pattern is None and where.scalar is not None:
        pointer = guarded(e, where.at(e))
        if invariant:
            return [e.let(f"load {t}, ptr {e.offset(pointer, i * size).s}, align {size}, !invariant.load !0", t) for i in range(n)]
        return [load_scalar(e, e.offset(pointer, i * size), t, size, volatile) for i in range(n)]
    pattern = where.pattern
    stride = size * n
    if pattern is not None:
        steps, group = pattern.steps, pattern.group
        if group == LANES and all(steps[i] == i * stride for i in range(LANES)):
            pointer = where.at(e) if where.scalar is not None else e.pointer(e.extract(spread(e, where), 0))
            return _load_wide(e, pointer, t, n, size, mask, volatile)
        result = None
        if mask is None and not volatile and where.scalar is not None:
            result = _load_stretch(e, where, pattern, t, n, size)
        if result is None:
            result = _load_groups(e, where, pattern, t, n, size, mask)
        if result is not None:
            return result
    addresses = spread(e, where)

    def gathered() -> list[Val]:
        return [gather(e, e.add(addresses, e.const(i * size, "i64")) if i else addresses, t, size, mask, volatile) for i in range(n)]

    def side_by_side() -> list[Val]:
        return _load_wide(e, e.pointer(e.extract(addresses, 0)), t, n, size, mask)

    if where.speculative is not None and not volatile and _in_line(where.speculative, stride):
        speculative = where.speculative
        return e.either(speculative.holds, lambda: _load_wide(e, e.offset(e.pointer(speculative.lead), where.offset), t, n, size, mask), gathered)
    if volatile or not _may_be_contiguous(e, where, stride):
        return gathered()
    addresses = _settled(e, addresses)
    return e.either(_contiguous(e, addresses, stride, mask), side_by_side, gathered)


def _in_line(speculative: SpeculativeAffine, stride: int) -> bool:
    return all(s == i * stride for i, s in enumerate(speculative.steps))


def _may_be_contiguous(e: Context, where: Where, stride: int) -> bool:
    """Whether the lanes' accesses may be contiguous. Each run-time test makes the function longer: at most _MOST_CONTIGUITY_CHECKS are emitted."""
    pattern = where.pattern
    if where.scattered or e.contiguity_checks[e.in_uniform_copy] >= _MOST_CONTIGUITY_CHECKS:
        return False
    e.contiguity_checks[e.in_uniform_copy] += 1
    if pattern is None:
        return True
    group = pattern.group
    return group < LANES and all(s - pattern.steps[i // group * group] == i % group * stride for i, s in enumerate(pattern.steps))


def _settled(e: Context, addresses: Val) -> Val:
    """What lanes that are off hold may be anything, also what LLVM calls poison: a branch must not depend on that."""
    return e.let(f"freeze {addresses.ty} {addresses.s}", "i64", True)


def _contiguous(e: Context, addresses: Val, stride: int, mask: Val | None) -> Val:
    """Tests at run time whether the lanes' accesses are contiguous: strides are often parameters, and a gather costs ten times a contiguous load."""
    line = e.add(e.splat(e.extract(addresses, 0)), e.lanes([i * stride for i in range(LANES)], "i64"))
    elsewhere = e.icmp("ne", addresses, line)
    if mask is not None:
        elsewhere = e.band(elsewhere, mask)
    return e.icmp("eq", e.bits_of(elsewhere), e.const(0, "i32"))


def _load_wide(e: Context, pointer: Val, t: str, n: int, size: int, mask: Val | None, volatile: bool = False) -> list[Val]:
    """n elements per lane that lie side by side, lane after lane."""
    if mask is None:
        wide = e.let(f"load {'volatile ' if volatile else ''}{vec(t, LANES * n)}, ptr {pointer.s}, align {size}", t, n == 1)
    else:
        wide = _masked_load(e, pointer, _wide_mask(e, mask, n), t, LANES * n, size)
    if n == 1:
        return [wide]
    return [shuffle(e, wide.s, t, LANES * n, [i * n + k for i in range(LANES)]) for k in range(n)]


def _runs(steps: tuple[int, ...], group: int, stride: int) -> tuple[int, str] | None:
    """(run length, "contiguous" or "broadcast") when the lanes fall into equal runs of 4, 8 or 16 within their groups."""
    for run in (16, 8, 4):
        if run > group:
            continue
        starts = range(0, LANES, run)
        if all(steps[s + i] - steps[s] == i * stride for s in starts for i in range(run)):
            return run, "contiguous"
        if all(steps[s + i] == steps[s] for s in starts for i in range(run)):
            return run, "broadcast"
    return None


def _load_stretch(e: Context, where: Where, pattern: Pattern, t: str, n: int, size: int) -> list[Val] | None:
    """Where the lanes' places, several lanes to one perhaps, make up one stretch without gaps: that is loaded once and handed out."""
    steps, stride = pattern.steps, size * n
    places = sorted(set(steps))
    if pattern.group != LANES or not 2 < len(places) <= LANES or len(places) * stride > 128:
        return None
    if any(b - a != stride for a, b in itertools.pairwise(places)):
        return None
    whole = e.let(f"load {vec(t, len(places) * n)}, ptr {where.at(e, places[0]).s}, align {size}", t).s
    return [shuffle(e, whole, t, len(places) * n, [(s - places[0]) // size + k for s in steps]) for k in range(n)]


def _sorted_runs(steps: tuple[int, ...], size: int) -> tuple[list[int], int] | None:
    """(the lanes in the order of their places, the length of the equally long runs without gaps that they then fall into)."""
    order = sorted(range(LANES), key=lambda lane: steps[lane])
    places = [steps[lane] for lane in order]
    for run in (16, 8, 4, 2):
        if all(places[i] - places[i // run * run] == i % run * size for i in range(LANES)):
            return (order, run) if len(set(places)) == LANES else None
    return None


def _load_groups(e: Context, where: Where, pattern: Pattern, t: str, n: int, size: int, mask: Val | None) -> list[Val] | None:
    found = _runs(pattern.steps, pattern.group, size * n)
    if found is None:
        return None
    run, kind = found
    if mask is not None and (kind == "broadcast" or n > 1):
        return None
    outs: list[list[Val]] = [[] for _ in range(n)]
    for start in range(0, LANES, run):
        pointer = where.of_lane(e, start)
        if kind == "broadcast":
            for k in range(n):
                one = e.let(f"load {t}, ptr {e.offset(pointer, k * size).s}, align {size}", t)
                a = e.let(f"insertelement {vec(t, run)} poison, {t} {one.s}, i32 0", t)
                outs[k].append(e.let(f"shufflevector {vec(t, run)} {a.s}, {vec(t, run)} poison, <{run} x i32> zeroinitializer", t))
            continue
        if mask is None:
            wide = e.let(f"load {vec(t, run * n)}, ptr {pointer.s}, align {size}", t)
        else:
            index = ", ".join(f"i32 {start + i}" for i in range(run))
            part = e.let(f"shufflevector <{LANES} x i1> {mask.s}, <{LANES} x i1> poison, <{run} x i32> <{index}>", "i1")
            wide = _masked_load(e, pointer, part.s, t, run, size)
        if n == 1:
            outs[0].append(wide)
        else:
            for k in range(n):
                outs[k].append(shuffle(e, wide.s, t, run * n, [i * n + k for i in range(run)]))
    return [concat(e, parts, t, run) for parts in outs]


def last_lane(e: Context) -> Val:
    """The highest lane that executes."""
    zeros = e.intrinsic("ctlz", e.exec_bits(), tail="i1 false")
    return e.band(e.sub(e.const(31, "i32"), zeros), e.const(31, "i32"))


def store(e: Context, where: Where, values: list[Val], volatile: bool = False) -> None:
    """The values of each lane, side by side in memory."""
    mask = e.exec_mask()
    if where.pattern is None and where.scalar is not None:
        _store_uniform(e, where, values, volatile)
        return
    values = [e.splat(v) for v in values]
    if where.pattern is None or not _store_affine(e, where, where.pattern, values, mask, volatile):
        _store_lanes(e, where, values, mask, volatile)


def _store_uniform(e: Context, where: Where, values: list[Val], volatile: bool) -> None:
    """To one address for the whole warp."""
    t = values[0].t
    size = int(t[1:]) // 8
    pointer = guarded(e, where.at(e))
    last: Val | None = None
    for i, value in enumerate(values):
        if value.v:  # all lanes write one place: the last active lane's value stays
            last = last or last_lane(e)
            value = e.extract(value, last)
        target = e.offset(pointer, i * size)
        if volatile and size <= 8:
            e.emit(f"store atomic {t} {value.s}, ptr {target.s} release, align {size}")
        else:
            e.emit(f"store {t} {value.s}, ptr {target.s}, align {size}")


def _store_affine(e: Context, where: Where, pattern: Pattern, values: list[Val], mask: Val | None, volatile: bool) -> bool:
    """Stores by the lanes' pattern; False: the pattern does not help."""
    t = values[0].t
    size = int(t[1:]) // 8
    n = len(values)
    stride = size * n
    if pattern.group == LANES and all(pattern.steps[i] == i * stride for i in range(LANES)):
        pointer = where.at(e) if where.scalar is not None else e.pointer(e.extract(spread(e, where), 0))
        _store_wide(e, pointer, values, size, mask)
        return True
    found = _runs(pattern.steps, pattern.group, stride)
    if found is not None and found[1] == "contiguous" and (mask is None or n == 1):
        run = found[0]
        for start in range(0, LANES, run):
            pointer = where.of_lane(e, start)
            parts = [shuffle(e, v.s, t, LANES, list(range(start, start + run))) for v in values]
            wide = _interleave(e, parts, t, run)
            if mask is None:
                e.emit(f"store {vec(t, run * n)} {wide}, ptr {pointer.s}, align {size}")
            else:
                part = shuffle(e, mask.s, "i1", LANES, list(range(start, start + run)))
                _masked_store(e, wide, pointer, part.s, t, run, size)
        return True
    if pattern.group == LANES and mask is None and n == 1 and not volatile and where.scalar is not None:
        sorted_ = _sorted_runs(pattern.steps, size)
        if sorted_ is not None:
            order, run = sorted_
            ordered = shuffle(e, values[0].s, t, LANES, order).s
            for i in range(0, LANES, run):
                piece = shuffle(e, ordered, t, LANES, list(range(i, i + run))).s
                e.emit(f"store {vec(t, run)} {piece}, ptr {where.at(e, pattern.steps[order[i]]).s}, align {size}")
            return True
    return False


def _store_lanes(e: Context, where: Where, values: list[Val], mask: Val | None, volatile: bool) -> None:
    """To addresses that are tested at run time for being contiguous."""
    size = int(values[0].t[1:]) // 8
    stride = size * len(values)
    addresses = spread(e, where)

    def scattered() -> list[Val]:
        for i, value in enumerate(values):
            scatter(e, e.add(addresses, e.const(i * size, "i64")) if i else addresses, value, size, mask, volatile)
        return []

    def side_by_side() -> list[Val]:
        _store_wide(e, e.pointer(e.extract(addresses, 0)), values, size, mask)
        return []

    if where.speculative is not None and not volatile and _in_line(where.speculative, stride):
        speculative = where.speculative

        def in_line() -> list[Val]:
            _store_wide(e, e.offset(e.pointer(speculative.lead), where.offset), values, size, mask)
            return []

        e.either(speculative.holds, in_line, scattered)
    elif volatile or not _may_be_contiguous(e, where, stride):
        scattered()
    else:
        addresses = _settled(e, addresses)
        e.either(_contiguous(e, addresses, stride, mask), side_by_side, scattered)


def _store_wide(e: Context, pointer: Val, values: list[Val], size: int, mask: Val | None) -> None:
    """The values of all lanes side by side, lane after lane."""
    t, n = values[0].t, len(values)
    wide = _interleave(e, values, t, LANES)
    if mask is None:
        e.emit(f"store {vec(t, LANES * n)} {wide}, ptr {pointer.s}, align {size}")
    else:
        _masked_store(e, wide, pointer, _wide_mask(e, mask, n), t, LANES * n, size)


def _interleave(e: Context, values: list[Val], t: str, lanes: int) -> str:
    """Vectors a, b, ... as a0 b0 ... a1 b1 ...; n is 1, 2, 4 or 8."""
    n = len(values)
    texts = [v.s for v in values]
    size = lanes
    while len(texts) > 1:
        joined = []
        for i in range(0, len(texts), 2):
            index = ", ".join(f"i32 {k}" for k in range(2 * size))
            joined.append(e.let(f"shufflevector {vec(t, size)} {texts[i]}, {vec(t, size)} {texts[i + 1]}, <{2 * size} x i32> <{index}>", t).s)
        texts, size = joined, size * 2
    if n == 1:
        return texts[0]
    index = ", ".join(f"i32 {k * lanes + i}" for i in range(lanes) for k in range(n))
    return e.let(f"shufflevector {vec(t, size)} {texts[0]}, {vec(t, size)} poison, <{size} x i32> <{index}>", t).s
