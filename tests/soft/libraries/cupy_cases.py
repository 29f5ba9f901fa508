"""CuPy's functions against NumPy's and SciPy's on the same numbers in a wider type; integers, comparisons and moves bit for bit."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case
from .case import EPS, Case, Outcome

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

PRODUCTS: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "matmul": ("", ((65, 33), (33, 17)), 33),
    "matmul batched": ("", ((4, 9, 33), (4, 33, 7)), 33),
    "matmul vector": ("", ((65, 300), (300,)), 300),
    "dot": ("dot", ((1000,), (1000,)), 1000),
    "inner": ("inner", ((9, 64), (5, 64)), 64),
    "outer": ("outer", ((33,), (65,)), 1),
    "kron": ("kron", ((3, 5), (7, 2)), 1),
    "tensordot": ("tensordot", ((6, 8, 10), (8, 10, 7)), 80),
    "convolve": ("convolve", ((400,), (25,)), 25),
    "correlate": ("correlate", ((400,), (25,)), 25),
    "einsum ij,jk->ik": ("ij,jk->ik", ((12, 30), (30, 9)), 30),
    "einsum bij,bjk->bik": ("bij,bjk->bik", ((3, 12, 30), (3, 30, 9)), 30),
    "einsum ijk,jil->kl": ("ijk,jil->kl", ((6, 7, 8), (7, 6, 5)), 42),
    "einsum ij,ij->i": ("ij,ij->i", ((20, 50), (20, 50)), 50),
}


def product(name: str, kind: str) -> Any:
    function_name, shapes, k = PRODUCTS[name]
    rng = case.generator(name, kind)
    a, b = (draw(rng, kind, s, -1, 1) for s in shapes)

    def function(xp: Any, x: Any, y: Any) -> Any:
        if name.startswith("matmul"):
            return x @ y
        if name.startswith("einsum"):
            return xp.einsum(function_name, x, y)
        if name == "tensordot":
            return xp.tensordot(x, y, axes=2)
        return getattr(xp, function_name)(x, y)

    if kind in INTEGERS:
        return same_type(function, (a, b))
    ax, bx = np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)
    scale = np.sqrt(np.maximum(function(np, ax**2, bx**2), 0)) + np.abs(function(np, wide(a), wide(b)))
    # Halves are multiplied in float.
    return compare(function, (a, b), k=k, scale=scale)


def linalg(name: str, kind: str, m: int, n: int) -> Any:
    """By what the results must give when they are put together again."""
    import cupy

    eps, w = EPS_OF[kind], WIDER[kind]
    rng = case.generator(name, kind, m, n)
    a = draw(rng, kind, (m, n), -1, 1)
    if name in ("solve", "inv", "det", "slogdet", "matrix_power"):
        a = (a + np.eye(n) * n**0.5).astype(kind)
    la = cupy.linalg
    identity = np.eye(n)
    if name == "qr":
        q, r = (host(x).astype(w) for x in la.qr(cupy.asarray(a)))
        both = np.concatenate([(q @ r).ravel(), (q.conj().T @ q).ravel()])
        return Outcome(
            both, np.concatenate([a.astype(w).ravel(), np.eye(q.shape[1]).ravel()]), max(m, n), eps, np.linalg.norm(a) / min(m, n) ** 0.5 + 1
        )
    if name == "svd":
        u, s, v = (host(x).astype(w) for x in la.svd(cupy.asarray(a), full_matrices=False))
        both = np.concatenate([((u * s) @ v).ravel(), (u.conj().T @ u).ravel()])
        return Outcome(both, np.concatenate([a.astype(w).ravel(), np.eye(u.shape[1]).ravel()]), max(m, n), eps, np.linalg.norm(a, 2) + 1)
    if name in ("cholesky", "eigh", "eigvalsh"):
        s = (a @ a.conj().T + np.eye(m)).astype(kind) if name == "cholesky" else ((a + a.conj().T) / 2).astype(kind)
        norm = np.linalg.norm(s, 2)
        if name == "cholesky":
            c = host(la.cholesky(cupy.asarray(s))).astype(w)
            return Outcome(c @ c.conj().T, s.astype(w), n, eps, norm)
        if name == "eigvalsh":
            return Outcome(
                host(la.eigvalsh(cupy.asarray(s))), np.linalg.eigvalsh(s.astype(np.complex128 if kind in COMPLEX else np.float64)), n, eps, norm
            )
        values, vectors = (host(x).astype(w) for x in la.eigh(cupy.asarray(s)))
        both = np.concatenate([(vectors * values) @ vectors.conj().T, vectors.conj().T @ vectors])
        return Outcome(both, np.concatenate([s.astype(w), identity]), n, eps, norm + 1)
    if name == "solve":
        b = draw(rng, kind, (m, 3))
        x = host(la.solve(cupy.asarray(a), cupy.asarray(b))).astype(w)
        return Outcome(a.astype(w) @ x, b.astype(w), n, eps, np.linalg.norm(a, 2) * np.linalg.norm(x.astype(np.complex128)) + np.linalg.norm(b))
    if name == "inv":
        x = host(la.inv(cupy.asarray(a))).astype(w)
        return Outcome(a.astype(w) @ x, identity, n, eps, np.linalg.norm(a, 2) * np.linalg.norm(x.astype(np.complex128), 2))
    if name == "lstsq":
        b = draw(rng, kind, (m, 2))
        x = host(la.lstsq(cupy.asarray(a), cupy.asarray(b), rcond=None)[0])
        want = np.linalg.lstsq(a.astype(np.complex128), b.astype(np.complex128), rcond=None)[0]
        want = want if kind in COMPLEX else want.real
        condition = np.linalg.cond(a.astype(np.complex128))
        return Outcome(x, want, max(m, n), eps, condition**2 * np.linalg.norm(want))
    if name == "pinv":
        x = host(la.pinv(cupy.asarray(a))).astype(w)
        aw = a.astype(w)
        return Outcome(aw @ x @ aw, aw, max(m, n), eps, np.linalg.cond(a.astype(np.complex128)) * np.linalg.norm(a, 2))
    if name == "det":
        a = (a / n**0.5).astype(kind)  # CuPy takes the exponential of the logarithm, and 10^100 is no float
        want = np.linalg.det(a.astype(np.complex128))
        return Outcome(host(la.det(cupy.asarray(a))), want if kind in COMPLEX else want.real, n, eps, np.abs(want) * np.linalg.cond(a))
    if name == "slogdet":
        sign, log = np.linalg.slogdet(a.astype(np.complex128))
        got = host(la.slogdet(cupy.asarray(a)))
        return Outcome(np.array([complex(got[0]), complex(got[1])]), np.array([sign, log]), n, eps, np.linalg.cond(a) + abs(log))
    if name == "matrix_power":
        want = np.linalg.matrix_power(a.astype(w), 3)
        return Outcome(host(la.matrix_power(cupy.asarray(a), 3)), want, n, eps, np.linalg.norm(a, 2) ** 3)
    order = {"norm": None, "norm 1": 1, "norm inf": np.inf, "norm 2": 2, "norm nuc": "nuc"}[name]
    wanted = np.linalg.norm(a.astype(np.complex128 if kind in COMPLEX else np.float64), order)
    return Outcome(np.asarray(host(la.norm(cupy.asarray(a), order))), np.asarray(wanted), max(m, n), eps)


FFTS = ("fft", "ifft", "rfft", "irfft", "fft2", "rfft2", "fftn", "hfft", "ihfft", "fftshift", "dct", "dst", "fftconvolve")


def fft(name: str, kind: str, shape: tuple[int, ...]) -> Any:
    import scipy.fft
    import scipy.signal

    rng = case.generator(name, kind, shape)
    a = draw(rng, kind, shape, -1, 1)
    import cupy
    import cupyx.scipy.fft
    import cupyx.scipy.signal

    device, aw = cupy.asarray(a), wide(a)
    if name == "fftshift":
        return same_type(lambda xp, x: xp.fft.fftshift(x), (a,))
    if name == "fftconvolve":
        b = draw(rng, kind, (33,) if len(shape) == 1 else (3, 5), -1, 1)
        got = cupyx.scipy.signal.fftconvolve(device, cupy.asarray(b))
        want = scipy.signal.fftconvolve(aw, wide(b))
    else:
        got = getattr(cupyx.scipy.fft, name)(device)
        want = getattr(scipy.fft, name)(aw)
    scale = np.sqrt((np.abs(want) ** 2).mean())
    return Outcome(host(got), want, 1 + 3 * np.log2(a.size), EPS_OF[kind], scale)


def random(generator: str, name: str, parameters: tuple[Any, ...], dtype: str) -> Any:
    """Mean, spread and the whole distribution (Kolmogorov's distance) of many numbers, in units of what chance makes them differ by."""
    import cupy
    import scipy.stats

    count = 40000
    if generator == "legacy":
        source: Any = cupy.random.RandomState(11)
        extra = {"dtype": dtype} if name in ("random_sample", "standard_normal", "uniform", "normal") else {}
        got = getattr(source, name)(*parameters, size=count, **extra)
    else:
        source = cupy.random.Generator(getattr(cupy.random, generator)(11))
        extra = {"dtype": dtype} if name in ("random", "standard_normal", "standard_exponential") else {}
        got = getattr(source, name)(*parameters, size=count, **extra)
    values = host(got).astype(np.float64)
    law = {
        "random": scipy.stats.uniform(), "random_sample": scipy.stats.uniform(), "uniform": scipy.stats.uniform(-1, 3), "normal": scipy.stats.norm(1, 2),
        "standard_normal": scipy.stats.norm(), "standard_exponential": scipy.stats.expon(), "exponential": scipy.stats.expon(scale=2),
        "standard_gamma": scipy.stats.gamma(2.5), "gamma": scipy.stats.gamma(2.5, scale=2), "beta": scipy.stats.beta(2, 3), "poisson": scipy.stats.poisson(4),
        "binomial": scipy.stats.binom(20, 0.3), "geometric": scipy.stats.geom(0.2), "chisquare": scipy.stats.chi2(3), "gumbel": scipy.stats.gumbel_r(),
        "laplace": scipy.stats.laplace(), "integers": scipy.stats.randint(0, 50), "randint": scipy.stats.randint(0, 50), "logseries": scipy.stats.logser(0.5),
        "rayleigh": scipy.stats.rayleigh(), "weibull": scipy.stats.weibull_min(2), "vonmises": scipy.stats.vonmises(1.5), "power": scipy.stats.powerlaw(3),
        "lognormal": scipy.stats.lognorm(0.5), "triangular": scipy.stats.triang(0.5), "standard_t": scipy.stats.t(9), "wald": scipy.stats.invgauss(1),
        "hypergeometric": scipy.stats.hypergeom(50, 20, 10),
    }[name]  # fmt: skip
    spread = law.std()
    order = np.sort(values)
    if hasattr(law.dist, "pmf"):
        points = np.unique(values)
        distance = np.abs(np.searchsorted(order, points, side="right") / count - law.cdf(points)).max()
    else:
        distance = scipy.stats.kstest(values, law.cdf).statistic
    kurtosis = float(law.stats("k")) + 2
    figures = np.array([(values.mean() - law.mean()) / spread, (values.std() / spread - 1) / (max(kurtosis, 0.1) / 4) ** 0.5, distance * 2])
    return Outcome(figures, np.zeros(3), 1, count**-0.5, 1.0)


LEGACY: dict[str, tuple[Any, ...]] = {
    "random_sample": (), "standard_normal": (), "uniform": (-1, 2), "normal": (1, 2), "exponential": (2,), "gamma": (2.5, 2), "beta": (2, 3), "poisson": (4,),
    "binomial": (20, 0.3), "geometric": (0.2,), "chisquare": (3,), "gumbel": (), "laplace": (), "randint": (0, 50), "rayleigh": (), "weibull": (2,),
    "vonmises": (0, 1.5), "lognormal": (0, 0.5), "power": (3,), "triangular": (0, 0.5, 1), "standard_t": (9,), "wald": (1, 1), "logseries": (0.5,),
    "hypergeometric": (20, 30, 10),
}  # fmt: skip
MODERN: dict[str, tuple[Any, ...]] = {
    "random": (), "standard_normal": (), "standard_exponential": (), "standard_gamma": (2.5,), "gamma": (2.5, 2), "beta": (2, 3), "poisson": (4,),
    "binomial": (20, 0.3), "geometric": (0.2,), "chisquare": (3,), "integers": (0, 50), "exponential": (2,), "hypergeometric": (20, 30, 10),
    "uniform": (-1, 2), "power": (3,), "logseries": (0.5,),
}  # fmt: skip

SPARSE = (
    "csr @ vector", "csc @ vector", "coo @ vector", "csr.T @ vector", "csr @ matrix", "csc @ matrix", "csr @ csr", "csr + csr", "csr - csr", "csr * csr",
    "csr to csc", "csr to coo", "coo to csr", "csr to dense", "dense to csr", "csr transposed", "sum of rows", "sum of columns", "row slice", "diagonal",
    "coo with repeats", "eliminate zeros", "maximum", "power", "spsolve", "spsolve_triangular", "vstack", "kron", "norm", "cg", "eigsh", "fancy rows",
)  # fmt: skip


def sparse(name: str, kind: str, m: int, n: int) -> Any:
    import cupy
    import cupyx.scipy.sparse as cs
    import cupyx.scipy.sparse.linalg as csl
    import scipy.sparse as ss
    import scipy.sparse.linalg as ssl

    rng = case.generator(name, kind, m, n)

    def some(rows: int, columns: int) -> Any:
        dense = draw(rng, kind, (rows, columns), -1, 1)
        return ss.csr_matrix(np.where(rng.random((rows, columns)) < 0.1, dense, 0))

    square = name in ("spsolve", "spsolve_triangular", "cg", "eigsh", "diagonal", "csr * csr", "csr @ csr", "power")
    a = some(m, m if square else n)
    b = some(m if square else a.shape[0], a.shape[1])
    if name == "csr @ csr":
        b = some(a.shape[1], n)
    rows, columns = a.shape
    x = draw(rng, kind, (rows if "T" in name else columns,), -1, 1)
    xs = draw(rng, kind, (columns, 5), -1, 1)
    d, e = cs.csr_matrix(a), cs.csr_matrix(b)
    aw, bw = a.toarray().astype(WIDER[kind]), b.toarray().astype(WIDER[kind])
    eps = EPS_OF[kind]

    def dense(value: Any) -> Any:
        return host(value.toarray()) if hasattr(value, "toarray") else host(value)

    if name in ("csr @ vector", "csc @ vector", "coo @ vector", "csr.T @ vector", "csr @ matrix", "csc @ matrix"):
        left = {"csr": d, "csc": d.tocsc(), "coo": d.tocoo(), "csr.T": d.T}[name.split(" ")[0]]
        right = xs if "matrix" in name else x
        aw = aw.T if "T" in name else aw
        scale = np.sqrt(np.abs(aw).astype(np.float64) ** 2 @ np.abs(right).astype(np.float64) ** 2) + np.abs(aw @ right)
        return Outcome(dense(left @ cupy.asarray(right)), aw @ right, columns * 0.1 + 1, eps, scale)
    if name == "csr @ csr":
        scale = np.sqrt(np.abs(aw).astype(np.float64) ** 2 @ np.abs(bw).astype(np.float64) ** 2) + np.abs(aw @ bw)
        return Outcome(dense(d @ e), aw @ bw, columns * 0.1 + 1, eps, scale)
    if name in ("csr + csr", "csr - csr", "csr * csr", "maximum"):
        operation = {
            "csr + csr": lambda p, q: p + q,
            "csr - csr": lambda p, q: p - q,
            "csr * csr": lambda p, q: p.multiply(q),
            "maximum": lambda p, q: p.maximum(q),
        }[name]
        return Outcome(dense(operation(d, e)), operation(a, b).toarray(), 1, eps, np.abs(aw) + np.abs(bw))
    if name in ("sum of rows", "sum of columns"):
        axis = 1 if name == "sum of rows" else 0
        return Outcome(dense(d.sum(axis=axis)), aw.sum(axis=axis, keepdims=True), 10, eps, np.abs(aw).sum(axis=axis, keepdims=True))
    if name in ("spsolve", "spsolve_triangular", "cg"):
        dominant = a + ss.identity(rows, kind, format="csr") * rows**0.5 * 2
        if name == "cg":
            dominant = (dominant @ dominant.conj().T).tocsr().astype(kind)
        if name == "spsolve_triangular":
            dominant = ss.tril(dominant, format="csr")
        left = cs.csr_matrix(dominant)
        v = draw(rng, kind, rows, -1, 1)
        if name == "cg":
            tolerance = 1e-6 if kind in "fF" else 1e-12
            keyword = "rtol" if "rtol" in inspect.signature(csl.cg).parameters else "tol"
            got, info = csl.cg(left, cupy.asarray(v), **{keyword: tolerance})
            if info:
                raise AssertionError(f"cg: {info}")
        elif name == "spsolve":
            got = csl.spsolve(left, cupy.asarray(v))
        else:
            got = csl.spsolve_triangular(left, cupy.asarray(v), lower=True)
        solved = host(got).astype(WIDER[kind])
        whole = dominant.toarray().astype(WIDER[kind])
        if name == "cg":
            return Outcome(whole @ solved, v.astype(WIDER[kind]), 1, tolerance, np.linalg.norm(v))
        scale = np.abs(whole) @ np.abs(solved) + np.abs(v)
        return Outcome(whole @ solved, v.astype(WIDER[kind]), rows, eps, scale)
    if name == "eigsh":
        hermitian = (a + a.conj().T).tocsr().astype(kind)
        got = np.sort(host(csl.eigsh(cs.csr_matrix(hermitian), k=3, which="LA", return_eigenvectors=False)))
        want = np.sort(np.linalg.eigvalsh(hermitian.toarray().astype(np.complex128)))[-3:]
        return Outcome(got, want, rows, eps * 4, np.abs(want).max())
    if name == "norm":
        return Outcome(np.asarray(host(csl.norm(d))), np.asarray(np.sqrt((np.abs(aw) ** 2).sum())), rows * columns * 0.1, eps)
    if name == "kron":
        small = some(3, 4) + ss.csr_matrix(np.eye(3, 4, dtype=kind))
        return Outcome(dense(cs.kron(d, cs.csr_matrix(small))), ss.kron(a, small).toarray(), 1, eps)
    if name == "power":
        return Outcome(dense(d.power(2)), a.astype(WIDER[kind] if kind in "fF" else kind).power(2).toarray(), 1, eps, 2 * np.abs(aw) ** 2)
    if name == "coo with repeats":
        r, c, v = rng.integers(0, rows, 4000), rng.integers(0, columns, 4000), draw(rng, kind, 4000, -1, 1)
        got = dense(cs.coo_matrix((cupy.asarray(v), (cupy.asarray(r), cupy.asarray(c))), shape=a.shape).tocsr())
        want = ss.coo_matrix((v.astype(WIDER[kind]), (r, c)), shape=a.shape).toarray()
        return Outcome(got, want, 4, eps, ss.coo_matrix((np.abs(v).astype(np.float64), (r, c)), shape=a.shape).toarray())
    if name == "eliminate zeros":  # cuSPARSE drops negative numbers of real types there, on real GPUs too
        a = abs(a)
        d = cs.csr_matrix(a)
        d.data[::3] = 0
        d.eliminate_zeros()
        a.data[::3] = 0
        a.eliminate_zeros()
        return Outcome(host(d.indices), a.indices, exact=True)
    moves: dict[str, Callable[[], tuple[Any, Any]]] = {
        "csr to csc": lambda: (dense(d.tocsc()), a.toarray()),
        "csr to coo": lambda: (dense(d.tocoo()), a.toarray()),
        "coo to csr": lambda: (dense(cs.coo_matrix(a.tocoo()).tocsr()), a.toarray()),
        "csr to dense": lambda: (dense(d), a.toarray()),
        "dense to csr": lambda: (dense(cs.csr_matrix(cupy.asarray(a.toarray()))), a.toarray()),
        "csr transposed": lambda: (dense(d.T.tocsr()), a.T.toarray()),
        "row slice": lambda: (dense(d[3:17]), a[3:17].toarray()),
        "fancy rows": lambda: (dense(d[cupy.asarray([5, 2, 5, 0])]), a[[5, 2, 5, 0]].toarray()),
        "diagonal": lambda: (dense(d.diagonal()), a.diagonal()),
        "vstack": lambda: (dense(cs.vstack([d, e])), ss.vstack([a, b]).toarray()),
    }
    got, want = moves[name]()
    del ssl
    return Outcome(got, want, exact=True)


SPECIAL: dict[str, tuple[float, float, float]] = {
    "erf": (-3, 3, 1), "erfc": (-3, 3, 2), "gamma": (0.5, 6, 3), "gammaln": (0.5, 9, 4), "digamma": (0.5, 9, 8), "j0": (0, 9, 8), "j1": (0.1, 3, 4),
    "i0": (-3, 3, 4), "i1": (-3, 3, 4), "ndtr": (-3, 3, 2), "expit": (-4, 4, 1), "erfinv": (-0.9, 0.9, 2), "log_ndtr": (-3, 3, 8), "entr": (0.1, 4, 2), "exprel": (-2, 2, 8),
}  # fmt: skip


def special(name: str, n: int) -> Any:
    import cupy
    import cupyx.scipy.special
    import scipy.special

    low, high, slack = SPECIAL[name]
    a = draw(case.generator(name), "f", n, low, high)
    got = host(getattr(cupyx.scipy.special, name)(cupy.asarray(a)))
    want = getattr(scipy.special, name)(a.astype(np.float64))
    return Outcome(got, want, 1, EPS["f32"] * slack, np.abs(want) + (1 if name in ("gammaln", "digamma", "j0", "entr") else 0))


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
    for name, kind in itertools.product(PRODUCTS, "lefdFD"):
        yield Case(lib, name, NAMES[kind], "x".join(map(str, PRODUCTS[name][1])), lambda a=(name, kind): product(*a))
    for name in SPECIAL:
        yield Case(lib, f"special.{name}", "float", "1000", lambda name=name: special(name, 1000))
    for kind, n in itertools.product("fdFD", (1, 5, 33, 100)):
        for name in ("qr", "svd", "cholesky", "eigh", "eigvalsh", "solve", "inv", "det", "slogdet", "pinv", "matrix_power"):
            few = (name, kind, n) == ("solve", "f", 33)
            yield Case(lib, f"linalg.{name}", NAMES[kind], f"{n}x{n}", lambda a=(name, kind, n, n): linalg(*a), few)
        for name, (m, q) in itertools.product(
            ("qr", "svd", "lstsq", "pinv", "norm", "norm 1", "norm inf", "norm 2", "norm nuc"), ((n + 7, n), (n, n + 7))
        ):
            yield Case(lib, f"linalg.{name}", NAMES[kind], f"{m}x{q}", lambda a=(name, kind, m, q): linalg(*a))
    for name, kind, shape in itertools.product(FFTS, "fdFD", ((60,), (1009,), (30, 42), (5, 8, 12))):
        if kind in COMPLEX and name in ("rfft", "rfft2", "ihfft", "dct", "dst"):
            continue
        if (len(shape) == 1 and "2" in name) or (name == "fftconvolve" and len(shape) == 3):
            continue
        yield Case(lib, f"fft.{name}", NAMES[kind], str(shape), lambda a=(name, kind, shape): fft(*a), (name, kind, shape) == ("rfft", "d", (60,)))
    for name, parameters in LEGACY.items():
        for dtype in ("f", "d") if name in ("random_sample", "standard_normal", "uniform", "normal") else ("d",):
            few = name == "standard_normal" and dtype == "f"
            yield Case(lib, f"random.{name}", NAMES[dtype], "RandomState", lambda a=("legacy", name, parameters, dtype): random(*a), few)
    for generator, (name, parameters) in itertools.product(("XORWOW", "MRG32k3a", "Philox4x3210"), MODERN.items()):
        for dtype in ("f", "d") if name in ("random", "standard_normal", "standard_exponential") else ("d",):
            few = name in ("gamma",) and generator == "Philox4x3210"
            yield Case(lib, f"random.{name}", NAMES[dtype], generator, lambda a=(generator, name, parameters, dtype): random(*a), few)
    for name, kind, (m, n) in itertools.product(SPARSE, "fdFD", ((40, 65), (300, 200))):
        if (kind in COMPLEX and name in ("maximum",)) or (name == "kron" and m == 300):
            continue
        few = name in ("csr @ vector", "coo to csr") and kind == "f" and m == 40
        yield Case(lib, f"sparse: {name}", NAMES[kind], f"{m}x{n}", lambda a=(name, kind, m, n): sparse(*a), few)
