"""Whether the processor may flush subnormal numbers by itself while a kernel runs.

Programs compiled with -ftz=true (CuPy's are) have .ftz on every single-precision instruction. Flushing each operand and result with instructions of
our own costs several times the arithmetic; the processor has the same as a mode (DAZ and FTZ in MXCSR). The mode holds for a whole kernel, so it is
used only where nothing in the kernel, or in a function that it may call, would give another result because of it. Then the engine switches it on
around the grid (soft_code.flush), arithmetic is emitted as it is, and only what moves numbers without computing flushes explicitly.
"""

from __future__ import annotations

from gpuvirt.soft.ptx.layout import Program
from gpuvirt.soft.ptx.opcodes import FLOATS, Denormals, Formula
from gpuvirt.soft.ptx.parser import Body, FloatImm, Ins, Operand, Reg
from gpuvirt.soft.ptx.types import TYPES

_EXACT = {"rni", "rzi"}  # of a subnormal number these give zero in any case


def hardware_flush(program: Program, features: frozenset[str]) -> bool:
    """Whether the processor's flushing of subnormal numbers changes no result of the program, and saves instructions."""
    if "f16c" not in features:
        return False
    flushes = False
    for body in program.bodies.values():
        tame = _tame(body)
        for _, block in body.blocks:
            for ins in block:
                if not _agrees(ins) and not _agrees_by_range(ins, tame):
                    return False
                flushes = flushes or "ftz" in ins.mods
    return flushes


def _tame(body: Body) -> dict[str, bool]:
    """Registers with doubles that are whole numbers (True), or such a number times a constant not far from 1: zero or far from subnormal."""
    found: dict[str, bool] = {}
    wild: set[str] = set()
    for _, block in body.blocks:
        for ins in block:
            converts = ins.traits.formula is Formula.CONVERT and len(ins.mods) > 1 and ins.mods[-2] == "f64"
            whole = converts and ins.mods[-1] in TYPES and TYPES[ins.mods[-1]].kind in "us"
            factor = ins.ops[1] if ins.traits.formula is Formula.MUL and ins.mods[-1] == "f64" and _moderate(ins.ops[2]) else None
            for name in ins.dsts:
                if name in found or not (whole or (isinstance(factor, Reg) and found.get(factor.name, False))):
                    wild.add(name)
                else:
                    found[name] = whole
    return {name: whole for name, whole in found.items() if name not in wild}


def _moderate(operand: Operand) -> bool:
    return isinstance(operand, FloatImm) and operand.bits == 64 and 123 < (operand.pattern >> 52 & 0x7FF) < 1923


def _agrees_by_range(ins: Ins, tame: dict[str, bool]) -> bool:
    """Arithmetic in double whose numbers cannot be subnormal, and whose only way on is to a float that is flushed."""
    if ins.traits.formula is Formula.CONVERT and len(ins.mods) > 1 and ins.mods[-1] == "f64":
        source = ins.ops[1]
        return ins.mods[-2] == "f32" and "ftz" in ins.mods and "rn" in ins.mods and isinstance(source, Reg) and source.name in tame
    return bool(ins.dsts) and all(name in tame for name in ins.dsts)


def _agrees(ins: Ins) -> bool:
    denormals, mods = ins.traits.denormals, ins.mods
    types = {m for m in mods if m in FLOATS}
    if denormals is Denormals.NEVER:
        return False
    if not types:
        return True
    if denormals is Denormals.KEEPS and ("ftz" not in mods or types == {"f32"}):
        return True
    if types == {"f32"} and "ftz" in mods:
        return True
    if denormals is Denormals.CONVERTS:
        if types == {"f32"} and "ftz" not in mods:
            to_float = mods[-2] == "f32" if len(mods) > 1 else False
            # From a float of 32 bits only what cannot see a subnormal number; to one nothing subnormal can come of integers and halves.
            return to_float or not _EXACT.isdisjoint(mods) or (mods[-2:-1] == ("f16",) and "rn" in mods)
        return False
    # An addition in global memory flushes on a GPU too; in shared memory it does not.
    return denormals is Denormals.ADDS and types == {"f32"} and "global" in mods and "add" in mods
