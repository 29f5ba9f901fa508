"""Takes most of the GPU's memory, replaces itself (exec) and takes it again: replaced.py BYTES."""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1])))
    print(f"life {len(sys.argv) - 1}: {code}", flush=True)
    if len(sys.argv) == 2:
        os.execv(sys.executable, [sys.executable, __file__, sys.argv[1], "again"])


if __name__ == "__main__":
    main()
