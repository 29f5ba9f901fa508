"""The measured program: each row on the GPU and with NumPy, in turns. Prints one line of JSON.

Data is on the device. A turn is as many calls as fill a few tenths of a second, with a synchronise before the clock starts and one before it stops.
NumPy writes into arrays that are there already, and its matrix products use every core. What the two compute is compared once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

Call = Callable[[], Any]


@dataclass
class Row:
    """One thing to measure. `work`: units a call. `check` returns (the GPU's result, what is right) after both have run once."""

    name: str
    text: str
    unit: str
    work: float
    gpu: Call
    cpu: Call | None
    check: Callable[[], tuple[Any, Any]]
    target: float | None = None
    tolerance: float = 1e-5


Make = Callable[[Any, Any, int], Row]
ROWS: dict[str, Make] = {}


def row(make: Make) -> Make:
    """Registers a row's maker. Its arguments: CuPy, the module of kernels, and a divisor for the sizes."""
    ROWS[make.__name__] = make
    return make


def arrays(cp: Any, *shape: int, dtype: Any = np.float32, seed: int = 1) -> tuple[Any, Any]:
    """Random numbers on the host and on the device."""
    host = (np.random.default_rng(seed).standard_normal(shape, np.float32) * 0.5).astype(dtype)
    return host, cp.asarray(host)


# Memory and elements --------------------------------------------------------------------------------------------------------------------------


@row
def saxpy(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x, dx = arrays(cp, n)
    y, dy = np.zeros_like(x), cp.zeros_like(dx)
    product = np.empty_like(x)
    f = kernels.get_function("saxpy")

    def cpu() -> None:
        np.multiply(x, np.float32(0.5), out=product)
        np.add(product, y, out=y)

    def gpu() -> None:
        f((n // 256,), (256,), (dy, dx, np.float32(0.5), np.int32(n)))

    return Row("saxpy", "saxpy, own kernel, 16M", "Gel/s", n / 1e9, gpu, cpu, lambda: (dy, y), 1.0)


def elementwise(name: str, text: str, target: float | None = None, dtype: Any = np.float32, positive: bool = False) -> None:
    """A row for one of CuPy's element-wise functions."""

    def make(cp: Any, kernels: Any, small: int) -> Row:
        n = (1 << 24) // small
        x, dx = arrays(cp, n, dtype=dtype)
        if positive:
            x, dx = np.abs(x) + dtype(0.1), cp.abs(dx) + dtype(0.1)
        y, dy = np.empty_like(x), cp.empty_like(dx)
        function, other = getattr(cp, name), getattr(np, name)
        extra = (dtype(1.7),) if name == "power" else ()
        tolerance = 2e-6 if dtype == np.float32 else 1e-14
        return Row(
            key, text, "Gel/s", n / 1e9, lambda: function(dx, *extra, out=dy), lambda: other(x, *extra, out=y), lambda: (dy, y), target, tolerance
        )

    key = name if dtype == np.float32 else f"{name}_f64"
    ROWS[key] = make


@row
def exp_kernel(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x, dx = arrays(cp, n)
    y, dy = np.empty_like(x), cp.empty_like(dx)
    f = kernels.get_function("exp_each")
    gpu = lambda: f((n // 256,), (256,), (dy, dx, np.int32(n)))  # noqa: E731
    return Row("exp_kernel", "exp, own kernel, 16M", "Gel/s", n / 1e9, gpu, lambda: np.exp(x, out=y), lambda: (dy, y), 1.0, 2e-6)


elementwise("exp", "exp, CuPy, 16M", 1.0)
elementwise("log", "log, CuPy, 16M", positive=True)
elementwise("sin", "sin, CuPy, 16M")
elementwise("tanh", "tanh, CuPy, 16M")
elementwise("power", "x ** 1.7, CuPy, 16M", positive=True)
elementwise("sqrt", "sqrt, CuPy, 16M", positive=True)
elementwise("exp", "exp in double, CuPy, 16M", dtype=np.float64)


@row
def chain(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 22) // small
    x, dx = arrays(cp, n)
    y, dy = arrays(cp, n, seed=2)
    out, d_out = np.empty_like(x), cp.empty_like(dx)
    t, d_t = np.empty_like(x), cp.empty_like(dx)

    def run(xp: Any, x: Any, y: Any, t: Any, out: Any) -> None:
        xp.multiply(x, y, out=out)
        xp.add(out, x, out=out)
        xp.maximum(out, y, out=out)
        xp.subtract(out, x, out=t)
        xp.multiply(t, t, out=t)
        xp.add(out, t, out=out)

    return Row("chain", "six element-wise operations, CuPy, 4M", "Gel/s", 6 * n / 1e9, lambda: run(cp, dx, dy, d_t, d_out),
               lambda: run(np, x, y, t, out), lambda: (d_out, out))  # fmt: skip


@row
def transpose(cp: Any, kernels: Any, small: int) -> Row:
    n = 4096 // (32 if small > 1 else 1)
    x, dx = arrays(cp, n, n)
    y, dy = np.empty_like(x), cp.empty_like(dx)
    f = kernels.get_function("transpose")

    def gpu() -> None:
        f((n // 32, n // 32), (32, 8), (dy, dx, np.int32(n)))

    return Row("transpose", "transpose through shared memory, 4096²", "Gel/s", n * n / 1e9, gpu, lambda: np.copyto(y, x.T), lambda: (dy, y))


# Reductions -----------------------------------------------------------------------------------------------------------------------------------


@row
def sum_cupy(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x, dx = arrays(cp, n)
    x, dx = x + np.float32(1), dx + 1
    y, dy = np.empty((), np.float32), cp.empty((), np.float32)
    return Row("sum_cupy", "sum, CuPy, 16M", "Gel/s", n / 1e9, lambda: dx.sum(out=dy), lambda: x.sum(out=y), lambda: (dy, y), 0.5, 1e-4)


@row
def sum_kernel(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x, dx = arrays(cp, n)
    x, dx = x + np.float32(1), dx + 1
    y, dy = np.empty((), np.float32), cp.zeros((), np.float32)
    f = kernels.get_function("shuffle_sum")

    def gpu() -> None:
        dy.fill(0)
        f((64,), (256,), (dy, dx, np.int32(n)))

    return Row("sum_kernel", "sum, own kernel with shuffles, 16M", "Gel/s", n / 1e9, gpu, lambda: x.sum(out=y), lambda: (dy, y), 0.5, 1e-4)


@row
def sum_rows(cp: Any, kernels: Any, small: int) -> Row:
    n = 4096 // (32 if small > 1 else 1)
    x, dx = arrays(cp, n, n)
    y, dy = np.empty(n, np.float32), cp.empty(n, np.float32)
    return Row("sum_rows", "sums of rows, CuPy, 4096²", "Gel/s", n * n / 1e9, lambda: dx.sum(axis=1, out=dy), lambda: x.sum(axis=1, out=y),
               lambda: (dy, y), None, 1e-3)  # fmt: skip


@row
def histogram(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x = np.random.default_rng(1).integers(0, 256, n, np.uint8)
    dx, bins = cp.asarray(x), cp.zeros(256, np.uint32)
    f = kernels.get_function("histogram")
    right: list[Any] = [None]

    def gpu() -> None:
        bins.fill(0)
        f((64,), (256,), (bins, dx, np.int32(n)))

    def cpu() -> None:
        right[0] = np.bincount(x, minlength=256)

    return Row("histogram", "histogram, shared atomics, 16M bytes", "Gel/s", n / 1e9, gpu, cpu, lambda: (bins, right[0]))


@row
def softmax(cp: Any, kernels: Any, small: int) -> Row:
    n = 4096 // (16 if small > 1 else 1)
    x, dx = arrays(cp, n, n)
    y, dy = np.empty_like(x), cp.empty_like(dx)
    f = kernels.get_function("softmax")

    def cpu() -> None:
        np.subtract(x, x.max(axis=1, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(axis=1, keepdims=True), out=y)

    gpu = lambda: f((n,), (256,), (dy, dx, np.int32(n)))  # noqa: E731
    return Row("softmax", "softmax of rows, own kernel, 4096²", "Gel/s", n * n / 1e9, gpu, cpu, lambda: (dy, y), None, 1e-4)


@row
def sort(cp: Any, kernels: Any, small: int) -> Row:
    n = (1 << 24) // small
    x, dx = arrays(cp, n)
    y, dy = np.empty_like(x), cp.empty_like(dx)

    def gpu() -> None:
        cp.copyto(dy, dx)
        dy.sort()

    def cpu() -> None:
        np.copyto(y, x)
        y.sort()

    return Row("sort", "sort, CuPy, 16M", "Gel/s", n / 1e9, gpu, cpu, lambda: (dy, y), 0.2)


# Matrices -------------------------------------------------------------------------------------------------------------------------------------


def _gemm(cp: Any, name: str, text: str, n: int, call: Callable[[Any, Any, Any], None], target: float | None, dtype: Any = np.float32) -> Row:
    a, da = arrays(cp, n, n, dtype=dtype)
    b, db = arrays(cp, n, n, dtype=dtype, seed=2)
    d_out = cp.zeros((n, n), dtype)
    wide = np.float32 if dtype == np.float16 else dtype  # NumPy has no fast product of halves: what it is compared with is its product of floats
    a, b = a.astype(wide), b.astype(wide)
    out = np.empty((n, n), wide)
    tolerance = 1e-2 if dtype == np.float16 else 1e-3 if dtype == np.float32 else 1e-10
    return Row(name, text, "GFLOP/s", 2 * n**3 / 1e9, lambda: call(d_out, da, db), lambda: np.matmul(a, b, out=out), lambda: (d_out, out), target,
               tolerance)  # fmt: skip


@row
def sgemm_16(cp: Any, kernels: Any, small: int) -> Row:
    n, f = 1024 // (8 if small > 1 else 1), kernels.get_function("sgemm16")
    return _gemm(
        cp, "sgemm_16", "sgemm, own kernel, 16×16 tiles, 1024³", n, lambda c, a, b: f((n // 16, n // 16), (16, 16), (c, a, b, np.int32(n))), 0.25
    )


@row
def sgemm_64(cp: Any, kernels: Any, small: int) -> Row:
    n, f = 1024 // (8 if small > 1 else 1), kernels.get_function("sgemm64")
    return _gemm(cp, "sgemm_64", "sgemm, own kernel, 64×64 tiles, 4×4 a thread, 1024³", n,
                 lambda c, a, b: f((n // 64, n // 64), (256,), (c, a, b, np.int32(n))), 0.25)  # fmt: skip


@row
def sgemm_cublas(cp: Any, kernels: Any, small: int) -> Row:
    n = 1024 // (8 if small > 1 else 1)
    return _gemm(cp, "sgemm_cublas", "sgemm, cuBLAS, 1024³", n, lambda c, a, b: cp.matmul(a, b, out=c), 0.25)


@row
def dgemm_cublas(cp: Any, kernels: Any, small: int) -> Row:
    n = 1024 // (8 if small > 1 else 1)
    return _gemm(cp, "dgemm_cublas", "dgemm, cuBLAS, 1024³", n, lambda c, a, b: cp.matmul(a, b, out=c), None, np.float64)


@row
def hgemm_cublas(cp: Any, kernels: Any, small: int) -> Row:
    n = 1024 // (8 if small > 1 else 1)
    text = "gemm of halves, cuBLAS (mma), 1024³, beside sgemm"
    return _gemm(cp, "hgemm_cublas", text, n, lambda c, a, b: cp.matmul(a, b, out=c), None, np.float16)


# The runtime ----------------------------------------------------------------------------------------------------------------------------------


@row
def launches(cp: Any, kernels: Any, small: int) -> Row:
    y = cp.zeros(32, np.float32)
    f = kernels.get_function("small")
    count = 1000 // (10 if small > 1 else 1)
    calls = [0]

    def gpu() -> None:
        for _ in range(count):
            f((1,), (32,), (y,))
        calls[0] += count

    return Row("launches", "small launches in a row, through CuPy", "k/s", count / 1e3, gpu, None, lambda: (y, np.full(32, calls[0], np.float32)))


@row
def overlap(cp: Any, kernels: Any, small: int) -> Row:
    """Copies from pinned memory beside a kernel of about the same length on another stream; compared with one after the other."""
    n = (1 << 24) // small
    host = cp.cuda.alloc_pinned_memory(4 * n)
    source = np.frombuffer(host, np.float32, n)
    source[:] = np.random.default_rng(1).standard_normal(n, np.float32)
    target = cp.empty(n, np.float32)
    x, y = cp.ones(n // 4, np.float32), cp.empty(n // 4, np.float32)
    copying, running = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    f = kernels.get_function("exp_each")

    def both(first: Any, second: Any) -> None:
        target.data.copy_from_host_async(source.ctypes.data, 4 * n, first)
        with second:
            f((n // 1024,), (256,), (y, x, np.int32(n // 4)))

    return Row("overlap", "a copy of 64 MiB beside a kernel, beside one after the other", "/s", 1, lambda: both(copying, running),
               lambda: both(running, running), lambda: (target, source))  # fmt: skip


@row
def training(cp: Any, kernels: Any, small: int) -> Row:
    """A network 256 × 784 → 256 → 10, a step of stochastic gradient descent."""
    batch, hidden = 256 // (8 if small > 1 else 1), 256 // (8 if small > 1 else 1)
    x, dx = arrays(cp, batch, 784)
    t, dt = arrays(cp, batch, 10, seed=2)
    w1, dw1 = arrays(cp, 784, hidden, seed=3)
    w2, dw2 = arrays(cp, hidden, 10, seed=4)

    def step(xp: Any, x: Any, t: Any, w1: Any, w2: Any) -> None:
        z = x @ w1
        h = xp.maximum(z, 0)
        d = (h @ w2 - t) * np.float32(1e-5)
        g = (d @ w2.T) * (z > 0)
        w2 -= h.T @ d
        w1 -= x.T @ g

    return Row("training", "a training step, 784 → 256 → 10, CuPy", "steps/s", 1, lambda: step(cp, dx, dt, dw1, dw2), lambda: step(np, x, t, w1, w2),
               lambda: (dw1, w1), None, 1e-3)  # fmt: skip


@row
def convolution(cp: Any, kernels: Any, small: int) -> Row:
    """Through cuDNN's own interface; NumPy: windows, then a matrix product."""
    from convolve import Convolution  # beside this file

    n, c, size, k = (8, 32, 32, 64) if small == 1 else (1, 8, 8, 8)
    x, dx = arrays(cp, n, c, size, size)
    w, dw = arrays(cp, k, c, 3, 3, seed=2)
    y = np.empty((n, k, size - 2, size - 2), np.float32)
    dy = cp.empty(y.shape, np.float32)
    conv = Convolution(dx, dw, dy)
    flat = w.reshape(k, -1)

    def cpu() -> None:
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))  # n c h w 3 3
        for i in range(n):
            y[i] = (flat @ windows[i].transpose(0, 3, 4, 1, 2).reshape(flat.shape[1], -1)).reshape(y.shape[1:])

    return Row(
        "convolution", f"convolution 3×3, cuDNN, {n}×{c}×{size}² → {k}", "GFLOP/s", 2 * y.size * c * 9 / 1e9, conv, cpu, lambda: (dy, y), None, 1e-3
    )


# Measuring ------------------------------------------------------------------------------------------------------------------------------------


def turn(call: Call, wait: Call, count: int) -> float:
    """Seconds a call."""
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - begun) / count


def fill(call: Call, wait: Call, seconds: float) -> tuple[int, float]:
    """How many calls fill that time, and what the first took."""
    first = turn(call, wait, 1)
    once = turn(call, wait, 1)
    return max(1, min(10000, int(seconds / once))), first


def close(found: Any, right: Any, tolerance: float) -> bool:
    """Whether two results are the same but for rounding, by the size of the greatest."""
    a, b = np.asarray(found, np.float64), np.asarray(right, np.float64)
    return a.shape == b.shape and bool(np.max(np.abs(a - b)) <= tolerance * max(1e-30, float(np.max(np.abs(b)))))


def measure(made: Row, wait: Call, rounds: int, seconds: float) -> dict[str, Any]:
    made.gpu()
    wait()
    if made.cpu is not None:
        made.cpu()
    found, right = made.check()
    result: dict[str, Any] = {"name": made.name, "text": made.text, "unit": made.unit, "target": made.target}
    result["right"] = close(found.get() if hasattr(found, "get") else found, right, made.tolerance)
    gpu_count = fill(made.gpu, wait, seconds)[0]
    cpu_count = fill(made.cpu, wait, seconds)[0] if made.cpu is not None else 0
    gpu: list[float] = []
    cpu: list[float] = []
    for _ in range(rounds):
        rest()
        gpu.append(made.work / turn(made.gpu, wait, gpu_count))
        if made.cpu is not None:
            time.sleep(0.005)
            cpu.append(made.work / turn(made.cpu, wait, cpu_count))
    result |= {"gpu": median(gpu), "gpu_rounds": gpu}
    if cpu:
        result |= {"cpu": median(cpu), "cpu_rounds": cpu, "ratio": median(g / c for g, c in zip(gpu, cpu, strict=True))}
        result["met"] = result["ratio"] >= made.target if made.target is not None else None
    return result


def rest() -> None:
    """Waits until this process is at rest: OpenBLAS's threads look for work for a tenth of a second, on the cores that the software GPU uses."""
    for _ in range(50):
        used = time.process_time()
        time.sleep(0.02)
        if time.process_time() - used < 0.002:
            return


def chosen(names: str) -> Iterator[tuple[str, Make]]:
    for name, make in ROWS.items():
        if not names or name in names.split(","):
            yield name, make


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--small", type=int, default=1)
    options = parser.parse_args()
    if unknown := [name for name in options.rows.split(",") if name and name not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    import cupy as cp
    from kernels import SOURCE

    kernels = cp.RawModule(code=SOURCE, options=("--std=c++17",))
    wait = cp.cuda.Device().synchronize
    rows = []
    for name, make in chosen(options.rows):
        print(name, end=" ", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        try:
            rows.append(measure(make(cp, kernels, options.small), wait, options.rounds, options.seconds))
        except Exception as error:
            rows.append({"name": name, "text": name, "error": f"{type(error).__name__}: {error}"[:400]})
            if "cudaError" in str(error) or "CUDA_ERROR" in str(error):
                break  # the context is lost
        rows[-1]["whole_s"] = time.perf_counter() - begun
        cp.get_default_memory_pool().free_all_blocks()
    print(file=sys.stderr)
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()

    print(json.dumps({"device": name, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "numpy": np.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
