"""cuBLAS and cuBLASLt against NumPy in double or more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import case, native
from .case import EPS, Case, Outcome

# letter: (NumPy type, eps, type to calculate the reference in)
TYPES = {
    "s": (np.float32, EPS["f32"], np.float64),
    "d": (np.float64, EPS["f64"], np.longdouble),
    "c": (np.complex64, EPS["f32"], np.complex128),
    "z": (np.complex128, EPS["f64"], np.clongdouble),
}
NAMES = {"s": "float", "d": "double", "c": "complex64", "z": "complex128", "h": "half", "b": "bfloat16"}
R_16F, R_32F, R_64F, R_16BF, R_8I, R_32I = 2, 0, 1, 14, 3, 10
COMPUTE_16F, COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_32I = 64, 68, 77, 72
N, T, C = 0, 1, 2
LOWER, UPPER = 0, 1
LEFT, RIGHT = 0, 1
ONE_TYPE = "sdcz"


def draw(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    """Numbers in (-1, 1), column-major."""
    values = rng.uniform(-1, 1, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return np.asfortranarray(values.astype(dtype))


def device(values: Any) -> Any:
    import cupy

    return cupy.asarray(values, order="F")


def host(values: Any) -> Any:
    import cupy

    return cupy.asnumpy(values, order="F")


def turned(a: Any, op: int) -> Any:
    return a if op == N else a.T if op == T else a.T.conj()


def call(name: str, *arguments: Any) -> None:
    native.cublas().call(name, native.cublas_handle(), *arguments)


def product_scale(a: Any, b: Any, alpha: Any = 1, beta: Any = 0, c: Any = 0) -> Any:
    """How large the numbers are that a product's rounding errors belong to: the root of the sum of squares, which partial sums of numbers of
    random sign have, and the sum itself."""
    wide = np.complex128 if "c" in (a.dtype.kind + b.dtype.kind) else np.float64
    squares = np.sqrt((np.abs(a).astype(np.float64) ** 2) @ (np.abs(b).astype(np.float64) ** 2))
    return np.abs(alpha) * (squares + np.abs(a.astype(wide) @ b.astype(wide))) + np.abs(beta * c)


def gemm(letter: str, m: int, n: int, k: int, ops: tuple[int, int] = (N, N), alpha: Any = 1, beta: Any = 0) -> Any:
    dtype, eps, wide = TYPES[letter]
    rng = case.generator("gemm", letter, m, n, k, ops)
    a = draw(rng, dtype, *((m, k) if ops[0] == N else (k, m)))
    b = draw(rng, dtype, *((k, n) if ops[1] == N else (n, k)))
    c = draw(rng, dtype, m, n)
    da, db, dc = device(a), device(b), device(c)
    al, be = np.array(alpha, dtype), np.array(beta, dtype)
    call(f"cublas{letter.upper()}gemm_v2", *ops, m, n, k, al, da, a.shape[0], db, b.shape[0], be, dc, m)
    x, y = turned(a.astype(wide), ops[0]), turned(b.astype(wide), ops[1])
    want = wide(alpha) * (x @ y) + wide(beta) * c
    return Outcome(host(dc), want, k, eps, product_scale(x, y, alpha, beta, c))


def cases() -> Iterator[Any]:
    sizes = [(1, 1, 1), (3, 17, 5), (64, 64, 64), (127, 65, 33), (255, 129, 67), (513, 31, 257)]
    for letter, (m, n, k) in itertools.product(ONE_TYPE, sizes):
        for ops in itertools.product((N, T) if letter in "sd" else (N, T, C), repeat=2):
            few = (m, n, k) == (127, 65, 33) and ops in ((N, N), (T, C))
            alpha, beta = (1, 0) if ops == (N, N) else (0.75, -1.5)
            yield Case(
                "cublas", "gemm", NAMES[letter], f"{m}x{n}x{k} {'NTC'[ops[0]]}{'NTC'[ops[1]]}",
                lambda a=(letter, m, n, k, ops, alpha, beta): gemm(*a), few,
            )  # fmt: skip
