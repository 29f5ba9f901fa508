"""From PTX to LLVM IR: the passes of the compiler, in order (PASSES)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.analysis import divergence, stride_versions
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.analysis.convergence_points import exchanges, find_divided
from gpuvirt.soft.analysis.denormal_mode import hardware_flush
from gpuvirt.soft.analysis.divergence import Divergence
from gpuvirt.soft.analysis.spin_loops import find_looking
from gpuvirt.soft.analysis.stride_versions import Guess
from gpuvirt.soft.analysis.sync_kinds import readers
from gpuvirt.soft.codegen import opcode_handlers, preemption, target, version_chooser, warp_loop
from gpuvirt.soft.codegen.emitter import Emitter
from gpuvirt.soft.codegen.ir_builder import ModuleText
from gpuvirt.soft.codegen.lane_fallback import Frame, LaneEmitter, Points
from gpuvirt.soft.codegen.symbols import ENTRY, function_symbol, lane_symbol
from gpuvirt.soft.errors import BadPtx, Unsupported
from gpuvirt.soft.ops import (  # noqa: F401  they register opcodes
    arithmetic,
    async_copy,
    atomic,
    call,
    compare,
    convert,
    floating,
    integer,
    memory,
    mma,
    stack,
    tcgen05,
    texture,
    transcendental,
    video,
    warp,
    wgmma,
    wmma,
)
from gpuvirt.soft.ptx.block_shape import Shape
from gpuvirt.soft.ptx.layout import Layout, Program
from gpuvirt.soft.ptx.module import Module
from gpuvirt.soft.ptx.parser import Body

opcode_handlers.bind()


@dataclass
class Description:
    """What the caller must know of compiled code."""

    static_shared: int
    dynamic_offset: int
    local_bytes: int
    uses_barrier: int  # 1: barriers, 2: waits for memory to change
    param_bytes: int
    globals: list[str] = field(default_factory=list)
    flush: bool = False
    loops: bool = False  # the entry runs many warps a call
    needs: list[tuple[int, int]] = field(default_factory=list)  # (offset, size): parameters that are multiples of a size
    ir_bytes: int = 0  # of a cache entry that has the IR before the code

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(data: bytes) -> Description:
        return Description(**json.loads(data))


@dataclass
class Version:
    """One body of a function: for any parameters, or for those that have the values guessed."""

    symbol: str
    divergence: Divergence
    guesses: tuple[Guess, ...] = ()


@dataclass
class Function:
    """A kernel or device function under translation; a pass fills in what is left open."""

    body: Body
    symbol: str
    cfg: Cfg
    divergence: Divergence
    versions: list[Version] = field(default_factory=list)
    frame: Frame | None = None  # of a function with one version: where its lanes are when they leave it

    @property
    def is_kernel(self) -> bool:
        return self.body.func.is_kernel


class Translation:
    """A kernel, for one block shape, on its way through the passes."""

    def __init__(self, module: Module, kernel: str, shape: Shape, careful: bool) -> None:
        self.module, self.kernel, self.shape = module, kernel, shape
        self.text = ModuleText(target.host().feature_set)
        self.text.careful = careful
        self.text.preemptible = preemption.wanted()
        self.program: Program
        self.layout: Layout
        self.functions: list[Function] = []
        self.leaving: frozenset[str] = frozenset()  # functions in which lanes may leave the code for 32 of them
        self.loops = False  # the entry runs all warps of several blocks
        self.uses_barrier = 0
        self.emitter: Emitter | None = None

    def description(self) -> Description:
        layout, params = self.layout, self.module.funcs[self.kernel].param_bytes
        sizes = (layout.static_shared, layout.dynamic_offset, layout.local_bytes, self.uses_barrier, params)
        return Description(*sizes, list(self.text.globals), self.text.flush, self.loops, sorted(self.text.needs.items()))

    def instructions(self) -> int:
        return sum(len(block.ins) for function in self.functions for block in function.cfg.order)


# Passes ----------------------------------------------------------------------------------------------------------------------------------------


def parse(t: Translation) -> None:
    """The instructions of the kernel and of all functions that it may call."""
    t.program = Program(t.module, t.kernel)


def lay_out(t: Translation) -> None:
    """Where variables lie in shared and local memory."""
    t.layout = Layout(t.program)


def choose_denormal_mode(t: Translation) -> None:
    """Whether the processor flushes subnormal numbers, for the whole kernel."""
    t.text.flush = hardware_flush(t.program, t.text.features)


def find_warp_loop(t: Translation) -> None:
    """Whether one call of the entry may run many warps, one after the other."""
    t.loops = not t.text.preemptible and warp_loop.possible(t.program, t.shape)


def build_control_flow(t: Translation) -> None:
    """Basic blocks and their order, loops, postdominators, liveness; and what differs between lanes."""
    program = t.program
    if len(program.bodies) > 1 and t.layout.stack_pointer is None:
        t.leaving = readers(program.bodies, program.calls)
    for name, body in program.bodies.items():
        cfg = Cfg(body, program.exits, t.leaving)
        symbol = ENTRY if name == t.kernel else function_symbol(name)
        t.functions.append(Function(body, symbol, cfg, divergence.analyze(cfg, t.shape)))


def split_exchanges(t: Translation) -> None:
    """Begins a block at each exchange that some lanes of a warp may reach without others that take part."""
    for function in t.functions:
        if not function.is_kernel or t.layout.stack_pointer is not None or not exchanges(function.cfg):
            continue
        if find_divided(function.cfg, function.divergence.active_convergence_points, function.divergence.masked):
            function.cfg = Cfg(function.body, t.program.exits, t.leaving, divided=True)
            function.divergence = divergence.analyze(function.cfg, t.shape)


def choose_versions(t: Translation) -> None:
    """Adds a version for the usual values of strides that are parameters, if that makes more accesses contiguous."""
    for function in t.functions:
        taken = stride_versions.guesses(function.divergence) if function.is_kernel and not t.leaving and not function.cfg.divided else []
        if taken:
            guessed = divergence.analyze(function.cfg, t.shape, assumed={g.register: g.value for g in taken})
            if stride_versions.plain(guessed) > stride_versions.plain(function.divergence):
                function.versions = [
                    Version(f"{function.symbol}.guessed", guessed, tuple(taken)),
                    Version(f"{function.symbol}.general", function.divergence),
                ]
                continue
        function.versions = [Version(function.symbol, function.divergence)]


def emit(t: Translation) -> None:
    """LLVM IR of every version, for 32 lanes."""
    for function in t.functions:
        for version in function.versions:
            t.text.functions.append(_emitted(t, function, version))
        if len(function.versions) > 1:
            guessed, general = function.versions
            t.text.functions.append(version_chooser.entry(function.symbol, guessed.symbol, general.symbol, guessed.guesses))


def _emitted(t: Translation, function: Function, version: Version) -> str:
    """A version's text. Emits it again when a register that was assumed to be uniform is assigned varying values."""
    forced: frozenset[str] = frozenset()
    assumed = {g.register: g.value for g in version.guesses}
    while True:
        before = t.text.snapshot()
        emitter = t.emitter = Emitter(t.text, version.divergence, t.layout.enter(function.body), version.symbol, t.loops and function.is_kernel)
        frame = Frame(function.cfg)
        if t.layout.stack_pointer is None and (function.is_kernel or function.body.func.name in t.leaving):
            emitter.fallback = frame
        emitter.uniform_copies = not t.leaving and not function.cfg.divided
        if len(function.versions) > 1:
            emitter.linkage, emitter.attributes = "internal ", 2 if version.guesses else 1
            emitter.uniform_copies = bool(version.guesses)  # the version for any stride is rarely run
        else:
            function.frame = frame
        text = emitter.run()
        if not emitter.lost:
            t.uses_barrier = max(t.uses_barrier, 2 if emitter.waits else int(emitter.uses_barrier))
            return text
        if emitter.lost <= forced:
            raise Unsupported(f"internal: lane-varying values for the uniform registers {', '.join(sorted(emitter.lost))}")
        forced |= emitter.lost
        t.text.restore(before)
        version.divergence = divergence.analyze(function.cfg, t.shape, forced, assumed)


