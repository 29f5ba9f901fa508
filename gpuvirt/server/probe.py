"""Lists a real driver's devices as JSON on stdout: `python -m gpuvirt.server.probe /path/to/libcuda.so.1`."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


class ProbeError(Exception):
    """A driver call failed."""


def probe(path: str) -> list[dict[str, Any]]:
    """Name and memory of each device.

    Raises:
        OSError: the library cannot be loaded.
        ProbeError: a call failed; the text names it.
    """
    lib = ctypes.CDLL(path)

    def call(name: str, *args: Any) -> None:
        code = getattr(lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            lib.cuGetErrorName(code, ctypes.byref(text))
            raise ProbeError(f"{name} failed with {text.value.decode() if text.value else code}")

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetName", name, len(name), device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        devices.append({"name": name.value.decode("utf-8", "replace"), "memory": memory.value})
    if not devices:
        raise ProbeError("it has no device")
    return devices


if __name__ == "__main__":
    try:
        print(json.dumps(probe(sys.argv[1])))
    except (OSError, ProbeError, AttributeError) as error:
        sys.exit(str(error))
