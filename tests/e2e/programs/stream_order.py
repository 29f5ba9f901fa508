"""Copies to pinned host memory on one stream, waited for on another that is ordered after it: stream_order.py own|event|legacy."""

from __future__ import annotations

import ctypes
import sys

SIZE = 16 << 20  # bytes: at 500 Mbit/s they arrive a quarter of a second after the device has copied them
ROUNDS = 3
NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} returned {code}"


def main(how: str) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    memory, host = ctypes.c_uint64(), ctypes.c_void_p()
    copying, other, event = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
    call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(SIZE), 0)
    call("cuStreamCreate", ctypes.byref(copying), 0 if how == "legacy" else NON_BLOCKING)
    call("cuStreamCreate", ctypes.byref(other), NON_BLOCKING)
    call("cuEventCreate", ctypes.byref(event), EVENT_DISABLE_TIMING)
    seen = (ctypes.c_ubyte * SIZE).from_address(host.value or 0)
    for value in range(1, ROUNDS + 1):
        call("cuMemsetD8_v2", memory, ctypes.c_ubyte(value), ctypes.c_size_t(SIZE))
        call("cuCtxSynchronize")
        ctypes.memset(host, 0, SIZE)
        call("cuMemcpyDtoHAsync_v2", host, memory, ctypes.c_size_t(SIZE), copying)
        if how == "event":
            call("cuEventRecord", event, copying)
            call("cuStreamWaitEvent", other, event, 0)
            call("cuStreamSynchronize", other)
        elif how == "legacy":
            call("cuStreamSynchronize", None)
        else:
            call("cuStreamSynchronize", copying)
        right = bytes(seen).count(value)
        if right != SIZE:
            print(f"{SIZE - right} of {SIZE} bytes had not come")
            sys.exit(1)
    print("right")


main(sys.argv[1])
