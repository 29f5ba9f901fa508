"""cuSOLVER by its own functions: what CuPy does not call. Jacobi's methods, generalised eigenvalues, batches, and the interface of 64-bit sizes."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import native
from .case import Case, Outcome
from .cusolver_cases import TYPES, adjoint, draw, identity, near, norm, wide

LETTERS = {"float": "S", "double": "D", "complex64": "C", "complex128": "Z"}
DATA = {"float": 0, "double": 1, "complex64": 4, "complex128": 5}
REAL = {"float": np.float32, "double": np.float64, "complex64": np.float32, "complex128": np.float64}
REAL_DATA = {"float": 0, "double": 1, "complex64": 0, "complex128": 1}
VECTORS, LOWER, NO_TRANSPOSE = 1, 0, 0


@functools.cache
def library() -> native.Library:
    return native.Library("cusolver", "libcusolver.so.*")


@functools.cache
def handles() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """cuSOLVER's handle, and the parameters that the newer functions take."""
    handle, parameters = ctypes.c_void_p(), ctypes.c_void_p()
    library().call("cusolverDnCreate", ctypes.byref(handle))
    library().call("cusolverDnCreateParams", ctypes.byref(parameters))
    return handle, parameters


def call(name: str, *arguments: Any) -> None:
    library().call(f"cusolverDn{name}", handles()[0], *arguments)


def columns(a: Any) -> Any:
    """On the device with matrices by columns; batches one after the other."""
    import cupy

    return cupy.asarray(np.ascontiguousarray(np.swapaxes(a, -1, -2)))


def rows(d: Any) -> Any:
    return np.swapaxes(wide(d), -1, -2)


def empty(kind: str, *shape: int) -> Any:
    import cupy

    return cupy.zeros(shape, TYPES[kind][0])


def reals(kind: str, *shape: int) -> Any:
    import cupy

    return cupy.zeros(shape, REAL[kind])


def worked(name: str, kind: str, arguments: tuple[Any, ...], after: tuple[Any, ...] = (), batch: int | None = None, info_of: int = 1) -> None:
    """Asks for the size of the workspace, then calls with it; cuSOLVER's verdict must be 0. after: what follows the verdict in the call."""
    import cupy

    size, info = ctypes.c_int(), cupy.full(info_of, -1, np.int32)
    tail = () if batch is None else (batch,)
    call(f"{name}_bufferSize", *arguments, ctypes.byref(size), *after, *tail)
    call(name, *arguments, empty(kind, max(size.value, 1)), size.value, info, *after, *tail)
    if info.any():
        raise RuntimeError(f"{name} said {info.get()}")


def worked_wide(name: str, arguments: tuple[Any, ...], tail: tuple[Any, ...] = (), info_of: int = 1) -> None:
    """The same for functions of 64-bit sizes, which want room on both sides."""
    import cupy

    there, here = ctypes.c_size_t(), ctypes.c_size_t()
    info = cupy.full(info_of, -1, np.int32)
    call(f"{name}_bufferSize", *arguments, ctypes.byref(there), ctypes.byref(here), *tail)
    on_device, on_host = cupy.zeros(there.value + 1, np.uint8), np.zeros(here.value + 1, np.uint8)
    call(name, *arguments, on_device, there, on_host, here, info, *tail)
    if info.any():
        raise RuntimeError(f"{name} said {info.get()}")


def hermitian(kind: str, *shape: int) -> Any:
    a = draw(kind, *shape)
    return a + adjoint(a)


def positive(kind: str, *shape: int) -> Any:
    a = draw(kind, *shape)
    return (a @ adjoint(a) + shape[-1] * np.eye(shape[-1])).astype(a.dtype)


def own(kind: str, routine: str) -> str:
    """Such as Dsyevd, Zheevd."""
    return f"{LETTERS[kind]}{'sy' if kind in ('float', 'double') else 'he'}{routine}"


def eigen_pairs(kind: str, k: int, a: Any, w: Any, v: Any) -> Outcome:
    n, size = a.shape[-1], norm(a)
    values = np.sort(w, -1)
    return near(
        kind, k, (a @ v, v * w[..., None, :], size), (values, np.linalg.eigvalsh(a), size), (adjoint(v) @ v, identity(v, n), 1.0)
    )  # fmt: skip


