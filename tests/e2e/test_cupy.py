"""CuPy through gpuvirt: functions that the examples do not use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.harness import Server, run_program

pytestmark = pytest.mark.slow


def cupy(pool: Server, code: str, *options: str, **env: str) -> str:
    done = run_program(pool, [sys.executable, "-c", code], "--gpus", "2", *options, timeout=240, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


THREADS = """
import threading, cupy, numpy
wrong = []
def work(i):
    try:
        with cupy.cuda.Device(i % 2), cupy.cuda.Stream(non_blocking=True) as s:
            x = cupy.arange(5000 + i, dtype=cupy.float32)
            for _ in range(10):
                x = x * 0.5 + i
            got = cupy.asnumpy(x)
        want = numpy.arange(5000 + i, dtype=numpy.float32)
        for _ in range(10):
            want = want * numpy.float32(0.5) + numpy.float32(i)
        if not numpy.array_equal(got, want): wrong.append(i)
    except Exception as e:
        wrong.append((i, repr(e)))
threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
[t.start() for t in threads]; [t.join() for t in threads]
print(wrong)
"""


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_32_threads(pool: Server, link: str) -> None:
    assert cupy(pool, THREADS, "--link", link) == "[]\n"


def test_out_of_memory_is_an_exception_and_memory_comes_back(pool: Server) -> None:
    code = """
import cupy
pool = cupy.get_default_memory_pool()
for _ in range(3):
    try:
        cupy.zeros(1 << 31, cupy.uint8)
        print("no error")
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    x = cupy.ones(600 << 20, cupy.uint8)
    assert int(x[-1]) == 1
    del x
    pool.free_all_blocks()
print("right")
"""
    assert cupy(pool, code) == "right\n"


def test_a_kernel_that_does_not_compile(pool: Server) -> None:
    code = """
import cupy
try:
    cupy.RawKernel('extern "C" __global__ void f() { nonsense }', "f")((1,), (1,), ())
except cupy.cuda.compiler.CompileException:
    print("right")
"""
    assert cupy(pool, code) == "right\n"


def test_bad_address_is_an_exception(pool: Server) -> None:
    code = """
import cupy
k = cupy.RawKernel('extern "C" __global__ void f(int *p) { p[threadIdx.x + (1ll << 36)] = 1; }', "f")
x = cupy.zeros(32, cupy.int32)
try:
    k((1,), (32,), (x,))
    cupy.cuda.Device().synchronize()
    print("no error")
except cupy.cuda.runtime.CUDARuntimeError as error:
    print("cudaErrorIllegalAddress" in str(error))
"""
    assert cupy(pool, code) == "True\n"


LACKING = """
.version 8.6
.target sm_100a
.address_size 64
.visible .entry fine(.param .u64 p) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1; ret;
}
.visible .entry rare(.param .u64 p) { .reg .b32 %r<2>; mov.u32 %r1, 0; tcgen05.shift.cta_group::1.down [%r1]; ret; }
"""


def test_an_instruction_the_software_gpu_lacks_is_named(pool: Server, tmp_path: Path) -> None:
    """The launch that needs it fails; the module loads all the same, and its other kernels run."""
    ptx = tmp_path / "lacking.ptx"
    ptx.write_text(LACKING)
    code = """
import sys, cupy
module = cupy.RawModule(path=sys.argv[1])
x = cupy.zeros(32, cupy.int32)
module.get_function("fine")((1,), (32,), (x,))
assert int(x.sum()) == 31 * 16
try:
    module.get_function("rare")((1,), (32,), (x,))
    cupy.cuda.Device().synchronize()
    print("no error")
except cupy.cuda.runtime.CUDARuntimeError:
    print("failed")
"""
    done = run_program(pool, [sys.executable, "-c", code, ptx])
    assert done.stdout == "failed\n", done.stdout + done.stderr
    assert "tcgen05.shift" in done.stderr


TEXTURES = r"""
import cupy as cp, numpy as np
from cupy.cuda import runtime
from cupy.cuda.texture import ChannelFormatDescriptor, CUDAarray, ResourceDescriptor, TextureDescriptor, TextureObject, SurfaceObject
source = '''
extern "C" {
__global__ void f1(float *o, cudaTextureObject_t t, int w) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < w) o[i] = tex1D<float>(t, (float)i);
}
__global__ void f2(float *o, cudaTextureObject_t t, int w, int h) {
    int x = threadIdx.x + blockIdx.x * blockDim.x, y = threadIdx.y + blockIdx.y * blockDim.y;
    if (x < w && y < h) o[y * w + x] = tex2D<float>(t, x, y);
}
__global__ void f3(float *o, cudaTextureObject_t t, int w, int h, int d) {
    int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
    if (x < w && y < h && z < d) o[(z * h + y) * w + x] = tex3D<float>(t, x, y, z);
}
__global__ void wr(cudaSurfaceObject_t s, int w, int h) {
    int x = threadIdx.x, y = threadIdx.y;
    if (x < w && y < h) surf2Dwrite<float>(3.f * x + 100.f * y, s, x * 4, y);
}
}'''
module = cp.RawModule(code=source)
for dims in ((67,), (23, 37), (5, 17, 19)):
    for target in (1, 2):
        want = cp.random.random(dims, dtype=cp.float32)
        depth, height, width = (0,) * (3 - len(dims)) + dims
        ch = ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
        arr = CUDAarray(ch, width, height, depth)
        arr.copy_from(want if target == 1 else cp.asnumpy(want))
        back = np.empty(dims, np.float32)
        arr.copy_to(back)
        assert (back == cp.asnumpy(want)).all(), dims
        on = cp.zeros(dims, cp.float32); arr.copy_to(on); assert (on == want).all()
        how = TextureDescriptor((runtime.cudaAddressModeClamp,) * len(dims), runtime.cudaFilterModePoint, runtime.cudaReadModeElementType)
        tex = TextureObject(ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=arr), how)
        out = cp.zeros(dims, cp.float32)
        if len(dims) == 1: module.get_function("f1")((3,), (32,), (out, tex, width))
        elif len(dims) == 2: module.get_function("f2")((3, 3), (16, 16), (out, tex, width, height))
        else: module.get_function("f3")((depth,), (width, height), (out, tex, width, height, depth))
        assert (out == want).all(), dims
arr = CUDAarray(ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat), 16, 8, 0, runtime.cudaArraySurfaceLoadStore)
surf = SurfaceObject(ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=arr))
module.get_function("wr")((1,), (16, 8), (surf, 16, 8))
got = np.zeros((8, 16), np.float32); arr.copy_to(got)
assert (got == 3 * np.arange(16)[None] + 100 * np.arange(8)[:, None]).all()
image = cp.random.random((40, 50), dtype=cp.float32)
from cupyx.scipy.ndimage import affine_transform
matrix = cp.array([[0.9, 0.1, 1.5], [-0.1, 1.1, 2.0], [0, 0, 1]], cp.float32)
a, b = (affine_transform(image, matrix, order=1, mode="constant", texture_memory=how) for how in (True, False))
assert float(abs(a - b)[2:-8, 8:-8].max()) < 2 / 256
print("right")
"""


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_textures_and_surfaces(pool: Server, link: str) -> None:
    """CuPy's arrays of one to three dimensions, and its affine transformations by textures beside those without."""
    assert cupy(pool, TEXTURES, "--link", link) == "right\n"
