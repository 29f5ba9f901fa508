"""CuPy's graphs: what is captured is launched five times and checked, and then ARGUMENT times more."""

import sys

import cupy as cp

s = cp.cuda.Stream(non_blocking=True)
x = cp.arange(1000, dtype=cp.float32)
y = cp.zeros_like(x)
k = cp.RawKernel('extern "C" __global__ void f(float *a) { a[threadIdx.x] += 1; }', "f")
k((1,), (1,), (y,))
y[...] = 0
cp.multiply(x, 2, out=y)
cp.cuda.Device().synchronize()
with s:
    s.begin_capture()
    assert s.is_capturing()
    cp.multiply(x, 2, out=y)
    y += 1
    k((1,), (32,), (x,))
    graph = s.end_capture()
for _ in range(5):
    before = cp.asnumpy(x)
    graph.launch(s)
    s.synchronize()
    assert (cp.asnumpy(y) == before * 2 + 1).all()
    before[:32] += 1
    assert (cp.asnumpy(x) == before).all()
for _ in range(int(sys.argv[1])):
    graph.launch(s)
s.synchronize()
print("right")