def emit_lane_fallback(t: Translation) -> None:
    """Where lanes may leave the code for 32: code of every function for one lane."""
    single = [(f, f.frame) for f in t.functions if f.frame is not None]
    if any(frame.blocks for _, frame in single):
        points = Points()
        for function, frame in single:
            alone = divergence.of_one_lane(function.cfg, t.shape, find_looking(function.cfg))
            t.emitter = LaneEmitter(t.text, alone, t.layout.enter(function.body), lane_symbol(function.symbol)).begin(frame, points)
            t.text.functions.append(t.emitter.run())
        t.text.functions.append(points.table())


PASSES: dict[str, Callable[[Translation], None]] = {
    "parse": parse,
    "layout": lay_out,
    "denormal-mode": choose_denormal_mode,
    "warp-loop": find_warp_loop,
    "control-flow": build_control_flow,
    "split-exchanges": split_exchanges,
    "stride-versions": choose_versions,
    "emit": emit,
    "lane-fallback": emit_lane_fallback,
}


def translate(module: Module, kernel: str, shape: Shape, careful: bool = False) -> tuple[str, Description, int]:
    """(LLVM IR, description, number of PTX instructions) of a kernel for a block shape; careful: without assumptions on its parameters."""
    t = Translation(module, kernel, shape, careful)
    shown = shown_passes()
    for name, run in PASSES.items():
        try:
            run(t)
        except (AssertionError, IndexError, KeyError, StopIteration, ValueError, AttributeError, TypeError) as error:
            where = f"'{t.emitter.ins}'" if t.emitter is not None else f"'{kernel}' ({name})"
            raise BadPtx(f"cannot translate {where}: {type(error).__name__}: {error}") from error
        if name in shown:
            print(f"; {kernel} {shape} after {name}", *_dump(t), sep="\n", file=sys.stderr)
    return t.text.text(), t.description(), t.instructions()


