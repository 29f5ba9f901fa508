"""cuBLAS and cuBLASLt against NumPy in double or more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import case, cublas_lt_cases, native
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


def turned_by(letter: str) -> tuple[int, ...]:
    return (N, T) if letter in "sd" else (N, T, C)


def scalar(letter: str, value: Any) -> Any:
    return np.array(value, TYPES[letter][0])


def symmetric(a: Any, uplo: int, hermitian: bool) -> Any:
    """The whole matrix of which one triangle is stored."""
    part = np.tril(a) if uplo == LOWER else np.triu(a)
    other = np.tril(part, -1) if uplo == LOWER else np.triu(part, 1)
    if hermitian:
        return part - 1j * np.diag(np.diag(part).imag) + other.T.conj()
    return part + other.T


def triangle(a: Any, uplo: int, unit: bool) -> Any:
    a = np.tril(a) if uplo == LOWER else np.triu(a)
    return a - np.diag(np.diag(a)) + np.eye(len(a)) if unit else a


def symm(letter: str, side: int, uplo: int, m: int, n: int, hermitian: bool) -> Any:
    dtype, eps, wide = TYPES[letter]
    rng = case.generator("symm", letter, side, uplo, m, n)
    order = m if side == LEFT else n
    a, b, c = draw(rng, dtype, order, order), draw(rng, dtype, m, n), draw(rng, dtype, m, n)
    da, db, dc = device(a), device(b), device(c)
    name = f"cublas{letter.upper()}{'hemm' if hermitian else 'symm'}_v2"
    call(name, side, uplo, m, n, scalar(letter, 0.5), da, order, db, m, scalar(letter, -2), dc, m)
    full = symmetric(a.astype(wide), uplo, hermitian)
    x, y = (full, b.astype(wide)) if side == LEFT else (b.astype(wide), full)
    return Outcome(host(dc), 0.5 * (x @ y) - 2 * c.astype(wide), order, eps, product_scale(x, y, 0.5, -2, c))


def syrk(letter: str, uplo: int, op: int, n: int, k: int, kind: str) -> Any:
    """syrk, herk, syr2k, her2k, syrkx; the other triangle must stay as it was."""
    dtype, eps, wide = TYPES[letter]
    hermitian, two = kind.startswith("her"), "2" in kind or kind.endswith("x")
    rng = case.generator(kind, letter, uplo, op, n, k)
    a, b = (draw(rng, dtype, *((n, k) if op == N else (k, n))) for _ in range(2))
    c = draw(rng, dtype, n, n)
    if hermitian:
        c -= 1j * np.diag(np.diag(c).imag).astype(dtype)
    if kind.endswith("x"):
        b = np.asfortranarray(a * dtype(2))
    da, db, dc = device(a), device(b), device(c)
    real = np.array(0.5, np.zeros(1, dtype).real.dtype)
    alpha, beta = (real if kind == "herk" else scalar(letter, 0.5)), (real if hermitian else scalar(letter, 0.5))
    second = (db, b.shape[0]) if two else ()
    call(f"cublas{letter.upper()}{kind}{'' if kind.endswith('x') else '_v2'}", uplo, op, n, k, alpha, da, a.shape[0], *second, beta, dc, n)
    x, y = turned(a.astype(wide), op), turned((b if two else a).astype(wide), op)
    z = x if not two or kind.endswith("x") else None
    flip = (lambda v: v.T.conj()) if hermitian else (lambda v: v.T)
    if op == T and letter in "cz" and not hermitian:
        x, y = a.astype(wide).T, (b if two else a).astype(wide).T
    product = x @ flip(y) if z is not None else x @ flip(y) + y @ flip(x)
    keep = np.tril(np.ones((n, n), bool)) if uplo == LOWER else np.triu(np.ones((n, n), bool))
    want = np.where(keep, 0.5 * product + 0.5 * c, c)
    scale = product_scale(x, flip(y), 1, 1, c) * (1 if z is not None else 2)
    return Outcome(host(dc), want, k, eps, np.where(keep, scale, 0))


def triangular(letter: str, kind: str, side: int, uplo: int, op: int, unit: bool, m: int, n: int) -> Any:
    """trmm against the product; trsm by what the solution gives when it is multiplied back."""
    dtype, eps, wide = TYPES[letter]
    order = m if side == LEFT else n
    rng = case.generator(kind, letter, side, uplo, op, unit, m, n)
    a, b = draw(rng, dtype, order, order), draw(rng, dtype, m, n)
    a = np.asfortranarray(a / dtype(max(order, 1)) if unit else a + dtype(order**0.5) * np.eye(order, dtype=dtype))
    da, db, dc = device(a), device(b), device(np.zeros_like(b))
    alpha = scalar(letter, 1.5)
    full = turned(triangle(a.astype(wide), uplo, unit), op)

    def multiplied(x: Any) -> tuple[Any, Any]:
        return (full, x) if side == LEFT else (x, full)

    if kind == "trmm":
        call(f"cublas{letter.upper()}trmm_v2", side, uplo, op, int(unit), m, n, alpha, da, order, db, m, dc, m)
        x, y = multiplied(b.astype(wide))
        return Outcome(host(dc), 1.5 * (x @ y), order, eps, product_scale(x, y, 1.5))
    call(f"cublas{letter.upper()}trsm_v2", side, uplo, op, int(unit), m, n, alpha, da, order, db, m)
    x, y = multiplied(host(db).astype(wide))
    return Outcome(x @ y, 1.5 * b.astype(wide), order, eps, product_scale(x, y) + np.abs(b))


def strided_batched(letter: str, m: int, n: int, k: int, count: int, pointers: bool) -> Any:
    import cupy

    dtype, eps, wide = TYPES[letter]
    rng = case.generator("batched", letter, m, n, k, count)
    a, b, c = (draw(rng, dtype, *shape) for shape in ((m, k, count), (k, n, count), (m, n, count)))
    da, db, dc = device(a), device(b), device(c)
    alpha, beta = scalar(letter, 2), scalar(letter, 0.5)
    if pointers:
        lists = [cupy.asarray([d.data.ptr + i * d.strides[2] for i in range(count)], dtype=np.uint64) for d in (da, db, dc)]
        call(f"cublas{letter.upper()}gemmBatched", N, N, m, n, k, alpha, lists[0], m, lists[1], k, beta, lists[2], m, count)
    else:
        long = native.long
        call(
            f"cublas{letter.upper()}gemmStridedBatched", N, N, m, n, k, alpha, da, m, long(m * k), db, k, long(k * n), beta, dc, m, long(m * n), count
        )
    x, y = np.moveaxis(a.astype(wide), 2, 0), np.moveaxis(b.astype(wide), 2, 0)
    old = np.moveaxis(c, 2, 0)
    return Outcome(np.moveaxis(host(dc), 2, 0), 2 * (x @ y) + 0.5 * old, k, eps, product_scale(x, y, 2, 0.5, old))


def solved_batched(letter: str, kind: str, n: int, count: int) -> Any:
    """cuBLAS's own batched LU, solution and inverse: multiplied back."""
    import cupy

    dtype, eps, wide = TYPES[letter]
    rng = case.generator(kind, letter, n, count)
    a, b = draw(rng, dtype, n, n, count), draw(rng, dtype, n, 3, count)
    da, db, dc = device(a), device(b), device(np.zeros_like(a))
    pa, pb, pc = (cupy.asarray([d.data.ptr + i * d.strides[2] for i in range(count)], dtype=np.uint64) for d in (da, db, dc))
    pivots, info = cupy.zeros(n * count, np.int32), cupy.zeros(count, np.int32)
    up = letter.upper()
    x = np.moveaxis(a.astype(wide), 2, 0)
    if kind == "matinvBatched":
        call(f"cublas{up}matinvBatched", n, pa, n, pc, n, info, count)
        y = np.moveaxis(host(dc).astype(wide), 2, 0)
        return Outcome(x @ y, np.broadcast_to(np.eye(n), x.shape), n, eps, np.abs(x) @ np.abs(y))
    call(f"cublas{up}getrfBatched", n, pa, n, pivots, info, count)
    if kind == "getrfBatched":
        lu, order = np.moveaxis(host(da).astype(wide), 2, 0), host(pivots).reshape(count, n) - 1
        lower, upper = np.tril(lu, -1) + np.eye(n), np.triu(lu)
        swapped = x.copy()
        for one, swaps in zip(swapped, order, strict=True):
            for i, j in enumerate(swaps):
                one[[i, j]] = one[[j, i]]
        return Outcome(lower @ upper, swapped, n, eps, np.abs(lower) @ np.abs(upper))
    if kind == "getriBatched":
        call(f"cublas{up}getriBatched", n, pa, n, pivots, pc, n, info, count)
        y = np.moveaxis(host(dc).astype(wide), 2, 0)
        return Outcome(x @ y, np.broadcast_to(np.eye(n), x.shape), n, eps, np.abs(x) @ np.abs(y))
    failed = np.zeros(1, np.int32)
    call(f"cublas{up}getrsBatched", N, n, 3, pa, n, pivots, pb, n, failed, count)
    y = np.moveaxis(host(db).astype(wide), 2, 0)
    return Outcome(x @ y, np.moveaxis(b.astype(wide), 2, 0), n, eps, np.abs(x) @ np.abs(y) + np.abs(np.moveaxis(b, 2, 0)))


