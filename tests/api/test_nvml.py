"""libnvidia-ml.so.1 over the fake driver, called as nvidia-ml-py and TensorFlow call it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import emit_nvml

PRELUDE = """
import ctypes, os
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
nvml = ctypes.CDLL({path!r})
nvml.nvmlErrorString.restype = c_char_p

class Pci(ctypes.Structure):
    _fields_ = [("legacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("id", c_uint), ("subsystem", c_uint),
                ("busId", c_char * 32)]

class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]

class Memory2(ctypes.Structure):
    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]

class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong), ("gpu", c_uint), ("compute", c_uint)]

def handle(i):
    h = c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(i, byref(h)) == 0
    return h
"""


def run(fake_nvml: Path, code: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE.format(path=str(fake_nvml)) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_nvidia_ml_py_starts_with(fake_nvml: Path) -> None:
    code = """
        count, name, uuid, version = c_uint(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96), c_int()
        assert nvml.nvmlDeviceGetCount_v2(byref(count)) == 1
        assert nvml.nvmlInitWithFlags(0) == 0
        assert nvml.nvmlDeviceGetCount_v2(byref(count)) == 0
        h, pci, memory, memory2 = handle(1), Pci(), Memory(), Memory2()
        assert nvml.nvmlDeviceGetName(h, name, 96) == nvml.nvmlDeviceGetUUID(h, uuid, 96) == nvml.nvmlDeviceGetPciInfo_v3(h, byref(pci)) == 0
        print(count.value, repr(name.value), uuid.value.decode(), pci.legacy.decode(), pci.busId.decode(), pci.bus)
        assert nvml.nvmlDeviceGetMemoryInfo(h, byref(memory)) == 0
        memory2.version = ctypes.sizeof(Memory2) | 2 << 24
        assert nvml.nvmlDeviceGetMemoryInfo_v2(h, byref(memory2)) == 0
        print(memory.total, memory.free, memory.used, memory2.total, memory2.free, memory2.used)
        memory2.version = 1
        print(nvml.nvmlDeviceGetMemoryInfo_v2(h, byref(memory2)), nvml.nvmlDeviceGetName(h, name, 4), nvml.nvmlDeviceGetName(None, name, 96))
        print(nvml.nvmlSystemGetCudaDriverVersion_v2(byref(version)), version.value)
        assert nvml.nvmlShutdown() == 0
        print(nvml.nvmlShutdown(), nvml.nvmlDeviceGetCount_v2(byref(count)), nvml.nvmlErrorString(1).decode())
    """
    assert run(fake_nvml, code) == [
        "2 b'a \"fake\"\\ndevice' GPU-10111213-1415-1617-1819-1a1b1c1d1e1f 0001:A1:00.0 00000001:A1:00.0 161",
        f"{8 << 20} {3 << 20} {5 << 20} {8 << 20} {3 << 20} {5 << 20}",
        "25 7 2",
        "0 13000",
        "1 1 Uninitialized",
    ]


def test_what_tensorflow_starts_with(fake_nvml: Path) -> None:
    code = """
        h, n, g = c_void_p(), c_uint(), c_uint()
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0001:a0:00.0", byref(h)) == 0
        assert h.value == handle(0).value
        print(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0001:a9:00.0", byref(h)), nvml.nvmlDeviceGetHandleByPciBusId_v2(b"what", byref(h)))
        forms = [b"1:a0:0", b"00000001:A0:00.0", b"a0:00.0", b"", b":", b"1:2:3:4", b"g:0:0", b"99999999999:0:0"]
        print([nvml.nvmlDeviceGetHandleByPciBusId_v2(form, byref(h)) for form in forms])
        print(nvml.nvmlDeviceGetCurrPcieLinkGeneration(h, byref(n)), nvml.nvmlDeviceGetNvLinkState(h, 0, byref(n)),
              nvml.nvmlDeviceGetGpuFabricInfoV(h, byref(g)))
        print(nvml.nvmlErrorString(3).decode())
    """
    assert run(fake_nvml, code) == ["6 2", "[0, 0, 6, 2, 2, 2, 2, 2]", "3 3 3", "Not Supported"]


def test_the_link_of_a_software_gpu(fake_nvml: Path) -> None:
    """What XLA assumes where it hears nothing, and prints an error for; a real one's is not known."""
    code = """
        c_int.in_dll(ctypes.CDLL("libcuda.so.1"), "fake_software").value = {software}
        nvml.nvmlInit_v2()
        n, names = c_uint(0), ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth")
        for name in names:
            print(getattr(nvml, "nvmlDeviceGet" + name)(handle(0), byref(n)), n.value, getattr(nvml, "nvmlDeviceGet" + name)(handle(0), None))
        print(getattr(nvml, "nvmlDeviceGet" + name)(None, byref(n)))
    """
    told = run(fake_nvml, code.format(software=1), LD_LIBRARY_PATH=str(fake_nvml.parent))
    assert told == ["0 3 2", "0 3 2", "0 16 2", "0 16 2", "2"]
    assert run(fake_nvml, code.format(software=0), LD_LIBRARY_PATH=str(fake_nvml.parent)) == ["3 0 2"] * 4 + ["2"]


def test_processes(fake_nvml: Path) -> None:
    code = """
        driver = ctypes.CDLL("libcuda.so.1")
        nvml.nvmlInit_v2()
        n, infos = c_uint(0), (Process * 4)()
        print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(0), byref(n), None), n.value)
        c_int.in_dll(driver, "fake_active").value = 1
        print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(0), byref(n), None), n.value)
        print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(0), byref(n), infos), n.value, infos[0].pid == os.getpid())
        print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(1), byref(n), infos), n.value)
    """
    assert run(fake_nvml, code, LD_LIBRARY_PATH=str(fake_nvml.parent)) == ["0 0", "7 1", "0 1 True", "0 0"]


def test_uuid_look_up_and_a_child(fake_nvml: Path) -> None:
    code = """
        h = c_void_p()
        nvml.nvmlInit_v2()
        print(nvml.nvmlDeviceGetHandleByUUID(b"GPU-00010203-0405-0607-0809-0A0B0C0D0E0F", byref(h)), h.value == handle(0).value,
              nvml.nvmlDeviceGetHandleByUUID(b"GPU-00010203", byref(h)), flush=True)
        if os.fork() == 0:
            print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(byref(c_uint())), flush=True)
            os._exit(0)
        os.wait()
    """
    assert run(fake_nvml, code) == ["0 True 6", "0 0"]


def test_without_a_server(fake_nvml: Path) -> None:
    code = """
        driver = ctypes.CDLL("libcuda.so.1")
        c_int.in_dll(driver, "fake_init_result").value = 100
        print(nvml.nvmlInit_v2())
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        n = c_uint(9)
        print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(byref(n)), n.value)
    """
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    assert run(fake_nvml, code, **environment, LD_LIBRARY_PATH=str(fake_nvml.parent)) == ["9", "0 0 0"]


def test_every_function_of_the_header_exists(fake_nvml: Path, headers_at: list[Path]) -> None:
    names = emit_nvml.declared(headers_at[-1])
    assert len(names) > 300
    exported = subprocess.run(["nm", "-D", "--defined-only", str(fake_nvml)], capture_output=True, text=True, check=True).stdout
    assert set(names) == {line.split()[-1] for line in exported.splitlines()}


def test_which_devices_reach_each_other(fake_nvml: Path) -> None:
    """What NCCL asks first, of one device as well: the same device, or what cuDeviceCanAccessPeer says."""
    code = """
        assert nvml.nvmlInit_v2() == 0
        status = c_int(99)
        def ask(a, b, index):
            status.value = 99
            return nvml.nvmlDeviceGetP2PStatus(a, b, index, byref(status)), status.value
        print(ask(handle(0), handle(0), 0), ask(handle(1), handle(1), 1), ask(handle(0), handle(0), 2))
        print(ask(handle(0), handle(1), 0), ask(handle(1), handle(0), 1))
        print(ask(handle(0), handle(1), 5), ask(handle(0), handle(1), -1), ask(handle(0), None, 0))
        print(nvml.nvmlDeviceGetP2PStatus(handle(0), handle(0), 0, None))
    """
    not_supported = 5
    assert run(fake_nvml, code) == [
        f"(0, 0) (0, 0) (0, {not_supported})",
        f"(0, {not_supported}) (0, 0)",
        "(2, 99) (2, 99) (2, 99)",
        "2",
    ]
