"""NVIDIA's runtime libraries start on the stubs and tables: symbol look-ups, export tables, and their queries of the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
ctypes.c_int.in_dll(driver, "fake_count").value = int(sys.argv[2])
runtime = ctypes.CDLL(sys.argv[1])
n, address = ctypes.c_int(), ctypes.c_void_p()
print(runtime.cudaGetDeviceCount(ctypes.byref(n)), n.value, runtime.cudaFree(None), runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(64)),
      hex(address.value or 0), runtime.cudaDeviceReset())
print(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(driver, "fake_log"))).decode(), end="")
"""


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ["../lib/libcudart.so.13", "../lib/libcudart.so.12"])
def test_runtime_starts(fake_driver: Path, headers_at: list[Path], name: str, devices: int) -> None:
    found = [folder / name for folder in headers_at if (folder / name).exists()]
    assert found, f"no wheel brings {name}"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver.parent)}
    command = [sys.executable, "-c", PROGRAM, str(found[0]), str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    # Nothing in the log: no slot was called that nothing fills.
    assert (done.stdout, done.stderr) == (f"0 {devices} 0 0 0x7f0012345000 0\n", "")
