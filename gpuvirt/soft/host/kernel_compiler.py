"""The object code of a kernel: from the cache, or made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import lz4.block

from gpuvirt.soft import pipeline
from gpuvirt.soft.host import jit, object_cache
from gpuvirt.soft.host.compile_progress import PROGRESS
from gpuvirt.soft.ptx.block_shape import Shape
from gpuvirt.soft.ptx.module import Module

LARGE = 200_000  # characters of IR from which on a kernel gets quick code first
# Bytes of stack that quick code may take, which keeps nearly every value of a function in a place of its own: half of what there is (SOFT_STACK in
# native/backend/soft), and every warp of a block takes it.
QUICK_STACK = 4 << 20


@dataclass
class Built:
    """A kernel's object code. `ir` (compressed) is kept while the code is quick and good code can still be made."""

    level: int
    code: bytes
    description: pipeline.Description
    ir: bytes = b""


def cache_key(identity: str, level: int) -> str:
    """The name of a cache entry."""
    return object_cache.name(f"{identity};{level}")


Compile = Callable[[str, int], bytes]  # as jit.compile_object


def build(module: Module, kernel: str, shape: Shape, identity: str, careful: bool = False, compiled: Compile | None = None) -> Built:
    """The object code of a kernel, the best that the cache has, else made here.

    Args:
        identity: names module, kernel, shape, machine and compiler, and says whether the code is careful.
        careful: see pipeline.translate.
        compiled: None: jit.compile_object.
    """
    for level in (jit.GOOD, jit.QUICK):
        found = object_cache.read(cache_key(identity, level))
        if found is not None:
            with contextlib.suppress(ValueError, TypeError):
                description = pipeline.Description.unpack(found[0])
                start = description.ir_bytes
                return Built(level, found[1][start:], description, found[1][:start])
    with PROGRESS.compiling(kernel):
        text, description, _ = pipeline.translate(module, kernel, shape, careful)
        level, code = _compiled(text, compiled or jit.compile_object)
    ir = lz4.block.compress(text.encode()) if level == jit.QUICK else b""
    description.ir_bytes = len(ir)
    object_cache.write(cache_key(identity, level), description.pack(), ir + code)
    return Built(level, code, description, ir)


def _compiled(text: str, compiled: Compile) -> tuple[int, bytes]:
    """The level and the object; a large kernel gets quick code."""
    if len(text) < LARGE:
        return jit.GOOD, compiled(text, jit.GOOD)
    code = compiled(text, jit.QUICK)
    if jit.large_frames(code) > QUICK_STACK:
        return jit.GOOD, compiled(text, jit.GOOD)
    return jit.QUICK, code


def keep_good(identity: str, description: pipeline.Description, code: bytes) -> None:
    """Replaces quick code in the cache by good code."""
    if object_cache.write(cache_key(identity, jit.GOOD), replace(description, ir_bytes=0).pack(), code):
        object_cache.remove(cache_key(identity, jit.QUICK))