# kind of gemmEx: (type of A and B, of C, to calculate in, of alpha and beta, eps, eps of what is stored)
EX = {
    "half, float inside": (R_16F, R_16F, COMPUTE_32F, np.float32, EPS["f32"], EPS["f16"]),
    "half to float": (R_16F, R_32F, COMPUTE_32F, np.float32, EPS["f32"], 0),
    "half, half inside": (R_16F, R_16F, COMPUTE_16F, np.float16, EPS["f16"], 0),
    "bfloat16, float inside": (R_16BF, R_16BF, COMPUTE_32F, np.float32, EPS["f32"], EPS["bf16"]),
    "bfloat16 to float": (R_16BF, R_32F, COMPUTE_32F, np.float32, EPS["f32"], 0),
    "float, TF32 inside": (R_32F, R_32F, COMPUTE_32F_TF32, np.float32, EPS["tf32"], 0),
    "float": (R_32F, R_32F, COMPUTE_32F, np.float32, EPS["f32"], 0),
    "int8 to int32": (R_8I, R_32I, COMPUTE_32I, np.int32, 0, 0),
}


def stored(kind: int, values: Any) -> Any:
    """Numbers as the library's type: (what to copy to the device, what they are)."""
    if kind == R_16BF:
        bits = case.to_bf16(values)
        return np.asfortranarray(bits), case.from_bf16(bits)
    own = {R_16F: np.float16, R_32F: np.float32, R_64F: np.float64, R_8I: np.int8, R_32I: np.int32}[kind]
    out = np.asfortranarray(values.astype(own))
    return out, out


