"""Sorting and searching: Thrust and CUB underneath."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
x = rng.standard_normal(50_000).astype(np.float32)
k = rng.permutation(20_000).astype(np.int64)
small = rng.integers(0, 300, 10_000, dtype=np.int32)

gx, gk, gs = cp.asarray(x), cp.asarray(k), cp.asarray(small)

np.savez(
    args.out,
    floats=cp.asnumpy(cp.sort(gx)),
    order=cp.asnumpy(cp.argsort(gk)),
    unique=cp.asnumpy(cp.unique(gs)),
    rows=cp.asnumpy(cp.sort(gx.reshape(500, 100), axis=1)),
    found=cp.asnumpy(cp.searchsorted(cp.sort(gx), cp.linspace(-3, 3, 101, dtype=cp.float32))),
)
