"""Reductions and scans, over everything and along axes."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
x = rng.random((257, 1031))
k = rng.integers(0, 64, 100_000, dtype=np.int32)

gx, gk = cp.asarray(x), cp.asarray(k)

l2norm = cp.ReductionKernel("float64 v", "float64 n", "v * v", "a + b", "n = sqrt(a)", "0", "l2norm")

np.savez(
    args.out,
    total=cp.asnumpy(gx.sum()),
    rows=cp.asnumpy(gx.sum(axis=1)),
    columns=cp.asnumpy(gx.mean(axis=0)),
    extrema=np.array([float(gx.min()), float(gx.max())]),
    argmax=cp.asnumpy(gx.argmax(axis=1)),
    variance=cp.asnumpy(gx.var(axis=0)),
    norm=cp.asnumpy(l2norm(gx)),
    cumulative=cp.asnumpy(cp.cumsum(gk)),
    histogram=cp.asnumpy(cp.bincount(gk, minlength=64)),
    any_all=np.array([bool((gx > 0.999999).any()), bool((gx >= 0).all())]),
)
