"""gpuvirt.remote() blocks around a program's driver calls: python blocks.py URL. Prints "right"."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import gpuvirt
from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve

URL = sys.argv[1]
NOT_PERMITTED, N = 800, 1 << 16


def leases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask_pool(resolve({"pool": URL}), "ps")["leases"]
    return found


def refused(what: Callable[[], Any], text: str) -> None:
    try:
        what()
    except gpuvirt.GpuvirtError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def outside(code: int) -> None:
    """The call failed because the program is outside of its blocks."""
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    assert code == NOT_PERMITTED and b"gpuvirt.remote()" in (text.value or b""), (code, text.value)


with gpuvirt.remote(gpus=1, pool=URL):
    pass
cuda = ctypes.CDLL("libcuda.so.1")
outside(cuda.cuInit(0))  # and nothing of that sticks
assert leases() == []

device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
address, other, event, count = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_int()
sent, got = (ctypes.c_uint32 * N)(*range(N)), (ctypes.c_uint32 * N)()
size = ctypes.c_size_t(4 * N)

with gpuvirt.remote(gpus=2, pool=URL, memory="64m") as lease:
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 2 and lease.begun
    assert cuda.cuDeviceGet(ctypes.byref(device), 1) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), size) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(other), size) == 0
    assert cuda.cuMemcpyHtoD_v2(address, sent, size) == 0
    assert cuda.cuEventCreate(ctypes.byref(event), 0) == 0 and cuda.cuEventRecord(event, None) == 0
    refused(lambda: gpuvirt.remote(gpus=1, pool=URL).__enter__(), "CUDA has begun")
    with gpuvirt.remote(gpus=2, pool=URL, memory="64m") as same:
        assert same is lease
    assert cuda.cuCtxSynchronize() == 0  # the outer block is not over

# Between blocks: what frees, destroys, waits and asks succeeds, the rest is refused.
for call in (
    lambda: cuda.cuMemcpyDtoH_v2(got, address, size),
    lambda: cuda.cuMemcpyHtoD_v2(address, got, size),
    lambda: cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), size),
    lambda: cuda.cuMemsetD8_v2(address, 0, size),
    lambda: cuda.cuModuleLoadData(ctypes.byref(module), b""),
    lambda: cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None),
):
    outside(call())
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuCtxSynchronize() == 0 and cuda.cuEventQuery(event) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0 and total.value == 64 << 20
assert cuda.cuMemFree_v2(other) == 0 and cuda.cuEventDestroy_v2(event) == 0
refused(lambda: gpuvirt.remote(gpus=1, pool=URL).__enter__(), "CUDA has begun")
(held,) = leases()
assert held["state"] in ("attached", "parked") and held["devices"] == [0, 1] and len(held["sessions"]) == 1

# The next block goes on with what was there.
with gpuvirt.remote(gpus=2, pool=URL, memory="64m") as again:
    assert again is lease and cuda.cuMemcpyDtoH_v2(got, address, size) == 0 and list(got) == list(sent)
    stats = lease.stats()
    assert stats.calls > 20 and stats.waits > 0 and stats.launches == 0 and (stats.memory_used or 0) >= 4 * N, stats
    assert [device.ordinal for device in lease.devices] == [0, 1]
if "release" in sys.argv:
    lease.release()
    assert leases() == []
    outside(cuda.cuMemcpyDtoH_v2(got, address, size))
    refused(lambda: gpuvirt.remote(gpus=2, pool=URL, memory="64m").__enter__(), "release()")
print("right")
