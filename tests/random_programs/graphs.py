"""Graphs: captured from streams with forks and joins, or put together node by node."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from random_programs.blocks import OF_HOST, Block
from random_programs.order import Order, Point, Stream
from random_programs.work import MAKERS, NODES, WAYS, Work

LANES = 3  # streams that nothing but captures use


@dataclass
class Graph:
    number: int  # as the interpreter calls it
    works: list[Work]
    used: Point  # the last step that did something with it
    kernels: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # nodes that may be changed, and what they were made of

    @property
    def blocks(self) -> list[Block]:
        return [span.block for work in self.works for span in work.spans]

    def work(self) -> Work:
        def effect() -> None:
            for work in self.works:
                work.effect()

        return Work("graph", (), [span for work in self.works for span in work.spans], effect)

    def change_kernel(self, order: Order, thread: int, blocks: Mapping[int, Block], k: int, c: int) -> None:
        """Other numbers for one of the kernels; launches that are under way keep theirs."""
        if not self.kernels:
            return
        node, args = self.kernels[k % len(self.kernels)]
        work = MAKERS["kernel"](blocks, args | {"k": k, "c": c})
        if work is not None:
            self.works[node] = work
            self.used = order.emit(thread, "kernel_set", self.number, node, *work.numbers)


def clash(a: Work, b: Work) -> bool:
    return any(s.block is t.block and s.low < t.high and t.low < s.high and (s.write or t.write) for s in a.spans for t in b.spans)


def before(works: list[Work]) -> list[set[int]]:
    """What each must come after, without what follows from the others."""
    needs: list[set[int]] = []
    reached: list[set[int]] = []
    for i, work in enumerate(works):
        direct: set[int] = set()
        all_before: set[int] = set()
        for j in range(i - 1, -1, -1):
            if j not in all_before and clash(works[j], work):
                direct.add(j)
                all_before |= {j} | reached[j]
        needs.append(direct)
        reached.append(all_before)
    return needs


def lanes_of(order: Order, thread: int) -> list[Stream]:
    while len(order.lanes) < LANES:
        made = order.new_stream(thread, False, 0)
        if made is None:
            break
        order.lanes.append(made)
    return order.lanes


def build(
    order: Order, thread: int, number: int, args: Mapping[str, Any], blocks: Mapping[int, Block], at_rest: frozenset[str], rng: random.Random
) -> Graph | None:
    works, kernels = [], []
    for inner in args["ops"]:
        work = MAKERS[inner["kind"]](blocks, inner)
        if work is None or (args["captured"] and any(span.block.kind == "pageable" and work.kind == "copy" for span in work.spans)):
            continue
        if work.kind == "host" and any(span.block.kind in at_rest for span in work.spans):
            continue
        if work.kind == "copy" and all(span.block.kind in OF_HOST for span in work.spans):
            continue
        if work.kind == "kernel":
            kernels.append((len(works), dict(inner)))
        works.append(work)
    if not works:
        return None
    for work in works:
        for span in work.spans:
            order.know(thread, span.block.made)
    needs = before(works)
    if args["captured"]:
        capture(order, thread, number, works, needs, rng)
        kernels = []
    else:
        order.emit(thread, "graph", number)
        for work, direct in zip(works, needs, strict=True):
            order.emit(thread, "node", number, len(direct), *sorted(direct), NODES[work.kind], *work.numbers)
    made = order.emit(thread, "instantiate", number)
    return Graph(number, works, made, kernels)


def capture(order: Order, thread: int, number: int, works: list[Work], needs: list[set[int]], rng: random.Random) -> None:
    lanes = lanes_of(order, thread)
    for lane in lanes:
        order.know(thread, lane.last)
    for other, tick in order.context_synced.items():
        order.know(thread, Point(other, tick))
    order.know(thread, order.captured)
    order.emit(thread, "capture_begin", lanes[0].number, rng.choice((1, 2)))
    on: list[int] = []  # the lane of each
    position: list[int] = []  # and its place there
    lengths = [0] * len(lanes)
    seen = [[0] * len(lanes) for _ in lanes]  # by lane: how much of each lane it comes after
    joined = [True, *[False] * (len(lanes) - 1)]

    def edge(source: int, target: int) -> None:
        event = order.event_for(thread, False, rng.randrange(1 << 16))
        order.emit(thread, "record", event.number, lanes[source].number)
        event.uses[thread] = order.emit(thread, "wait", event.number, lanes[target].number).tick
        event.clock = None  # it is of the capture
        seen[target] = [max(a, b) for a, b in zip(seen[target], [*seen[source][:source], lengths[source], *seen[source][source + 1 :]], strict=True)]
        joined[target] = True

    for work, direct in zip(works, needs, strict=True):
        lane = rng.randrange(len(lanes))
        if not joined[lane]:
            edge(0, lane)
        for j in sorted(direct):
            if on[j] != lane and seen[lane][on[j]] <= position[j]:
                edge(on[j], lane)
        numbers: tuple[int, ...] = (*work.numbers, lanes[lane].number)
        if work.kind == "copy":
            rows = work.numbers[7] > 1
            numbers = (WAYS.index(rng.choice(("rows", "rows_3d") if rows else ("typed", "any", "rows", "rows_3d"))), *numbers)
        elif work.kind == "fill":
            numbers = (0, *numbers)
        elif work.kind == "host":
            numbers = (*numbers, 0)
        order.emit(thread, work.kind, *numbers)
        on.append(lane)
        position.append(lengths[lane])
        lengths[lane] += 1
    for lane in range(1, len(lanes)):
        if (joined[lane] and seen[0][lane] < lengths[lane]) or (joined[lane] and not lengths[lane]):
            edge(lane, 0)
    order.captured = order.emit(thread, "capture_end", number, lanes[0].number)
    for lane_stream in lanes:
        lane_stream.last = order.captured
