"""`python attaches.py COUNT EVERY HOLD`: COUNT processes attach, one every EVERY seconds (0: each when the one before it has), and stay for HOLD
seconds behind the last one. Prints what each waited until it knew its device's properties, in seconds, and what all took, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

TOTAL_MEMORY, MULTIPROCESSORS = ctypes.c_size_t(), ctypes.c_int()


def attach() -> float:
    """Seconds from the first call to the properties of a device."""
    began = time.perf_counter()
    cuda, device, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(100)
    calls = (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDeviceGetName(name, 100, device),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(TOTAL_MEMORY), device),
        cuda.cuDeviceGetAttribute(ctypes.byref(MULTIPROCESSORS), 16, device),
    )
    assert calls == (0, 0, 0, 0, 0) and name.value and TOTAL_MEMORY.value and MULTIPROCESSORS.value, calls
    return time.perf_counter() - began


def main(count: int, every: float, hold: float) -> None:
    waits: list[float] = []
    pipes: list[int] = []
    leave = os.pipe()
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number * every - time.monotonic()))
        out, into = os.pipe()
        if os.fork() == 0:
            os.close(leave[1])
            os.write(into, json.dumps(attach()).encode())
            os.read(leave[0], 1)
            os._exit(0)
        os.close(into)
        pipes.append(out)
        if not every:
            waits.append(json.loads(os.read(pipes.pop(), 100)))
    waits += [json.loads(os.read(pipe, 100)) for pipe in pipes]
    took = time.monotonic() - start
    print(json.dumps({"waits": waits, "took": took}), flush=True)
    time.sleep(hold)
    os.close(leave[1])
    for _ in range(count):
        os.wait()

if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
