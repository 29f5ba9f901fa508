"""Instructions in which the lanes of a warp, or the warps of a block, exchange values: shuffles, votes, barriers."""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops.float_formats import canonical
from gpuvirt.soft.ptx.parser import Imm, Ins, Operand, Pair
from gpuvirt.soft.ptx.types import LANES

W = Val("%w", "ptr")
V32 = f"<{LANES} x i32>"


def _split(operand: Operand) -> tuple[Operand, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


def permute(e: Context, value: Val, index: Val) -> Val:
    """value[index[lane]] for each lane; index below 32."""
    value, index = e.splat(value), e.splat(index)
    if "avx512f" in e.m.features:
        name = "llvm.x86.avx512.permvar.si.512"
        e.m.declare(name, f"declare <16 x i32> @{name}(<16 x i32>, <16 x i32>)")
        low = ", ".join(f"i32 {i}" for i in range(16))
        high = ", ".join(f"i32 {i}" for i in range(16, 32))

        def half(v: Val, picks: str) -> str:
            return e.let(f"shufflevector {V32} {v.s}, {V32} poison, <16 x i32> <{picks}>", "i32").s

        v0, v1 = half(value, low), half(value, high)
        outs = []
        upper = e.icmp("ugt", index, e.const(15, "i32"))
        for picks in (low, high):
            chosen = half(index, picks)
            a = e.let(f"call <16 x i32> @{name}(<16 x i32> {v0}, <16 x i32> {chosen})", "i32").s
            b = e.let(f"call <16 x i32> @{name}(<16 x i32> {v1}, <16 x i32> {chosen})", "i32").s
            part = e.let(f"shufflevector <{LANES} x i1> {upper.s}, <{LANES} x i1> poison, <16 x i32> <{picks}>", "i1").s
            outs.append(e.let(f"select <16 x i1> {part}, <16 x i32> {b}, <16 x i32> {a}", "i32").s)
        every = ", ".join(f"i32 {i}" for i in range(32))
        return e.let(f"shufflevector <16 x i32> {outs[0]}, <16 x i32> {outs[1]}, <32 x i32> <{every}>", "i32", True)
    memory = e.alloca(f"{V32}, align 64")
    e.emit(f"store {V32} {value.s}, ptr {memory.s}")
    result = Val("poison", "i32", True, True)
    for lane in range(LANES):
        i = e.extract(index, lane)
        place = e.let(f"getelementptr i32, ptr {memory.s}, i32 {i.s}", "ptr")
        one = e.let(f"load i32, ptr {place.s}", "i32")
        result = e.let(f"insertelement {V32} {result.s}, i32 {one.s}, i32 {lane}", "i32", True)
    return result


@emits
def shfl(e: Context, ins: Ins) -> None:
    dst, ok = _split(ins.ops[0])
    mode = next(m for m in ins.mods if m in ("idx", "up", "down", "bfly"))
    value = e.rd_int(ins.ops[1], 32)
    b, c = ins.ops[2], ins.ops[3]
    if e.an.broadcast(ins) and mode == "idx":
        lane = e.band(e.rd_int(b, 32), e.const(31, "i32"))
        e.wr(dst, e.extract(value, lane) if value.v else value)
        if ok is not None:
            e.wr(ok, e.const(1, "i1"))
        return
    if isinstance(b, Imm) and isinstance(c, Imm):
        _constant_shuffle(e, mode, dst, ok, value, b.value & 31, c.value)
        return
    lanes = e.lane_ids()
    thirty_one = e.const(31, "i32")
    bv, cv = e.band(e.rd_int(b, 32), thirty_one), e.rd_int(c, 32)
    segment = e.band(e.lshr(cv, e.const(8, "i32")), thirty_one)
    clamp = e.band(cv, thirty_one)
    lowest = e.band(lanes, segment)
    limit = e.bor(lowest, e.band(clamp, e.invert(segment)))
    if mode == "up":
        source = e.sub(lanes, bv)
        good = e.icmp("sge", source, limit)
    elif mode == "down":
        source = e.add(lanes, bv)
        good = e.icmp("sle", source, limit)
    elif mode == "bfly":
        source = e.bxor(lanes, bv)
        good = e.icmp("sle", source, limit)
    else:
        source = e.bor(lowest, e.band(bv, e.invert(segment)))
        good = e.icmp("sle", source, limit)
    index = e.band(e.select(good, source, lanes), thirty_one)
    e.wr(dst, permute(e, value, index) if value.v else value)
    if ok is not None:
        e.wr(ok, good)


def _constant_shuffle(e: Context, mode: str, dst: Operand, ok: Operand | None, value: Val, b: int, c: int) -> None:
    picks, good = [], []
    segment, clamp = c >> 8 & 31, c & 31
    for lane in range(LANES):
        lowest = lane & segment
        limit = lowest | (clamp & ~segment)
        source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": lowest | (b & ~segment & 31)}[mode]
        fine = source >= limit if mode == "up" else source <= limit
        good.append(int(fine))
        picks.append(source & 31 if fine else lane)
    if value.v:
        index = ", ".join(f"i32 {p}" for p in picks)
        value = e.let(f"shufflevector {V32} {value.s}, {V32} poison, {V32} <{index}>", "i32", True)
    e.wr(dst, value)
    if ok is not None:
        e.wr(ok, e.lanes(good, "i1"))


def _named_lanes(e: Context, operand: Operand | None) -> Val:
    """The lanes that execute and that the member mask names; a vector when lanes may name different ones, each the group that it belongs to."""
    bits = e.exec_bits()
    if operand is None or (isinstance(operand, Imm) and operand.value & 0xFFFFFFFF == 0xFFFFFFFF):
        return bits
    return e.band(bits, e.rd_int(operand, 32))


def _first(e: Context, bits: Val) -> Val:
    return e.band(e.intrinsic("cttz", bits, tail="i1 false"), e.const(31, "i32"))


def _predicate_bits(e: Context, operand: Operand, lanes: Val) -> Val:
    p = e.rd_pred(operand)
    if p.v:
        return e.band(e.bits_of(p), lanes)
    return e.select(p, lanes, e.imm(0, lanes))


@emits
def vote(e: Context, ins: Ins) -> None:
    lanes = _named_lanes(e, ins.ops[2] if "sync" in ins.mods else None)
    bits = _predicate_bits(e, ins.ops[1], lanes)
    zero = e.imm(0, lanes)
    if "ballot" in ins.mods:
        e.wr(ins.ops[0], bits)
    elif "any" in ins.mods:
        e.wr(ins.ops[0], e.icmp("ne", bits, zero))
    elif "all" in ins.mods:
        e.wr(ins.ops[0], e.icmp("eq", bits, lanes))
    else:
        e.wr(ins.ops[0], e.bor(e.icmp("eq", bits, zero), e.icmp("eq", bits, lanes)))


@emits
def activemask(e: Context, ins: Ins) -> None:
    e.wr(ins.ops[0], e.exec_bits())


@emits
def elect(e: Context, ins: Ins) -> None:
    dst, p = _split(ins.ops[0])
    lanes = _named_lanes(e, ins.ops[1])
    leader = _first(e, lanes)
    e.wr(dst, leader)
    if p is not None:
        e.wr(p, e.icmp("eq", e.lane_ids(), leader))


@emits
def match(e: Context, ins: Ins) -> None:
    dst, p = _split(ins.ops[0])
    value = e.splat(e.rd_int(ins.ops[1], ins.type.bits))
    lanes = _named_lanes(e, ins.ops[2])
    if "all" in ins.mods and not lanes.v:
        first = e.extract(value, _first(e, lanes))
        same = e.band(e.bits_of(e.icmp("eq", value, first)), lanes)
    else:
        same = Val("zeroinitializer", "i32", True, True)
        for lane in range(LANES):
            bits = e.bits_of(e.icmp("eq", value, e.extract(value, lane)))
            same = e.let(f"insertelement {V32} {same.s}, i32 {bits.s}, i32 {lane}", "i32", True)
        same = e.band(same, lanes)
    if "any" in ins.mods:
        e.wr(dst, same)
        return
    every = e.icmp("eq", same, lanes)
    e.wr(dst, e.select(every, lanes, e.imm(0, lanes)))
    if p is not None:
        e.wr(p, every)


@emits
def redux(e: Context, ins: Ins) -> None:
    t = ins.type
    op = next(m for m in ins.mods if m in ("add", "min", "max", "and", "or", "xor"))
    lanes = _named_lanes(e, ins.ops[2])
    if t.kind == "f":
        value = e.splat(e.rd(ins.ops[1], t))
        if "abs" in ins.mods:
            value = e.intrinsic("fabs", value)
        neutral = e.fconst(float("inf") if op == "min" else float("-inf"), "float")
        reduce = f"llvm.vector.reduce.f{op}{'imum' if 'NaN' in ins.mods else ''}.v{LANES}f32"
    else:
        value = e.splat(e.rd_int(ins.ops[1], 32))
        signed = t.kind == "s"
        neutral_bits = {
            "add": 0, "or": 0, "xor": 0, "and": -1,
            "min": 0x7FFFFFFF if signed else -1, "max": -(1 << 31) if signed else 0,
        }[op]  # fmt: skip
        neutral = e.const(neutral_bits, "i32")
        reduce = f"llvm.vector.reduce.{('s' if signed else 'u') + op if op in ('min', 'max') else op}.v{LANES}i32"
    e.m.declare(reduce, f"declare {value.t} @{reduce}({value.ty})")
    if lanes.v:
        name = _reduce_groups(e, reduce, value.t)
        e.wr(ins.ops[0], canonical(e, e.call(name, value.t, [value, lanes, e.exec_bits(), e.splat(neutral)], ret_vector=True)))
        return
    chosen = e.select(e.mask_of(lanes), value, neutral)
    e.wr(ins.ops[0], canonical(e, e.let(f"call {value.t} @{reduce}({chosen.ty} {chosen.s})", value.t)))


def _reduce_groups(e: Context, reduce: str, t: str) -> str:
    """A function that gives each lane the reduction over its own group: (values, the group's lanes for each lane, executing lanes, neutral value)."""
    v = f"<{LANES} x {t}>"
    name = f"groups.{reduce.removeprefix('llvm.vector.')}"
    e.m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    text = f"""define internal {v} @{name}({v} %value, {V32} %groups, i32 %lanes, {v} %neutral) {{
start:
  br label %head
head:
  %left = phi i32 [ %lanes, %start ], [ %rest, %body ]
  %result = phi {v} [ %neutral, %start ], [ %merged, %body ]
  %more = icmp ne i32 %left, 0
  br i1 %more, label %body, label %end
body:
  %first = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %own = shl i32 1, %first
  %named = extractelement {V32} %groups, i32 %first
  %group = or i32 %named, %own
  %mask = bitcast i32 %group to <{LANES} x i1>
  %chosen = select <{LANES} x i1> %mask, {v} %value, {v} %neutral
  %one = call {t} @{reduce}({v} %chosen)
  %in = insertelement {v} poison, {t} %one, i32 0
  %all = shufflevector {v} %in, {v} poison, {V32} zeroinitializer
  %merged = select <{LANES} x i1> %mask, {v} %all, {v} %result
  %others = xor i32 %group, -1
  %rest = and i32 %left, %others
  br label %head
end:
  ret {v} %result
}}"""
    return e.m.helper(name, lambda: text)


def _uniform(e: Context, operand: Operand) -> Val:
    """An operand that must be the same in all executing lanes, as a scalar."""
    value = e.rd_int(operand, 32)
    return e.extract(value, _first(e, e.exec_bits())) if value.v else value


@emits
def bar(e: Context, ins: Ins) -> None:
    mods, ops = ins.mods, ins.ops
    if "warp" in mods:
        e.emit('fence syncscope("singlethread") seq_cst')
        return
    e.uses_barrier = True
    if "cluster" in mods:
        e.call("soft_cluster_arrive" if "arrive" in mods else "soft_cluster_wait", "void", [W], declare=True)
        return
    zero = e.const(0, "i32")
    lanes = e.exec_bits()
    if "red" in mods:
        op = next(m for m in mods if m in ("and", "or", "popc"))
        has_count = len(ops) == 4
        threads = _uniform(e, ops[2]) if has_count else zero
        bits = _predicate_bits(e, ops[-1], lanes)
        arguments = [W, _uniform(e, ops[1]), threads, lanes, e.const(abi.RED[op], "i32"), bits]
        result = e.call("soft_barrier_red", "i32", arguments, declare=True)
        e.wr(ops[0], result if op == "popc" else e.icmp("ne", result, zero))
        return
    number = _uniform(e, ops[0]) if ops else zero
    threads = _uniform(e, ops[1]) if len(ops) > 1 else zero
    name = "soft_barrier_arrive" if "arrive" in mods else "soft_barrier_sync"
    e.call(name, "void", [W, number, threads, lanes], declare=True)
