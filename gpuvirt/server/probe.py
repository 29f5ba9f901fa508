"""Lists a real driver's devices as JSON on stdout: `python -m gpuvirt.server.probe /path/to/libcuda.so.1`.

With --boxed it does so inside a worker's box, and makes a context; with --client in the box of a worker whose driver is gpuvirt's client library.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.box.box import Box

PAGEABLE_MEMORY_ACCESS = 88  # CUdevice_attribute


class ProbeError(Exception):
    """A driver call failed."""


def probe(path: str, use: bool = False) -> list[dict[str, Any]]:
    """Name and memory of each device, and whether its kernels reach all memory of their process (pageable access, HMM).

    Args:
        use: makes a context on the first one, too.

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
        pageable = ctypes.c_int()
        reached = lib.cuDeviceGetAttribute(ctypes.byref(pageable), PAGEABLE_MEMORY_ACCESS, device) == 0 and pageable.value != 0
        devices.append({"name": name.value.decode("utf-8", "replace"), "memory": memory.value, "pageable_access": reached})
    if use and devices:
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), device)
        call("cuDevicePrimaryCtxRelease_v2", device)
    if not devices:
        raise ProbeError("it has no device")
    return devices


if __name__ == "__main__":
    boxed = sys.argv[2:]
    try:
        if boxed:
            Box("cuda", driver=Path(sys.argv[1]), client="--client" in boxed).close()
        print(json.dumps(probe(sys.argv[1], bool(boxed))))
    except (OSError, ProbeError, AttributeError, GpuvirtError) as error:
        sys.exit(str(error))
