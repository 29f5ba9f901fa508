"""Asynchronous copies and what waits for them: mbarrier objects, bulk and tensor copies, tensor maps, and clusters.

All of it happens at once, lane after lane, in the engine (native/backend/soft/engine/helpers_async.c and helpers_tensor.c); commit and wait
groups then have nothing to wait for.
"""

from __future__ import annotations

from gpuvirt.soft import abi
from gpuvirt.soft.codegen import helpers
from gpuvirt.soft.codegen.addressing import Where, address, space_of, spread
from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.memory_access import gather, load, store
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ptx.parser import Addr, Imm, Ins, Operand, Reg, Vec
from gpuvirt.soft.ptx.types import TYPES

W = Val("%w", "ptr")
NULL = Val("0", "i64", c=True)
_PAIRS = 1 << 16  # SOFT_RANKS_PAIRS
_MBARRIER = {"init": 0, "inval": 1, "arrive": 2, "arrive_drop": 3, "expect_tx": 4, "complete_tx": 5}
_REDUCE = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5, "inc": 6, "dec": 7}
_REDUCED = {"f16": 0, "bf16": 1, "f32": 2, "u32": 3, "b32": 3, "s32": 4, "f64": 5, "u64": 6, "b64": 6, "s64": 7}
_FIELDS = {
    "global_address": 0, "rank": 1, "box_dim": 2, "global_dim": 3, "global_stride": 4, "element_stride": 5, "elemtype": 6, "interleave_layout": 7,
    "swizzle_mode": 8, "fill_mode": 9,
}  # fmt: skip
_LOAD, _STORE, _TENSOR_REDUCE = 0, 1, 2


def each_lane(e: Context, symbol: str, ret: str, args: list[Val]) -> Val:
    """Calls the engine's `symbol`(warp, lane, arguments...) for every executing lane; addresses are passed as i64. The results, lane by lane."""
    values = [e.splat(a) for a in args]
    name = helpers.each(e.m, symbol, ret, [v.t for v in values])
    return e.call(name, ret or "void", [W, *values, e.exec_bits()], bool(ret))


def lanes_of(e: Context, ins: Ins, operand: Operand, space: str) -> Val:
    """The generic addresses of [operand], which the engine looks at."""
    return spread(e, address(e, ins, operand, space, 1))


def spaces_of(ins: Ins) -> list[str]:
    """The state spaces of a copy, target first."""
    return [m.split("::")[0] for m in ins.mods if m.split("::")[0] in ("global", "shared")]


@emits
def mbarrier(e: Context, ins: Ins) -> None:
    mods, ops = ins.mods, ins.ops
    what = mods[0]
    if what == "pending_count":
        state = e.rd_int(ops[1], 64)
        e.wr(ops[0], e.resize(e.band(state, e.const(0xFFFFF, "i64")), "i32"))
        return
    if what in ("test_wait", "try_wait"):
        _wait(e, ins)
        return
    if what not in _MBARRIER:
        raise e.fail()
    has_state = not isinstance(ops[0], Addr)
    memory, rest = (ops[1], ops[2:]) if has_state else (ops[0], ops[1:])
    number = e.rd_int(rest[0], 32) if rest else None
    count, tx = e.const(1, "i64"), e.const(0, "i64")
    if what in ("expect_tx", "complete_tx") or "expect_tx" in mods:
        if number is None:
            raise e.fail("no number of bytes")
        tx = e.resize(number, "i64")
    elif number is not None:
        count = e.resize(number, "i64")
    before = each_lane(e, "soft_mbarrier", "i64", [e.const(_MBARRIER[what], "i32"), lanes_of(e, ins, memory, space_of(ins)), count, tx])
    if has_state:
        e.wr(ops[0], before)


def _wait(e: Context, ins: Ins) -> None:
    """test_wait and try_wait: the latter lets other warps run before it says no."""
    ops = ins.ops
    where = address(e, ins, ops[1], space_of(ins), 1)
    patient = "try_wait" in ins.mods
    parity = "parity" in ins.mods
    if patient:
        e.uses_barrier = True
    state = e.resize(e.rd_int(ops[2], 32), "i64") if parity else e.rd_int(ops[2], 64)
    flags = [e.const(int(parity), "i32"), e.const(int(patient), "i32")]
    if where.scalar is not None and where.pattern is None and not state.v:
        arguments = [W, e.const(0, "i32"), where.scalar, state, *flags]
        over = e.call("soft_mbarrier_test", "i32", arguments, declare=True)
    else:
        over = each_lane(e, "soft_mbarrier_test", "i32", [spread(e, where), state, *flags])
    e.wr(ops[0], e.icmp("ne", over, e.const(0, "i32")))