def read(kind: int, values: Any) -> Any:
    return case.from_bf16(host(values)).reshape(values.shape) if kind == R_16BF else host(values)


def gemm_ex(kind: str, m: int, n: int, k: int, ops: tuple[int, int], beta: float = 0) -> Any:
    ab, ct, compute, scalars, eps, store = EX[kind]
    rng = case.generator("gemmEx", kind, m, n, k, ops)
    shapes = ((m, k) if ops[0] == N else (k, m)), ((k, n) if ops[1] == N else (n, k)), (m, n)
    wanted = [rng.integers(-128, 128, s) if ab == R_8I else rng.uniform(-1, 1, s) for s in shapes]
    (a, va), (b, vb), (c, vc) = (stored(t, v) for t, v in zip((ab, ab, ct), wanted, strict=True))
    da, db, dc = device(a), device(b), device(c)
    al, be = np.array(1, scalars), np.array(beta, scalars)
    call("cublasGemmEx", *ops, m, n, k, al, da, ab, a.shape[0], db, ab, b.shape[0], be, dc, ct, m, compute, -1)
    wide = np.int64 if ab == R_8I else np.float64
    x, y = turned(va.astype(wide), ops[0]), turned(vb.astype(wide), ops[1])
    want = x @ y + wide(beta) * vc
    if ab == R_8I:
        return Outcome(host(dc), want, k, exact=True)
    return Outcome(read(ct, dc), want, k, eps, product_scale(x, y, 1, beta, vc), store)


