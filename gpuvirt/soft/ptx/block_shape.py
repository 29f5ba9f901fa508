"""What code takes for granted of the blocks that run it: one shape, or a class of shapes.

A shape is three numbers of threads, x, y and z. In a class a number may be open: -m says that it is some multiple of m, which the code reads from the
block at run time. So a kernel that is launched with blocks of many sizes is translated and compiled once.
"""

from __future__ import annotations

import math
import os

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.ptx.types import LANES

Shape = tuple[int, int, int]
SETTING = "GPUVIRT_SOFT_SHAPES"


def exact_wanted() -> bool:
    """Whether every shape is to have code of its own.

    Raises:
        GpuvirtError: the setting is something else.
    """
    text = os.environ.get(SETTING, "")
    if text not in ("", "exact"):
        raise GpuvirtError(f"{SETTING}={text}: it is 'exact' or unset")
    return bool(text)


def class_of(block: Shape) -> Shape:
    """The class of a block's shape, or the shape itself: one thread, other blocks of one warp, and those in which what differs between lanes differs
    from warp to warp.

    One row: of whole warps, or with a last one that is not. Rows of whole warps, in a plane or in space. Short rows, several in a warp: whole warps
    in each plane, or one plane with a last warp that is not.
    """
    x, y, z = block
    if exact_wanted():
        return block
    if y == z == 1 and x not in (1, LANES):
        return (-LANES if x % LANES == 0 else -1, 1, 1)
    if x * y * z <= LANES:
        return block
    deep = 1 if z == 1 else -1
    if x % LANES == 0:
        return (-LANES, -1, deep)
    rows = LANES // x
    if LANES % x == 0 and y % rows == 0:
        return (x, -rows, deep)
    if LANES % x == 0 and z == 1:
        return (x, -1, 1)
    return block


def is_class(shape: Shape) -> bool:
    return min(shape) < 0


def many_warps(shape: Shape) -> bool:
    """Whether such blocks may have more than one warp. Those of a class may."""
    return is_class(shape) or math.prod(shape) > LANES


def full_warps(shape: Shape) -> bool:
    """Whether every warp of such a block has all its lanes."""
    return math.prod(abs(n) for n in shape) % LANES == 0


def warps_of(shape: Shape) -> int:
    """How many warps a block of this shape, which is no class, has."""
    return -(-math.prod(shape) // LANES)
