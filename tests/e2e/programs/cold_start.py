"""From nothing to a first result: the smallest CuPy program that computes something. Prints it."""

import cupy as cp

x = cp.arange(1000, dtype=cp.float32)
print(float((x * 2 + 1).sum()))
