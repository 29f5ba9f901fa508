"""One kernel from PTX to machine code."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field

from gpuvirt.soft.analysis import stride_versions
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.analysis.convergence_points import exchanges, find_divided
from gpuvirt.soft.analysis.denormal_mode import hardware_flush
from gpuvirt.soft.analysis.divergence import Analysis
from gpuvirt.soft.analysis.sync_kinds import readers
from gpuvirt.soft.codegen import opcode_handlers, target, warp_loop
from gpuvirt.soft.codegen.emitter import Emitter
from gpuvirt.soft.codegen.ir_builder import ModuleText
from gpuvirt.soft.codegen.lane_fallback import Frame, LaneAnalysis, LaneEmitter, frame_bytes
from gpuvirt.soft.codegen.symbols import ENTRY, function_symbol, lane_symbol
from gpuvirt.soft.errors import BadPtx, UniformityLost, Unsupported
from gpuvirt.soft.ops import (  # noqa: F401  they register opcodes
    async_copy,
    atomic,
    call,
    convert,
    floating,
    integer,
    memory,
    mma,
    stack,
    texture,
    transcendental,
    video,
    warp,
)
from gpuvirt.soft.ptx.layout import Layout, Program
from gpuvirt.soft.ptx.module import Module

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


def _check_cluster(directives: str) -> None:
    """A kernel may ask for clusters of several blocks; there are none."""
    found = re.search(r"\.reqnctapercluster\s+([\d\s,]+)", directives)
    if found and any(int(n) > 1 for n in re.findall(r"\d+", found.group(1))):
        raise Unsupported(f"unsupported PTX directive '.reqnctapercluster {found.group(1).strip()}': a cluster is one block")


def _forget(cfg: Cfg) -> None:
    """Another analysis of the same function may follow."""
    for block in cfg.order:
        block.div, block.waits = False, 0


def _divided(cfg: Cfg, shape: tuple[int, int, int], names: set[str]) -> bool:
    """Whether parts of a warp may exchange something in a place where others of the same warp would have to come along."""
    if not exchanges(cfg):
        return False
    found = find_divided(cfg, Analysis(cfg, shape, names).active_meetings())
    _forget(cfg)
    return bool(found)


def _guesses(cfg: Cfg, shape: tuple[int, int, int], names: set[str]) -> list[stride_versions.Guess]:
    """The parameters whose usual value is worth a version of a kernel."""
    if not cfg.body.func.is_kernel:
        return []
    before = Analysis(cfg, shape, names)
    taken = stride_versions.guesses(before)
    if taken:
        _forget(cfg)
        after = Analysis(cfg, shape, names, None, {g.register: g.value for g in taken})
        if stride_versions.plain(after) <= stride_versions.plain(before):
            taken = []
    _forget(cfg)
    return taken


def translate(module: Module, kernel: str, shape: tuple[int, int, int], careful: bool = False) -> tuple[str, Description, int]:
    """(LLVM IR, description, number of PTX instructions) of a kernel for a block shape; careful: it takes nothing of its parameters for granted."""
    _check_cluster(module.funcs[kernel].directives)
    program = Program(module, kernel)
    layout = Layout(program)
    text = ModuleText(target.host().feature_set)
    text.careful = careful
    text.flush = hardware_flush(program, text.features)
    uses_barrier = 0
    loops = warp_loop.possible(program, shape)
    # Where a kernel's frame is, in which lanes may go apart; functions that may be told of it.
    leaving = readers(program.bodies, program.calls) if len(program.bodies) > 1 and layout.stack_pointer is None else frozenset()
    single: list[tuple[Frame, LaneAnalysis, Layout, str]] = []
    count = 0
    try:
        for name, body in program.bodies.items():
            cfg = Cfg(body, program.exits, leaving)
            names = {p.name for p in body.func.params + body.func.returns}
            symbol = ENTRY if name == kernel else function_symbol(name)
            if name == kernel and layout.stack_pointer is None and _divided(cfg, shape, names):
                cfg = Cfg(body, program.exits, leaving, divided=True)
            taken = [] if leaving or cfg.divided else _guesses(cfg, shape, names)
            versions: list[tuple[str, list[stride_versions.Guess]]] = [(symbol, [])]
            if taken:
                versions = [(f"{symbol}.guessed", taken), (f"{symbol}.general", [])]
            for symbol_of_version, granted in versions:
                forced: set[str] = set()
                while True:
                    analysis = Analysis(cfg, shape, names, forced, {g.register: g.value for g in granted})
                    emitter = Emitter(text, analysis, layout.enter(body), symbol_of_version, loops and name == kernel)
                    frame = Frame(cfg)
                    emitter.fallback = frame if layout.stack_pointer is None and (name == kernel or name in leaving) else None
                    emitter.doubles = not leaving and not cfg.divided
                    if taken:
                        emitter.linkage, emitter.attributes = "internal ", 2 if granted else 1
                        emitter.doubles = bool(granted)  # the version for any stride is rarely run
                    try:
                        text.functions.append(emitter.run().replace(frame_bytes(emitter), str(frame.size)))
                        if not taken:
                            single.append((frame, LaneAnalysis(cfg, shape, names, analysis.waiting_loops), layout.enter(body), symbol))
                        break
                    except UniformityLost as lost:
                        if lost.register in forced:
                            raise
                        forced.add(lost.register)
                        _forget(cfg)
                _forget(cfg)
                uses_barrier = max(uses_barrier, 2 if emitter.waits else int(emitter.uses_barrier))
            if taken:
                text.functions.append(stride_versions.chooser(symbol, versions[0][0], versions[1][0], taken))
            count += sum(len(b.ins) for b in cfg.order)
        if any(frame.blocks for frame, *_ in single):
            for frame, alone, view, symbol in single:
                emitter = LaneEmitter(text, alone.begin(), view, lane_symbol(symbol)).begin(frame)
                text.functions.append(emitter.run())
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError, AttributeError, TypeError) as error:
        where = getattr(locals().get("emitter"), "ins", None)
        raise BadPtx(f"cannot translate '{where}': {type(error).__name__}: {error}") from error
    params = module.funcs[kernel].param_bytes
    description = Description(
        layout.static_shared, layout.dynamic_offset, layout.local_bytes, uses_barrier, params, list(text.globals), text.flush, loops
    )
    description.needs = sorted(text.needs.items())
    return text.text(), description, count
