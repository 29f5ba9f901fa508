"""NVIDIA's libraries of the wheels through ctypes, with CuPy's memory."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np


def folders() -> list[Path]:
    """Where the wheels put what is NVIDIA's."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


def find(part: str, pattern: str) -> Path | None:
    """A library file of a wheel, such as ("cublas", "libcublas.so.*")."""
    for folder in folders():
        for path in sorted((folder / part / "lib").glob(pattern)):
            return path
    return None


class Refused(RuntimeError):
    """What a library returned."""


class Library:
    """A library whose functions return 0 or raise; arrays are passed as their addresses, floats and complex numbers as NumPy scalars' addresses."""

    def __init__(self, part: str, pattern: str) -> None:
        path = find(part, pattern)
        if path is None:
            raise FileNotFoundError(pattern)
        self.dll = ctypes.CDLL(str(path))

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.dll, name)(*map(argument, arguments))
        if code:
            raise Refused(f"{name} returned {code}")


def argument(value: Any) -> Any:
    """A Python value as ctypes takes it."""
    if hasattr(value, "data") and hasattr(value.data, "ptr"):  # a CuPy array
        return ctypes.c_void_p(value.data.ptr)
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return value


def long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


@functools.cache
def cublas() -> Library:
    return Library("cublas", "libcublas.so.*")


@functools.cache
def cublas_handle() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    cublas().call("cublasCreate_v2", ctypes.byref(handle))
    return handle
