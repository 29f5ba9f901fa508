"""Blocks of memory of each kind: their bytes as they should be, and who has used which of them since when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from random_programs.effects import Bytes
from random_programs.order import Clock, Point

KINDS = ("device", "async", "pitched", "virtual", "variable", "managed", "pageable", "pinned", "registered", "mapped", "asked", "shadowed")
OF_HOST = frozenset(KINDS[6:])  # host threads and host functions use them
OF_KERNELS = frozenset(KINDS) - {"pageable", "pinned", "registered"}  # and fills
MAPPED = frozenset(("mapped", "asked"))
PEEKED = MAPPED | {"managed"}  # whose pages are watched
KEPT = 48  # accesses of a block; when there are more, those of one agent become one


class Span(NamedTuple):
    """Bytes of a block, read or written."""

    block: Block
    low: int
    high: int
    write: bool


class Access(NamedTuple):
    low: int
    high: int
    write: bool
    agent: int
    tick: int


@dataclass
class Block:
    number: int  # as the interpreter calls it
    kind: str
    size: int
    made: Point
    bytes: Bytes = field(init=False, repr=False)
    accesses: list[Access] = field(default_factory=list)
    named: list[Point] = field(default_factory=list)  # steps that use it beside its accesses: it is freed after them
    peeked: bool = False  # the host has looked at it while the device worked, and sees what is there now after a wait

    def __post_init__(self) -> None:
        self.bytes = np.zeros(self.size, np.uint8)

    def missing(self, low: int, high: int, write: bool, clock: Clock, found: dict[int, int]) -> None:
        """Adds the accesses that clash with this one and are not over by the clock: the last tick of each agent."""
        for access in self.accesses:
            if access.low < high and low < access.high and (write or access.write) and clock[access.agent] < access.tick:
                found[access.agent] = max(found.get(access.agent, 0), access.tick)

    def note(self, low: int, high: int, write: bool, point: Point, clock: Clock) -> None:
        """What the new access covers, and is ordered after, needs no memory of its own: who clashes with it clashes with the new one."""
        if write:
            self.accesses = [a for a in self.accesses if a.low < low or high < a.high]
        else:
            self.accesses = [a for a in self.accesses if a.write or a.low < low or high < a.high or clock[a.agent] < a.tick]
        self.accesses.append(Access(low, high, write, *point))
        if len(self.accesses) > KEPT:
            merged: dict[tuple[int, bool], Access] = {}
            for a in self.accesses:
                b = merged.setdefault((a.agent, a.write), a)
                merged[a.agent, a.write] = Access(min(a.low, b.low), max(a.high, b.high), a.write, a.agent, max(a.tick, b.tick))
            self.accesses = list(merged.values())


def rows(block: Block, offset: int, pitch: int, size: int, count: int, write: bool) -> list[Span]:
    """Rows of a copy or fill: each by itself, so that others may work between them, unless there are many."""
    if count <= 4:
        return [Span(block, offset + i * pitch, offset + i * pitch + size, write) for i in range(count)]
    return [Span(block, offset, offset + (count - 1) * pitch + size, write)]