def vectors(name: str, letter: str, *lengths: int) -> tuple[Any, ...]:
    rng = case.generator(name, letter, *lengths)
    return tuple(draw(rng, TYPES[letter][0], n) for n in lengths)


def strided(v: Any, n: int, inc: int) -> Any:
    """The n elements that BLAS means by (v, inc)."""
    part = v[: (n - 1) * abs(inc) + 1 : abs(inc)]
    return part if inc > 0 else part[::-1]


def level1(letter: str, kind: str, n: int, inc: int) -> Any:
    dtype, eps, wide = TYPES[letter]
    real = np.zeros(1, dtype).real.dtype
    prefix = {"c": "Sc", "z": "Dz"}.get(letter, letter.upper())
    x, y = vectors(kind, letter, n * abs(inc), n * abs(inc))
    dx, dy = device(x), device(y)
    vx, vy = strided(x.astype(wide), n, inc), strided(y.astype(wide), n, inc)
    up = letter.upper()
    if kind in ("dot", "dotu", "dotc"):
        out = np.zeros(1, dtype)
        call(f"cublas{up}{kind}_v2", n, dx, inc, dy, inc, out)
        terms = (vx.conj() if kind == "dotc" else vx) * vy
        total = np.array([terms.sum()])
        return Outcome(out, total, n, eps, np.abs(total) + np.sqrt((np.abs(terms) ** 2).sum()))
    if kind in ("nrm2", "asum"):
        result = np.zeros(1, real)
        call(f"cublas{prefix}{kind}_v2", n, dx, inc, result)
        parts = np.abs(vx.real) + np.abs(vx.imag)
        want = np.sqrt((np.abs(vx) ** 2).sum()) if kind == "nrm2" else parts.sum()
        return Outcome(result, np.array([want]), n, eps)
    if kind in ("iamax", "iamin"):
        index = np.zeros(1, np.int32)
        call(f"cublasI{letter}{kind[1:]}_v2", n, dx, inc, index)
        size = np.abs(x[: (n - 1) * inc + 1 : inc].real) + np.abs(x[: (n - 1) * inc + 1 : inc].imag)
        return Outcome(index, np.array([(np.argmax if kind == "iamax" else np.argmin)(size) + 1]), exact=True)
    if kind == "axpy":
        call(f"cublas{up}axpy_v2", n, scalar(letter, 0.7), dx, inc, dy, inc)
        alpha = wide(dtype(0.7))
        return Outcome(strided(host(dy), n, inc), alpha * vx + vy, 1, eps, np.abs(alpha * vx) + np.abs(vy))
    if kind == "scal":
        call(f"cublas{up}scal_v2", n, scalar(letter, 0.7), dx, abs(inc))
        return Outcome(host(dx)[:: abs(inc)], (wide(dtype(0.7)) * x)[:: abs(inc)], 1, eps)
    if kind == "copy":
        call(f"cublas{up}copy_v2", n, dx, inc, dy, inc)
        return Outcome(strided(host(dy), n, inc), strided(x, n, inc), exact=True)
    if kind == "swap":
        call(f"cublas{up}swap_v2", n, dx, inc, dy, inc)
        got, want = [np.stack([strided(p, n, inc), strided(q, n, inc)]) for p, q in ((host(dx), host(dy)), (y, x))]
        return Outcome(got, want, exact=True)
    cosine, sine = np.array(0.6, real), scalar(letter, 0.8)
    call(f"cublas{up}rot_v2", n, dx, inc, dy, inc, cosine, sine)
    c, s = wide(cosine), wide(sine)
    got = np.stack([strided(host(dx), n, inc), strided(host(dy), n, inc)])
    return Outcome(got, np.stack([c * vx + s * vy, c * vy - s.conj() * vx]), 1, eps, np.abs(vx) + np.abs(vy))


