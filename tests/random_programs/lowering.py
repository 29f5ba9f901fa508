"""Makes steps of operations: finds out which accesses clash and are not ordered, and orders them by one of the means that CUDA has.

Any list of operations becomes a program whose result is defined: an operation that does not fit (its block is not there) is left out. So a failing
program can be made smaller by leaving out operations.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from random_programs.blocks import KINDS, MAPPED, OF_HOST, OF_KERNELS, PEEKED, Block, Span
from random_programs.graphs import Graph, build
from random_programs.means import Means
from random_programs.order import Order, Point, Stream
from random_programs.work import MAKERS, SYNC_WAYS, WAYS, Work, host


@dataclass(frozen=True)
class Op:
    """An operation; its thread and stream are numbers that are taken modulo what the program has."""

    kind: str
    thread: int
    stream: int
    salt: int  # of what is chosen when steps are made of it
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Lowered:
    text: str
    steps: int
    ops: list[int]  # of each line: the operation that it was made of
    expected: dict[int, bytes]  # of each line that compares, if asked for


class Lowering:
    def __init__(self, name: str, threads: int, own_context: bool, keep: bool, without: frozenset[str]) -> None:
        self.name, self.threads, self.own_context, self.keep = name, threads, own_context, keep
        self.order = Order(threads)
        self.slots: dict[int, Stream] = {}
        self.blocks: dict[int, Block] = {}  # by the operations' numbers
        self.made = 0
        self.graphs: dict[int, Graph] = {}
        self.graphs_made = 0
        self.means = Means(self.order, without)
        # What the host uses only while the device has nothing to do; host functions do not use it.
        self.at_rest = frozenset(("managed", "shadowed")) | (MAPPED if "mapped_at_work" in without else frozenset())
        self.ops: list[int] = []
        self.expected: dict[int, bytes] = {}

    # -- order

    def ordered(self, thread: int, stream: Stream | None, spans: Iterable[Span], rng: random.Random) -> None:
        """Makes an access of the thread, or of work that it submits, come after all that it clashes with."""
        spans = list(spans)
        for _ in range(30):
            if stream:
                self.order.before_submitting(thread, stream)
            clock = self.order.clock_at(thread, stream) if stream else self.order.clocks[thread]
            missing: dict[int, int] = {}
            for block, low, high, write in spans:
                block.missing(low, high, write, clock, missing)
            if not missing:
                return
            agent = next(iter(missing))
            self.means.order(thread, stream, Point(agent, missing[agent]), rng)
        raise AssertionError("the means of ordering do not order")

    def note(self, spans: Iterable[Span], point: Point) -> None:
        agent = self.order.by_agent.get(point.agent)
        clock = agent.clock if agent else self.order.clocks[point.agent]
        for block, low, high, write in spans:
            block.note(low, high, write, point, clock)

    def know_blocks(self, thread: int, spans: Iterable[Span]) -> None:
        for span in spans:
            self.order.know(thread, span.block.made)

    def host_touch(self, thread: int, spans: list[Span], rng: random.Random) -> None:
        """The host uses managed memory only while the device has nothing to do."""
        self.know_blocks(thread, spans)
        if any(span.block.kind in self.at_rest for span in spans):
            for stream in list(self.order.by_agent.values()):
                while self.order.clocks[thread][stream.agent] < stream.ticks:
                    self.means.order(thread, None, Point(stream.agent, stream.ticks), rng)
        # Managed memory is watched, and fetched when it is touched; of other memory the host sees what a wait has brought.
        if any(span.block.peeked or span.block.kind in self.at_rest - {"managed"} for span in spans):
            self.order.sync_context(thread)
        self.ordered(thread, None, spans, rng)

    def host_touched(self, spans: list[Span], point: Point) -> None:
        self.note(spans, point)
        if any(span.block.kind in self.at_rest for span in spans):
            self.order.managed_touched[point.agent] = point

    def stream_of(self, op: Op, thread: int) -> Stream:
        """The operation's: 0 the legacy one, 1 the thread's own, others as they were made."""
        if op.stream == 0:
            self.order.legacy.number = 2 if op.salt & 1 else 0
            return self.order.legacy
        if op.stream == 1:
            return self.order.own[thread]
        stream = self.slots.get(op.stream)
        if stream is None:
            made = self.order.new_stream(thread, op.stream % 3 == 0, -(op.stream % 2))
            if made is None:
                return self.order.own[thread]
            stream = self.slots[op.stream] = made
        return stream

    # -- operations

    def apply(self, number: int, op: Op) -> None:
        thread = op.thread % self.threads
        rng = random.Random(op.salt)
        getattr(self, f"do_{op.kind}")(op, thread, rng)
        self.ops += [number] * (len(self.order.lines) - len(self.ops))

    def submit_work(self, thread: int, stream: Stream, work: Work, step: tuple[Any, ...], rng: random.Random) -> Point:
        self.know_blocks(thread, work.spans)
        self.ordered(thread, stream, work.spans, rng)
        point = self.order.submit(thread, stream, step[0], *step[1:])
        self.note(work.spans, point)
        work.effect()
        return point

    def do_work(self, op: Op, thread: int, rng: random.Random) -> None:
        """A fill, a kernel, a host function."""
        work = MAKERS[op.kind](self.blocks, op.args)
        if work is None or (op.kind == "host" and any(span.block.kind in self.at_rest for span in work.spans)):
            return
        sync = op.kind == "fill" and op.args["sync"]
        stream = self.order.legacy if sync else self.stream_of(op, thread)
        numbers: tuple[int, ...] = (*work.numbers, stream.number)
        if op.kind == "fill":
            numbers = (int(sync), *numbers)
        elif op.kind == "host":
            numbers = (*numbers, op.salt & 2 and 1)
        self.submit_work(thread, stream, work, (op.kind, *numbers), rng)

    do_fill = do_kernel = do_host = do_work

    def do_copy(self, op: Op, thread: int, rng: random.Random) -> None:
        work = MAKERS["copy"](self.blocks, op.args)
        way = op.args["way"]
        if work is None or (op.args["rows"] > 1 and way not in ("rows", "rows_sync", "rows_3d", "batch")):
            return
        to, source = self.blocks[op.args["to"]], self.blocks[op.args["from"]]
        from_host, to_host = source.kind in OF_HOST, to.kind in OF_HOST
        stream = self.order.legacy if way in SYNC_WAYS else self.stream_of(op, thread)
        if (way == "batch" and stream.legacy) or (from_host and to_host and way in ("typed", "typed_sync")):
            return
        # What the call reads before it returns; a copy among host memory may be made at once, or when the stream comes to it.
        at_once = [s for s in work.spans if from_host and (to_host or (not s.write and source.kind == "pageable"))]
        self.know_blocks(thread, work.spans)
        self.ordered(thread, None, at_once, rng)
        self.ordered(thread, stream, work.spans, rng)
        point = self.order.submit(thread, stream, "copy", WAYS.index(way), *work.numbers, stream.number)
        read_now = [s for s in work.spans if not s.write and source.kind == "pageable"]
        self.note([s for s in work.spans if s not in read_now], point)
        self.note(read_now, stream.last)
        work.effect()
        if way in SYNC_WAYS and (to_host or (from_host and source.kind != "pageable")):
            self.order.joined(thread, stream.clock)

    def do_host_here(self, op: Op, thread: int, rng: random.Random) -> None:
        work = host(self.blocks, op.args, OF_HOST | {"managed"})
        if work is None:
            return
        self.host_touch(thread, work.spans, rng)
        self.host_touched(work.spans, self.order.emit(thread, "host_here", *work.numbers))
        work.effect()

    def do_peek(self, op: Op, thread: int, rng: random.Random) -> None:
        """The host reads a byte whatever the device does with it meanwhile, and does not compare it."""
        block = self.blocks.get(op.args["block"])
        if block is not None and block.kind in PEEKED and op.args["at"] < block.size:
            self.order.know(thread, block.made)
            block.named.append(self.order.emit(thread, "peek", block.number, op.args["at"]))
            block.peeked = True

    def do_check(self, op: Op, thread: int, rng: random.Random) -> None:
        block = self.blocks.get(op.args["block"])
        low, size = op.args["at"], op.args["size"]
        if block is None or low < 0 or size < 1 or low + size > block.size:
            return
        span = Span(block, low, low + size, False)
        self.know_blocks(thread, [span])
        crc = zlib.crc32(block.bytes[low : low + size].tobytes())
        numbers = (block.number, low, size, crc)
        if block.kind in OF_HOST or (block.kind == "managed" and op.args["here"]):
            self.host_touch(thread, [span], rng)
            self.host_touched([span], self.order.emit(thread, "check_here", *numbers))
        else:
            stream = self.order.legacy
            self.ordered(thread, stream, [span], rng)
            self.note([span], self.order.submit(thread, stream, "check", *numbers))
            self.order.joined(thread, stream.clock)
        if self.keep:
            self.expected[len(self.order.lines) - 1] = block.bytes[low : low + size].tobytes()

    def do_write_value(self, op: Op, thread: int, rng: random.Random) -> None:
        block, at, size = self.blocks.get(op.args["to"]), op.args["at"], op.args["size"]
        if block is None or block.kind not in OF_KERNELS or at % size or at + size > block.size:
            return
        value: int = op.args["value"]

        def effect() -> None:
            block.bytes[at : at + size] = bytearray(value.to_bytes(size, "little"))

        stream = self.stream_of(op, thread)
        work = Work("", (), [Span(block, at, at + size, True)], effect)
        self.submit_work(thread, stream, work, ("write_value", block.number, at, size, value, stream.number), rng)

    def do_alloc(self, op: Op, thread: int, rng: random.Random) -> None:
        number, kind, size = op.args["block"], op.args["of"], op.args["size"]
        if number in self.blocks or self.made >= 4000:
            return
        stream = self.stream_of(op, thread)
        name = self.made
        self.made += 1
        step = (name, KINDS.index(kind), size, stream.number)
        if kind == "async":
            self.order.submit(thread, stream, "alloc", *step)
            made = stream.last
        else:
            made = self.order.emit(thread, "alloc", *step)
        self.blocks[number] = block = Block(name, kind, size, made)
        whole = {"to": number, "at": 0, "from": -1, "from_at": 0, "size": size, "what": "fill", "value": op.args["value"]}
        if kind in OF_HOST or (kind == "managed" and op.salt & 1):
            self.do_host_here(Op("host_here", thread, op.stream, op.salt, whole), thread, rng)
        else:
            shape = {"width": 1, "count": size, "rows": 1, "pitch": size, "sync": False}
            self.do_work(Op("fill", thread, op.stream, op.salt, whole | shape), thread, rng)
        assert block.accesses

    def do_free(self, op: Op, thread: int, rng: random.Random) -> None:
        block = self.blocks.get(op.args["block"])
        if block is None:
            return
        for number, graph in list(self.graphs.items()):
            if block in graph.blocks:
                self.destroy_graph(number, thread)
        for point in (block.made, *block.named):
            self.order.know(thread, point)
        span = [Span(block, 0, block.size, True)]
        if block.kind == "async":
            stream = self.stream_of(op, thread)
            self.ordered(thread, stream, span, rng)
            self.order.submit(thread, stream, "free", block.number, stream.number)
        else:
            if block.kind in ("device", "pitched") and op.salt & 1:
                for access in block.accesses:  # the free itself waits for what has been submitted
                    used = self.order.by_agent.get(access.agent)
                    self.order.know(thread, used.last if used else Point(access.agent, access.tick))
            else:
                self.ordered(thread, None, span, rng)
            self.order.emit(thread, "free", block.number, 0)
        del self.blocks[op.args["block"]]

    def do_sync(self, op: Op, thread: int, rng: random.Random) -> None:
        stream = self.stream_of(op, thread)
        how = op.args["how"]
        if how == "context":
            self.order.sync_context(thread)
        elif how in ("stream", "poll"):
            self.order.sync_stream(thread, stream, how == "poll")
        elif how == "barrier":
            self.order.submit(thread, self.order.legacy, "barrier")

    def do_record(self, op: Op, thread: int, rng: random.Random) -> None:
        event = self.order.event_for(thread, op.salt % 5 == 0, op.salt >> 3)
        self.order.record(thread, self.stream_of(op, thread), event)

    def do_wait(self, op: Op, thread: int, rng: random.Random) -> None:
        recorded = [event for event in self.order.events if event.clock]
        if recorded:
            self.order.wait_event(thread, self.stream_of(op, thread), recorded[op.salt % len(recorded)])

    def do_prefetch(self, op: Op, thread: int, rng: random.Random) -> None:
        block = self.blocks.get(op.args["block"])
        if block is not None and block.kind == "managed":
            stream = self.stream_of(op, thread)
            self.know_blocks(thread, [Span(block, 0, 1, False)])
            self.ordered(thread, stream, [Span(block, 0, block.size, True)], rng)
            point = self.order.submit(thread, stream, "prefetch", block.number, stream.number, op.salt >> 2 & 1)
            self.note([Span(block, 0, block.size, True)], point)

    def do_new_stream(self, op: Op, thread: int, rng: random.Random) -> None:
        """The old one goes, with work that is under way."""
        stream = self.slots.get(op.stream)
        if stream is not None and len(self.order.by_agent) + self.threads + 8 < self.order.agents:
            self.order.destroy_stream(thread, stream)
            del self.slots[op.stream]

    # -- graphs

    def do_graph(self, op: Op, thread: int, rng: random.Random) -> None:
        if op.args["graph"] in self.graphs or self.graphs_made >= 500:
            return
        graph = build(self.order, thread, self.graphs_made, op.args, self.blocks, self.at_rest, rng)
        if graph is not None:
            self.graphs[op.args["graph"]] = graph
            self.graphs_made += 1

    def do_launch(self, op: Op, thread: int, rng: random.Random) -> None:
        graph = self.graphs.get(op.args["graph"])
        if graph is None:
            return
        self.order.know(thread, graph.used)
        stream = self.stream_of(op, thread)
        self.submit_work(thread, stream, graph.work(), ("launch", graph.number, stream.number), rng)
        graph.used = stream.last

    def do_kernel_set(self, op: Op, thread: int, rng: random.Random) -> None:
        graph = self.graphs.get(op.args["graph"])
        if graph is not None:
            self.order.know(thread, graph.used)
            graph.change_kernel(self.order, thread, self.blocks, op.args["k"], op.args["c"])

    def destroy_graph(self, number: int, thread: int) -> None:
        graph = self.graphs.pop(number)
        self.order.know(thread, graph.used)
        for block in graph.blocks:
            block.named.append(graph.used)  # a graph that was never launched has left no access
        self.order.emit(thread, "graph_destroy", graph.number)

    def do_graph_destroy(self, op: Op, thread: int, rng: random.Random) -> None:
        if op.args["graph"] in self.graphs:
            self.destroy_graph(op.args["graph"], thread)

    # -- the end

    def finish(self, number: int) -> Lowered:
        """Every block is compared, and everything is given back, by the first thread."""
        for other in range(1, self.threads):
            self.order.await_thread(0, other)
        self.order.sync_context(0)
        for block in list(self.blocks):
            everything = {"block": block, "at": 0, "size": self.blocks[block].size, "here": True}
            self.apply(number, Op("check", 0, 0, 0, everything))
        for block in list(self.blocks):
            self.apply(number, Op("free", 0, 0, 0, {"block": block}))
        for graph in list(self.graphs):
            self.destroy_graph(graph, 0)
        for stream in [*self.slots.values(), *self.order.lanes]:
            self.order.emit(0, "stream_destroy", stream.number)
        for event in self.order.events:
            self.order.emit(0, "event_destroy", event.number)
        lines = self.order.lines
        self.ops += [number] * (len(lines) - len(self.ops))
        text = "\n".join([f"program {self.name} {self.threads} {int(self.own_context)}", *lines, "end", ""])
        return Lowered(text, len(lines), self.ops, self.expected)


def lower(name: str, threads: int, own_context: bool, ops: list[Op], keep: bool = False, without: frozenset[str] = frozenset()) -> Lowered:
    """keep: the bytes that are compared with; without: means of ordering that are not used."""
    lowering = Lowering(name, threads, own_context, keep, without)
    for number, op in enumerate(ops):
        lowering.apply(number, op)
    return lowering.finish(len(ops))
