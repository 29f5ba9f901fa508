"""cuBLASLt's matrix product with its epilogues, and cuBLAS's other ways to a product: batched in other types, TF32 by the math mode, gemm3m."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import case, native
from .case import EPS, Case, Outcome

R_32F, R_16F, R_16BF, R_64F = 0, 2, 14, 1
COMPUTE = {R_32F: 68, R_16F: 68, R_16BF: 68, R_64F: 70}
NAMES = {R_32F: "float", R_16F: "half", R_16BF: "bfloat16", R_64F: "double"}
ACCUMULATE = {R_32F: EPS["f32"], R_16F: EPS["f32"], R_16BF: EPS["f32"], R_64F: EPS["f64"]}
STORE = {R_32F: 0.0, R_16F: EPS["f16"], R_16BF: EPS["bf16"], R_64F: 0.0}
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
EPILOGUES = {"plain": 1, "relu": 2, "bias": 4, "relu, bias": 6, "gelu": 32, "gelu, bias": 36}


@functools.cache
def library() -> Any:
    return native.Library("cublas", "libcublasLt.so.*")


@functools.cache
def handle() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library().call("cublasLtCreate", ctypes.byref(made))
    return made


def stored(kind: int, values: Any) -> Any:
    """Numbers as the library's type: (what to copy to the device, what they are)."""
    if kind == R_16BF:
        bits = case.to_bf16(np.ascontiguousarray(values.T)).T
        return bits, np.asfortranarray(case.from_bf16(bits.T.copy()).T)
    out = np.asfortranarray(values.astype({R_16F: np.float16, R_32F: np.float32, R_64F: np.float64}[kind]))
    return out, out


def read(kind: int, values: Any) -> Any:
    import cupy

    got = cupy.asnumpy(values, order="F")
    return case.from_bf16(np.ascontiguousarray(got)) if kind == R_16BF else got


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def matmul(kind: int, epilogue: str, m: int, n: int, k: int, trans: tuple[int, int]) -> Any:
    import cupy

    rng = case.generator("lt", kind, epilogue, m, n, k, trans)
    shapes = ((k, m) if trans[0] else (m, k)), ((n, k) if trans[1] else (k, n)), (m, n), (m,)
    (a, va), (b, vb), (c, vc), (bias, vbias) = (stored(kind, rng.uniform(-1, 1, s)) for s in shapes)
    da, db, dc, dbias = (cupy.asarray(v, order="F") for v in (a, b, c, bias))
    dd = cupy.zeros((m, n), dc.dtype, order="F")
    workspace = cupy.zeros(4 << 20, np.uint8)
    scale_type = R_64F if kind == R_64F else R_32F
    call, made = library().call, []
    description = ctypes.c_void_p()
    call("cublasLtMatmulDescCreate", ctypes.byref(description), COMPUTE[kind], scale_type)
    attributes: list[tuple[int, Any]] = [
        (TRANSA, ctypes.c_int(trans[0])), (TRANSB, ctypes.c_int(trans[1])), (EPILOGUE, ctypes.c_int(EPILOGUES[epilogue])),
    ]  # fmt: skip
    if "bias" in epilogue:
        attributes.append((BIAS_POINTER, ctypes.c_void_p(dbias.data.ptr)))
    for name, value in attributes:
        call("cublasLtMatmulDescSetAttribute", description, name, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))
    for matrix in (a, b, c, c):
        layout = ctypes.c_void_p()
        rows, columns = ctypes.c_uint64(matrix.shape[0]), ctypes.c_uint64(matrix.shape[1])
        call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind, rows, columns, native.long(matrix.shape[0]))
        made.append(layout)
    eps, wide = ACCUMULATE[kind], np.longdouble if kind == R_64F else np.float64
    scalar = np.float64 if kind == R_64F else np.float32
    beta = 0.5 if epilogue == "plain" else 0.0
    try:
        call(
            "cublasLtMatmul", handle(), description, np.array(1, scalar), da, made[0], db, made[1], np.array(beta, scalar), dc, made[2], dd, made[3],
            None, workspace, ctypes.c_size_t(workspace.nbytes), None,
        )  # fmt: skip
        got = read(kind, dd)
    finally:
        for layout in made:
            call("cublasLtMatrixLayoutDestroy", layout)
        call("cublasLtMatmulDescDestroy", description)
    x, y = (va.T if trans[0] else va).astype(wide), (vb.T if trans[1] else vb).astype(wide)
    want = x @ y + beta * vc
    scale = np.sqrt((np.abs(x).astype(np.float64) ** 2) @ (np.abs(y).astype(np.float64) ** 2)) + np.abs(want)
    product = want
    if "bias" in epilogue:
        want = want + vbias[:, None]
        scale = scale + np.abs(vbias[:, None])
    if "relu" in epilogue:
        want = np.maximum(want, 0)
    if "gelu" in epilogue:  # a kernel of its own, after the product has been stored
        scale = scale + STORE[kind] * (np.abs(product) + np.abs(want)) / (k**0.5 * eps)
        want = gelu(want)
    return Outcome(got, want, k, eps, scale, STORE[kind])