@emits
def cp(e: Context, ins: Ins) -> None:
    mods = ins.mods
    if not {"async"} <= set(mods) or any(m.startswith(("im2col::", "tile::")) for m in mods):
        raise e.fail()
    if "commit_group" in mods or "wait_group" in mods or "wait_all" in mods or "prefetch" in mods:
        return
    if "mbarrier" in mods:  # the copies that it waits for are over
        if "noinc" in mods:
            zero = e.const(0, "i64")
            each_lane(e, "soft_mbarrier", "i64", [e.const(2, "i32"), lanes_of(e, ins, ins.ops[0], space_of(ins)), e.const(1, "i64"), zero])
        return
    if "bulk" in mods:
        _tensor(e, ins) if "tensor" in mods else _bulk(e, ins)
        return
    _copy_words(e, ins)


def _copy_words(e: Context, ins: Ins) -> None:
    """cp.async copies at once; what waits for it has nothing to wait for."""
    size = ins.ops[2]
    if not isinstance(size, Imm) or size.value not in (4, 8, 16):
        raise e.fail()
    words = size.value // 4
    extra = ins.ops[3] if len(ins.ops) > 3 else None
    always = extra is None or isinstance(extra, Imm) or _is_policy(e, ins, extra)
    # A copy that may read less than all of it, nothing perhaps, may have any address for that.
    source = address(e, ins, ins.ops[1], "global", size.value if always else 1)
    target = address(e, ins, ins.ops[0], "shared", size.value)
    if always:
        if isinstance(extra, Imm) and extra.value < size.value:
            raise e.fail()
        values = load(e, source, "i32", words)
    else:
        # src-size: fewer bytes than that are read, the rest are zeros; a predicate: nothing is read.
        count = e.rd_int(extra, 32) if not _is_predicate(e, extra) else e.select(e.rd_pred(extra), e.const(0, "i32"), e.const(size.value, "i32"))
        count = e.splat(count)
        lanes = spread(e, source)
        whole = e.band(e.mask, e.icmp("uge", count, e.const(size.value, "i32")))
        part = e.band(e.mask, e.icmp("ult", count, e.const(size.value, "i32")))
        before = e.mask
        e.mask = whole
        values = [e.splat(v) for v in load(e, Where(None, lanes, source.pattern), "i32", words)]
        e.mask = before
        for i in range(words):
            some = e.band(part, e.icmp("ugt", count, e.const(4 * i, "i32")))
            rest = gather(e, e.add(lanes, e.const(4 * i, "i64")) if i else lanes, "i32", 4, some)
            left = e.intrinsic("umin", e.intrinsic("usub.sat", count, e.const(4 * i, "i32")), e.const(4, "i32"))
            bits = e.resize(e.shl(left, e.const(3, "i32")), "i64")
            keep = e.resize(e.sub(e.shl(e.const(1, "i64"), bits), e.const(1, "i64")), "i32")
            values[i] = e.select(part, e.band(rest, keep), values[i])
    store(e, target, values)


def _is_predicate(e: Context, operand: Operand) -> bool:
    name = getattr(getattr(operand, "reg", operand), "name", "")
    return name in e.cfg.regs and e.cfg.regs[name].kind == "p"


def _is_policy(e: Context, ins: Ins, operand: Operand) -> bool:
    name = getattr(operand, "name", "")
    return any("cache_hint" in m for m in ins.mods) and len(ins.ops) == 4 and name in e.cfg.regs and e.cfg.regs[name].bits == 64


def _barrier_of(e: Context, ins: Ins, operand: Operand | None) -> Val:
    return NULL if operand is None else lanes_of(e, ins, operand, "shared")


def _completes(ins: Ins) -> bool:
    return any(m.startswith("mbarrier::") for m in ins.mods)


