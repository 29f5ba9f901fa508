"""Elementwise expressions: arithmetic, broadcasting, mathematical functions and a kernel of one's own."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
x = rng.standard_normal((300, 400)).astype(np.float32)
y = rng.standard_normal(400).astype(np.float32)
k = rng.integers(-1000, 1000, 5000, dtype=np.int32)

gx, gy, gk = cp.asarray(x), cp.asarray(y), cp.asarray(k)

squared_difference = cp.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = (a - b) * (a - b)", "squared_difference")

np.savez(
    args.out,
    saxpy=cp.asnumpy(2.5 * gx + gy),
    functions=cp.asnumpy(cp.exp(-cp.abs(gx)) * cp.sin(gy) + cp.sqrt(cp.abs(gx)) / (1 + gx * gx)),
    kernel=cp.asnumpy(squared_difference(gx, gy)),
    where=cp.asnumpy(cp.where(gx > 0, gx, 0.1 * gx)),
    integers=cp.asnumpy((gk * 31 + 7) % 101 - (gk >> 2)),
    double=cp.asnumpy(cp.tanh(gx.astype(cp.float64)) + cp.log1p(cp.abs(gx).astype(cp.float64))),
    half=cp.asnumpy(gx.astype(cp.float16) * cp.float16(0.5)),
    transposed=cp.asnumpy(cp.ascontiguousarray(gx.T[::2, ::3])),
)
