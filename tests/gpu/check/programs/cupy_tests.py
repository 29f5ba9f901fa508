"""CuPy: elementwise steps, a kernel of one's own, a matrix product (cuBLAS), a training loop written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import common
import cupy
import numpy


def finish() -> None:
    cupy.cuda.Device().synchronize()


def elementwise() -> dict[str, Any]:
    x = cupy.asarray(numpy.random.default_rng(7).random(1 << 16, dtype=numpy.float32))

    def step() -> Any:
        nonlocal x
        x = cupy.sqrt(x * x + 1) - x
        return x

    return common.timed(step, finish, lambda a: float(a.sum()))


def kernel() -> dict[str, Any]:
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = x[i] * 0.75f + i % 5;"
    source = 'extern "C" __global__ void mix(float *x, int n) { ' + body + " }"
    mix, n = cupy.RawKernel(source, "mix"), 100_003
    x = cupy.zeros(n, cupy.float32)

    def step() -> Any:
        mix(((n + 255) // 256,), (256,), (x, numpy.int32(n)))
        return x

    return common.timed(step, finish, lambda a: float(a[:100].sum()))


def matmul() -> dict[str, Any]:
    random = numpy.random.default_rng(7)
    a, b = (cupy.asarray(random.random((256, 256), dtype=numpy.float32)) for _ in range(2))

    def step() -> Any:
        nonlocal a
        a = a @ b / 128
        return a

    return common.timed(step, finish, lambda m: float(m[0].sum()))


def regression() -> dict[str, Any]:
    random = numpy.random.default_rng(7)
    x, y = cupy.asarray(random.random((512, 32), dtype=numpy.float32)), cupy.asarray(random.random(512, dtype=numpy.float32))
    w = cupy.zeros(32, cupy.float32)

    def step() -> Any:
        nonlocal w
        error = x @ w - y
        w = w - 0.01 * (x.T @ error) / 512
        return (error * error).mean()

    return common.timed(step, finish, float, 512)


TESTS: dict[str, Callable[[], dict[str, Any]]] = {"elementwise": elementwise, "kernel": kernel, "matmul": matmul, "regression": regression}

if __name__ == "__main__":
    sys.exit(common.main(TESTS, lambda: f"CuPy {cupy.__version__}"))
