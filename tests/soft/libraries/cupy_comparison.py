"""CuPy's functions and NumPy's or SciPy's on the same numbers in a wider type: what the cases of CuPy are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import EPS, Outcome

WIDER = {"e": np.float64, "f": np.float64, "d": np.longdouble, "F": np.complex128, "D": np.clongdouble}
EPS_OF = {"e": EPS["f16"], "f": EPS["f32"], "d": EPS["f64"], "F": EPS["f32"], "D": EPS["f64"]}
NAMES = {
    "?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64", "L": "uint64",
    "e": "half", "f": "float", "d": "double", "F": "complex64", "D": "complex128",
}  # fmt: skip
INTEGERS, REALS, COMPLEX = "bBhHiIlL", "efd", "FD"


def wide(a: Any) -> Any:
    kind = a.dtype.char if isinstance(a, np.ndarray) else ""
    return a.astype(WIDER[kind]) if kind in WIDER else a


def draw(rng: np.random.Generator, kind: str, shape: Any, low: float = -4, high: float = 4) -> Any:
    if kind == "?":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in INTEGERS:
        info = np.iinfo(kind)
        return rng.integers(max(info.min, -50) if low < 0 else 0, min(info.max, 50), shape).astype(kind)
    values = rng.uniform(low, high, shape)
    if kind in COMPLEX:
        values = values + 1j * rng.uniform(low, high, shape)
    return np.asarray(values).astype(kind)


def host(value: Any) -> Any:
    import cupy

    if isinstance(value, tuple | list):
        return type(value)(map(host, value)) if type(value) in (tuple, list) else tuple(map(host, value))
    return cupy.asnumpy(value) if isinstance(value, cupy.ndarray) else value


def flat(value: Any) -> list[Any]:
    return [part for v in value for part in flat(v)] if isinstance(value, tuple | list) else [np.asarray(value)]


def compare(
    function: Callable[..., Any], arrays: tuple[Any, ...], k: float = 1, scale: Any = None, exact: bool | None = None, slack: float = 1
) -> Any:
    """function(numpy or cupy, arrays) on both sides; several results are compared one after the other. slack: for functions whose error CUDA's
    documentation gives as more than 4 units."""
    import cupy

    got = flat(host(function(cupy, *(cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays))))
    with np.errstate(all="ignore"):
        want = flat(function(np, *map(wide, arrays)))
    if len(got) != len(want):
        raise AssertionError(f"{len(got)} results, {len(want)} expected")
    worst: Any = None
    for g, w in zip(got, want, strict=True):
        plain = exact if exact is not None else g.dtype.char not in EPS_OF
        outcome = Outcome(g, w.astype(g.dtype) if plain else w, k, 0 if plain else EPS_OF[g.dtype.char] * slack, scale, exact=plain)
        if worst is None or outcome.error() > worst.error():
            worst = outcome
    return worst


def same_type(function: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    """Bit for bit, NumPy in the same type."""
    import cupy

    got = flat(host(function(cupy, *(cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays))))
    with np.errstate(all="ignore"):
        want = flat(function(np, *arrays))
    for g, w in zip(got, want, strict=True):
        outcome = Outcome(g, w, exact=True)
        if outcome.error():
            break
    return outcome