def _bulk(e: Context, ins: Ins) -> None:
    spaces = spaces_of(ins)
    to, source = (lanes_of(e, ins, o, s) for o, s in zip(ins.ops[:2], spaces, strict=True))
    size = e.rd_int(ins.ops[2], 32)
    barrier = _barrier_of(e, ins, ins.ops[3] if _completes(ins) else None)
    if "reduce" in ins.mods:
        op, kind = _reduction(e, ins)
        each_lane(e, "soft_bulk_reduce", "", [to, source, size, barrier, e.const(op, "i32"), e.const(kind, "i32")])
        return
    keep = e.band(e.rd_int(ins.ops[-1], 32), e.const(0xFFFF, "i32")) if "cp_mask" in ins.mods else e.const(0xFFFF, "i32")
    each_lane(e, "soft_bulk_copy", "", [to, source, size, barrier, keep, _ranks(e, ins, 4)])


def _ranks(e: Context, ins: Ins, operand: int) -> Val:
    """The blocks of the cluster to which a multicast copies, a bit each, and whether pairs of them have one mbarrier; 0: it is none."""
    if "multicast::cluster" not in ins.mods:
        return e.const(0, "i32")
    ranks = e.band(e.rd_int(ins.ops[operand], 32), e.const(0xFFFF, "i32"))
    return e.bor(ranks, e.const(_PAIRS, "i32")) if "cta_group::2" in ins.mods else ranks


def _reduction(e: Context, ins: Ins) -> tuple[int, int]:
    op = next((m for m in ins.mods if m in _REDUCE), "")
    kind = next((m for m in reversed(ins.mods) if m in _REDUCED), "")
    if op not in _REDUCE or kind not in _REDUCED:
        raise e.fail()
    return _REDUCE[op], _REDUCED[kind]


def _tensor(e: Context, ins: Ins) -> None:
    """One box of a tensor map. Loads: [shared], [map, {coordinates}], [mbarrier]; stores and reductions: [map, {coordinates}], [shared]."""
    rank = next((int(m[0]) for m in ins.mods if m in ("1d", "2d", "3d", "4d", "5d")), 0)
    load = spaces_of(ins)[0] == "shared"
    tensor, memory = (ins.ops[1], ins.ops[0]) if load else (ins.ops[0], ins.ops[1])
    if not isinstance(tensor, Vec) or len(tensor.items) != 2 or not isinstance(tensor.items[1], Vec) or len(tensor.items[1].items) != rank:
        raise e.fail("no tensor map and coordinates")
    place = e.rd_int(tensor.items[0], 64) if not isinstance(tensor.items[0], Addr) else lanes_of(e, ins, tensor.items[0], "")
    at = [e.rd_int(c, 32) for c in tensor.items[1].items] + [e.const(0, "i32")] * (5 - rank)
    how = _LOAD if load else _STORE
    if "reduce" in ins.mods:
        how = _TENSOR_REDUCE + _REDUCE[next(m for m in ins.mods if m in _REDUCE)]
    barrier = _barrier_of(e, ins, ins.ops[2] if load else None)
    shared = lanes_of(e, ins, memory, "shared")
    arguments = [place, shared, e.const(how, "i32"), e.const(rank, "i32"), barrier, *at]
    if {"im2col", "im2col_no_offs"}.isdisjoint(ins.mods):
        each_lane(e, "soft_tensor_copy", "", [*arguments, _ranks(e, ins, 3)])
        return
    offsets = ins.ops[3] if load and len(ins.ops) > 3 else Vec(())
    if rank < 3 or load == ("im2col_no_offs" in ins.mods) or not isinstance(offsets, Vec) or len(offsets.items) != (rank - 2 if load else 0):
        raise e.fail("offsets")
    parts = [e.rd_int(o, 32) for o in offsets.items] + [e.const(0, "i32")] * (3 - len(offsets.items))
    each_lane(e, "soft_tensor_im2col", "", [*arguments, *parts, _ranks(e, ins, 4)])


