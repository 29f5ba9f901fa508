"""Numba's CUDA kernels, checked against NumPy."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import scipy.special
from checks import check, main
from numba import complex64, cuda, float32, int32, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

rng = np.random.default_rng(1)


@check
def vector_add():
    @cuda.jit
    def add(a, b, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = a[i] + b[i]

    a, b = rng.random(1001, dtype=np.float32), rng.random(1001, dtype=np.float32)
    out = np.zeros_like(a)
    add[8, 128](a, b, out)
    assert (out == a + b).all()


@check
def matrix_multiply_with_shared_memory():
    @cuda.jit
    def multiply(a, b, out):
        left, right = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0)
        for k in range(a.shape[1] // 16):
            left[ty, tx] = a[y, k * 16 + tx]
            right[ty, tx] = b[k * 16 + ty, x]
            cuda.syncthreads()
            for j in range(16):
                total += left[ty, j] * right[j, tx]
            cuda.syncthreads()
        out[y, x] = total

    a, b = rng.random((64, 96), dtype=np.float32), rng.random((96, 48), dtype=np.float32)
    out = np.zeros((64, 48), np.float32)
    multiply[(3, 4), (16, 16)](a, b, out)
    exact = a.astype(np.float64) @ b
    assert np.abs(out - exact).max() <= 2**-24 * math.sqrt(96) * 2 * exact.max()


@check
def fused_multiply_add_is_exact():
    @cuda.jit
    def horner(x, out):
        i = cuda.grid(1)
        out[i] = cuda.fma(x[i], x[i], -x[i])

    x = rng.random(256)
    out = np.zeros_like(x)
    horner[2, 128](x, out)
    exact = np.array([float(np.longdouble(v) * np.longdouble(v) - np.longdouble(v)) for v in x])
    assert np.abs(out - exact).max() <= 2**-53


@check
def reduction():
    @cuda.jit
    def total(x, out):
        part, t, i = cuda.shared.array(256, int32), cuda.threadIdx.x, cuda.grid(1)
        part[t] = x[i] if i < x.size else 0
        cuda.syncthreads()
        k = 128
        while k > 0:
            if t < k:
                part[t] += part[t + k]
            cuda.syncthreads()
            k //= 2
        if t == 0:
            cuda.atomic.add(out, 0, part[0])

    x = rng.integers(-1000, 1000, 10000).astype(np.int32)
    out = np.zeros(1, np.int32)
    total[40, 256](x, out)
    assert out[0] == x.sum()


@check
def reduce_decorator():
    add = cuda.reduce(lambda a, b: a + b)
    x = rng.integers(0, 100, 5000).astype(np.float64)
    assert add(x) == x.sum()


def functions(dtype, limit):
    @cuda.jit
    def apply(x, out):
        i = cuda.grid(1)
        if i < x.size:
            v = x[i]
            out[0, i], out[1, i], out[2, i], out[3, i] = math.sin(v), math.exp(v), math.log(v), math.pow(v, 1.5)
            out[4, i], out[5, i], out[6, i], out[7, i] = math.tanh(v), math.erf(v), math.sqrt(v), math.gamma(v)

    x = (rng.random(777) * 4 + 0.1).astype(dtype)
    out = np.zeros((8, 777), dtype)
    apply[7, 128](x, out)
    w = x.astype(np.float64)
    exact = np.array([np.sin(w), np.exp(w), np.log(w), w**1.5, np.tanh(w), scipy.special.erf(w), np.sqrt(w), scipy.special.gamma(w)])
    error = np.abs(out - exact) / np.maximum(np.abs(exact), 0.1) / np.finfo(dtype).eps
    assert error.max() <= limit, error.max(axis=1)


@check
def math_functions_float():
    functions(np.float32, 8)


@check
def math_functions_double():
    functions(np.float64, 16)


@check
def device_functions():
    @cuda.jit(device=True)
    def fibonacci(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    @cuda.jit
    def kernel(out):
        out[cuda.grid(1)] = fibonacci(cuda.grid(1))

    out = np.zeros(32, np.int64)
    kernel[1, 32](out)
    assert out[:8].tolist() == [0, 1, 1, 2, 3, 5, 8, 13] and out[30] == 832040


@check
def atomics():
    @cuda.jit
    def histogram(x, counts, most, least, exchanged):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(counts, x[i], 1)
            cuda.atomic.max(most, 0, x[i])
            cuda.atomic.min(least, 0, x[i])
            cuda.atomic.cas(exchanged, 0, 7, 9)

    x = rng.integers(3, 50, 20000).astype(np.int32)
    counts, most, least, exchanged = np.zeros(50, np.int32), np.zeros(1, np.int32), np.full(1, 99, np.int32), np.full(1, 7, np.int32)
    histogram[80, 256](x, counts, most, least, exchanged)
    assert (counts == np.bincount(x, minlength=50)).all()
    assert (most[0], least[0], exchanged[0]) == (x.max(), x.min(), 9)


@check
def complex_numbers():
    @cuda.jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        out[i] = a[i] * b[i] + complex64(abs(a[i]))

    a = (rng.random(128) + 1j * rng.random(128)).astype(np.complex64)
    out = np.zeros_like(a)
    kernel[1, 128](a, a[::-1].copy(), out)
    exact = a.astype(np.complex128) * a[::-1] + np.abs(a)
    assert np.abs(out - exact).max() <= 2**-21


@check
def half_precision():
    @cuda.jit
    def fused(a, b, out):
        i = cuda.grid(1)
        out[i] = cuda.fp16.hfma(a[i], b[i], a[i])

    @cuda.jit
    def compared(a, b, out):
        i = cuda.grid(1)
        out[i] = a[i] if a[i] > b[i] else -b[i]

    a, b = rng.random(64).astype(np.float16), rng.random(64).astype(np.float16)
    out = np.zeros_like(a)
    fused[1, 64](a, b, out)
    assert (out == (a.astype(np.float64) * b + a).astype(np.float16)).all()
    compared[1, 64](a, b, out)
    assert (out == np.where(a > b, a, -b)).all()


@check
def grid_wide_barrier():
    @cuda.jit
    def kernel(x, rounds):
        grid, i, n = cuda.cg.this_grid(), cuda.grid(1), cuda.gridsize(1)
        for _ in range(rounds):
            neighbour = x[(i + 1) % n]
            grid.sync()
            x[i] = neighbour + 1
            grid.sync()

    x = np.arange(512, dtype=np.int32)
    expected = x.copy()
    for _ in range(5):
        expected = np.roll(expected, -1) + 1
    kernel[4, 128](x, 5)
    assert (x == expected).all()


@check
def printing():
    @cuda.jit
    def kernel(n):
        if cuda.grid(1) == 3:
            print("thread", cuda.grid(1), "of", n, 2.5)

    kernel[1, 8](7)
    cuda.synchronize()


@check
def linked_with_cuda_source():
    file = Path(tempfile.mkdtemp()) / "twice.cu"
    file.write_text('extern "C" __device__ int twice(int *result, int x) { *result = 2 * x; return 0; }')
    twice = cuda.declare_device("twice", "int32(int32)")

    @cuda.jit(link=[str(file)])
    def kernel(x):
        x[cuda.grid(1)] = twice(x[cuda.grid(1)])

    x = np.arange(32, dtype=np.int32)
    kernel[1, 32](x)
    assert (x == 2 * np.arange(32)).all()


@check
def undefined_function_is_named():
    nowhere = cuda.declare_device("defined_nowhere", "int32(int32)")

    @cuda.jit
    def kernel(x):
        x[0] = nowhere(x[0])

    try:
        kernel[1, 1](np.zeros(1, np.int32))
    except Exception as error:
        assert "defined_nowhere" in str(error), error
    else:
        raise AssertionError("it was linked")


@check
def warp_functions():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 1) + 100 * cuda.popc(cuda.ballot_sync(0xFFFFFFFF, i % 3 == 0))

    out = np.zeros(32, np.int32)
    kernel[1, 32](out)
    assert (out == (np.arange(32) ^ 1) + 1100).all()


@check
def random_numbers():
    states = create_xoroshiro128p_states(1024, seed=3)

    @cuda.jit
    def kernel(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(1024, np.float32)
    kernel[4, 256](states, out)
    assert 0 <= out.min() < 0.02 and 0.98 < out.max() < 1 and abs(out.mean() - 0.5) < 0.05 and len(set(out.tolist())) > 1000


@check
def ufunc():
    @vectorize(["float32(float32, float32)"], target="cuda")
    def multiply(a, b):
        return a * b

    a = rng.random((30, 40), dtype=np.float32)
    assert (multiply(a, a[:1]) == a * a[:1]).all()


@check
def constant_local_and_dynamic_shared_memory():
    table = np.arange(16, dtype=np.float32)

    @cuda.jit
    def kernel(out):
        values, own, shared = cuda.const.array_like(table), cuda.local.array(8, int32), cuda.shared.array(0, float32)
        i = cuda.grid(1)
        for k in range(8):
            own[k] = k * i
        total = 0
        for k in range(8):
            total += own[(3 * k) % 8]
        shared[i] = total + values[i % 16]
        cuda.syncthreads()
        out[i] = shared[31 - i]

    out = np.zeros(32, np.float32)
    kernel[1, 32, 0, 128](out)
    assert (out == (28 * np.arange(32) + np.tile(table, 2))[::-1]).all()


@check
def failed_assertion():
    @cuda.jit(debug=True, opt=False)
    def kernel(x):
        assert x[0] > 0, "not positive"

    try:
        kernel[1, 1](np.zeros(1, np.int32))
        cuda.synchronize()
    except AssertionError as error:
        assert "not positive" in str(error)
    else:
        raise AssertionError("nothing was raised")


main()
