"""Runs kernels from PTX text on NumPy arrays in this process, without client, worker or transport."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import c_build
import numpy as np

from gpuvirt.soft.host import jit
from gpuvirt.soft.host.ctypes_bridge import SoftCode
from gpuvirt.soft.host.module_registry import CAREFUL, Code, Compiler

_engine: ctypes.CDLL | None = None
_numbers = itertools.count(1)


class LaunchError(Exception):
    """A grid ended with an error; `code` is the CUresult."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def engine() -> ctypes.CDLL:
    """The execution engine, built from native/backend/soft/engine at first use; SOFT_ENGINE_INSTEAD: a folder of which files stand in for its."""
    global _engine
    if _engine is None:
        soft = c_build.NATIVE / "backend" / "soft"
        flags = ["-fvisibility=hidden", f"-I{c_build.NATIVE}", f"-I{soft}", f"-I{c_build.generated()}"]
        with tempfile.TemporaryDirectory() as folder:  # it stays mapped
            instead = {path.name: path for path in Path(os.environ.get("SOFT_ENGINE_INSTEAD", folder)).glob("*.c")}
            sources = [*(instead.get(path.name, path) for path in sorted((soft / "engine").rglob("*.c"))), soft.parent / "turn_words.c"]
            made = c_build.library(Path(folder) / "libsoftexec.so", sources, flags=flags, libraries=["-lm"])
            _engine = ctypes.CDLL(str(made))
        missing = jit.register_library(_engine)
        if missing:
            raise RuntimeError(f"the engine lacks {', '.join(missing)}")
    return _engine


class Kernels:
    """A loaded module. Call `launch` with NumPy arrays (passed by address, changed in place) and NumPy scalars."""

    def __init__(self, image: str | bytes) -> None:
        engine()
        self.compiler = Compiler()
        self.number = next(_numbers)
        self.compiler.module_load(self.number, image.encode("latin-1") if isinstance(image, str) else image)
        self.index = self.compiler.modules[self.number].index
        self.memory = {v.name: np.zeros(v.size + 256, np.uint8) for v in self.index.globals}
        self.addresses = {n: (m.ctypes.data + 255) // 256 * 256 for n, m in self.memory.items()}
        self.compiler.module_bind(self.number, [self.addresses[v.name] for v in self.index.globals])

    def read(self, name: str, dtype: Any, count: int) -> np.ndarray[Any, Any]:
        """A module global as an array (shared memory with the kernels)."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer((ctypes.c_char * size).from_address(self.addresses[name]), dtype)

    def get(self, name: str, block: Sequence[int], careful: bool = False) -> Code:
        """The kernel compiled for a block shape."""
        names = [k.name for k in self.index.kernels]
        shape = tuple([*block, 1, 1][:3])
        return self.compiler.kernel_get(self.number, names.index(name) | (CAREFUL if careful else 0), shape)  # type: ignore[arg-type]

    def launch(
        self,
        name: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        *args: Any,
        shared: int = 0,
        cooperative: bool = False,
        cluster: Sequence[int] = (0, 0, 0),
    ) -> None:
        """Runs a grid to its end."""
        grid = [grid] if isinstance(grid, int) else list(grid)
        block = [block] if isinstance(block, int) else list(block)
        code = self.get(name, block)
        params = bytearray(code.description.param_bytes)
        func = self.index.funcs[name]
        if len(args) != len(func.params):
            raise TypeError(f"{name} takes {len(func.params)} arguments")
        for param, value in zip(func.params, args, strict=True):
            if isinstance(value, np.ndarray):
                data = struct.pack("<Q", value.ctypes.data)
            elif isinstance(value, bytes):
                data = value
            elif isinstance(value, (int, float)):
                data = (value & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little") if isinstance(value, int) else struct.pack("<f", value)
            else:
                data = value.tobytes()
            if len(data) != param.size:
                raise TypeError(f"{name}: the argument {param.name} has {param.size} bytes, not {len(data)}")
            params[param.offset : param.offset + param.size] = data
        if any(params[place] % size for place, size in code.description.needs):
            code = self.get(name, block, careful=True)
        soft = SoftCode.of(code)
        text = ctypes.create_string_buffer(512)
        three = ctypes.c_uint32 * 3
        rc = engine().soft_exec_launch(
            ctypes.byref(soft), three(*[*grid, 1, 1][:3]), three(*[*block, 1, 1][:3]), three(*cluster), ctypes.c_uint32(shared), ctypes.c_uint32(int(cooperative)),
            bytes(params), ctypes.c_uint32(len(params)), text, ctypes.c_uint32(512),
        )  # fmt: skip
        if rc:
            raise LaunchError(rc, text.value.decode("utf-8", "replace"))
