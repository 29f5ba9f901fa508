"""cuDNN's convolution by its C interface."""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path
from typing import Any

_NCHW, _FLOAT, _CROSS_CORRELATION, _PRECOMPUTED_GEMM = 0, 0, 1, 1


class Convolution:
    """y = x convolved with w, no padding, stride 1; arrays of CuPy. Calling it queues one."""

    def __init__(self, x: Any, w: Any, y: Any) -> None:
        folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cudnn" / "lib"
        found = sorted(folder.glob("libcudnn.so.*")) or [Path("libcudnn.so.9")]
        self.lib = ctypes.CDLL(str(found[-1]))
        self.handle = ctypes.c_void_p()
        self.must("cudnnCreate", ctypes.byref(self.handle))
        self.x, self.w, self.y = (ctypes.c_void_p(a.data.ptr) for a in (x, w, y))
        self.xd, self.yd = self.tensor(x), self.tensor(y)
        self.wd, self.conv = ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cudnnCreateFilterDescriptor", ctypes.byref(self.wd))
        self.must("cudnnSetFilter4dDescriptor", self.wd, _FLOAT, _NCHW, *w.shape)
        self.must("cudnnCreateConvolutionDescriptor", ctypes.byref(self.conv))
        self.must("cudnnSetConvolution2dDescriptor", self.conv, 0, 0, 1, 1, 1, 1, _CROSS_CORRELATION, _FLOAT)
        size = ctypes.c_size_t()
        self.must("cudnnGetConvolutionForwardWorkspaceSize", self.handle, self.xd, self.wd, self.conv, self.yd, _PRECOMPUTED_GEMM, ctypes.byref(size))
        import cupy

        self.space = cupy.empty(max(size.value, 1), cupy.uint8)
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)

    def must(self, name: str, *args: Any) -> None:
        rc = getattr(self.lib, name)(*args)
        if rc:
            raise RuntimeError(f"{name}: {rc}")

    def tensor(self, a: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.must("cudnnCreateTensorDescriptor", ctypes.byref(made))
        self.must("cudnnSetTensor4dDescriptor", made, _NCHW, _FLOAT, *a.shape)
        return made

    def __call__(self) -> None:
        space = ctypes.c_void_p(self.space.data.ptr), ctypes.c_size_t(self.space.size)
        self.must(
            "cudnnConvolutionForward", self.handle, ctypes.byref(self.one), self.xd, self.x, self.wd, self.w, self.conv, _PRECOMPUTED_GEMM, *space,
            ctypes.byref(self.zero), self.yd, self.y,
        )  # fmt: skip
