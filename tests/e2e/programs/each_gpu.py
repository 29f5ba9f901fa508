"""Computes on each GPU that this program sees, by the driver's own calls. Prints their UUIDs and "right"; with "hold", it then copies from the first
until it fails, and prints the error's text."""

from __future__ import annotations

import ctypes
import sys
import time

PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry triple(.param .u64 p) {
    .reg .u64 %a, %o;
    .reg .u32 %t, %v;
    ld.param.u64 %a, [p];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %o, %t, 4;
    add.u64 %a, %a, %o;
    mul.lo.u32 %v, %t, 3;
    st.global.u32 [%a], %v;
    ret;
}
"""
N = 64

try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("none: no driver")
    sys.exit(1)


def text(code: int) -> str:
    found = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(found))
    return (found.value or b"?").decode()


def check(code: int) -> None:
    if code:
        print(f"none: {text(code)}", flush=True)
        sys.exit(1)


check(cuda.cuInit(0))
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
uuids, address = [], ctypes.c_uint64()
words = (ctypes.c_uint32 * N)()
for ordinal in range(count.value):
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal))
    uuid = (ctypes.c_uint8 * 16)()
    check(cuda.cuDeviceGetUuid(uuid, device))
    uuids.append(bytes(uuid).hex())
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"triple"))
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * N)))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, N, 1, 1, 0, None, arguments, None))
    check(cuda.cuMemcpyDtoH_v2(words, address, ctypes.c_size_t(4 * N)))
    if list(words) != [3 * n for n in range(N)]:
        sys.exit(f"GPU {ordinal} is wrong: {list(words)}")
print(f"gpus={','.join(uuids)} right", flush=True)
while "hold" in sys.argv:
    code = cuda.cuMemcpyDtoH_v2(words, address, ctypes.c_size_t(4 * N))
    if code:
        print(f"lost: {text(code)}", flush=True)
        break
    time.sleep(0.05)
