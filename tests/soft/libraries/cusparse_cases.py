"""cuSPARSE, through CuPy, against SciPy in double."""

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
SIZES = ((1, 1, 1.0), (37, 53, 0.15), (200, 150, 0.03), (1000, 1200, 0.01), (300, 64, 0.7))
FAST = SIZES[1]


def draw(kind: str, *shape: int) -> Any:
    dtype = TYPES[kind][0]
    rng = case.generator("sparse", kind, shape)
    values = rng.uniform(-1, 1, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return values.astype(dtype)


def matrix(kind: str, m: int, n: int, density: float) -> Any:
    """SciPy's CSR matrix, with empty rows among the others."""
    import scipy.sparse

    rng = case.generator("pattern", m, n, density)
    dense = draw(kind, m, n) * (rng.uniform(0, 1, (m, n)) < density)
    if m > 10:
        dense[3:6] = 0
    return scipy.sparse.csr_matrix(dense)


def device(a: Any) -> Any:
    import cupyx.scipy.sparse as sparse

    return {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "coo": sparse.coo_matrix}[a.format](a)


def wide(a: Any) -> Any:
    if hasattr(a, "get"):
        a = a.get()
    if hasattr(a, "toarray"):
        a = a.toarray()
    return np.asarray(a).astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def close(kind: str, k: float, got: Any, want: Any, scale: Any) -> Outcome:
    return Outcome(wide(got), want, max(k, 1), TYPES[kind][1], scale)


def product(kind: str, m: int, n: int, density: float, form: str, columns: int, transposed: bool, order: str) -> Outcome:
    """SpMV (columns 0) and SpMM; alpha and beta too."""
    import cupy
    from cupyx import cusparse

    a = matrix(kind, m, n, density)
    rows, inner = (n, m) if transposed else (m, n)
    b = draw(kind, inner, columns) if columns else draw(kind, inner)
    c = draw(kind, rows, columns) if columns else draw(kind, rows)
    da, db, dc = device(a.asformat(form)), cupy.asarray(b, order=order), cupy.asarray(c, order=order)
    operation = cusparse.spmm if columns else cusparse.spmv
    got = operation(da, db, dc, alpha=1.5, beta=-0.5, transa=transposed)
    wa = wide(a).T if transposed else wide(a)
    return close(kind, inner * density, got, 1.5 * (wa @ b) - 0.5 * c, 3.0 * (np.abs(wa) @ np.abs(b)) + np.abs(c))


def sparse_product(kind: str, m: int, n: int, density: float) -> Outcome:
    from cupyx import cusparse

    a, b = matrix(kind, m, n, density), matrix(kind, n, m, density)
    got = cusparse.spgemm(device(a), device(b), alpha=0.5)
    want = 0.5 * (wide(a) @ wide(b))
    return close(kind, n * density, got, want, np.abs(wide(a)) @ np.abs(wide(b)))


def addition(kind: str, m: int, n: int, density: float) -> Outcome:
    from cupyx import cusparse

    a, b = matrix(kind, m, n, density), matrix(kind, m, n, density / 2)
    got = cusparse.csrgeam2(device(a), device(b), 1.5, -0.5)
    return close(kind, 2, got, 1.5 * wide(a) - 0.5 * wide(b), 1.5 * np.abs(wide(a)) + 0.5 * np.abs(wide(b)))


def triangular(kind: str, m: int, density: float, lower: bool, transposed: bool, unit: bool) -> Outcome:
    import cupy
    from cupyx import cusparse

    a = matrix(kind, m, m, density)
    dense = (np.tril if lower else np.triu)(a.toarray(), -1 if lower else 1) / 2 + np.eye(m, dtype=TYPES[kind][0]) * (1 if unit else 2)
    b = draw(kind, m, 3)
    a = type(a)(dense.astype(TYPES[kind][0]))
    got = cusparse.spsm(device(a), cupy.asarray(b, order="F"), alpha=1.5, lower=lower, unit_diag=unit, transa=transposed)
    x, wa = wide(got), wide(a).T if transposed else wide(a)
    scale = np.abs(wa) @ np.abs(x) + np.abs(b)  # the error of a solution is what is left over
    return Outcome(wa @ x, 1.5 * wide(b), max(m * density, 1), TYPES[kind][1], scale)


def conversion(kind: str, m: int, n: int, density: float, source: str, target: str) -> Outcome:
    """Values are moved, not calculated: exact; where there are indices, they are those of SciPy's sorted matrix."""
    import cupy
    from cupyx import cusparse

    a = matrix(kind, m, n, density)
    dense = a.toarray()
    if source == "dense":
        given = cupy.asarray(dense, order="F")
        made = cusparse.denseToSparse(given, target)
    elif target == "dense":
        return Outcome(cupy.asnumpy(cusparse.sparseToDense(device(a.asformat(source)))), dense, exact=True)
    else:
        made = device(a.asformat(source)).asformat(target)
    made, want = made.get(), a.asformat(target)
    for each in (made, want):  # entries may come in any order
        if target == "coo":
            by_row = np.lexsort((each.col, each.row))
            each.row, each.col, each.data = each.row[by_row], each.col[by_row], each.data[by_row]
        else:
            each.has_sorted_indices = False
            each.sort_indices()
    parts = ("row", "col", "data") if target == "coo" else ("indptr", "indices", "data")
    got, want = (np.concatenate([getattr(o, p).astype(np.complex128) for p in parts]) for o in (made, want))
    return Outcome(got, want, exact=True)


def sorted_indices(kind: str, m: int, n: int, density: float, form: str) -> Outcome:
    """The indices of each row (column) turned round, then sorted by the library."""
    a = matrix(kind, m, n, density).asformat(form)
    turned = a.copy()
    for begin, end in itertools.pairwise(a.indptr):
        turned.indices[begin:end] = a.indices[begin:end][::-1]
        turned.data[begin:end] = a.data[begin:end][::-1]
    made = device(turned)
    made.has_sorted_indices = False
    made.sort_indices()
    made = made.get()
    a.sort_indices()
    got, want = (np.concatenate([o.indptr, o.indices, o.data]) for o in (made, a))
    return Outcome(got, want, exact=True)


def cases() -> Iterator[Case]:
    def each(operation: str, kind: str, size: str, run: Callable[..., Outcome], *arguments: Any, fast: bool = False) -> Case:
        return Case("cusparse", operation, kind, size, lambda: run(kind, *arguments), fast)

    for kind, size in itertools.product(TYPES, SIZES):
        fast = size == FAST and kind in ("float", "complex128")
        text = f"{size[0]}x{size[1]} {size[2]}"
        for form, transposed in itertools.product(("csr", "csc", "coo"), (False, True)):
            name = f"{text}{' transposed' if transposed else ''}"
            yield each(f"SpMV, {form}", kind, name, product, *size, form, 0, transposed, "C", fast=fast and form == "csr")
        for form, transposed in itertools.product(("csr", "coo"), (False, True)):
            name = f"{text} 7{' transposed' if transposed else ''}"
            yield each(f"SpMM, {form}", kind, name, product, *size, form, 7, transposed, "F", fast=fast and form == "csr" and not transposed)
        yield each("SpGEMM", kind, text, sparse_product, *size, fast=fast)
        yield each("sum of two", kind, text, addition, *size)
        for source, target in (("csr", "csc"), ("csc", "csr"), ("csr", "coo"), ("coo", "csr"), ("coo", "csc"), ("csc", "coo")):
            yield each(f"{source} to {target}", kind, text, conversion, *size, source, target, fast=fast and source == "csr")
        for form in ("csr", "csc", "coo"):
            yield each(f"dense to {form}", kind, text, conversion, *size, "dense", form, fast=fast and form == "csr")
            yield each(f"{form} to dense", kind, text, conversion, *size, form, "dense", fast=fast and form == "csr")
        for form in ("csr", "csc"):
            yield each(f"sort, {form}", kind, text, sorted_indices, *size, form)
    for kind, (m, density), lower, transposed, unit in itertools.product(TYPES, ((1, 1.0), (40, 0.2), (300, 0.02)), *[(False, True)] * 3):
        name = f"{m} {'lower' if lower else 'upper'}{' transposed' if transposed else ''}{' unit' if unit else ''}"
        yield each(
            "SpSM", kind, name, triangular, m, density, lower, transposed, unit, fast=m == 40 and kind == "float" and not transposed and not unit
        )
