"""The registry of cases, and their helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx

# What still hangs or is wrong.
MISSING: set[str] = set()
CASES: dict[str, Callable[[], None]] = {}


def case(f: Callable[[], None]) -> Callable[[], None]:
    CASES[f.__name__] = f
    return f


def cuda(source: str) -> Kernels:
    return Kernels(compile_ptx(source, "compute_90"))


def zeros(n: int) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.int32)


i32 = np.int32