def jacobi_eigen(kind: str, n: int, batch: int) -> Outcome:
    parameters = ctypes.c_void_p()
    library().call("cusolverDnCreateSyevjInfo", ctypes.byref(parameters))
    a = hermitian(kind, *((batch,) if batch else ()), n, n)
    d, w = columns(a), reals(kind, *((batch,) if batch else ()), n)
    name = own(kind, "evjBatched" if batch else "evj")
    worked(name, kind, (VECTORS, LOWER, n, d, n, w), (parameters,), batch or None, batch or 1)
    return eigen_pairs(kind, n * n, wide(a), wide(w), rows(d))


def jacobi_svd(kind: str, m: int, n: int, batch: int) -> Outcome:
    parameters = ctypes.c_void_p()
    library().call("cusolverDnCreateGesvdjInfo", ctypes.byref(parameters))
    shape = (batch,) if batch else ()
    a, k = draw(kind, *shape, m, n), min(m, n)
    d, s, u, v = columns(a), reals(kind, *shape, k), empty(kind, *shape, m, m), empty(kind, *shape, n, n)
    how = (VECTORS,) if batch else (VECTORS, 0)
    name = f"{LETTERS[kind]}gesvdj{'Batched' if batch else ''}"
    worked(name, kind, (*how, m, n, d, m, s, u, m, v, n), (parameters,), batch or None, batch or 1)
    left, right, s, a = rows(u), rows(v), wide(s), wide(a)
    size = norm(a)
    return near(
        kind, 4 * m * n, (left[..., :k] * s[..., None, :] @ adjoint(right[..., :k]), a, size), (s, np.linalg.svd(a, compute_uv=False), size),
        (adjoint(left) @ left, identity(left, m), 1.0), (adjoint(right) @ right, identity(right, n), 1.0),
    )  # fmt: skip


def generalised(kind: str, n: int, which: int) -> Outcome:
    """A v = w B v, A B v = w v, B A v = w v."""
    a, b = hermitian(kind, n, n), positive(kind, n, n)
    da, db, w = columns(a), columns(b), reals(kind, n)
    worked(own(kind, "gvd"), kind, (which, VECTORS, LOWER, n, da, n, db, n, w))
    a, b, w, v = wide(a), wide(b), wide(w), rows(da)
    left, right = {1: (a @ v, b @ v * w), 2: (a @ b @ v, v * w), 3: (b @ a @ v, v * w)}[which]
    return near(kind, n, (left, right, norm(a) * norm(b) * norm(v)))


def cholesky_batched(kind: str, n: int, batch: int) -> Outcome:
    """Factors, and the solutions that they give."""
    import cupy

    a, b = positive(kind, batch, n, n), draw(kind, batch, n, 1)
    da, db, info = columns(a), columns(b), cupy.full(batch, -1, np.int32)
    pa, pb = (cupy.asarray(np.array([d.data.ptr + i * d.strides[0] for i in range(batch)], np.uint64)) for d in (da, db))
    call(f"{LETTERS[kind]}potrfBatched", LOWER, n, pa, n, info, batch)
    call(f"{LETTERS[kind]}potrsBatched", LOWER, n, 1, pa, n, pb, n, info, batch)
    lower, x, a = np.tril(rows(da)), rows(db), wide(a)
    return near(kind, n, (lower @ adjoint(lower), a, norm(a)), (a @ x, wide(b), norm(a) * norm(x)))


def symmetric_indefinite(kind: str, n: int) -> Outcome:
    """sytrf's factors with rows and columns exchanged, and what sytrs makes of them."""
    import cupy

    a, b = draw(kind, n, n), draw(kind, n, 2)
    a = a + a.T
    d, db, pivots = columns(a), columns(b), cupy.zeros(n, np.int32)
    size, info = ctypes.c_int(), cupy.full(1, -1, np.int32)
    call(f"{LETTERS[kind]}sytrf_bufferSize", n, d, n, ctypes.byref(size))
    call(f"{LETTERS[kind]}sytrf", LOWER, n, d, n, pivots, empty(kind, max(size.value, 1)), size.value, info)
    long, data = native.long, DATA[kind]
    worked_wide("Xsytrs", (LOWER, long(n), long(2), data, d, long(n), pivots.astype(np.int64), data, db, long(n)))
    x, a = rows(db), wide(a)
    return near(kind, n, (a @ x, wide(b), norm(a) * norm(x) * n**0.5))


