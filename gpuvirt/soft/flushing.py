"""Whether the processor may flush subnormal numbers by itself while a kernel runs.

Programs compiled with -ftz=true (CuPy's are) have .ftz on every single-precision instruction. Flushing each operand and result with instructions of
our own costs several times the arithmetic; the processor has the same as a mode (DAZ and FTZ in MXCSR). The mode holds for a whole kernel, so it is
used only where nothing in the kernel, or in a function that it may call, would give another result because of it. Then the engine switches it on
around the grid (soft_code.flush), arithmetic is emitted as it is, and only what moves numbers without computing flushes explicitly.
"""

from __future__ import annotations

from gpuvirt.soft.layout import Program
from gpuvirt.soft.parser import Ins

_FLOATS = {"f64", "f32", "f32x2", "bf16", "bf16x2", "e4m3x2", "e5m2x2"}
# They move bits, or compute on halves, which are normal numbers once widened (the instruction that widens them ignores the mode).
_MOVES = {"mov", "ld", "ldu", "st", "selp", "shfl", "neg", "abs", "copysign", "testp", "cp", "prefetch"}
_EXACT = {"rni", "rzi"}  # of a subnormal number these give zero in any case


def hardware_flush(program: Program, features: frozenset[str]) -> bool:
    """Whether all of a program agrees with the processor's flushing of subnormal numbers, and has something to flush."""
    if "f16c" not in features:
        return False
    flushes = False
    for body in program.bodies.values():
        for _, block in body.blocks:
            for ins in block:
                if not _agrees(ins):
                    return False
                flushes = flushes or "ftz" in ins.mods
    return flushes


def _agrees(ins: Ins) -> bool:
    op, mods = ins.op, ins.mods
    types = {m for m in mods if m in _FLOATS}
    if op in ("mma", "wmma", "wgmma", "tcgen05", "tex", "tld4") or (op == "cp" and "reduce" in mods):
        return False
    if not types:
        return True
    if op in _MOVES and ("ftz" not in mods or types == {"f32"}):
        return True
    if types == {"f32"} and "ftz" in mods:
        return True
    if op == "cvt":
        if types == {"f32"} and "ftz" not in mods:
            to_float = mods[-2] == "f32" if len(mods) > 1 else False
            # From a float of 32 bits only what cannot see a subnormal number; to one nothing subnormal can come of integers and halves.
            return to_float or not _EXACT.isdisjoint(mods) or (mods[-2:-1] == ("f16",) and "rn" in mods)
        return False
    # An addition in global memory flushes on a GPU too; in shared memory it does not.
    return op in ("atom", "red") and types == {"f32"} and "global" in mods and "add" in mods