def banded(a: Any, lower: int, upper: int, rows: int) -> Any:
    """A matrix in BLAS's band storage with `rows` rows, and the matrix with what is outside of the band gone."""
    m, n = a.shape
    kept = np.triu(np.tril(a, upper), -lower)
    band = np.zeros((rows, n), a.dtype, order="F")
    for j in range(n):
        for i in range(max(0, j - upper), min(m, j + lower + 1)):
            band[upper + i - j, j] = kept[i, j]
    return band, kept


def packed(a: Any, uplo: int) -> Any:
    n = len(a)
    return np.concatenate([a[j:, j] if uplo == LOWER else a[: j + 1, j] for j in range(n)])


def level2(letter: str, kind: str, n: int, option: int, inc: int = 1) -> Any:
    """option: an operation (N, T, C) for gemv, gbmv; a triangle (LOWER, UPPER) else."""
    dtype, eps, wide = TYPES[letter]
    m = n + 5 if kind in ("gemv", "gbmv", "ger", "gerc", "geru") else n
    rng = case.generator(kind, letter, n, option)
    a = draw(rng, dtype, m, n)
    up = letter.upper()
    alpha, beta = scalar(letter, 1.25), scalar(letter, -0.5)
    al, be = wide(1.25), wide(-0.5)
    hermitian = kind[0] == "h"
    if kind in ("gemv", "gbmv"):
        nx, ny = (n, m) if option == N else (m, n)
    else:
        nx = ny = n
    if kind in ("ger", "gerc", "geru"):
        nx, ny = m, n
    x, y = draw(rng, dtype, nx * inc), draw(rng, dtype, ny * inc)
    vx, vy = x[::inc].astype(wide), y[::inc].astype(wide)
    dx, dy = device(x), device(y)
    name = f"cublas{up}{kind}_v2"
    width = min(3, n - 1)
    if kind == "gemv":
        da = device(a)
        call(name, option, m, n, alpha, da, m, dx, inc, beta, dy, inc)
        full = turned(a.astype(wide), option)
    elif kind == "gbmv":
        band, kept = banded(a, width, width, 2 * width + 1)
        da = device(band)
        call(name, option, m, n, width, width, alpha, da, 2 * width + 1, dx, inc, beta, dy, inc)
        full = turned(kept.astype(wide), option)
    elif kind in ("symv", "hemv"):
        da = device(a)
        call(name, option, n, alpha, da, n, dx, inc, beta, dy, inc)
        full = symmetric(a.astype(wide), option, hermitian)
    elif kind in ("spmv", "hpmv"):
        da = device(packed(a, option))
        call(name, option, n, alpha, da, dx, inc, beta, dy, inc)
        full = symmetric(a.astype(wide), option, hermitian)
    elif kind in ("sbmv", "hbmv"):
        lower, upper = (width, 0) if option == LOWER else (0, width)
        band, kept = banded(a, lower, upper, width + 1)
        da = device(band)
        call(name, option, n, width, alpha, da, width + 1, dx, inc, beta, dy, inc)
        full = symmetric(kept.astype(wide), option, hermitian)
    if kind in ("gemv", "gbmv", "symv", "hemv", "spmv", "hpmv", "sbmv", "hbmv"):
        want = al * (full @ vx) + be * vy
        return Outcome(host(dy)[::inc], want, full.shape[1], eps, product_scale(full, vx[:, None], al, be, vy[:, None])[:, 0])
    if kind in ("ger", "geru", "gerc"):
        da = device(a)
        call(name, m, n, alpha, dx, inc, dy, inc, da, m)
        outer = al * np.outer(vx, vy.conj() if kind == "gerc" else vy)
        return Outcome(host(da), a.astype(wide) + outer, 1, eps, np.abs(a) + np.abs(outer))
    keep = np.tril(np.ones((n, n), bool)) if option == LOWER else np.triu(np.ones((n, n), bool))
    if kind in ("syr", "her", "syr2", "her2", "spr", "hpr", "spr2", "hpr2"):
        if hermitian:
            a -= 1j * np.diag(np.diag(a).imag).astype(dtype)
        da = device(packed(a, option) if "p" in kind else a)
        two = kind.endswith("2")
        factor = np.array(1.25, np.zeros(1, dtype).real.dtype) if hermitian and not two else alpha
        tail = (da,) if "p" in kind else (da, n)
        call(name, option, n, factor, dx, inc, *((dy, inc) if two else ()), *tail)
        bar = (lambda v: v.conj()) if hermitian else (lambda v: v)
        outer = al * (np.outer(vx, bar(vy)) + np.outer(vy, bar(vx))) if two else al * np.outer(vx, bar(vx))
        ax, ay = np.abs(vx), np.abs(vy if two else vx)
        want, scale = a.astype(wide) + outer, np.abs(a) + np.abs(al) * (np.outer(ax, ay) + np.outer(ay, ax))
        if "p" in kind:
            return Outcome(host(da), packed(want, option), 1, eps, packed(scale, option))
        return Outcome(host(da), np.where(keep, want, a), 1, eps, np.where(keep, scale, 0))
    # Triangular: multiplied, or solved and multiplied back.
    a = np.asfortranarray(a + dtype(n**0.5) * np.eye(n, dtype=dtype))
    if kind[1] == "b":
        lower, upper = (width, 0) if option == LOWER else (0, width)
        storage, a = banded(a, lower, upper, width + 1)
        dimensions: tuple[Any, ...] = (n, width, device(storage), width + 1)
    elif kind[1] == "p":
        dimensions = (n, device(packed(a, option)))
    else:
        dimensions = (n, device(a), n)
    call(name, option, N, 0, *dimensions, dx, inc)
    full = triangle(a.astype(wide), option, False)
    got = host(dx)[::inc]
    if kind.endswith("mv"):
        return Outcome(got, full @ vx, n, eps, product_scale(full, vx[:, None])[:, 0])
    return Outcome(full @ got.astype(wide), vx, n, eps, product_scale(full, got[:, None].astype(wide))[:, 0] + np.abs(vx))


