"""The metadata blob of a module (native/wire/module_meta.h)."""

from __future__ import annotations

import math
import re
import struct

from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.module import Func, Module

MAGIC, VERSION = 0x4154454D, 1
COMPLETE = 1
KERNEL_NEEDS_CLUSTER = 1
GLOBAL_CONST, GLOBAL_MANAGED, GLOBAL_TEXTURE, GLOBAL_SURFACE = 1, 2, 4, 8
_HEADER = struct.Struct("<8I")
_KERNEL = struct.Struct("<16I")
_PARAM = struct.Struct("<2I")
_GLOBAL = struct.Struct("<4I2Q")
REGISTERS = 32  # there is no register file here; a number with which occupancy calculations give sensible answers


def _threads(func: Func, directive: str) -> list[int]:
    found = re.search(rf"\.{directive}\s+([\d\s,]+)", func.directives)
    numbers = [int(n) for n in found.group(1).replace(",", " ").split()] if found else []
    return ([*numbers, 1, 1, 1])[:3] if numbers else []


def _cluster(func: Func) -> int:
    """The shape of .reqnctapercluster in one word, 10 bits a dimension (native/wire/cluster_dims.h); 0: it has none.

    Raises:
        BadPtx: it has a dimension of 0 or of more blocks than the word can say.
    """
    numbers = _threads(func, "reqnctapercluster")
    if numbers and not all(0 < n < 1024 for n in numbers):
        raise BadPtx(f"'{func.name}': there is no cluster of {' x '.join(map(str, numbers))} blocks")
    return sum(n << 10 * i for i, n in enumerate(numbers))


def max_threads(func: Func) -> int:
    """CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK"""
    for directive in ("reqntid", "maxntid"):
        numbers = _threads(func, directive)
        if numbers:
            return min(math.prod(numbers), 1024)
    return 1024


def required_block(func: Func) -> list[int]:
    """The block shape of .reqntid, with which alone the kernel is launched; empty: it has none."""
    return _threads(func, "reqntid")


def pack(module: Module) -> bytes:
    """The blob, all addresses 0."""
    strings = bytearray()

    def intern(name: str) -> int:
        offset = len(strings)
        strings.extend(name.encode("latin-1") + b"\0")
        return offset

    kernels, params, variables = bytearray(), bytearray(), bytearray()
    n_params = 0
    consts = sum(v.size for v in module.globals if v.space == "const")
    for func in module.kernels:
        required = required_block(func) or [0, 0, 0]
        target = re.match(r"\d+", module.target)
        binary = int(target.group()) if target else 0
        kernels += _KERNEL.pack(
            intern(func.name), n_params, len(func.params), func.param_bytes, max_threads(func), func.static_shared, consts, func.local_bytes,
            REGISTERS, binary, binary, *required, KERNEL_NEEDS_CLUSTER if ".explicitcluster" in func.directives else 0, _cluster(func),
        )  # fmt: skip
        for param in func.params:
            params += _PARAM.pack(param.offset, param.size)
        n_params += len(func.params)
    for variable in module.globals:
        flags = (GLOBAL_CONST if variable.space == "const" else 0) | (GLOBAL_MANAGED if variable.managed else 0)
        flags |= {"texref": GLOBAL_TEXTURE, "surfref": GLOBAL_SURFACE}.get(variable.element, 0)
        variables += _GLOBAL.pack(intern(variable.name), flags, variable.align, 0, variable.size, 0)
    header = _HEADER.pack(MAGIC, VERSION, COMPLETE, len(module.kernels), n_params, len(module.globals), len(strings), 0)
    return bytes(header + kernels + params + variables + strings)
