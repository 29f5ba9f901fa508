"""Links by nvJitLink's interface, which a program of `gpuvirt run` finds preloaded on software GPUs. python nvjitlink.py NVRTC. Prints "right"."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


class Versioned:
    """The functions by the names that NVIDIA's header of one version calls them by."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __getattr__(self, name: str) -> Any:
        return getattr(preloaded, name if name == "nvJitLinkVersion" else f"__{name}_{self.version}")


preloaded = ctypes.CDLL(None)
lib: Any = preloaded
cuda = ctypes.CDLL("libcuda.so.1")
nvrtc = ctypes.CDLL(sys.argv[1])
INVALID_INPUT, MISSING_ARCH = 3, 2
CUBIN, PTX, LTOIR, ANY = 1, 2, 3, 10

MAIN = "extern __device__ int scale(int x); extern __device__ int more(int x);" + (
    'extern "C" __global__ void k(int *out) { out[threadIdx.x] = scale(threadIdx.x) + more(1); }'
)
SCALE, MORE = "__device__ int scale(int x) { return 3 * x; }", "__device__ int more(int x) { return x + 10; }"


def compiled(source: str, lto: bool) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"x.cu", 0, None, None) == 0
    options = [b"-arch=compute_90", b"-rdc=true", *([b"-dlto"] if lto else [])]
    assert nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
    kind = "LTOIR" if lto else "PTX"
    assert getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)) == 0
    data = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{kind}")(program, data) == 0
    return data.raw


def link(*inputs: tuple[int, bytes, str], options: tuple[bytes, ...] = (b"-arch=sm_130",), code: int = 0, ptx: bool = False) -> bytes:
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert lib.nvJitLinkCreate(ctypes.byref(handle), len(options), (ctypes.c_char_p * len(options))(*options)) == 0
    for kind, data, name in inputs:
        assert lib.nvJitLinkAddData(handle, kind, data, ctypes.c_size_t(len(data)), name.encode()) == 0
    found = lib.nvJitLinkComplete(handle)
    what = ("LinkedPtx" if ptx else "LinkedCubin") if not code else "ErrorLog"
    assert lib.__getattr__(f"nvJitLinkGet{what}Size")(handle, ctypes.byref(size)) == 0
    data = ctypes.create_string_buffer(size.value + 1)
    assert lib.__getattr__(f"nvJitLinkGet{what}")(handle, data) == 0
    assert found == code, (found, data.value)
    if code:
        assert lib.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)) == INVALID_INPUT
    assert lib.nvJitLinkDestroy(ctypes.byref(handle)) == 0 and not handle
    return data.value


def run(image: bytes) -> None:
    module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k") == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 128) == 0
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, (ctypes.c_void_p * 1)(ctypes.addressof(memory)), None) == 0
    out = (ctypes.c_int * 32)()
    assert cuda.cuMemcpyDtoH_v2(out, memory, 128) == 0
    assert list(out) == [3 * i + 11 for i in range(32)], list(out)


context, handle, version = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_uint(), ctypes.c_uint())
text = {name: compiled(source, False) for name, source in (("main", MAIN), ("scale", SCALE), ("more", MORE))}
code = {name: compiled(source, True) for name, source in (("main", MAIN), ("scale", SCALE), ("more", MORE))}
linked = link((PTX, text["main"], "main"), (PTX, text["scale"], "scale"), (ANY, text["more"], "more"))  # no context yet
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
run(linked)
run(link((LTOIR, code["main"], "main"), (LTOIR, code["scale"], "scale"), (LTOIR, code["more"], "more"), options=(b"-lto", b"-arch=sm_130", b"-O3")))
run(link((LTOIR, code["main"], "main"), (ANY, code["scale"], "scale"), (PTX, text["more"], "more")))
for named in ("12_0", "12_9", "13_5"):
    lib = Versioned(named)
    run(link((LTOIR, code["main"], "main"), (PTX, text["scale"], "scale"), (PTX, text["more"], "more")))
lib = preloaded
all_lto = [(LTOIR, data, name) for name, data in code.items()]
made = link(*all_lto, options=(b"-lto", b"-ptx", b"-arch=sm_90"), ptx=True)
assert b".entry k" in made
said = link((PTX, text["main"], "main.ptx"), (PTX, text["more"], "more"), code=INVALID_INPUT)
assert b"undefined reference to '_Z5scalei' in 'main.ptx'" in said, said
said = link((CUBIN, b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\x00" + bytes(44), "some.cubin"), code=INVALID_INPUT)
assert b"'some.cubin'" in said, said
assert lib.nvJitLinkCreate(ctypes.byref(handle), 0, None) == MISSING_ARCH and lib.nvJitLinkDestroy(ctypes.byref(handle)) == 0
assert lib.nvJitLinkVersion(ctypes.byref(version[0]), ctypes.byref(version[1])) == 0 and version[0].value >= 12
print("right")
