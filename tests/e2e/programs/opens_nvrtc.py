"""Opens NVRTC by itself, twice as two libraries (arguments: its files), and has a kernel compiled for the device's own architecture."""

import ctypes
import sys

CODE = b"""extern "C" __global__ void add(int *p, int n) { p[threadIdx.x] += n; }"""
cuda = ctypes.CDLL("libcuda.so.1")


def call(library, name, *arguments):
    status = getattr(library, name)(*arguments)
    assert not status, f"{name}: {status}"


context, at, major = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
call(cuda, "cuInit", 0)
call(cuda, "cuDeviceGetAttribute", ctypes.byref(major), 75, 0)
call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call(cuda, "cuMemAlloc_v2", ctypes.byref(at), 128)
call(cuda, "cuMemsetD32_v2", at, 1, 32)
libraries = [ctypes.CDLL(name) for name in sys.argv[1:]]
programs = [ctypes.c_void_p() for _ in libraries]
for library, program in zip(libraries, programs, strict=True):
    call(library, "nvrtcCreateProgram", ctypes.byref(program), CODE, b"add.cu", 0, None, None)
options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major.value}0".encode())
for i, (library, program) in enumerate(zip(libraries, programs, strict=True)):
    call(library, "nvrtcCompileProgram", program, 1, options)
    size, module, kernel = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_void_p()
    call(library, "nvrtcGetCUBINSize", program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    call(library, "nvrtcGetCUBIN", program, image)
    call(library, "nvrtcDestroyProgram", ctypes.byref(program))
    call(cuda, "cuModuleLoadData", ctypes.byref(module), image)
    call(cuda, "cuModuleGetFunction", ctypes.byref(kernel), module, b"add")
    number = ctypes.c_int(10**i)
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(number))
    call(cuda, "cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
found = (ctypes.c_int * 32)()
call(cuda, "cuMemcpyDtoH_v2", found, at, 128)
expected = 1 + sum(10**i for i in range(len(libraries)))
print("right" if set(found) == {expected} else f"wrong: {set(found)}, not {expected}")
