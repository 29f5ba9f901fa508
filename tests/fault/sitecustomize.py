"""A software GPU with a fault, for tests that must notice, or with other names for kernels; FAULT says which one.

Python imports this at its start where PYTHONPATH leads here."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import sys

SERVERS = ("weights", "overrun", "full_disk")  # faults of the server's own process
ULPS = {"float": "0x3FF0000040000000", "double": "0x3FF0000000001000"}  # 1 + 2^-22 and 1 + 2^-40
if os.environ.get("FAULT") == "coarse":
    ULPS = dict.fromkeys(ULPS, "0x3FF0010000000000")  # 1 + 2^-12
ENTRY = re.compile(r"\.entry\s+([\w$]+)")
FMA = re.compile(r"^(\s*)(%[\w.]+) = (call (?:<32 x )?(float|double)>? @llvm\.fma\..*)$", re.M)


def _inexact(found: re.Match[str]) -> str:
    indent, name, call, element = found.groups()
    vector = "<32 x" in call
    kind, factor = (f"<32 x {element}>" if vector else element), f"{element} {ULPS[element]}"
    factor = f"splat ({factor})" if vector else factor.split()[1]
    return f"{indent}{name}.exact = {call}\n{indent}{name} = fmul {kind} {name}.exact, {factor}"


if os.environ.get("FAULT") and not {"gpuvirt.server.worker", "soft.scheduling", "soft.scheduling.seeds"}.isdisjoint(sys.orig_argv):
    from gpuvirt.soft import pipeline
    from gpuvirt.soft.host import kernel_compiler
    from gpuvirt.soft.ops import mma

    if os.environ["FAULT"] in ("fma", "coarse"):  # every fused multiply-add is off by two ulps, f64 ones by some more; coarse: by 2^-12 of itself
        _translate = pipeline.translate

        def translate(*arguments):  # type: ignore[no-untyped-def]
            text, *rest = _translate(*arguments)
            return FMA.sub(_inexact, text), *rest

        pipeline.translate = translate
    elif os.environ["FAULT"] == "launches":  # every launch does nothing: kernels are compiled without what they do
        _build = kernel_compiler.build

        def build(module, kernel, shape, identity, *more):  # type: ignore[no-untyped-def]
            lost, func = copy.copy(module), module.funcs[kernel]
            lost.text = f"{module.text[: func.start]}{'ret;'.ljust(func.end - func.start)}{module.text[func.end :]}"
            return _build(lost, kernel, shape, f"{identity};lost", *more)

        kernel_compiler.build = build
    elif os.environ["FAULT"] == "mma":  # two results of every matrix instruction change places
        _write = mma.write_accumulators

        def write(e, operand, kind, values):  # type: ignore[no-untyped-def]
            _write(e, operand, kind, [values[1], values[0], *values[2:]])

        mma.write_accumulators = write
    elif os.environ["FAULT"] == "lanes":  # lanes in the lane fallback run on until they wait for memory or at an exchange
        from gpuvirt.soft.codegen.lane_fallback import LaneEmitter, W

        _spin_yield = LaneEmitter.spin_yield

        def spin_yield(e, block):  # type: ignore[no-untyped-def]
            _spin_yield(e, block)
            e.call("soft_yield", "void", [W], declare=True)

        LaneEmitter.spin_yield = spin_yield
        LaneEmitter.point = lambda e, acts: None
    elif os.environ["FAULT"] == "quick":  # no fault, but all kernels get quick code, and never better
        from gpuvirt.soft.host import tiering

        kernel_compiler.LARGE, kernel_compiler.QUICK_STACK = 0, sys.maxsize
        tiering.Improver.wish = lambda self, wish: None
    elif os.environ["FAULT"] == "renamed":  # no fault, but all kernels have other names when they are compiled
        from gpuvirt.soft.host import module_registry
        from gpuvirt.soft.ptx import metadata

        _ptx_of, _pack = module_registry.ptx_of, metadata.pack
        names: dict[str, str] = {}

        def ptx_of(image):  # type: ignore[no-untyped-def]
            text = _ptx_of(image)
            for name in set(ENTRY.findall(text)):
                other = f"kernel_{hashlib.sha256(name.encode()).hexdigest()[:20]}"
                names[other] = name
                text = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$%])", other, text)
            return text

        def pack(module):  # type: ignore[no-untyped-def]
            """What the program asks for has its old name."""
            renamed = [f.name for f in module.kernels]
            for func in module.kernels:
                func.name = names[func.name]
            try:
                return _pack(module)
            finally:
                for func, name in zip(module.kernels, renamed, strict=True):
                    func.name = name

        module_registry.ptx_of, metadata.pack = ptx_of, pack
    elif os.environ["FAULT"] not in SERVERS:
        raise SystemExit(f"there is no fault {os.environ['FAULT']}")

if os.environ.get("FAULT") in SERVERS and "serve" in sys.orig_argv:
    from gpuvirt.server import parking, turns
    from gpuvirt.server.policy.turn_order import TurnOrder

    if os.environ["FAULT"] == "weights":  # on a device whose compute is shared everybody has the same
        TurnOrder._weight = lambda self, of, now: 0.5  # type: ignore[method-assign]
    elif os.environ["FAULT"] == "full_disk":  # nothing can be written to the file that a parked session's memory goes to
        parking.Parking._file = lambda self: os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC)  # type: ignore[method-assign]
    else:  # who does not stop is not stopped
        turns.OVERRUN = 1e9
