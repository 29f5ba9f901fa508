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
.version 8.0
.target sm_90a
.address_size 64
.visible .entry fine(.param .u64 p) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1; ret;
}
.visible .entry rare(.param .u64 p) { wgmma.fence.sync.aligned; ret; }
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
    assert "wgmma" in done.stderr