def batched_ex(kind: int, m: int, n: int, k: int, count: int) -> Any:
    """cublasGemmStridedBatchedEx, row-major matrices seen as column-major ones."""
    import cupy

    rng = case.generator("batchedEx", kind, m, n, k, count)
    if kind == R_16BF:
        a, b = (case.to_bf16(rng.uniform(-1, 1, s)) for s in ((count, m, k), (count, k, n)))
        va, vb = case.from_bf16(a), case.from_bf16(b)
    else:
        a, b = (rng.uniform(-1, 1, s).astype(np.float16 if kind == R_16F else np.float32) for s in ((count, m, k), (count, k, n)))
        va, vb = a, b
    da, db = cupy.asarray(a), cupy.asarray(b)
    dc = cupy.zeros((count, m, n), a.dtype)
    one, zero, long = np.array(1, np.float32), np.array(0, np.float32), native.long
    native.cublas().call(
        "cublasGemmStridedBatchedEx", native.cublas_handle(), 0, 0, n, m, k, one, db, kind, n, long(k * n), da, kind, k, long(m * k), zero, dc, kind, n,
        long(m * n), count, 68, -1,
    )  # fmt: skip
    x, y = va.astype(np.float64), vb.astype(np.float64)
    want = x @ y
    return Outcome(read(kind, dc).reshape(want.shape), want, k, EPS["f32"], np.sqrt(x**2 @ y**2) + np.abs(want), STORE[kind])


def math_mode(tf32: bool, n: int) -> Any:
    """cublasSgemm as it is, and where the program allows TF32: then numbers have ten bits of fraction, and the result shows it."""
    import cupy

    rng = case.generator("mode", n)
    a, b = (np.asfortranarray(rng.uniform(-1, 1, (n, n)).astype(np.float32)) for _ in range(2))
    da, db, dc = cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), cupy.zeros((n, n), np.float32, order="F")
    blas, h = native.cublas(), native.cublas_handle()
    blas.call("cublasSetMathMode", h, 3 if tf32 else 0)
    try:
        blas.call("cublasSgemm_v2", h, 0, 0, n, n, n, np.array(1, np.float32), da, n, db, n, np.array(0, np.float32), dc, n)
        got = cupy.asnumpy(dc)
    finally:
        blas.call("cublasSetMathMode", h, 0)
    x, y = a.astype(np.float64), b.astype(np.float64)
    want = x @ y
    return Outcome(got, want, n, EPS["tf32" if tf32 else "f32"], np.sqrt(x**2 @ y**2) + np.abs(want))


def gemm3m(letter: str, n: int) -> Any:
    import cupy

    dtype, eps, wide = (np.complex64, EPS["f32"], np.complex128) if letter == "C" else (np.complex128, EPS["f64"], np.clongdouble)
    rng = case.generator("3m", letter, n)
    a, b = (np.asfortranarray((rng.uniform(-1, 1, (n, n)) + 1j * rng.uniform(-1, 1, (n, n))).astype(dtype)) for _ in range(2))
    da, db, dc = cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), cupy.zeros((n, n), dtype, order="F")
    native.cublas().call(f"cublas{letter}gemm3m", native.cublas_handle(), 0, 0, n, n, n, np.array(1, dtype), da, n, db, n, np.array(0, dtype), dc, n)
    want = a.astype(wide) @ b.astype(wide)
    squares = np.sqrt(np.abs(a).astype(np.float64) ** 2 @ np.abs(b).astype(np.float64) ** 2)
    return Outcome(cupy.asnumpy(dc), want, n, eps, 2 * (squares + np.abs(want)))


def cases() -> Iterator[Any]:
    for kind, epilogue, (m, n, k) in itertools.product(NAMES, EPILOGUES, [(64, 64, 64), (128, 96, 256), (33, 65, 17)]):
        if kind == R_64F and epilogue != "plain":
            continue
        for trans in ((0, 0), (1, 0)):
            yield Case(
                "cublas", f"Lt matmul, {epilogue}", NAMES[kind], f"{m}x{n}x{k} {'NT'[trans[0]]}{'NT'[trans[1]]}",
                lambda a=(kind, epilogue, m, n, k, trans): matmul(*a), (kind, epilogue, m, trans[0]) == (R_32F, "relu, bias", 64, 1),
            )  # fmt: skip
    for kind, (m, n, k, count) in itertools.product((R_16F, R_16BF, R_32F), [(32, 32, 32, 9), (64, 40, 128, 4), (5, 7, 3, 11)]):
        yield Case("cublas", "GemmStridedBatchedEx", NAMES[kind], f"{count} of {m}x{n}x{k}", lambda a=(kind, m, n, k, count): batched_ex(*a))
    for tf32, n in itertools.product((False, True), (64, 128, 255, 300)):
        yield Case("cublas", "gemm, TF32 allowed" if tf32 else "gemm, TF32 not allowed", "float", f"{n}", lambda a=(tf32, n): math_mode(*a))
    for letter, n in itertools.product("CZ", (17, 64, 130)):
        yield Case("cublas", "gemm3m", "complex64" if letter == "C" else "complex128", f"{n}", lambda a=(letter, n): gemm3m(*a))
