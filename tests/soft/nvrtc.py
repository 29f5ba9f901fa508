"""CUDA C++ to PTX with the NVRTC wheel."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])


@functools.cache
def library() -> ctypes.CDLL | None:
    """NVRTC, or None where the wheel is not installed."""
    found = sorted((SITE / "nvidia" / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*"))
    return ctypes.CDLL(str(found[0])) if found else None


@functools.cache
def compile_ptx(source: str, arch: str = "compute_80", *options: str) -> str:
    """The PTX of a CUDA source."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"test.cu", 0, None, None)
    include = [f"-I{SITE / 'nvidia' / name / 'include'}" for name in ("cuda_runtime", "curand", "cuda_cccl")]
    arguments = [f"--gpu-architecture={arch}", "-default-device", *include, *options]
    array = (ctypes.c_char_p * len(arguments))(*[a.encode() for a in arguments])
    failed = nvrtc.nvrtcCompileProgram(program, len(arguments), array)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()
