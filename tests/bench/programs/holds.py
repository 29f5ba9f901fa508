"""Has memory of a GPU that holds no zeros, says "running", and when its input ends whether it still does: holds.py MEBIBYTES."""

from __future__ import annotations

import ctypes
import sys

import numpy as np


def main(size: int) -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def must(name: str, *args: object) -> None:
        if code := getattr(driver, name)(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in args)):
            sys.exit(f"{name}: error {code}")

    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    must("cuCtxSetCurrent", context)
    must("cuMemAlloc_v2", ctypes.byref(memory), size)
    data = np.random.default_rng(1).integers(1, 256, size, dtype=np.uint8)
    must("cuMemcpyHtoD_v2", memory, ctypes.c_void_p(data.ctypes.data), size)
    print("running", flush=True)
    sys.stdin.read()
    back = np.empty_like(data)
    must("cuMemcpyDtoH_v2", ctypes.c_void_p(back.ctypes.data), memory, size)
    print("right" if np.array_equal(back, data) else "wrong", flush=True)


main(int(sys.argv[1]) << 20)
