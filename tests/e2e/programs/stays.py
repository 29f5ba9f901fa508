"""Says "running" when it has its GPUs, uses the first until a file is there, and says "right" at the end: stays.py FILE [PROCESSES].

With PROCESSES it starts that many of itself, which say where they are.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

WORDS = 1 << 16


def main(end: Path) -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def must(name: str, *args: object) -> None:
        code = getattr(driver, name)(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in args))
        if code:
            print(f"{name}: error {code}", flush=True)
            sys.exit(3)

    count, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    must("cuInit", 0)
    must("cuDeviceGetCount", ctypes.byref(count))
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    must("cuCtxSetCurrent", context)
    must("cuMemAlloc_v2", ctypes.byref(memory), WORDS * 4)
    host, round_ = (ctypes.c_uint32 * WORDS)(), 0
    print("running", flush=True)
    while True:
        round_ += 1
        over = end.exists()
        must("cuMemsetD32_v2", memory, round_, WORDS)
        must("cuMemcpyDtoH_v2", host, memory, WORDS * 4)
        if host[0] != round_ or host[WORDS - 1] != round_:
            sys.exit("wrong")
        if over:
            break
        time.sleep(0.02)
    print("right", flush=True)


def several(end: Path, processes: int) -> None:
    line = [sys.executable, __file__, str(end)]
    children = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    assert all(child.stdout is not None and child.stdout.readline() == "running\n" for child in children)
    print("running", flush=True)
    said = [child.communicate()[0] for child in children]
    print("right" if all(text == "right\n" for text in said) else said, flush=True)


if len(sys.argv) > 2:
    several(Path(sys.argv[1]), int(sys.argv[2]))
else:
    main(Path(sys.argv[1]))
