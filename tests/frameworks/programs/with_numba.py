import numpy as np
from numba import cuda


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.reduce
def add(a, b):
    return a + b


@cuda.jit
def histogram(values, counts):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i], 1)


rng = np.random.default_rng(1)
x, y = rng.normal(size=10000), rng.normal(size=10000)
out = np.empty_like(x)
saxpy[40, 256](2.0, x, y, out)
np.testing.assert_allclose(out, 2.0 * x + y, rtol=1e-14)
np.testing.assert_allclose(add(x), x.sum(), rtol=1e-9)
values, counts = rng.integers(16, size=10000), np.zeros(16, np.int64)
histogram[40, 256](values, counts)
np.testing.assert_array_equal(counts, np.bincount(values, minlength=16))
print("right")
