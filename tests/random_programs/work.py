"""One piece of work: a copy, a fill, a kernel or a host function as numbers for the interpreter, what it uses, and what it does in the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from random_programs import effects
from random_programs.blocks import OF_HOST, OF_KERNELS, Block, Span, rows

NODES = {"kernel": 0, "fill": 1, "copy": 2, "host": 3}  # NodeKind in interpreter/work.h
WAYS = ("typed", "typed_sync", "any", "any_sync", "rows", "rows_sync", "rows_3d", "batch")
SYNC_WAYS = ("typed_sync", "any_sync", "rows_sync")


@dataclass
class Work:
    kind: str  # of NODES
    numbers: tuple[int, ...]
    spans: list[Span]
    effect: Callable[[], None]


def fits(block: Block | None, offset: int, size: int) -> bool:
    return block is not None and offset >= 0 and size > 0 and offset + size <= block.size


def fill(blocks: Mapping[int, Block], a: Mapping[str, Any]) -> Work | None:
    to, width, count, n = blocks.get(a["to"]), a["width"], a["count"], a["rows"]
    offset, pitch = a["at"], a["pitch"] if n > 1 else a["count"] * a["width"]
    if count < 1 or n < 1 or pitch < width * count or not fits(to, offset, (n - 1) * pitch + width * count):
        return None
    assert to is not None
    if to.kind not in OF_KERNELS or offset % width or pitch % width:
        return None
    numbers = (to.number, offset, width, a["value"], pitch, count, n)
    spans = rows(to, offset, pitch, width * count, n, True)
    return Work("fill", numbers, spans, lambda: effects.fill(to.bytes, offset, width, a["value"], pitch, count, n))


def copy(blocks: Mapping[int, Block], a: Mapping[str, Any]) -> Work | None:
    to, source, size, n = blocks.get(a["to"]), blocks.get(a["from"]), a["size"], a["rows"]
    to_pitch, from_pitch = (a["to_pitch"], a["from_pitch"]) if n > 1 else (size, size)
    if size < 1 or n < 1 or min(to_pitch, from_pitch) < size:
        return None
    to_end, from_end = (n - 1) * to_pitch + size, (n - 1) * from_pitch + size
    if not fits(to, a["at"], to_end) or not fits(source, a["from_at"], from_end):
        return None
    assert to is not None and source is not None
    if to is source and a["at"] < a["from_at"] + from_end and a["from_at"] < a["at"] + to_end:
        return None
    numbers = (to.number, a["at"], to_pitch, source.number, a["from_at"], from_pitch, size, n)
    spans = [*rows(source, a["from_at"], from_pitch, size, n, False), *rows(to, a["at"], to_pitch, size, n, True)]
    return Work("copy", numbers, spans, lambda: effects.copy(to.bytes, a["at"], to_pitch, source.bytes, a["from_at"], from_pitch, size, n))


def kernel(blocks: Mapping[int, Block], a: Mapping[str, Any]) -> Work | None:
    name, n, m = a["name"], a["n"], a["m"]
    to = blocks.get(a["to"])
    source = blocks.get(a["from"]) if name in effects.READS_INPUT else to
    at, from_at = a["at"], a["from_at"] if name in effects.READS_INPUT else a["at"]
    written = 4 * (m if name == "count" else n)
    if n < 1 or m < 1 or at % 4 or from_at % 4 or not fits(to, at, written) or not fits(source, from_at, 4 * n):
        return None
    assert to is not None and source is not None
    if to.kind not in OF_KERNELS or source.kind not in OF_KERNELS:
        return None
    spans = [Span(to, at, at + written, True)]
    if name in effects.READS_INPUT:
        if to is source and at < from_at + 4 * n and from_at < at + written:
            return None
        spans.append(Span(source, from_at, from_at + 4 * n, False))
    numbers = (effects.KERNELS.index(name), to.number, at, source.number, from_at, n, a["k"], a["c"], m, a["threads"])
    given = source.bytes if name in effects.READS_INPUT else None
    return Work("kernel", numbers, spans, lambda: effects.kernel(name, to.bytes, at, given, from_at, n, a["k"], a["c"], m))


def host(blocks: Mapping[int, Block], a: Mapping[str, Any], kinds: frozenset[str] = OF_HOST) -> Work | None:
    what, size = a["what"], a["size"]
    number = effects.HOST_WORK.index(what)
    if what == "sleep":
        return Work("host", (number, -1, 0, -1, 0, 0, a["value"]), [], lambda: None)
    to, source = blocks.get(a["to"]), blocks.get(a["from"])
    if not fits(to, a["at"], size) or (what == "xor" and not fits(source, a["from_at"], size)):
        return None
    assert to is not None
    if to.kind not in kinds:
        return None
    spans = [Span(to, a["at"], a["at"] + size, True)]
    if what == "xor":
        assert source is not None
        if source.kind not in kinds or (to is source and abs(a["at"] - a["from_at"]) < size):
            return None
        spans.append(Span(source, a["from_at"], a["from_at"] + size, False))
    given = source if what == "xor" else None
    numbers = (number, to.number, a["at"], given.number if given else -1, a["from_at"], size, a["value"])
    from_bytes = given.bytes if given else None
    return Work("host", numbers, spans, lambda: effects.host(what, to.bytes, a["at"], from_bytes, a["from_at"], size, a["value"]))


MAKERS = {"fill": fill, "copy": copy, "kernel": kernel, "host": host}
