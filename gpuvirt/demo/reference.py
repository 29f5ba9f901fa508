"""The expected results of each example, computed by NumPy from the same seed.

Each function takes the seed and the arrays that the example wrote, and returns one line for each wrong result; an empty list means that all are
right.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
Check = Callable[[int, Arrays], list[str]]


def compare(found: Arrays, expected: Arrays, rtol: float = 1e-5, atol: float = 1e-6) -> list[str]:
    """Integers and booleans must be equal, floating point numbers within rtol and atol (half precision: its own epsilon)."""
    wrong = []
    for name, want in expected.items():
        want = np.asarray(want)
        if name not in found:
            wrong.append(f"{name} is missing")
            continue
        have = np.asarray(found[name])
        if have.shape != want.shape:
            wrong.append(f"{name} has shape {have.shape}, not {want.shape}")
            continue
        if want.dtype.kind != "f":
            different = int(np.count_nonzero(have != want))
            if different:
                wrong.append(f"{name}: {different} of {want.size} values differ")
            continue
        tolerance = (2e-3, 1e-3) if want.dtype == np.float16 else (rtol, atol)
        close = np.isclose(have, want, rtol=tolerance[0], atol=tolerance[1])
        if not close.all():
            worst = float(np.nanmax(np.abs(have.astype(np.float64) - want.astype(np.float64))))
            wrong.append(f"{name}: {int((~close).sum())} of {want.size} values are off, by up to {worst:.3g}")
    return wrong


def elementwise(seed: int, found: Arrays) -> list[str]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, 400)).astype(np.float32)
    y = rng.standard_normal(400).astype(np.float32)
    k = rng.integers(-1000, 1000, 5000, dtype=np.int32)
    expected = {
        "saxpy": np.float32(2.5) * x + y,
        "functions": np.exp(-np.abs(x)) * np.sin(y) + np.sqrt(np.abs(x)) / (1 + x * x),
        "kernel": (x - y) * (x - y),
        "where": np.where(x > 0, x, np.float32(0.1) * x),
        "integers": (k * 31 + 7) % 101 - (k >> 2),
        "double": np.tanh(x.astype(np.float64)) + np.log1p(np.abs(x).astype(np.float64)),
        "half": x.astype(np.float16) * np.float16(0.5),
        "transposed": x.T[::2, ::3],
    }
    return compare(found, expected)


def reductions(seed: int, found: Arrays) -> list[str]:
    rng = np.random.default_rng(seed)
    x = rng.random((257, 1031))
    k = rng.integers(0, 64, 100_000, dtype=np.int32)
    expected = {
        "total": x.sum(),
        "rows": x.sum(axis=1),
        "columns": x.mean(axis=0),
        "extrema": np.array([x.min(), x.max()]),
        "argmax": x.argmax(axis=1),
        "variance": x.var(axis=0),
        "norm": np.sqrt((x * x).sum()),
        "cumulative": np.cumsum(k),
        "histogram": np.bincount(k, minlength=64),
        "any_all": np.array([(x > 0.999999).any(), (x >= 0).all()]),
    }
    return compare(found, expected, rtol=1e-11, atol=0)


def sorting(seed: int, found: Arrays) -> list[str]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(50_000).astype(np.float32)
    k = rng.permutation(20_000).astype(np.int64)
    small = rng.integers(0, 300, 10_000, dtype=np.int32)
    expected = {
        "floats": np.sort(x),
        "order": np.argsort(k),
        "unique": np.unique(small),
        "rows": np.sort(x.reshape(500, 100), axis=1),
    }
    wrong = compare(found, expected, rtol=0, atol=0)
    # linspace may round its points differently, so each position is compared with the sorted values within that tolerance.
    points, ordered = np.linspace(-3, 3, 101), np.sort(x)
    low, high = np.searchsorted(ordered, points - 1e-5), np.searchsorted(ordered, points + 1e-5)
    positions = np.asarray(found.get("found", np.empty(0)))
    if positions.shape != points.shape or ((positions < low) | (positions > high)).any():
        wrong.append("found: positions are wrong")
    return wrong


def raw_kernel(seed: int, found: Arrays) -> list[str]:
    rng = np.random.default_rng(seed)
    n = 100_000
    x = rng.random(n).astype(np.float32)
    matrix = rng.integers(0, 1 << 30, (123, 457), dtype=np.int32)
    start = rng.integers(1, 1_000_000, 4096, dtype=np.uint32)
    values = rng.integers(0, 200, n, dtype=np.int32)
    padded = np.zeros((n + 255) // 256 * 256)
    padded[:n] = x
    steps = np.zeros(4096, np.int32)
    v = start.astype(np.uint64)
    while (v != 1).any():
        going = v != 1
        steps[going] += 1
        v = np.where(going, np.where(v % 2 == 1, 3 * v + 1, v // 2), v)
    expected = {
        "sums": padded.reshape(-1, 256).sum(axis=1).astype(np.float32),
        "transposed": matrix.T,
        "steps": steps,
        "longest": np.array([steps.max()]),
        "bins": np.bincount(values, minlength=200),
    }
    return compare(found, expected)


def matmul(seed: int, found: Arrays) -> list[str]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((192, 320)).astype(np.float32)
    b = rng.standard_normal((320, 128)).astype(np.float32)
    features = rng.standard_normal((512, 16))
    truth = rng.standard_normal(16)
    target = features @ truth + 0.01 * rng.standard_normal(512)
    weights = np.zeros(16)
    for _ in range(60):
        weights -= 0.3 * (features.T @ (features @ weights - target)) / 512
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Errors of a product grow with the root of its length; 4 units of that are allowed.
    room = 4 * np.sqrt(320) * float(np.finfo(np.float32).eps) * float(np.abs(a).max()) * float(np.abs(b).max())
    wrong = compare(found, {"single": exact, "transposed": exact.T, "vector": exact[:, 0]}, rtol=0, atol=room)
    return wrong + compare(found, {"double": exact, "weights": weights}, rtol=1e-10, atol=1e-10)


def random_numbers(seed: int, found: Arrays) -> list[str]:
    n = 100_000
    wrong = []
    for name in ("uniform", "again", "normal", "integers", "modern"):
        if np.asarray(found.get(name, 0)).shape != (n,):
            return [f"{name} is missing or of the wrong size"]
    uniform, normal, integers, modern = found["uniform"], found["normal"], found["integers"], found["modern"]
    if (uniform != found["again"]).any():
        wrong.append("the same seed gave other numbers")
    for name, values in (("uniform", uniform), ("modern", modern)):
        if values.min() < 0 or values.max() > 1 or np.unique(values).size < 0.99 * n:
            wrong.append(f"{name} leaves [0, 1] or repeats itself")
        counts = np.histogram(values, 50, (0, 1))[0]
        if ((counts - n / 50) ** 2).sum() / (n / 50) > 110:  # chi-squared with 49 degrees of freedom, p < 1e-6
            wrong.append(f"{name} is not uniform")
    if abs(normal.mean()) > 5 / np.sqrt(n) or abs(normal.std() - 1) > 5 / np.sqrt(2 * n) or abs((normal.astype(float) ** 4).mean() - 3) > 0.2:
        wrong.append("normal: mean, deviation or fourth moment is off")
    if integers.min() != 0 or integers.max() != 9 or (np.abs(np.bincount(integers, minlength=10) - n / 10) > 6 * np.sqrt(n / 10)).any():
        wrong.append("integers are not uniform in 0..9")
    return wrong + compare(found, {"mean": uniform.mean()}, rtol=1e-11)


def streams(seed: int, found: Arrays) -> list[str]:
    x = np.random.default_rng(seed).random(200_000).astype(np.float32)

    def run(v: Any, times: int) -> Any:
        for _ in range(times):
            v = v * np.float32(0.5) + np.float32(1)
        return v

    expected = {"chained": run(x, 15), "parts": np.concatenate([run(x[i::4], 7) for i in range(4)]), "done": np.array([True, True, True])}
    wrong = compare(found, expected)
    times = np.asarray(found.get("milliseconds", np.zeros(2)))
    if not (0 < times[0] <= times[1] < 600_000):
        wrong.append(f"elapsed times {times} are not in order")
    return wrong


def two_devices(seed: int, found: Arrays) -> list[str]:
    x = np.random.default_rng(seed).random(60_000).astype(np.float32)
    expected = {
        "first": x * 2,
        "second": x * 2 + 1,
        "back": x * 2 + 1 - 3,
        "peer": x * 2 + 1,
        "other": np.arange(1000) ** 2,
        "devices": np.array([0, 1, 0]),
        "count": np.array([2]),
    }
    return compare(found, expected)


def read_cuda_tour(path: Path) -> Arrays:
    """The raw file of examples/cuda/tour.cu as named arrays."""
    n = 1 << 16
    layout = [("sum", "<f4", n), ("blocks", "<f4", 64), ("bins", "<u4", 256), ("polynomial", "<f4", n), ("streams", "<f4", n)]
    data, arrays, at = path.read_bytes(), {}, 0
    for name, dtype, count in layout:
        size = 4 * count
        if at + size <= len(data):
            arrays[name] = np.frombuffer(data[at : at + size], dtype)
        at += size
    return arrays


def cuda_tour(seed: int, found: Arrays) -> list[str]:
    n = 1 << 16
    words, state = np.empty(n, np.uint32), seed & 0xFFFFFFFF
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        words[i] = state
    a = ((words >> 8) / np.float32(16777216)).astype(np.float32)
    b = np.float32(1) - np.float32(2) * a
    total = np.float32(3) * a + b
    order = np.arange(n).reshape(-1, 64, 256)  # the grid-stride loop: block b takes 256 elements, then those one grid further
    expected = {
        "sum": total,
        "blocks": total.astype(np.float64)[order].sum(axis=(0, 2)).astype(np.float32),
        "bins": np.bincount(words >> 24, minlength=256),
        "polynomial": ((np.float32(0.75) * a + np.float32(2)) * a + np.float32(-1.5)) * a + np.float32(0.25),
        "streams": np.float32(2) * a + b,
    }
    return compare(found, expected)


CHECKS: dict[str, Check] = {
    "cupy/elementwise.py": elementwise,
    "cupy/reductions.py": reductions,
    "cupy/sorting.py": sorting,
    "cupy/raw_kernel.py": raw_kernel,
    "cupy/matmul.py": matmul,
    "cupy/random_numbers.py": random_numbers,
    "cupy/streams.py": streams,
    "cupy/two_devices.py": two_devices,
    "cuda/tour.cu": cuda_tour,
}
