"""CuPy's products, decompositions, transforms and sparse matrices against NumPy's and SciPy's in a wider type."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import case
from .case import Case, Outcome
from .cupy_comparison import COMPLEX, EPS_OF, INTEGERS, NAMES, WIDER, compare, draw, host, same_type, wide

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


def cases() -> Iterator[Any]:
    lib = "cupy"
    for name, kind in itertools.product(PRODUCTS, "lefdFD"):
        yield Case(lib, name, NAMES[kind], "x".join(map(str, PRODUCTS[name][1])), lambda a=(name, kind): product(*a))
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
    for name, kind, (m, n) in itertools.product(SPARSE, "fdFD", ((40, 65), (300, 200))):
        if (kind in COMPLEX and name in ("maximum",)) or (name == "kron" and m == 300):
            continue
        few = name in ("csr @ vector", "coo to csr") and kind == "f" and m == 40
        yield Case(lib, f"sparse: {name}", NAMES[kind], f"{m}x{n}", lambda a=(name, kind, m, n): sparse(*a), few)
