"""Warp-wide and atomic instructions, one thread an element, against NumPy over whole warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soft.ptx_op import Case, check

pytestmark = pytest.mark.sampled(5)

rng = np.random.default_rng(11)
A = rng.integers(0, 1 << 32, 256, np.uint32)
FEW = rng.integers(0, 4, 256).astype(np.uint32)
LANE = np.arange(256) % 32
ALL = "0xffffffff"


def by_warp(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda a, *_: np.concatenate([np.broadcast_to(function(w), 32) for w in a.reshape(-1, 32)])


def moved(mode: str, b: int, c: int) -> Callable[..., Any]:
    """shfl with the lane b and the clamp and segment word c."""

    def over(a: Any) -> Any:
        segment, clamp = c >> 8 & 31, c & 31
        out = a.copy()
        for i, lane in enumerate(LANE):
            low = int(lane) & segment
            limit = low | clamp & ~segment
            source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | b & ~segment & 31}[mode]
            if source >= limit if mode == "up" else source <= limit:
                out[i] = a[i - lane + source]
        return out

    return over


def ballot(bits: Any) -> int:
    return int(sum(1 << i for i, x in enumerate(bits) if x))


def _cases() -> list[Case]:
    out = []

    def add(text: str, want: Callable[..., Any], *inputs: Any, dtype: Any = np.uint32) -> None:
        out.append(Case(text, np.dtype(dtype), inputs, want))

    for mode in ("up", "down", "bfly", "idx"):
        for b, c in ((1, 0 if mode == "up" else 31), (5, 0x1800 if mode == "up" else 0x181F), (0, 31 if mode != "up" else 0), (16, 0 if mode == "up" else 31)):
            add(f"shfl.sync.{mode}.b32 $d, $a, {b}, {c}, {ALL};", moved(mode, b, c), A)
            add(f"mov.u32 %r5, {b}; shfl.sync.{mode}.b32 $d|%p1, $a, %r5, {c}, {ALL};", moved(mode, b, c), A)
    add(f"setp.ne.u32 %p1, $a, 0; vote.sync.ballot.b32 $d, %p1, {ALL};", by_warp(lambda w: ballot(w != 0)), FEW)
    for kind, f in {"any": np.any, "all": np.all, "uni": lambda x: np.all(x) or not np.any(x)}.items():
        data = np.concatenate([np.zeros(32), np.ones(32), np.eye(32)[3], np.zeros(160)]).astype(np.uint32)
        add(f"setp.ne.u32 %p1, $a, 0; vote.sync.{kind}.pred %p2, %p1, {ALL}; selp.b32 $d, 1, 0, %p2;", by_warp(lambda w, f=f: int(f(w != 0))), data)
    add(f"match.any.sync.b32 $d, $a, {ALL};", lambda a: np.array([ballot(w == x) for w in a.reshape(-1, 32) for x in w], np.uint32), FEW)
    same = np.repeat(np.arange(8, dtype=np.uint32), 32)
    same[40] = 99
    add(f"match.all.sync.b32 $d|%p1, $a, {ALL};", by_warp(lambda w: 0xFFFFFFFF if (w == w[0]).all() else 0), same)
    reductions = {"add": lambda w: int(w.sum(dtype=np.uint64)) & 0xFFFFFFFF, "min": np.min, "max": np.max}
    for name, g in reductions.items():
        add(f"redux.sync.{name}.u32 $d, $a, {ALL};", by_warp(g), A)
    add(f"redux.sync.min.s32 $d, $a, {ALL};", by_warp(np.min), A.view(np.int32), dtype=np.int32)
    for name, u in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        add(f"redux.sync.{name}.b32 $d, $a, {ALL};", by_warp(u.reduce), A)
    # Every eight lanes take part in a collective of their own: the member mask differs between lanes.
    groups = "mov.u32 %r5, %laneid; and.b32 %r5, %r5, 24; mov.b32 %r6, 255; shl.b32 %r5, %r6, %r5; "

    def by_group(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a: np.concatenate([np.full(8, f(g), a.dtype) if np.isscalar(f(g)) else f(g) for g in a.reshape(-1, 8)])

    def placed(f: Callable[..., int]) -> Callable[..., Any]:
        return lambda a: np.array([f(g) << (8 * (i % 4)) for i, g in enumerate(a.reshape(-1, 8)) for _ in range(8)], np.uint32)

    mixed = np.concatenate([FEW[:128], np.repeat(np.arange(16, dtype=np.uint32) % 3, 8)])
    add(groups + "setp.ne.u32 %p1, $a, 0; vote.sync.ballot.b32 $d, %p1, %r5;", placed(lambda g: ballot(g != 0)), mixed)
    for kind, f in {"any": np.any, "all": np.all, "uni": lambda x: np.all(x) or not np.any(x)}.items():
        vote = f"setp.ne.u32 %p1, $a, 0; vote.sync.{kind}.pred %p2, %p1, %r5; selp.b32 $d, 1, 0, %p2;"
        add(groups + vote, by_group(lambda g, f=f: int(f(g != 0))), mixed)
    add(groups + "setp.eq.u32 %p1, $a, $a; vote.sync.ballot.b32 $d, %p1, %r5;", placed(lambda g: 255), mixed)
    for name, g in reductions.items():
        add(groups + f"redux.sync.{name}.u32 $d, $a, %r5;", by_group(lambda x, g=g: int(g(x))), A)
    add(groups + "redux.sync.min.s32 $d, $a, %r5;", by_group(lambda x: int(np.min(x))), A.view(np.int32), dtype=np.int32)
    add(groups + "redux.sync.xor.b32 $d, $a, %r5;", by_group(lambda x: int(np.bitwise_xor.reduce(x))), A)
    add(groups + "match.any.sync.b32 $d, $a, %r5;", lambda a: np.array([ballot(g == x) << (8 * (i % 4)) for i, g in enumerate(a.reshape(-1, 8)) for x in g], np.uint32), mixed)
    add(groups + "match.all.sync.b32 $d|%p1, $a, %r5; @!%p1 add.u32 $d, $d, 7;", lambda a: np.where(placed(lambda g: 255 * int((g == g[0]).all()))(a) == 0, 7, placed(lambda g: 255)(a)), mixed)
    add(groups + "elect.sync $d|%p1, %r5; selp.b32 $d, 99, $d, %p1;", lambda a: np.where(LANE % 8 == 0, 99, LANE // 8 * 8), A)
    add("activemask.b32 $d;", by_warp(lambda w: 0xFFFFFFFF), A)
    add(f"elect.sync $d|%p1, {ALL}; selp.b32 $d, 7, $d, %p1;", lambda a: np.where(LANE == 0, 7, 0), A)
    add("setp.ne.u32 %p1, $a, 0; bar.red.popc.u32 $d, 0, %p1;", lambda a: np.repeat([np.count_nonzero(b) for b in a.reshape(-1, 128)], 128), FEW)
    add("bar.warp.sync 0xffffffff; barrier.sync 0; membar.gl; fence.acq_rel.gpu; mov.u32 $d, $a;", lambda a: a, A)
    # Atomics, every thread on its own element: $ab is the address of $b, whose new value is read back.
    unsigned = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda o, v: v,
        "inc": lambda o, v: np.where(o >= v, 0, o + 1), "dec": lambda o, v: np.where((o == 0) | (o > v), v, o - 1),
    }  # fmt: skip
    old = np.concatenate([A[::-1][:200], [0, 1, 0xFFFFFFFF, 0x7FFFFFFF] * 14]).astype(np.uint32)
    for name, h in unsigned.items():
        kind = "b32" if name in ("and", "or", "xor", "exch") else "u32"
        add(f"atom.global.{name}.{kind} %r5, [%ab], $a; ld.global.u32 $d, [%ab];", lambda v, o, h=h: h(o, v), A, old.copy())
    for name in ("min", "max", "add"):
        h = unsigned[name]
        add(f"red.global.{name}.s32 [%ab], $a; ld.global.s32 $d, [%ab];", lambda v, o, h=h: h(o, v), A.view(np.int32), old.view(np.int32).copy(), dtype=np.int32)
    return out


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_instruction(case: Case) -> None:
    # Atomics change their operand in place, and the reference wants what was there before.
    before = Case(case.text, case.out, tuple(i.copy() for i in case.inputs), lambda *_: case.want(*kept))
    kept = tuple(i.copy() for i in case.inputs)
    check(before)
