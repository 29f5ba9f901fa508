"""Matrix products through cuBLAS, and a linear model trained with them."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
a = rng.standard_normal((192, 320)).astype(np.float32)
b = rng.standard_normal((320, 128)).astype(np.float32)
features = rng.standard_normal((512, 16))
truth = rng.standard_normal(16)
target = features @ truth + 0.01 * rng.standard_normal(512)

ga, gb = cp.asarray(a), cp.asarray(b)
gf, gt = cp.asarray(features), cp.asarray(target)

weights = cp.zeros(16)
for _ in range(60):
    weights -= 0.3 * (gf.T @ (gf @ weights - gt)) / 512

np.savez(
    args.out,
    single=cp.asnumpy(ga @ gb),
    transposed=cp.asnumpy(gb.T @ ga.T),
    double=cp.asnumpy(ga.astype(cp.float64) @ gb.astype(cp.float64)),
    vector=cp.asnumpy(ga @ gb[:, 0]),
    weights=cp.asnumpy(weights),
)