def inverse(kind: str, n: int) -> Outcome:
    """potri: the inverse, from Cholesky's factor."""
    a = positive(kind, n, n)
    d = columns(a)
    worked(f"{LETTERS[kind]}potrf", kind, (LOWER, n, d, n))
    worked(f"{LETTERS[kind]}potri", kind, (LOWER, n, d, n))
    lower, a = np.tril(rows(d)), wide(a)
    x = lower + adjoint(np.tril(lower, -1))
    return near(kind, n, (a @ x, np.eye(n), norm(a) * norm(x)))


def wide_lu(kind: str, n: int) -> Outcome:
    import cupy

    long, data = native.long, DATA[kind]
    a, b = draw(kind, n, n), draw(kind, n, 3)
    d, db, pivots, info = columns(a), columns(b), cupy.zeros(n, np.int64), cupy.full(1, -1, np.int32)
    worked_wide_between("Xgetrf", (handles()[1], long(n), long(n), data, d, long(n)), (pivots,), data)
    call("Xgetrs", handles()[1], NO_TRANSPOSE, long(n), long(3), data, d, long(n), pivots, data, db, long(n), info)
    x, a = rows(db), wide(a)
    return near(kind, n, (a @ x, wide(b), norm(a) * norm(x) * n**0.5))


def worked_wide_between(name: str, arguments: tuple[Any, ...], only_in_call: tuple[Any, ...], compute: int) -> None:
    """For functions that take something between their arguments and the type to calculate in that the size does not depend on."""
    import cupy

    there, here = ctypes.c_size_t(), ctypes.c_size_t()
    info = cupy.full(1, -1, np.int32)
    call(f"{name}_bufferSize", *arguments, compute, ctypes.byref(there), ctypes.byref(here))
    on_device, on_host = cupy.zeros(there.value + 1, np.uint8), np.zeros(here.value + 1, np.uint8)
    call(name, *arguments, *only_in_call, compute, on_device, there, on_host, here, info)
    if info.any():
        raise RuntimeError(f"{name} said {info.get()}")


def wide_eigen(kind: str, n: int, batch: int) -> Outcome:
    long, data = native.long, DATA[kind]
    a = hermitian(kind, *((batch,) if batch else ()), n, n)
    d, w = columns(a), reals(kind, *((batch,) if batch else ()), n)
    arguments = (handles()[1], VECTORS, LOWER, long(n), data, d, long(n), REAL_DATA[kind], w, data)
    worked_wide("XsyevBatched" if batch else "Xsyevd", arguments, (long(batch),) if batch else (), batch or 1)
    return eigen_pairs(kind, n, wide(a), wide(w), rows(d))


def wide_svd(kind: str, m: int, n: int) -> Outcome:
    long, data = native.long, DATA[kind]
    a = draw(kind, m, n)
    d, s, u, v = columns(a), reals(kind, n), empty(kind, n, m), empty(kind, n, n)
    some = ctypes.c_byte(ord("S"))
    arguments = (some, some, long(m), long(n), data, d, long(m), REAL_DATA[kind], s, data, u, long(m), data, v, long(n), data)
    worked_wide("Xgesvd", (handles()[1], *arguments))
    left, right, s, a = rows(u), rows(v), wide(s), wide(a)
    size = norm(a)
    return near(
        kind, m, (left * s @ right, a, size), (s, np.linalg.svd(a, compute_uv=False), size), (adjoint(left) @ left, np.eye(n), 1.0),
        (adjoint(right) @ right, np.eye(n), 1.0),
    )  # fmt: skip


def grid_laplacian(kind: str, side: int) -> Any:
    """The matrix of a square grid's five-point Laplacian with weights drawn at random, Hermitian and dominated by its diagonal (SciPy's CSR, in double)."""
    import scipy.sparse

    n = side * side
    weights = draw(kind, 2, n).astype(np.complex128 if kind.startswith("complex") else np.float64)
    weights[0, side - 1 :: side] = 0  # a row's last point has none to its right
    lower = scipy.sparse.diags_array([weights[0, : n - 1], weights[1, : n - side]], offsets=[-1, -side])
    whole = (lower + lower.conj().T + scipy.sparse.diags_array(np.full(n, 6.0))).tocsr()
    whole.sort_indices()
    return whole