# GPUVIRT_SOFT_DUMP -----------------------------------------------------------------------------------------------------------------------------


def shown_passes() -> set[str]:
    """The passes that GPUVIRT_SOFT_DUMP=PASS,... names: what there is after each is printed on stderr.

    Raises:
        GpuvirtError: there is no such pass.
    """
    shown = {name for name in os.environ.get("GPUVIRT_SOFT_DUMP", "").split(",") if name}
    if shown - set(PASSES):
        raise GpuvirtError(f"GPUVIRT_SOFT_DUMP: there is no pass {', '.join(sorted(shown - set(PASSES)))}; there are {', '.join(PASSES)}")
    return shown


def _dump(t: Translation) -> Iterator[str]:
    """Prints the LLVM IR if there is some, else the blocks, else the instructions."""
    if t.text.functions:
        yield t.text.text()
    elif t.functions:
        for function in t.functions:
            for version in function.versions or [Version(function.symbol, function.divergence)]:
                yield from _dump_version(version)
    else:
        for name, body in t.program.bodies.items():
            yield f"{name}:"
            yield from (f"    {ins}" for _, block in body.blocks for ins in block)


def _dump_version(version: Version) -> Iterator[str]:
    d = version.divergence
    yield f"{version.symbol}: varying {' '.join(sorted(d.varying))}"
    yield from (f"    {g.register} is taken to be {g.value}" for g in version.guesses)
    yield from (f"    {name} = first lane's + {p.steps}" for name, p in sorted(d.patterns.items()))
    for block in d.cfg.order:
        masked = " masked" if block.idx in d.masked else ""
        waits = [name for name, bit in d.cfg.reg_index.items() if d.waits[block.idx] >> bit & 1]
        ends = f"{block.kind} {block.pred or ''}".strip()
        yield f"  b{block.idx} {block.name}:{masked}{' waits ' + ' '.join(waits) if waits else ''} -> {ends} {[s.idx for s in block.succs]}"
        yield from (f"    {ins}" for ins in block.ins)