@emits
def tensormap(e: Context, ins: Ins) -> None:
    mods, ops = ins.mods, ins.ops
    if "cp_fenceproxy" in mods:
        spaces = spaces_of(ins)
        to, source = (lanes_of(e, ins, o, s) for o, s in zip(ops[:2], spaces, strict=True))
        # Every lane of the warp takes part, and they name one map: the first lane's copy is all that is needed, the others' do no harm.
        each_lane(e, "soft_bulk_copy", "", [to, source, e.rd_int(ops[2], 32), NULL, e.const(0xFFFF, "i32"), e.const(0, "i32")])
        return
    field = next((m for m in mods if m in _FIELDS), None)
    if "replace" not in mods or field is None:
        raise e.fail()
    which = e.rd_int(ops[1], 32) if len(ops) > 2 else e.const(0, "i32")
    value = e.rd_int(ops[-1], 64 if field in ("global_address", "global_stride") else 32)
    arguments = [lanes_of(e, ins, ops[0], space_of(ins)), e.const(_FIELDS[field], "i32"), which, e.resize(value, "i64")]
    each_lane(e, "soft_tensor_replace", "", arguments)


@emits
def mapa(e: Context, ins: Ins) -> None:
    """The address of what lies in another block of the cluster where the operand's lies in its own; a generic one without .shared::cluster."""
    bits = ins.type.bits
    base = _window(e, ins)
    inside = e.band(e.sub(e.rd_int(ins.ops[1], bits), base), e.const((1 << abi.RANK_SHIFT) - 1, f"i{bits}"))
    block = e.shl(e.rd_int(ins.ops[2], 32), e.const(abi.RANK_SHIFT, "i32"))
    e.wr(ins.ops[0], e.add(e.bor(e.resize(block, f"i{bits}"), inside), base))


def _window(e: Context, ins: Ins) -> Val:
    """What addresses in the cluster's shared memory are counted from: the window's beginning, or for generic ones 0."""
    t = f"i{ins.type.bits}"
    return e.const(0, t) if "shared::cluster" in ins.mods else e.resize(e.shared_base(), t)


@emits
def getctarank(e: Context, ins: Ins) -> None:
    bits = ins.type.bits
    offset = e.sub(e.rd_int(ins.ops[1], bits), _window(e, ins))
    e.wr(ins.ops[0], e.resize(e.lshr(offset, e.const(abi.RANK_SHIFT, f"i{bits}")), "i32"))


@emits
def clusterlaunchcontrol(e: Context, ins: Ins) -> None:
    """try_cancel [response], [mbarrier] asks for the work of a block that has not begun; query_cancel says what the answer was. The
    engine's is always no, which is a response of zeros."""
    mods, ops = ins.mods, ins.ops
    if mods[0] == "try_cancel":
        if not _completes(ins) or "async" not in mods:
            raise e.fail()
        to, barrier = (lanes_of(e, ins, operand, space_of(ins)) for operand in ops)
        each_lane(e, "soft_cancel_answer", "", [to, barrier, e.const(int("multicast::cluster::all" in mods), "i32")])
        return
    response = e.rd_int(ops[1], 128)
    if "is_canceled" in mods:
        e.wr(ops[0], e.icmp("ne", response, e.const(0, "i128")))
        return
    for item in ops[0].items if isinstance(ops[0], Vec) else ops[:1]:  # no block's number where no block was taken back
        e.wr(item, e.const(0, "i32"))


def asynchronous(e: Context, ins: Ins) -> None:
    """st.async and red.async: an mbarrier counts the bytes."""
    t = ins.type
    if not _completes(ins):
        raise e.fail()
    source = ins.ops[1]
    values = list(source.items) if isinstance(source, Vec) else [source]
    lanes = lanes_of(e, ins, ins.ops[0], "shared")
    barrier = lanes_of(e, ins, ins.ops[2], "shared")
    size = t.bits // 8
    for i, value in enumerate(values):
        to = e.add(lanes, e.const(i * size, "i64")) if i else lanes
        v = e.resize(e.rd_int(value, t.bits), "i64")
        if ins.op == "red":
            op, kind = _reduction(e, ins)
            each_lane(e, "soft_red_async", "", [to, v, e.const(size, "i32"), barrier, e.const(op, "i32"), e.const(kind, "i32")])
        else:
            each_lane(e, "soft_st_async", "", [to, v, e.const(size, "i32"), barrier])


def bulk_store(e: Context, ins: Ins) -> None:
    """st.bulk [a], size, 0"""
    if not isinstance(ins.ops[2], Imm) or ins.ops[2].value:
        raise e.fail()
    each_lane(e, "soft_bulk_zero", "", [lanes_of(e, ins, ins.ops[0], space_of(ins)), e.rd_int(ins.ops[1], 64)])


__all__ = ["TYPES", "Reg", "asynchronous", "bulk_store", "each_lane"]
