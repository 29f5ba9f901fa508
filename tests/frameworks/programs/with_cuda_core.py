import cupy
import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = r"""
template <typename T> __global__ void saxpy(const T a, const T *x, const T *y, T *out, size_t n) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"""
device = Device()
device.set_current()
stream = device.create_stream()
program = Program(CODE, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{device.arch}"))
kernel = program.compile("cubin", name_expressions=("saxpy<float>",)).get_kernel("saxpy<float>")
x, y, out = cupy.arange(1000, dtype=cupy.float32), cupy.ones(1000, dtype=cupy.float32), cupy.empty(1000, dtype=cupy.float32)
cupy.cuda.Device().synchronize()
launch(stream, LaunchConfig(grid=8, block=128), kernel, np.float32(2), x.data.ptr, y.data.ptr, out.data.ptr, np.uint64(1000))
stream.sync()
np.testing.assert_array_equal(out.get(), np.arange(1000, dtype=np.float32) * 2 + 1)
print("right")