def geam(letter: str, m: int, n: int) -> Any:
    dtype, eps, wide = TYPES[letter]
    rng = case.generator("geam", letter, m, n)
    a, b = draw(rng, dtype, m, n), draw(rng, dtype, n, m)
    da, db, dc = device(a), device(b), device(np.zeros_like(a))
    call(f"cublas{letter.upper()}geam", N, T, m, n, scalar(letter, 2), da, m, scalar(letter, -3), db, n, dc, m)
    return Outcome(host(dc), 2 * a.astype(wide) - 3 * b.T.astype(wide), 1, eps, 2 * np.abs(a) + 3 * np.abs(b.T))


def dgmm(letter: str, side: int, m: int, n: int) -> Any:
    dtype, eps, wide = TYPES[letter]
    rng = case.generator("dgmm", letter, m, n)
    a, x = draw(rng, dtype, m, n), draw(rng, dtype, m if side == LEFT else n)
    da, dx, dc = device(a), device(x), device(np.zeros_like(a))
    call(f"cublas{letter.upper()}dgmm", side, m, n, da, m, dx, 1, dc, m)
    v = x.astype(wide)
    return Outcome(host(dc), a * (v[:, None] if side == LEFT else v[None, :]), 1, eps)


def product_cases() -> Iterator[Any]:
    sizes = [(1, 1, 1), (3, 17, 5), (64, 64, 64), (127, 65, 33), (255, 129, 67), (513, 31, 257)]
    for letter, (m, n, k) in itertools.product(ONE_TYPE, sizes):
        for ops in itertools.product(turned_by(letter), repeat=2):
            few = (m, n, k) == (127, 65, 33) and ops == ((N, N) if letter in "sd" else (T, C))
            alpha, beta = (1, 0) if ops == (N, N) else (0.75, -1.5)
            yield Case(
                "cublas", "gemm", NAMES[letter], f"{m}x{n}x{k} {'NTC'[ops[0]]}{'NTC'[ops[1]]}",
                lambda a=(letter, m, n, k, ops, alpha, beta): gemm(*a), few,
            )  # fmt: skip
    for kind, (m, n, k) in itertools.product(EX, [(16, 8, 8), (64, 64, 64), (128, 128, 128), (127, 65, 33), (256, 512, 96), (8, 1024, 2048)]):
        for ops in itertools.product((N, T), repeat=2):
            if kind.startswith("int8") and (m % 4 or n % 4 or k % 4):
                continue
            beta = 0 if ops == (N, N) else 1
            few = (m, n, k) == (64, 64, 64) and ops == (N, N)
            yield Case(
                "cublas", "gemmEx", kind, f"{m}x{n}x{k} {'NTC'[ops[0]]}{'NTC'[ops[1]]}",
                lambda a=(kind, m, n, k, ops, beta): gemm_ex(*a), few and kind in ("half, float inside", "float, TF32 inside"),
                kind.startswith("int8") and (m, n, k) in ((64, 64, 64), (256, 512, 96)),
            )  # fmt: skip
    for letter, pointers, (m, n, k, count) in itertools.product(
        ONE_TYPE, (False, True), [(5, 3, 7, 17), (32, 32, 32, 9), (100, 33, 65, 4), (1, 1, 1, 65)]
    ):
        yield Case(
            "cublas", "gemmBatched" if pointers else "gemmStridedBatched", NAMES[letter], f"{count} of {m}x{n}x{k}",
            lambda a=(letter, m, n, k, count, pointers): strided_batched(*a), count == 9 and letter == "s",
        )  # fmt: skip
    for letter, kind, n in itertools.product(ONE_TYPE, ("getrfBatched", "getrsBatched", "getriBatched", "matinvBatched"), (1, 3, 8, 17, 32, 70)):
        if kind != "matinvBatched" or n <= 32:
            yield Case(
                "cublas",
                kind,
                NAMES[letter],
                f"5 of {n}",
                lambda a=(letter, kind, n, 5): solved_batched(*a),
                n == 17 and letter == "d" and kind in ("getrfBatched", "getrsBatched"),
            )


