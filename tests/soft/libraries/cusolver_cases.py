"""cuSOLVER, through CuPy, by what a factorisation must satisfy: the product of the factors is the matrix, what is orthogonal is so; eigenvalues and singular
values also against NumPy in double."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case
from .case import EPS, Case, Outcome

TYPES = {
    "float": (np.float32, EPS["f32"]),
    "double": (np.float64, EPS["f64"]),
    "complex64": (np.complex64, EPS["f32"]),
    "complex128": (np.complex128, EPS["f64"]),
}
SQUARE = (1, 5, 33, 64, 130, 200)
TALL = ((5, 3), (40, 40), (130, 70), (201, 64))
FAST = 33


def draw(kind: str, *shape: int) -> Any:
    dtype = TYPES[kind][0]
    rng = case.generator("solver", kind, shape)
    values = rng.uniform(-1, 1, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return values.astype(dtype)


def wide(a: Any) -> Any:
    """On the host, in double: the products that check a result are not what is checked."""
    import cupy

    host = cupy.asnumpy(a)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def adjoint(a: Any) -> Any:
    return np.swapaxes(a, -1, -2).conj()


def norm(a: Any) -> float:
    """The largest singular value, of the largest matrix."""
    return float(np.max(np.linalg.norm(wide(a), 2, axis=(-2, -1))))


def near(kind: str, k: int, *pairs: tuple[Any, Any, float]) -> Outcome:
    """(result, reference, size of the numbers) each."""
    scale = np.concatenate([np.full(np.size(want), size) for _, want, size in pairs])
    got, want = (np.concatenate([np.ravel(p[i]) for p in pairs]) for i in (0, 1))
    return Outcome(got, want, k, TYPES[kind][1], scale)


def identity(like: Any, n: int) -> Any:
    return np.broadcast_to(np.eye(n), (*like.shape[:-2], n, n))


def turns(m: int, n: int, batch: tuple[int, ...]) -> int:
    """Batches are done by Jacobi's method, which turns every column against every other."""
    return m * n if batch else max(m, n)


def lu(kind: str, n: int) -> Outcome:
    import cupy
    import cupyx.scipy.linalg as linalg

    a = draw(kind, n, n)
    p, lower, upper = map(wide, linalg.lu(cupy.asarray(a)))
    size = norm(np.abs(lower) @ np.abs(upper))
    strict = np.concatenate(
        [np.triu(lower, 1).ravel(), np.tril(upper, -1).ravel(), np.maximum(np.abs(lower) - 1.5, 0).ravel()]
    )  # triangles; it did pivot
    return near(kind, n, (p @ lower @ upper, wide(a), size), (strict, np.zeros_like(strict), 1.0))


def solve(kind: str, n: int) -> Outcome:
    import cupy

    a, b = draw(kind, n, n) + 2 * np.eye(n, dtype=TYPES[kind][0]) * np.sqrt(n), draw(kind, n, 3)
    x = wide(cupy.linalg.solve(cupy.asarray(a), cupy.asarray(b)))
    return near(kind, n, (wide(a) @ x, wide(b), norm(a) * norm(x) + norm(b)))


def cholesky(kind: str, n: int, batch: tuple[int, ...] = ()) -> Outcome:
    import cupy

    a = draw(kind, *batch, n, n)
    positive = (a @ adjoint(a) + np.eye(n)).astype(a.dtype)
    lower = wide(cupy.linalg.cholesky(cupy.asarray(positive)))
    return near(kind, n, (lower @ adjoint(lower), wide(positive), norm(positive)), (np.triu(lower, 1), np.zeros_like(lower), 1.0))


def qr(kind: str, m: int, n: int, mode: str, batch: tuple[int, ...] = ()) -> Outcome:
    import cupy

    a = draw(kind, *batch, m, n)
    q, r = map(wide, cupy.linalg.qr(cupy.asarray(a), mode))
    return near(
        kind, m, (q @ r, wide(a), norm(a)), (adjoint(q) @ q, identity(q, q.shape[-1]), 1.0), (np.tril(r, -1), np.zeros_like(r), norm(a))
    )  # fmt: skip


