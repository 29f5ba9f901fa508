"""Operations by chance.

Each program has some of the features, some sizes and some weights, so that all together reach what programs with a bit of everything would not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from random_programs.blocks import KINDS, OF_HOST, OF_KERNELS, PEEKED
from random_programs.effects import KERNELS
from random_programs.lowering import Op
from random_programs.work import SYNC_WAYS, WAYS

SIZES = (64, 256, 1024, 4096, 5008, 16384, 65536, 99984, 262144, 1 << 20)
PAYLOAD = 1 << 16  # bytes above which a copy's data does not travel in its command (GV_INLINE_MAX)
WEIGHTS: dict[str, tuple[float, ...]] = {
    "small": (4, 4, 4, 2, 1, 0, 0, 0, 0, 0),
    "mixed": (2, 3, 3, 4, 2, 3, 1, 1, 0.3, 0.05),
    "large": (0.5, 1, 1, 1, 1, 2, 2, 3, 2, 1),
}
OPERATIONS: dict[str, float] = {
    "fill": 14,
    "copy": 22,
    "payload": 1,
    "kernel": 20,
    "host": 5,
    "host_here": 9,
    "check": 9,
    "write_value": 4,
    "alloc": 3,
    "free": 2.5,
    "sync": 2,
    "record": 6,
    "wait": 2,
    "prefetch": 1,
    "new_stream": 0.4,
    "graph": 1.2,
    "launch": 7,
    "kernel_set": 0.7,
    "graph_destroy": 0.3,
}
ALWAYS = ("copy", "check", "alloc")
FIRST_KINDS = ("device", "device", "pinned", "pageable", "device")
KIND_WEIGHTS = {"device": 6.0, "async": 3.0, "pitched": 1.0, "virtual": 0.3, "variable": 0.3, "managed": 2.0}
KIND_WEIGHTS |= {"pageable": 3.0, "pinned": 3.0, "mapped": 1.5, "asked": 1.0, "registered": 1.0, "shadowed": 1.5}


class Generator:
    def __init__(self, seed: int, length: int, without: frozenset[str] = frozenset()) -> None:
        """without: features that are left out, kinds of blocks or operations."""
        self.rng = rng = random.Random(seed)
        self.length = length
        self.threads = rng.choice((1, 1, 2, 2, 3, 4))
        self.own_context = rng.random() < 0.2
        self.streams = rng.sample(range(9), rng.choice((1, 2, 3, 4, 6)))
        if rng.random() < 0.3:
            self.streams.append(0)
        sizes = WEIGHTS[rng.choice(("small", "small", "mixed", "mixed", "mixed", "large"))]
        self.of_kernels = OF_KERNELS - OF_HOST if "host_memory_in_kernels" in without else OF_KERNELS
        self.sizes = [size for size, weight in zip(SIZES, sizes, strict=True) for _ in range(int(weight * 20))]
        given = [k for k in KIND_WEIGHTS if k not in without and k != "shadowed"]
        self.kinds = {k: KIND_WEIGHTS[k] for k in given if k in ("device", "pageable") or rng.random() < 0.6}
        if "shadowed" not in without and random.Random(f"shadowed {seed}").random() < 0.15:
            self.kinds["shadowed"] = KIND_WEIGHTS["shadowed"]
        # Drawn by itself, so that seeds without it stay what they were.
        self.peeks = random.Random(f"peeks {seed}")
        self.peeking = 0.0 if "peek" in without or self.peeks.random() < 0.7 else self.peeks.choice((0.1, 0.4))
        if rng.random() < 0.6:
            self.kinds.pop("managed", None)  # with it the device has to be idle now and then
        self.weights = {o: w * rng.choice((0.5, 1, 2)) for o, w in OPERATIONS.items() if o not in without}
        self.weights = {o: w for o, w in self.weights.items() if o in ALWAYS or rng.random() < 0.85}
        self.ways = [way for way in WAYS if way == "any" or rng.random() < 0.7]
        self.waiting = rng.choice((0.02, 0.1, 0.3))  # how many copies and fills are synchronous
        self.slow = rng.choice((0.0, 0.1, 0.4))  # how many kernels take a while
        self.faithful = rng.choice((0.3, 0.8, 0.95))  # how often a stream works on the blocks that it has worked on
        self.blocks: dict[int, tuple[str, int]] = {}
        self.next_block = self.next_graph = 0
        self.graphs: list[int] = []
        self.graph_sources: dict[int, list[tuple[int, int, int]]] = {}  # blocks of the host that they read: where, and bytes
        self.favourites: dict[int, list[int]] = {}

    def program(self) -> list[Op]:
        ops = [self.alloc(kind) for kind in FIRST_KINDS if kind in self.kinds]
        names, weights = list(self.weights), list(self.weights.values())
        while len(ops) < self.length:
            make: Callable[[], Op | None] = getattr(self, self.rng.choices(names, weights)[0])
            op = make()
            if op is not None:
                ops += [*self.first(op), op, *self.then(op), *self.peek()]
        return ops

    # -- what goes together

    def overwrite(self, number: int, at: int, size: int, kind: str, thread: int, stream: int) -> Op:
        names = {"to": number, "at": at, "from": -1, "from_at": 0, "what": "fill", "size": min(size, 1 << 16), "value": self.rng.randrange(256)}
        return Op(kind, thread, stream, self.rng.getrandbits(31), names)

    def first(self, op: Op) -> list[Op]:
        """A graph whose sources are being written by a host function when it is launched."""
        sources = self.graph_sources.get(op.args.get("graph", -1), []) if op.kind == "launch" else []
        if not sources or self.rng.random() < 0.4:
            return []
        number, at, size = self.rng.choice(sources)
        return [self.overwrite(number, at, size, "host", op.thread, op.stream)]

    def then(self, op: Op) -> list[Op]:
        """What is seldom met by chance: a pageable source that is written again at once; another stream's copy to the same memory of the host;
        a synchronous copy behind one to the host, whose bytes are then looked at."""
        if op.kind != "copy" or op.args["from"] not in self.blocks or self.rng.random() < 0.5:
            return []
        to_kind, from_kind = self.blocks[op.args["to"]][0], self.blocks[op.args["from"]][0]
        if from_kind == "pageable":
            end = op.args["from_at"] + (op.args["rows"] - 1) * op.args["from_pitch"] + op.args["size"]
            size = min(op.args["size"], 1 << 12)  # at its end, which is read last
            return [self.overwrite(op.args["from"], end - size, size, "host_here", op.thread, op.stream)]
        if to_kind not in ("pinned", "registered") or from_kind in OF_HOST:
            return []
        size = self.rng.randint(1, op.args["size"])
        pinned, device = self.block(frozenset(("pinned",))), self.block(frozenset(("device",)))
        if pinned is not None and device is not None and self.rng.random() < 0.3:
            names = {"to": device, "at": 0, "from": pinned, "from_at": 0, "to_pitch": 8, "from_pitch": 8, "size": 8, "rows": 1, "way": "typed_sync"}
            look = {"block": op.args["to"], "at": op.args["at"], "size": op.args["size"], "here": True}
            return [Op(kind, op.thread, 0, self.rng.getrandbits(31), args) for kind, args in (("copy", names), ("check", look))]
        args = op.args | {"way": "any", "rows": 1, "size": size, "to_pitch": size, "from_pitch": size}
        return [Op("copy", op.thread, self.rng.choice(self.streams), self.rng.getrandbits(31), args)]

    def peek(self) -> list[Op]:
        rng = self.peeks
        blocks = [number for number, (kind, _) in self.blocks.items() if kind in PEEKED]
        if not blocks or rng.random() >= self.peeking:
            return []
        number = rng.choice(blocks)
        return [Op("peek", rng.randrange(self.threads), 0, 0, {"block": number, "at": rng.randrange(self.blocks[number][1])})]

    # -- choices

    def op(self, kind: str, stream: int | None = None, **args: Any) -> Op:
        rng = self.rng
        return Op(kind, rng.randrange(self.threads), rng.choice(self.streams) if stream is None else stream, rng.getrandbits(31), args)

    def block(self, kinds: frozenset[str] | None = None, stream: int | None = None) -> int | None:
        fitting = [number for number, (kind, _) in self.blocks.items() if kinds is None or kind in kinds]
        if not fitting:
            return None
        if stream is not None:
            mine = [number for number in self.favourites.get(stream, ()) if number in fitting]
            if mine and self.rng.random() < self.faithful:
                return self.rng.choice(mine)
        chosen = self.rng.choice(fitting)
        if stream is not None:
            self.favourites[stream] = [*self.favourites.get(stream, [])[-2:], chosen]
        return chosen

    def part(self, size: int, unit: int = 1) -> tuple[int, int]:
        """Offset and length in units: the whole of it, its beginning or end, or somewhere."""
        units = size // unit
        if self.rng.random() < 0.25:
            return 0, units
        length = self.rng.randint(1, units) if self.rng.random() < 0.7 else self.rng.randint(1, min(units, 40))
        return self.rng.choice((0, units - length, self.rng.randint(0, units - length))) * unit, length

    def shape(self, size: int) -> tuple[int, int, int]:
        """Bytes of a row, rows, pitch, which fit into so many bytes."""
        rows = self.rng.choice((2, 3, 4, 4, 8, 16))
        pitch = max(1, size // rows)
        if self.rng.random() < 0.5:
            pitch = self.rng.randint(1, pitch)
        return self.rng.randint(1, pitch), rows if size >= rows else 1, pitch

    # -- operations

    def alloc(self, kind: str = "", least: int = 1) -> Op | None:
        if len(self.blocks) >= 14:
            return None
        kind = kind or self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        size = max(least, self.rng.choice(self.sizes))
        number, self.next_block = self.next_block, self.next_block + 1
        self.blocks[number] = kind, size
        return self.op("alloc", block=number, of=kind, size=size, value=self.rng.randrange(256))

    def free(self) -> Op | None:
        if len(self.blocks) < 5:
            return None
        number = self.rng.choice(list(self.blocks))
        del self.blocks[number]
        return self.op("free", block=number)

    def fill(self) -> Op | None:
        stream = self.rng.choice(self.streams)
        number = self.block(self.of_kernels, stream)
        if number is None:
            return None
        width, size = self.rng.choice((1, 2, 4)), self.blocks[number][1]
        at, count = self.part(size, width)
        rows, pitch = 1, count * width
        if self.rng.random() < 0.25:
            row, rows, pitch = self.shape(size - at)
            pitch, count = max(width, pitch // width * width), max(1, row // width)
        value = self.rng.getrandbits(8 * width)
        sync = self.rng.random() < self.waiting
        return self.op("fill", stream, to=number, at=at, width=width, value=value, pitch=pitch, count=count, rows=rows, sync=sync)

    def copy(self) -> Op | None:
        stream = self.rng.choice(self.streams)
        to, source = self.block(None, stream), self.block(None)
        if to is None or source is None:
            return None
        (to_kind, to_size), (from_kind, from_size) = self.blocks[to], self.blocks[source]
        if to_kind in OF_HOST and from_kind in OF_HOST and self.rng.random() < 0.9:
            return None
        ways = [way for way in self.ways if self.rng.random() < self.waiting or way not in SYNC_WAYS]
        way = self.rng.choice(ways or ["any"])
        rows = 1
        at, size = self.part(to_size)
        from_at, from_length = self.part(from_size)
        size = to_pitch = from_pitch = min(size, from_length)
        if way in ("rows", "rows_sync", "rows_3d", "batch") and min(to_size, from_size) >= 64:
            size, rows, to_pitch = self.shape(min(to_size - at, from_size - from_at))
            from_pitch = self.rng.randint(size, max(size, (from_size - from_at - size) // max(1, rows - 1)))
        names = {"to": to, "at": at, "from": source, "from_at": from_at}
        return self.op("copy", stream, **names, to_pitch=to_pitch, from_pitch=from_pitch, size=size, rows=rows, way=way)

    def payload(self) -> Op | None:
        """A copy from pageable memory, for which the caller does not wait, of more than a command carries; the blocks first, where there are none."""
        ends = []
        for kind in ("device", "pageable"):
            large = [number for number, (of, size) in self.blocks.items() if of == kind and size > PAYLOAD]
            if not large:
                return self.alloc(kind, 4 * PAYLOAD)
            ends.append(self.rng.choice(large))
        to, source = ends
        size = self.rng.randint(PAYLOAD + 1, min(self.blocks[to][1], self.blocks[source][1]))
        return self.op("copy", to=to, at=0, **{"from": source}, from_at=0, to_pitch=size, from_pitch=size, size=size, rows=1, way="any")

    def kernel(self, stream: int | None = None) -> Op | None:
        stream = self.rng.choice(self.streams) if stream is None else stream
        to, source = self.block(self.of_kernels, stream), self.block(self.of_kernels)
        if to is None or source is None:
            return None
        name = "iterate" if self.rng.random() < self.slow else self.rng.choice(KERNELS[:4])
        at, n = self.part(self.blocks[to][1], 4)
        from_at, from_n = self.part(self.blocks[source][1], 4)
        m = 1
        if name == "count":
            m, n = n, min(from_n, 4096)
        elif name in ("axpy", "gather"):
            n = min(n, from_n)
        elif name == "iterate":
            n, m = min(n, 256), self.rng.choice((100, 2000, 20000))
        names = {"name": name, "to": to, "at": at, "from": source, "from_at": from_at}
        k, c = self.rng.getrandbits(16) | 1, self.rng.getrandbits(16)
        return self.op("kernel", stream, **names, n=min(n, 1 << 16), k=k, c=c, m=m, threads=self.rng.choice((32, 64, 128, 256)))

    def host(self, kinds: frozenset[str] = OF_HOST, kind: str = "host") -> Op | None:
        if kind == "host" and self.rng.random() < 0.3:
            value = self.rng.choice((20, 100, 400))
            return self.op(kind, what="sleep", to=-1, at=0, size=0, value=value, **{"from": -1, "from_at": 0})
        to, source = self.block(kinds), self.block(kinds)
        if to is None or source is None:
            return None
        at, size = self.part(self.blocks[to][1])
        from_at, from_size = self.part(self.blocks[source][1])
        what = self.rng.choice(("fill", "add", "xor"))
        if what == "xor":
            size = min(size, from_size)
        names = {"to": to, "at": at, "from": source, "from_at": from_at}
        return self.op(kind, **names, what=what, size=min(size, 1 << 16), value=self.rng.randrange(256))

    def host_here(self) -> Op | None:
        return self.host(OF_HOST | {"managed"}, "host_here")

    def check(self) -> Op | None:
        number = self.block()
        if number is None:
            return None
        at, size = self.part(self.blocks[number][1])
        return self.op("check", block=number, at=at, size=size, here=self.rng.random() < 0.7)

    def write_value(self) -> Op | None:
        number = self.block(self.of_kernels)
        if number is None:
            return None
        size = self.rng.choice((4, 8))
        return self.op("write_value", to=number, at=self.part(self.blocks[number][1], 8)[0], size=size, value=self.rng.getrandbits(31))

    def sync(self) -> Op:
        return self.op("sync", how=self.rng.choices(("context", "stream", "poll", "barrier"), (1, 4, 3, 2))[0])

    def record(self) -> Op:
        return self.op("record")

    def wait(self) -> Op:
        return self.op("wait")

    def prefetch(self) -> Op | None:
        number = self.block(frozenset(("managed",)))
        return None if number is None else self.op("prefetch", block=number)

    def new_stream(self) -> Op:
        return self.op("new_stream")

    def graph(self) -> Op:
        ops: list[dict[str, Any]] = []
        for _ in range(self.rng.choice((1, 3, 6, 12))):
            kind = self.rng.choices(("kernel", "copy", "fill", "host"), (5, 4, 3, 1))[0]
            op: Op | None = getattr(self, kind)()
            if op is not None:
                ops.append({"kind": kind, **op.args})
        number, self.next_graph = self.next_graph, self.next_graph + 1
        self.graphs = [*self.graphs[-3:], number]
        copies = [op for op in ops if op["kind"] == "copy" and self.blocks[op["from"]][0] in ("pinned", "registered", "pageable")]
        self.graph_sources[number] = [(op["from"], op["from_at"], op["size"]) for op in copies]
        return self.op("graph", graph=number, captured=self.rng.random() < 0.6, ops=ops)

    def launch(self) -> Op | None:
        return self.op("launch", graph=self.rng.choice(self.graphs)) if self.graphs else None

    def kernel_set(self) -> Op | None:
        if not self.graphs:
            return None
        return self.op("kernel_set", graph=self.rng.choice(self.graphs), k=self.rng.getrandbits(16) | 1, c=self.rng.getrandbits(16))

    def graph_destroy(self) -> Op | None:
        return self.op("graph_destroy", graph=self.rng.choice(self.graphs)) if self.graphs else None


assert all(kind in KIND_WEIGHTS for kind in KINDS)
