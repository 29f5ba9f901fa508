"""CuPy's functions by elements, reductions, moves, counts and sorts against NumPy's in a wider type; integers, comparisons and moves bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case
from .case import EPS, Case, Outcome
from .cupy_comparison import COMPLEX, EPS_OF, INTEGERS, NAMES, REALS, WIDER, compare, draw, host, same_type, wide

SHAPES = ((), (1,), (17,), (1000,), (33, 65), (4, 1, 9, 5))

# Functions of one argument and where they are defined.
UNARY = {
    "negative": (-4, 4), "absolute": (-4, 4), "sqrt": (0, 9), "cbrt": (-9, 9), "exp": (-6, 6), "exp2": (-6, 6), "expm1": (-1, 1), "log": (0.01, 9),
    "log2": (0.01, 9), "log10": (0.01, 9), "log1p": (-0.9, 9), "sin": (-9, 9), "cos": (-9, 9), "tan": (-1.5, 1.5), "arcsin": (-1, 1), "arccos": (-1, 1),
    "arctan": (-9, 9), "sinh": (-4, 4), "cosh": (-4, 4), "tanh": (-3, 3), "arcsinh": (-9, 9), "arccosh": (1, 9), "arctanh": (-0.9, 0.9),
    "floor": (-9, 9), "ceil": (-9, 9), "trunc": (-9, 9), "rint": (-9, 9), "sign": (-4, 4), "square": (-9, 9), "reciprocal": (0.1, 9),
    "isnan": (-4, 4), "isfinite": (-4, 4), "isinf": (-4, 4), "signbit": (-4, 4), "degrees": (-4, 4), "radians": (-360, 360), "sinc": (-4, 4),
    "i0": (-3, 3), "logical_not": (-4, 4), "invert": (0, 0), "conj": (-4, 4), "real": (-4, 4), "imag": (-4, 4), "angle": (-4, 4), "nan_to_num": (-4, 4),
    "frexp": (-9, 9), "modf": (-9, 9), "spacing": (-9, 9),
}  # fmt: skip
NOT_COMPLEX = {
    "cbrt", "floor", "ceil", "trunc", "signbit", "logical_not", "degrees", "radians", "i0", "invert", "frexp", "modf", "spacing", "sign", "exp2", "sinc",
    "expm1", "log1p", "arccosh", "arctanh",
}  # fmt: skip
NOT_INTEGER = {"reciprocal", "nan_to_num", "frexp", "modf", "spacing", "sign", "sinc", "i0", "angle", "floor", "ceil", "trunc", "rint", "signbit"}
OF_INTEGERS = {"invert"}
SLACK = {"tan": 2, "sinc": 2, "i0": 4, "sinh": 2, "arctanh": 2, "arccosh": 2, "arcsinh": 2, "angle": 2}
BINARY = {
    "add": "all", "subtract": "number", "multiply": "all", "divide": "number", "floor_divide": "real", "remainder": "real", "power": "float",
    "fmod": "real", "maximum": "all", "minimum": "all", "fmax": "all", "fmin": "all", "arctan2": "float", "hypot": "float", "copysign": "float",
    "nextafter": "float", "logaddexp": "float", "logaddexp2": "float", "bitwise_and": "integer", "bitwise_or": "integer", "bitwise_xor": "integer",
    "left_shift": "integer", "right_shift": "integer", "greater": "real", "less_equal": "real", "equal": "all", "not_equal": "all",
    "logical_and": "logic", "logical_xor": "logic", "gcd": "integer", "lcm": "integer", "ldexp": "ldexp", "divmod": "real",
}  # fmt: skip
KINDS_OF = {
    "all": "?" + INTEGERS + REALS + COMPLEX, "number": INTEGERS + REALS + COMPLEX, "real": INTEGERS + REALS, "float": REALS, "integer": INTEGERS, "logic": "?" + INTEGERS + REALS,
    "ldexp": REALS,
}  # fmt: skip


def unary(name: str, kind: str, shape: tuple[int, ...]) -> Any:
    rng = case.generator(name, kind, shape)
    low, high = UNARY[name]
    a = draw(rng, kind, shape, low, high)
    exact = (
        True
        if name in ("floor", "ceil", "trunc", "rint", "negative", "sign", "conj", "real", "imag", "nan_to_num", "frexp", "modf", "invert")
        else None
    )
    if name == "spacing":  # depends on the type itself
        return same_type(lambda xp, x: xp.nextafter(xp.abs(x), xp.asarray(np.inf, x.dtype)) - xp.abs(x), (a,))
    if kind in INTEGERS and exact is None and name not in ("absolute", "square", "logical_not", "isnan", "isfinite", "isinf"):
        # NumPy chooses half for int8, CuPy as well; the reference is taken in double.
        import cupy

        got = host(getattr(cupy, name)(cupy.asarray(np.abs(a) % 2 if high <= 1.5 else np.abs(a) + 1)))
        with np.errstate(all="ignore"):
            want = getattr(np, name)((np.abs(a) % 2 if high <= 1.5 else np.abs(a) + 1).astype(np.float64))
            want = np.where(np.isfinite(want) & (np.abs(want) > np.finfo(got.dtype).max), np.inf * np.sign(want), want)
        return Outcome(got, want, 1, max(EPS_OF[got.dtype.char] * SLACK.get(name, 1), EPS["f64"] * 2))
    return compare(lambda xp, x: getattr(xp, name)(x), (a,), scale=1 if name == "sinc" else None, exact=exact, slack=SLACK.get(name, 1))


def binary(name: str, kind: str, shapes: tuple[Any, Any]) -> Any:
    rng = case.generator(name, kind, *shapes)
    a, b = draw(rng, kind, shapes[0]), draw(rng, kind, shapes[1])
    if name in ("floor_divide", "remainder", "fmod", "divmod", "divide"):
        b = np.where(b == 0, np.asarray(3, b.dtype), b)
    if name == "power":
        a = np.abs(a) + a.dtype.type(0.1)
    if name in ("left_shift", "right_shift"):
        b = (np.abs(b) % 7).astype(b.dtype)
    if name == "ldexp":
        b = rng.integers(-5, 5, shapes[1]).astype(np.int32)

    def function(xp: Any, x: Any, y: Any) -> Any:
        return getattr(xp, name)(x, y)

    if name == "divide" and kind in INTEGERS:
        return same_type(function, (a, b))
    exact = kind in "?" + INTEGERS or name in (
        "maximum", "minimum", "fmax", "fmin", "copysign", "nextafter", "fmod", "greater", "less_equal", "equal", "not_equal", "logical_and", "logical_xor",
        "ldexp", "floor_divide", "remainder", "divmod",
    )  # fmt: skip
    if exact:
        if name in ("floor_divide", "remainder", "divmod") and kind in REALS:
            rest = np.abs(np.asarray(np.fmod(a.astype(np.float64), b.astype(np.float64))))
            return compare(function, (a, b), scale=None if name == "floor_divide" else np.abs(a) + np.abs(b) + rest)
        return same_type(function, (a, b))
    scale = np.abs(wide(a)) + np.abs(wide(b)) + name.startswith("log") if name in ("add", "subtract", "logaddexp", "logaddexp2") else None
    return compare(function, (a, b), scale=scale, slack=2 if name in ("power", "divide", "arctan2") else 1)


REDUCTIONS = ("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "any", "all", "cumsum", "cumprod", "nansum", "median", "ptp")
REDUCED: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((1,), None), ((100000,), None), ((64, 129), 0), ((64, 129), 1), ((5, 70, 33), (0, 2)), ((3, 1, 2049), -1),
)  # fmt: skip


def reduction(name: str, kind: str, shape: tuple[int, ...], axis: Any) -> Any:
    rng = case.generator(name, kind, shape, axis)
    a = draw(rng, kind, shape)
    if "prod" in name:
        a = draw(rng, kind, shape, 0.99, 1.01) if kind in REALS + COMPLEX else a
        if kind in COMPLEX:
            a = (a / np.abs(a)).astype(kind)
    if kind in REALS and name == "nansum" and a.size:
        a.reshape(-1)[:: max(a.size // 7, 2)] = np.nan
    count = a.size / max(np.asarray(np.sum(np.ones(shape, np.float32), axis=axis)).size, 1)
    exact = kind in "?" + INTEGERS and name not in ("mean", "var", "std", "median")
    exact = exact or name in ("min", "max", "argmin", "argmax", "any", "all")

    def function(xp: Any, x: Any) -> Any:
        return getattr(xp, name)(x, axis=axis)

    if exact:
        return same_type(function, (a,))
    size = np.abs(wide(np.nan_to_num(a)))
    size = size.astype(np.float64) if size.dtype.kind in "biu" else size
    keep = {"axis": axis}
    if name in ("sum", "nansum", "mean"):
        scale = (size.sum(**keep) + np.sqrt((size.astype(np.float64) ** 2).sum(**keep))) / (count if name == "mean" else 1)
    elif name == "cumsum":
        scale = np.sqrt(np.cumsum(size.astype(np.float64) ** 2, axis=axis)) + np.abs(np.cumsum(wide(a), axis=axis))
    elif name in ("var", "std"):
        scale = (size**2).mean(**keep) if name == "var" else np.sqrt((size**2).mean(**keep))
    else:
        scale = None
    if name == "ptp":
        scale = size.max(**keep)
    if kind == "e" and "prod" in name and name.startswith("cum"):
        count = count * 4
    if kind in INTEGERS + "?":
        return compare(function, (a.astype(kind),), k=count, scale=None if name == "median" else np.maximum(np.abs(np.asarray(scale)), 1e-30))
    return compare(function, (a,), k=count, scale=scale)


def moved(xp: Any, a: Any) -> dict[str, Callable[[], Any]]:
    """What only moves numbers, on a matrix."""
    rows, columns = a.shape
    index = xp.asarray(np.arange(rows * 3) * 7 % rows)
    other = xp.asarray(np.arange(rows * 3) * 5 % columns)

    def put_at() -> Any:
        b = a.copy()
        b[xp.asarray(np.arange(0, rows, 2)), 1] = b[xp.asarray(np.arange(0, rows, 2)), 0]
        b[1:, ::2] = b[:-1, ::2]
        return b

    def masked() -> Any:
        b = a.copy()
        b[b > b.dtype.type(1)] = b.dtype.type(1)
        return b

    return {
        "slices": lambda: a[::-2, 1:-1:3] + a.dtype.type(0),
        "fancy index": lambda: a[index, other],
        "fancy rows": lambda: a[index],
        "boolean index": lambda: a[a > a.dtype.type(1)],
        "assign by index": put_at,
        "assign by mask": masked,
        "take": lambda: xp.take(a, index, axis=0),
        "take_along_axis": lambda: xp.take_along_axis(a, xp.argsort(a, axis=1), axis=1),
        "where": lambda: xp.where(a > a.dtype.type(0), a, a.dtype.type(2)),
        "transpose": lambda: xp.ascontiguousarray(a.T),
        "reshape": lambda: a.T.reshape(-1),
        "concatenate": lambda: xp.concatenate([a, a[::-1], a[:1]], axis=0),
        "stack": lambda: xp.stack([a, a + a.dtype.type(1)], axis=1),
        "tile": lambda: xp.tile(a, (2, 3)),
        "repeat": lambda: xp.repeat(a, 3, axis=1),
        "roll": lambda: xp.roll(a, 5, axis=0),
        "flip": lambda: xp.flip(a),
        "rot90": lambda: xp.rot90(a),
        "pad": lambda: xp.pad(a, 2, mode="edge"),
        "pad reflect": lambda: xp.pad(a, ((1, 2), (3, 0)), mode="reflect"),
        "tril": lambda: xp.tril(a),
        "diag": lambda: xp.diag(a),
        "broadcast": lambda: xp.broadcast_to(a[None], (3, rows, columns)) + a.dtype.type(1),
        "sort": lambda: xp.sort(a, axis=None),
        "sort rows": lambda: xp.sort(a, axis=1),
        "sort columns": lambda: xp.sort(a, axis=0),
        "argsort": lambda: xp.sort(a, axis=None)[xp.asarray([0, 1])],
        "unique": lambda: xp.unique(a),
        "unique, all": lambda: xp.unique(a, return_inverse=True, return_counts=True)[2],
        "nonzero": lambda: xp.nonzero(a > a.dtype.type(1)),
        "count_nonzero": lambda: xp.count_nonzero(a),
        "searchsorted": lambda: xp.searchsorted(xp.sort(a, axis=None), a, side="right"),
        "partition": lambda: xp.sort(xp.partition(a.reshape(-1), 7)[:7]),
        "clip": lambda: xp.clip(a, a.dtype.type(0), a.dtype.type(2)),
        "diff": lambda: xp.diff(a.astype(xp.int64)),
        "convert to int": lambda: a.astype(xp.int32),
        "convert to uint8": lambda: xp.abs(a).astype(xp.uint8),
        "convert to half": lambda: a.astype(xp.float16),
        "convert to double": lambda: a.astype(xp.float64),
        "isin": lambda: xp.isin(a, a[0]),
        "compress": lambda: xp.compress(a[0] > a.dtype.type(0), a, axis=1),
        "choose": lambda: xp.choose((xp.abs(a) % a.dtype.type(3)).astype(xp.int32), xp.stack([a, a[::-1], a + a.dtype.type(1)])),
    }


MOVED = (
    "slices", "fancy index", "fancy rows", "boolean index", "assign by index", "assign by mask", "take", "take_along_axis", "where", "transpose", "reshape",
    "concatenate", "stack", "tile", "repeat", "roll", "flip", "rot90", "pad", "pad reflect", "tril", "diag", "broadcast", "sort", "sort rows", "sort columns",
    "argsort", "unique", "unique, all", "nonzero", "count_nonzero", "searchsorted", "partition", "clip", "diff", "convert to int", "convert to uint8",
    "convert to half", "convert to double", "isin", "compress", "choose",
)  # fmt: skip


def move(name: str, kind: str, shape: tuple[int, int]) -> Any:
    a = draw(case.generator(name, kind, shape), kind, shape)
    return same_type(lambda xp, x: moved(xp, x)[name](), (a,))


def scatter(name: str, kind: str, n: int) -> Any:
    """Many to one place: atomics."""
    import cupy
    import cupyx

    rng = case.generator(name, kind, n)
    index, values = rng.integers(0, 37, n), draw(rng, kind, n)
    got = cupy.zeros(37, kind)
    want = np.zeros(37, WIDER.get(kind, kind))
    if name != "add":
        got[:], want[:] = 1, 1
    getattr(cupyx, f"scatter_{name}")(got, cupy.asarray(index), cupy.asarray(values))
    getattr(np, {"add": "add", "max": "maximum", "min": "minimum"}[name]).at(want, index, wide(values))
    exact = kind in INTEGERS or name != "add"
    size = np.zeros(37)
    np.add.at(size, index, np.abs(values.astype(np.float64)))
    return Outcome(host(got), want, n / 37, 0 if exact else EPS_OF[kind], size, exact=exact)


# CuPy takes a histogram's last edge as one higher for integers.
COUNTS: dict[str, Callable[..., Any]] = {
    "bincount": lambda xp, a: xp.bincount(xp.abs(a).astype(xp.int64)),
    "histogram": lambda xp, a: xp.histogram(a, bins=9, range=(-4, 5))[0],
    "digitize": lambda xp, a: xp.digitize(a, xp.asarray([-2.0, 0.0, 1.5])),
    "lexsort": lambda xp, a: xp.lexsort(xp.stack([a, xp.abs(a)])),
    "argsort": lambda xp, a: xp.argsort(a, kind="stable"),
    "argwhere": lambda xp, a: xp.argwhere(a > 1),
    "packbits": lambda xp, a: xp.packbits(a > 0),
    "flatnonzero": lambda xp, a: xp.flatnonzero(a > 1),
}


def cases() -> Iterator[Any]:
    lib = "cupy"
    for name in UNARY:
        kinds = INTEGERS if name in OF_INTEGERS else REALS + ("" if name in NOT_COMPLEX else COMPLEX) + ("" if name in NOT_INTEGER else "bHil")
        for kind in kinds:
            for shape in SHAPES if kind == "f" else SHAPES[4:5]:
                few = name in ("exp", "sin", "sqrt", "log1p", "tanh") and kind == "f" and shape == (1000,)
                yield Case(lib, name, NAMES[kind], str(shape), lambda a=(name, kind, shape): unary(*a), few)
    for name, family in BINARY.items():
        for kind in KINDS_OF[family][2 if name == "lcm" else 0 :]:  # the least common multiples of int8 overflow
            for shapes in (((1000,), (1000,)), ((33, 1), (65,)))[0 if kind in "fl" else 1 :]:
                few = kind == "l" and name in ("remainder", "gcd") and shapes[0] == (1000,)
                yield Case(lib, name, NAMES[kind], f"{shapes[0]}, {shapes[1]}", lambda a=(name, kind, shapes): binary(*a), few)
    for name in REDUCTIONS:
        kinds = "fdil" if name in ("median", "ptp", "nansum") else "?blefdD" if name not in ("min", "max", "argmin", "argmax") else "?bLefd"
        for kind, (shape, axis) in itertools.product(kinds, REDUCED):
            if name in ("cumsum", "cumprod", "median", "argmin", "argmax") and isinstance(axis, tuple):
                continue
            if (kind in "e" and name in ("prod", "cumprod", "var", "std") and shape == (100000,)) or (
                kind == "?" and name in ("ptp", "cumprod", "nansum")
            ):
                continue
            few = name in ("sum", "argmax", "cumsum") and kind == "d" and shape == (64, 129) and axis == 1
            yield Case(lib, name, NAMES[kind], f"{shape} axis {axis}", lambda a=(name, kind, shape, axis): reduction(*a), few)
    for name, kind, shape in itertools.product(MOVED, "bHile" + "fd", ((33, 65), (7, 129))):
        if shape == (7, 129) and kind not in "fi":
            continue
        few = name in ("sort", "boolean index", "fancy index", "unique") and kind == "i" and shape == (33, 65)
        yield Case(lib, name, NAMES[kind], str(shape), lambda a=(name, kind, shape): move(*a), few)
    for name, kind in itertools.product(("sort", "sort rows", "unique", "searchsorted"), "ilfd"):
        yield Case(lib, name, NAMES[kind], "(300, 701)", lambda a=(name, kind, (300, 701)): move(*a))
    for name, kind in itertools.product(("add", "max", "min"), "ilLfde"):
        # Half has add alone; CuPy's largest and smallest of doubles go through float.
        if name == "add" or kind not in "ed":
            yield Case(lib, f"scatter_{name}", NAMES[kind], "20000 to 37", lambda a=(name, kind, 20000): scatter(*a), name == "add" and kind == "f")
    for name, kind, n in itertools.product(COUNTS, "ifd", (17, 10000)):
        yield Case(
            lib, name, NAMES[kind], f"{n}", lambda name=name, kind=kind, n=n: same_type(COUNTS[name], (draw(case.generator(name, kind, n), kind, n),))
        )