def svd(kind: str, m: int, n: int, batch: tuple[int, ...] = ()) -> Outcome:
    import cupy

    a = draw(kind, *batch, m, n)
    u, s, v = map(wide, cupy.linalg.svd(cupy.asarray(a), full_matrices=False))
    want = np.linalg.svd(wide(a), compute_uv=False)
    k = s.shape[-1]
    size = norm(a)
    return near(
        kind, turns(m, n, batch), (u * s[..., None, :] @ v, wide(a), size), (s, want, size), (adjoint(u) @ u, identity(u, k), 1.0),
        (v @ adjoint(v), identity(v, k), 1.0),
    )  # fmt: skip


def eigh(kind: str, n: int, uplo: str, batch: tuple[int, ...] = ()) -> Outcome:
    import cupy

    a = draw(kind, *batch, n, n)
    whole = a + adjoint(a)
    triangle = np.tril(whole) if uplo == "L" else np.triu(whole)  # it must not look at the other
    w, v = map(wide, cupy.linalg.eigh(cupy.asarray(triangle), uplo))
    size = norm(whole)
    return near(
        kind, turns(n, n, batch), (wide(whole) @ v, v * w[..., None, :], size), (w, np.linalg.eigvalsh(wide(whole)), size), (adjoint(v) @ v, identity(v, n), 1.0)
    )  # fmt: skip


def eig(kind: str, n: int) -> Outcome:
    """Of any matrix: what A v - v w is held against; eigenvalues alone are as far off as the matrix is badly conditioned."""
    import cupy

    a = draw(kind, n, n)
    w, v = map(wide, cupy.linalg.eig(cupy.asarray(a)))
    total = norm(a) * np.sqrt(n)  # the trace is a sum of n values, each of which may be off by what one may
    return near(kind, n, (wide(a) @ v, v * w[None, :], norm(a)), (np.linalg.norm(v, axis=0), np.ones(n), 1.0), (np.sum(w), np.trace(wide(a)), total))


def least_squares(kind: str, m: int, n: int) -> Outcome:
    import cupy
    from cupyx import lapack

    a, b = draw(kind, m, n), draw(kind, m, 2)
    x = wide(lapack.gels(cupy.asarray(a), cupy.asarray(b)))
    a, b = wide(a), wide(b)
    # The residual is orthogonal to the columns.
    return near(kind, m, (adjoint(a) @ (a @ x - b), np.zeros((n, 2)), norm(a) * (norm(a) * norm(x) + norm(b))))


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[..., Outcome], *arguments: Any, fast: bool = False) -> Case:
        return Case("cusolver", operation, kind, size, lambda: run(kind, *arguments), fast)

    for kind, n in itertools.product(TYPES, SQUARE):
        fast = n == FAST and kind in ("float", "complex128")
        yield each("LU", kind, f"{n}", lu, n, fast=fast)
        yield each("solve", kind, f"{n}", solve, n)
        yield each("Cholesky", kind, f"{n}", cholesky, n, fast=fast)
        for uplo in "LU":
            yield each("eigen, symmetric or Hermitian", kind, f"{n} {uplo}", eigh, n, uplo, fast=fast and uplo == "L" and kind == "float")
        yield each("eigen, any matrix", kind, f"{n}", eig, n)
    for kind, (m, n) in itertools.product(TYPES, TALL):
        for mode in ("reduced", "complete"):
            yield each("QR", kind, f"{m}x{n} {mode}", qr, m, n, mode, fast=m == 40 and kind == "float" and mode == "reduced")
        yield each("SVD", kind, f"{m}x{n}", svd, m, n, fast=m == 40 and kind == "float")
        yield each("least squares", kind, f"{m}x{n}", least_squares, m, n)
    for kind in TYPES:
        yield each("Cholesky, batched", kind, "7 of 20", cholesky, 20, (7,))
        yield each("QR, batched", kind, "3 of 20x12", qr, 20, 12, "reduced", (3,))
        yield each("SVD, batched", kind, "5 of 17x9", svd, 17, 9, (5,))
        yield each("SVD, batched", kind, "3 of 40x33", svd, 40, 33, (3,))
        yield each("eigen, batched", kind, "6 of 15", eigh, 15, "L", (6,))