def sparse_cholesky(kind: str, side: int) -> Outcome:
    """The low-level interface's factors on the GPU, by what they solve; its kernels wait for one another's rows by volatile loads. SciPy solves it too."""
    import cupy
    import scipy.sparse.linalg

    sparse = native.Library("cusparse", "libcusparse.so.*")
    handle, matrix, info = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    sparse.call("cusparseCreateMatDescr", ctypes.byref(matrix))
    library().call("cusolverSpCreate", ctypes.byref(handle))
    library().call("cusolverSpCreateCsrcholInfo", ctypes.byref(info))
    dtype, prefix = TYPES[kind][0], f"cusolverSp{LETTERS[kind]}csrchol"
    a = grid_laplacian(kind, side)
    a.data = a.data.astype(dtype)
    n, b = a.shape[0], draw(kind, side * side)
    values, starts, places = cupy.asarray(a.data), cupy.asarray(a.indptr.astype(np.int32)), cupy.asarray(a.indices.astype(np.int32))
    shape = (n, a.nnz, matrix)
    library().call("cusolverSpXcsrcholAnalysis", handle, *shape, starts, places, info)
    inside, size, singular = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int(-2)
    library().call(f"{prefix}BufferInfo", handle, *shape, values, starts, places, info, ctypes.byref(inside), ctypes.byref(size))
    buffer, x = cupy.empty(size.value, np.uint8), cupy.full(n, np.nan, dtype)
    library().call(f"{prefix}Factor", handle, *shape, values, starts, places, info, buffer)
    tolerance = ctypes.c_float(1e-6) if REAL[kind] is np.float32 else ctypes.c_double(1e-14)
    library().call(f"{prefix}ZeroPivot", handle, info, tolerance, ctypes.byref(singular))
    library().call(f"{prefix}Solve", handle, n, cupy.asarray(b), x, info, buffer)
    library().call("cusolverSpDestroyCsrcholInfo", info)
    library().call("cusolverSpDestroy", handle)
    assert singular.value == -1, singular.value
    exact = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    want = scipy.sparse.linalg.spsolve(exact.tocsc(), wide(b))
    largest = float(np.abs(want).max())
    return near(kind, 10, (wide(x), want, 10 * largest), (exact @ wide(x), wide(b), 10 * largest))  # no row has more than five; the condition is below ten


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[..., Outcome], *arguments: Any) -> Case:
        return Case("cusolver", operation, kind, size, lambda: run(kind, *arguments))

    for kind in TYPES:
        for n in (2, 17, 64):
            yield each("syevj", kind, f"{n}", jacobi_eigen, n, 0)
        yield each("syevjBatched", kind, "9 of 20", jacobi_eigen, 20, 9)
        for m, n in ((20, 20), (30, 20), (70, 64)):
            yield each("gesvdj", kind, f"{m}x{n}", jacobi_svd, m, n, 0)
        yield each("gesvdjBatched", kind, "11 of 20x31", jacobi_svd, 20, 31, 11)
        for which in (1, 2, 3):
            yield each("sygvd", kind, f"50, problem {which}", generalised, 50, which)
        for n in (2, 16, 40):
            yield each("potrfBatched, potrsBatched", kind, f"10 of {n}", cholesky_batched, n, 10)
        yield each("potri", kind, "130", inverse, 130)
        yield each("csrchol", kind, "grid of 70x70", sparse_cholesky, 70)
        for n in (6, 130):
            yield each("sytrf, Xsytrs", kind, f"{n}", symmetric_indefinite, n)
    for kind, n in itertools.product(TYPES, (5, 150)):
        yield each("Xgetrf, Xgetrs", kind, f"{n}", wide_lu, n)
        yield each("Xsyevd", kind, f"{n}", wide_eigen, n, 0)
        yield each("Xgesvd", kind, f"{n + 5}x{n}", wide_svd, n + 5, n)
    for kind, (n, batch) in itertools.product(TYPES, ((20, 7), (70, 3))):
        yield each("XsyevBatched", kind, f"{batch} of {n}", wide_eigen, n, batch)