def matrix_cases() -> Iterator[Any]:
    for letter, side, uplo, (m, n) in itertools.product(ONE_TYPE, (LEFT, RIGHT), (LOWER, UPPER), [(1, 3), (17, 65), (128, 64), (255, 33)]):
        for hermitian in (False, True) if letter in "cz" else (False,):
            yield Case(
                "cublas", "hemm" if hermitian else "symm", NAMES[letter], f"{m}x{n} {'LR'[side]}{'LU'[uplo]}",
                lambda a=(letter, side, uplo, m, n, hermitian): symm(*a), (m, n, side, uplo) == (17, 65, LEFT, LOWER) and letter in "sz",
            )  # fmt: skip
    for letter, uplo, (n, k), kind in itertools.product(
        ONE_TYPE, (LOWER, UPPER), [(1, 1), (17, 33), (64, 128), (255, 67)], ("syrk", "herk", "syr2k", "her2k", "syrkx")
    ):
        if kind[0] == "h" and letter in "sd":
            continue
        for op in (N, C if kind[0] == "h" else T):
            yield Case(
                "cublas", kind, NAMES[letter], f"{n}x{k} {'LU'[uplo]}{'NTC'[op]}", lambda a=(letter, uplo, op, n, k, kind): syrk(*a),
                (n, uplo, op) == (17, LOWER, N) and letter in "sz" and kind in ("syrk", "herk"),
            )  # fmt: skip
    for letter, kind, side, uplo, unit, (m, n) in itertools.product(
        ONE_TYPE, ("trmm", "trsm"), (LEFT, RIGHT), (LOWER, UPPER), (False, True), [(1, 1), (17, 33), (64, 64), (255, 129)]
    ):
        for op in turned_by(letter):
            yield Case(
                "cublas", kind, NAMES[letter], f"{m}x{n} {'LR'[side]}{'LU'[uplo]}{'NTC'[op]}{'NU'[unit]}",
                lambda a=(letter, kind, side, uplo, op, unit, m, n): triangular(*a),
                (m, side, uplo, op, unit) == (17, LEFT, LOWER, N, False) and letter in "sz",
            )  # fmt: skip
    for letter, (m, n) in itertools.product(ONE_TYPE, [(1, 1), (33, 17), (256, 100)]):
        yield Case("cublas", "geam", NAMES[letter], f"{m}x{n}", lambda a=(letter, m, n): geam(*a))
        for side in (LEFT, RIGHT):
            yield Case("cublas", "dgmm", NAMES[letter], f"{m}x{n} {'LR'[side]}", lambda a=(letter, side, m, n): dgmm(*a))


