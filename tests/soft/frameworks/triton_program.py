"""Triton kernels, checked against NumPy. Tensors come from NumPy: of PyTorch's own kernels none can run on a software GPU, for its wheels have no PTX of
them."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from checks import check, main

rng = np.random.default_rng(1)


def device(array):
    return torch.from_numpy(array).cuda()


def empty(*shape):
    return torch.empty(shape, dtype=torch.float32, device="cuda")


@triton.jit
def add_kernel(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@check
def vector_add():
    for n in (1, 1000, 98432):
        x, y = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
        out = empty(n)
        add_kernel[(triton.cdiv(n, 1024),)](device(x), device(y), out, n, block=1024)
        assert (out.cpu().numpy() == x + y).all(), n


@triton.jit
def softmax_kernel(x, out, columns, block: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, block)
    values = tl.load(x + row * columns + i, mask=i < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + i, powers / tl.sum(powers, axis=0), mask=i < columns)


@check
def softmax():
    for rows, columns in ((4, 781), (17, 64)):
        x = (rng.standard_normal((rows, columns)) * 3).astype(np.float32)
        out = empty(rows, columns)
        softmax_kernel[(rows,)](device(x), out, columns, block=triton.next_power_of_2(columns))
        exact = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        exact /= exact.sum(axis=1, keepdims=True)
        assert np.abs(out.cpu().numpy() / exact - 1).max() <= 8 * np.finfo(np.float32).eps * np.sqrt(columns)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr, precision: tl.constexpr):
    row, column, depth = tl.program_id(0) * bm + tl.arange(0, bm), tl.program_id(1) * bn + tl.arange(0, bn), tl.arange(0, bk)
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for at in range(0, k, bk):
        left = tl.load(a + row[:, None] * k + (at + depth)[None, :], mask=(row < m)[:, None] & (at + depth < k)[None, :], other=0.0)
        right = tl.load(b + (at + depth)[:, None] * n + column[None, :], mask=(at + depth < k)[:, None] & (column < n)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=precision)
    tl.store(c + row[:, None] * n + column[None, :], total, mask=(row < m)[:, None] & (column < n)[None, :])


def matmul(dtype, precision, epsilon):
    for m, n, k in ((128, 128, 128), (100, 70, 200)):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        out = empty(m, n)
        matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](device(a), device(b), out, m, n, k, bm=64, bn=64, bk=32, precision=precision)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        error = np.abs(out.cpu().numpy() - exact).max() / np.abs(exact).max() / (epsilon * np.sqrt(k))
        assert error <= 4, (m, n, k, error)


@check
def matmul_half():
    matmul(np.float16, "tf32", 2.0**-23)


@check
def matmul_tf32():
    matmul(np.float32, "tf32", 2.0**-10)


@check
def matmul_float():
    matmul(np.float32, "ieee", 2.0**-23)


@triton.jit
def layer_norm_forward(x, out, weight, bias, means, scales, n, epsilon, block: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, block)
    inside = i < n
    values = tl.load(x + row * n + i, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / n
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + epsilon)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    tl.store(out + row * n + i, centred * scale * tl.load(weight + i, mask=inside) + tl.load(bias + i, mask=inside), mask=inside)


@triton.jit
def layer_norm_backward(x, dout, weight, means, scales, dx, dweight, dbias, n, block: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, block)
    inside = i < n
    scale = tl.load(scales + row)
    normal = tl.where(inside, (tl.load(x + row * n + i, mask=inside, other=0.0) - tl.load(means + row)) * scale, 0.0)
    slope = tl.load(dout + row * n + i, mask=inside, other=0.0)
    weighted = slope * tl.load(weight + i, mask=inside, other=0.0)
    along, level = tl.sum(normal * weighted, axis=0) / n, tl.sum(weighted, axis=0) / n
    tl.store(dx + row * n + i, (weighted - (normal * along + level)) * scale, mask=inside)
    tl.atomic_add(dweight + i, slope * normal, mask=inside)
    tl.atomic_add(dbias + i, slope, mask=inside)


@check
def layer_norm():
    rows, n = 24, 300
    x, slope = (rng.standard_normal((rows, n)).astype(np.float32) for _ in range(2))
    weight, bias = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    out, dx, means, scales = empty(rows, n), empty(rows, n), empty(rows), empty(rows)
    dweight, dbias = device(np.zeros(n, np.float32)), device(np.zeros(n, np.float32))
    on_device = device(x), device(weight)
    layer_norm_forward[(rows,)](on_device[0], out, on_device[1], device(bias), means, scales, n, 1e-5, block=512)
    layer_norm_backward[(rows,)](on_device[0], device(slope), on_device[1], means, scales, dx, dweight, dbias, n, block=512)

    w = x.astype(np.float64)
    mean, scale = w.mean(axis=1, keepdims=True), 1 / np.sqrt(w.var(axis=1, keepdims=True) + 1e-5)
    normal, weighted = (w - mean) * scale, slope.astype(np.float64) * weight
    exact = {
        "out": (out, normal * weight + bias),
        "dx": (dx, (weighted - normal * (normal * weighted).mean(axis=1, keepdims=True) - weighted.mean(axis=1, keepdims=True)) * scale),
        "dweight": (dweight, (slope * normal).sum(axis=0)),
        "dbias": (dbias, slope.astype(np.float64).sum(axis=0)),
    }
    for name, (found, right) in exact.items():
        assert np.abs(found.cpu().numpy() - right).max() <= 4 * 2.0**-23 * np.sqrt(n), name


@triton.jit
def scan_and_sort_kernel(x, sums, ordered, n: tl.constexpr):
    i = tl.arange(0, n)
    values = tl.load(x + i)
    tl.store(sums + i, tl.cumsum(values, axis=0))
    tl.store(ordered + i, tl.sort(values))


@check
def scan_and_sort():
    x = rng.integers(-50, 50, 512).astype(np.float32)
    sums, ordered = empty(512), empty(512)
    scan_and_sort_kernel[(1,)](device(x), sums, ordered, 512)
    assert (sums.cpu().numpy() == np.cumsum(x)).all() and (ordered.cpu().numpy() == np.sort(x)).all()


main()
