"""One kernel from PTX to machine code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from gpuvirt.soft import jit, ops_async, ops_atom, ops_call, ops_cvt, ops_float, ops_int, ops_math, ops_mem, ops_mma, ops_video, ops_warp  # noqa: F401  they register opcodes
from gpuvirt.soft.analysis import Analysis
from gpuvirt.soft.builder import ModuleText
from gpuvirt.soft.cfg import Cfg
from gpuvirt.soft.emit import Emitter
from gpuvirt.soft.errors import BadPtx, SoftError, UniformityLost
from gpuvirt.soft.flushing import hardware_flush
from gpuvirt.soft.layout import Layout, Program
from gpuvirt.soft.module import Module

ENTRY = "gv_kernel"


@dataclass
class Description:
    """What the caller must know of compiled code."""

    static_shared: int
    dynamic_offset: int
    local_bytes: int
    uses_barrier: bool
    param_bytes: int
    globals: list[str] = field(default_factory=list)
    flush: bool = False

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(data: bytes) -> Description:
        return Description(**json.loads(data))


def translate(module: Module, kernel: str, shape: tuple[int, int, int]) -> tuple[str, Description, int]:
    """(LLVM IR, description, number of PTX instructions) of a kernel for a block shape."""
    program = Program(module, kernel)
    layout = Layout(program)
    text = ModuleText(jit.host().feature_set)
    text.flush = hardware_flush(program, text.features)
    uses_barrier = False
    count = 0
    try:
        for name, body in program.bodies.items():
            cfg = Cfg(body)
            names = {p.name for p in body.func.params + body.func.returns}
            symbol = ENTRY if name == kernel else ops_call.function_symbol(name)
            forced: set[str] = set()
            while True:
                emitter = Emitter(text, Analysis(cfg, shape, names, forced), layout.enter(body), symbol)
                try:
                    text.functions.append(emitter.run())
                    break
                except UniformityLost as lost:
                    if lost.register in forced:
                        raise
                    forced.add(lost.register)
                    for block in cfg.order:
                        block.div, block.waits = False, 0
            uses_barrier = uses_barrier or emitter.uses_barrier
            count += sum(len(b.ins) for b in cfg.order)
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError, AttributeError, TypeError) as error:
        where = getattr(locals().get("emitter"), "ins", None)
        raise BadPtx(f"cannot translate '{where}': {type(error).__name__}: {error}") from error
    params = module.funcs[kernel].param_bytes
    description = Description(layout.static_shared, layout.dynamic_offset, layout.local_bytes, uses_barrier, params, list(text.globals), text.flush)
    return text.text(), description, count


def build(module: Module, kernel: str, shape: tuple[int, int, int], key: str) -> tuple[bytes, Description]:
    """The object code of a kernel, from the cache if it is there."""
    found = jit.cache_read(key)
    if found is not None:
        try:
            return found[1], Description.unpack(found[0])
        except (ValueError, TypeError):
            pass
    text, description, count = translate(module, kernel, shape)
    code = jit.compile_object(text, count)
    jit.cache_write(key, description.pack(), code)
    return code, description


__all__ = ["Description", "SoftError", "build", "translate"]
