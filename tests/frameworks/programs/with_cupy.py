import cupy
import numpy as np

rng = np.random.default_rng(1)
a, b = rng.normal(size=(300, 200)), rng.normal(size=(200, 100))
product = cupy.asarray(a) @ cupy.asarray(b)
np.testing.assert_allclose(product.get(), a @ b, rtol=1e-10)
np.testing.assert_allclose(cupy.asarray(a).std(axis=0).get(), a.std(axis=0), rtol=1e-10)
np.testing.assert_array_equal(cupy.sort(cupy.asarray(a.ravel())).get(), np.sort(a.ravel()))
np.testing.assert_allclose(cupy.fft.fft(cupy.asarray(a)).get(), np.fft.fft(a), atol=1e-9)
square = cupy.RawKernel(
    r"""extern "C" __global__ void square(const float *x, float *y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * x[i];
    }""",
    "square",
)
x = cupy.arange(1000, dtype=cupy.float32)
y = cupy.empty_like(x)
square((8,), (128,), (x, y, np.int32(1000)))
np.testing.assert_array_equal(y.get(), np.arange(1000, dtype=np.float32) ** 2)
print("right")