def vector_cases() -> Iterator[Any]:
    one = ("nrm2", "asum", "iamax", "iamin", "axpy", "scal", "copy", "swap", "rot")
    for letter, n, inc in itertools.product(ONE_TYPE, (1, 17, 1000, 70001), (1, 2, -1)):
        for kind in (*one, *(("dot",) if letter in "sd" else ("dotu", "dotc"))):
            if inc > 0 or kind not in ("nrm2", "asum", "iamax", "iamin"):
                few = (n, inc) == (1000, 1) and letter in "sz" and kind in ("nrm2", "iamax", "axpy", "dot", "dotc")
                yield Case("cublas", kind, NAMES[letter], f"{n} by {inc}", lambda a=(letter, kind, n, inc): level1(*a), few)
    of_symmetric = ("symv", "spmv", "sbmv", "syr", "syr2", "spr", "spr2")
    of_hermitian = ("symv", "syr", "syr2", "hemv", "hpmv", "hbmv", "her", "her2", "hpr", "hpr2")
    of_triangular = ("trmv", "trsv", "tpmv", "tpsv", "tbmv", "tbsv")
    for letter, n, inc in itertools.product(ONE_TYPE, (1, 17, 64, 301), (1, 3)):
        for kind, option in itertools.product(("gemv", "gbmv"), turned_by(letter)):
            few = (n, inc) == (64, 1) and kind == "gemv" and (letter, option) in (("s", N), ("z", C))
            yield Case("cublas", kind, NAMES[letter], f"{n} by {inc} {'NTC'[option]}", lambda a=(letter, kind, n, option, inc): level2(*a), few)
        for kind in ("ger",) if letter in "sd" else ("geru", "gerc"):
            yield Case("cublas", kind, NAMES[letter], f"{n} by {inc}", lambda a=(letter, kind, n, N, inc): level2(*a))
        kinds = (*(of_symmetric if letter in "sd" else of_hermitian), *of_triangular)
        for kind, option in itertools.product(kinds, (LOWER, UPPER)):
            yield Case("cublas", kind, NAMES[letter], f"{n} by {inc} {'LU'[option]}", lambda a=(letter, kind, n, option, inc): level2(*a))


def cases() -> Iterator[Any]:
    yield from product_cases()
    yield from matrix_cases()
    yield from vector_cases()
    yield from cublas_lt_cases.cases()
