"""More of cuSPARSE, through its own functions: sampled products of dense matrices, 64-bit indices, sparse vectors, bands of equations, incomplete
factorisations."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import native
from .case import Case, Outcome
from .cusparse_cases import TYPES, close, draw, matrix, wide

LETTERS = {"float": "S", "double": "D", "complex64": "C", "complex128": "Z"}
DATA = {"float": 0, "double": 1, "complex64": 4, "complex128": 5}
PLAIN, TRANSPOSED = 0, 1
COLUMNS, ROWS = 1, 2  # the order of a dense matrix
INDEX = {np.dtype(np.int32): 2, np.dtype(np.int64): 3}
USE_LEVEL = 1
long = native.long


@functools.cache
def library() -> native.Library:
    return native.Library("cusparse", "libcusparse.so.*")


@functools.cache
def handle() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library().call("cusparseCreate", ctypes.byref(made))
    return made


def call(name: str, *arguments: Any) -> None:
    library().call(f"cusparse{name}", handle(), *arguments)


def made(kind: str, *arguments: Any) -> ctypes.c_void_p:
    """Something that a cusparseCreate function makes."""
    it = ctypes.c_void_p()
    library().call(f"cusparseCreate{kind}", ctypes.byref(it), *arguments)
    return it


def room(name: str, *arguments: Any, size: Any = ctypes.c_size_t) -> Any:
    """What the function with `_bufferSize` in its name asks for."""
    import cupy

    wanted = size()
    call(name, *arguments, ctypes.byref(wanted))
    return cupy.zeros(wanted.value + 1, np.uint8)


class Csr:
    """A matrix on the device, with its description, its indices from `base` on."""

    def __init__(self, kind: str, a: Any, index: Any = np.int32, base: int = 0) -> None:
        import cupy

        self.offsets, self.columns, self.values = (
            cupy.asarray(a.indptr.astype(index) + base),
            cupy.asarray(a.indices.astype(index) + base),
            cupy.asarray(a.data),
        )
        code = INDEX[np.dtype(index)]
        self.desc = made("Csr", *map(long, (*a.shape, a.nnz)), self.offsets, self.columns, self.values, code, code, base, DATA[kind])


def dense(kind: str, a: Any, order: int) -> tuple[Any, ctypes.c_void_p]:
    """The matrix on the device and its description."""
    import cupy

    on_device = cupy.asarray(np.ascontiguousarray(a.T if order == COLUMNS else a))
    return on_device, made("DnMat", *map(long, (*a.shape, on_device.shape[1])), on_device, DATA[kind], order)


def scalar(kind: str, value: float) -> Any:
    return np.array(value, TYPES[kind][0])


def sampled_product(kind: str, m: int, n: int, k: int, density: float, turned: tuple[int, int], order: int, index: Any) -> Outcome:
    """SDDMM: the product of two dense matrices where the sparse one has entries."""
    c = matrix(kind, m, n, density)
    a, b = draw(kind, *((k, m) if turned[0] else (m, k))), draw(kind, *((n, k) if turned[1] else (k, n)))
    dc, da, db = Csr(kind, c, index), dense(kind, a, order), dense(kind, b, order)
    arguments = (*turned, scalar(kind, 1.5), da[1], db[1], scalar(kind, -0.5), dc.desc, DATA[kind], 0)
    space = room("SDDMM_bufferSize", *arguments)
    call("SDDMM_preprocess", *arguments, space)
    call("SDDMM", *arguments, space)
    got = type(c)((dc.values.get(), c.indices, c.indptr), c.shape)
    a, b = (wide(v).T if t else wide(v) for v, t in ((a, turned[0]), (b, turned[1])))
    want = np.where(c.toarray() != 0, 1.5 * (a @ b) - 0.5 * wide(c), 0)
    return close(kind, k, got, want, 1.5 * (np.abs(a) @ np.abs(b)) + np.abs(wide(c)))


def product_of_long_indices(kind: str, m: int, n: int, density: float, columns: int) -> Outcome:
    """SpMV (columns 0) and SpMM with 64-bit indices that count from one."""
    import cupy

    a = matrix(kind, m, n, density)
    b, c = (draw(kind, size, columns) if columns else draw(kind, size) for size in (n, m))
    da, alpha, beta = Csr(kind, a, np.int64, 1), scalar(kind, 1.5), scalar(kind, -0.5)
    if columns:
        db, dc = dense(kind, b, ROWS), dense(kind, c, ROWS)
        out = dc[0]
        arguments = (PLAIN, PLAIN, alpha, da.desc, db[1], beta, dc[1], DATA[kind], 0)
        call("SpMM", *arguments, room("SpMM_bufferSize", *arguments))
    else:
        given, out = cupy.asarray(b), cupy.asarray(c)
        x, y = (made("DnVec", long(v.size), v, DATA[kind]) for v in (given, out))
        arguments = (PLAIN, alpha, da.desc, x, beta, y, DATA[kind], 0)
        call("SpMV", *arguments, room("SpMV_bufferSize", *arguments))
    return close(kind, n * density, out, 1.5 * (wide(a) @ b) - 0.5 * c, 1.5 * (np.abs(wide(a)) @ np.abs(b)) + np.abs(c))


def sparse_vector(kind: str, what: str, n: int, count: int) -> Outcome:
    import cupy

    where = np.arange(n)[:: n // count][:count].astype(np.int32)
    v, y = draw(kind, count), draw(kind, n)
    given, out, indices = cupy.asarray(v), cupy.asarray(y), cupy.asarray(where)
    sparse = made("SpVec", long(n), long(count), indices, given, INDEX[where.dtype], 0, DATA[kind])
    full = made("DnVec", long(n), out, DATA[kind])
    if what == "gather":
        call("Gather", full, sparse)
        return Outcome(given.get(), y[where], exact=True)
    want = wide(y).copy()
    if what == "scatter":
        call("Scatter", sparse, full)
        want[where] = v
        return Outcome(out.get(), want.astype(y.dtype), exact=True)
    call("Axpby", scalar(kind, 1.5), sparse, scalar(kind, -0.5), full)
    want *= -0.5
    want[where] += 1.5 * wide(v)
    return close(kind, 2, out, want, 2.0)


def bands(kind: str, what: str, n: int, count: int) -> Outcome:
    """Three diagonals (gtsv) or five (gpsv) of equations, several systems; the solution is put back into them."""
    import cupy

    reach = 2 if what.startswith("gpsv") else 1
    diagonals = [draw(kind, count, n, d + 3)[..., 0] for d in range(2 * reach + 1)]  # other numbers for each, by its shape
    for offset, values in zip(range(-reach, reach + 1), diagonals, strict=True):
        if offset:
            values[:, slice(None, -offset) if offset < 0 else slice(n - offset, None)] = 0
    diagonals[reach] += 2 * reach + 1
    b = draw(kind, count, n)
    apart = what.endswith("StridedBatch")
    given = [cupy.asarray(v if apart else np.ascontiguousarray(v.T)) for v in (*diagonals, b)]
    name = f"{LETTERS[kind]}{what}"
    arguments = (n, *given, count, n) if apart else (0, n, *given, count)
    call(name, *arguments, room(f"{name}_bufferSizeExt", *arguments))
    x = wide(given[-1]) if apart else wide(given[-1]).T
    sums, sizes = np.zeros_like(x), np.abs(b).astype(np.float64)
    for offset, values in zip(range(-reach, reach + 1), diagonals, strict=True):
        shifted = np.roll(x, -offset, axis=1)  # what is rolled over the end meets a zero
        sums, sizes = sums + wide(values) * shifted, sizes + np.abs(values) * np.abs(shifted)
    return close(kind, 2 * reach + 1, sums, wide(b), sizes)


def factorisation(kind: str, what: str, n: int, density: float) -> Outcome:
    """Incomplete LU and Cholesky: their product is the matrix where that has entries. A row waits for those it depends on."""
    a = matrix(kind, n, n, density)
    full = a.toarray()
    if what == "csric02":
        full = (full + full.conj().T) / 2
    full = (full + np.eye(n) * (2 + n * density)).astype(TYPES[kind][0])
    a = type(a)(full)
    on_device, size = Csr(kind, a), ctypes.c_int
    info = made("Csric02Info" if what == "csric02" else "Csrilu02Info")
    arguments = (n, a.nnz, made("MatDescr"), on_device.values, on_device.offsets, on_device.columns, info)
    name = f"{LETTERS[kind]}{what}"
    space = room(f"{name}_bufferSize", *arguments, size=size)
    call(f"{name}_analysis", *arguments, USE_LEVEL, space)
    call(name, *arguments, USE_LEVEL, space)
    factors = wide(type(a)((on_device.values.get(), a.indices, a.indptr), a.shape))
    lower, upper = np.tril(factors, -1) + np.eye(n), np.triu(factors)
    there = full != 0
    if what == "csric02":
        lower, there = np.tril(factors), np.tril(there)
        upper = lower.conj().T
    return close(kind, n * density, np.where(there, lower @ upper, 0), np.where(there, wide(full), 0), np.abs(lower) @ np.abs(upper) + 1)


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[..., Outcome], *arguments: Any, fast: bool = False) -> Case:
        return Case("cusparse", operation, kind, size, lambda: run(kind, *arguments), fast)

    for kind in TYPES:
        for (m, n, k, density), left, right in itertools.product(((37, 53, 31, 0.15), (200, 150, 64, 0.03)), *[(PLAIN, TRANSPOSED)] * 2):
            order, index = (COLUMNS, np.int32) if left == right else (ROWS, np.int64)
            text = f"{m}x{n}x{k} {density}, {'NT'[left]}{'NT'[right]}, {'by columns' if order == COLUMNS else 'by rows, 64-bit indices'}"
            fast = kind == "float" and m == 37 and left == right == PLAIN
            yield each("SDDMM, csr", kind, text, sampled_product, m, n, k, density, (left, right), order, index, fast=fast)
        for m, n, density in ((37, 53, 0.15), (1000, 1200, 0.01)):
            yield each("SpMV, csr, 64-bit indices", kind, f"{m}x{n} {density}", product_of_long_indices, m, n, density, 0)
            yield each("SpMM, csr, 64-bit indices", kind, f"{m}x{n} {density} 7", product_of_long_indices, m, n, density, 7)
        for what in ("gather", "scatter", "axpby"):
            yield each("sparse vector", kind, what, sparse_vector, what, 1000, 77)
        for what, (n, count) in itertools.product(("gtsv2StridedBatch", "gtsvInterleavedBatch", "gpsvInterleavedBatch"), ((64, 9), (500, 3))):
            yield each(what, kind, f"{count} of {n}", bands, what, n, count)
        for what, (n, density) in itertools.product(("csrilu02", "csric02"), ((50, 0.1), (400, 0.01))):
            yield each(what, kind, f"{n} {density}", factorisation, what, n, density, fast=kind == "float" and n == 50)
