"""Random numbers: the same seed gives the same numbers, and they are distributed as they should be."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

n = 100_000
state = cp.random.RandomState(args.seed)
uniform = state.random_sample(n)
normal = state.standard_normal(n, dtype=cp.float32)
integers = state.randint(0, 10, n)
again = cp.random.RandomState(args.seed).random_sample(n)

modern = cp.random.default_rng(args.seed).random(n)

np.savez(
    args.out,
    uniform=cp.asnumpy(uniform),
    again=cp.asnumpy(again),
    normal=cp.asnumpy(normal),
    integers=cp.asnumpy(integers),
    modern=cp.asnumpy(modern),
    mean=cp.asnumpy(uniform.mean()),
)
