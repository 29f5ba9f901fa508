"""Loads modules of PTX by the driver's API and checks what their kernels do. Prints "right" and exits 0, or says what was wrong.

python modules.py SALT COUNT [log] [leak] [global] [bad] [twice] [library] [wait FILE]

SALT makes the images this caller's own; `library` loads them as libraries and asks all that can be asked about their kernels. On stderr: "module
waits N", the waits that loading, and asking for kernels, cost.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")
FILLER = "// " + "x" * 2000 + "\n"


class Failed(Exception):
    pass


def call(name: str, *args: object) -> None:
    code = getattr(cuda, name)(*args)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise Failed(f"{name}: error {code}: {(text.value or b'').decode()}")


def ptx(salt: str, number: int) -> bytes:
    return f"""// {salt} {number}
{FILLER * 4}.version 7.0
.target sm_50
.address_size 64
.visible .global .align 4 .u32 table_{number}[4] = {{10, 20, 30, {number}}};
.visible .entry other(.param .u32 unused)
{{
    ret;
}}
.visible .entry add_{number}(.param .u64 out, .param .u32 more)
{{
    .reg .u32 %r<5>; .reg .u64 %d<5>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [more];
    ld.global.u32 %r2, [table_{number}+12];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [%d1], %r3;
    mov.u64 %d2, table_{number};
    st.global.u64 [%d1+8], %d2;
    ret;
}}
""".encode()


def waits() -> int:
    figures = (ctypes.c_uint64 * 3)()
    cuda.gpuvirt_figures(figures)
    return int(figures[1])


def load(image: bytes, words: list[str]) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    if "log" in words:
        log = ctypes.create_string_buffer(1000)
        options = (ctypes.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER, its size
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 1000)
        call("cuModuleLoadDataEx", ctypes.byref(module), image, 2, options, values)
    else:
        call("cuModuleLoadData", ctypes.byref(module), image)
    return module


def kernel_of_library(image: bytes, name: bytes) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """The kernel of an image that is loaded as a library, and the module that it is in this context."""
    library, kernel, module, function = (ctypes.c_void_p() for _ in range(4))
    kernels, count, threads = (ctypes.c_void_p * 2)(), ctypes.c_uint(), ctypes.c_int()
    call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", ctypes.byref(kernel), library, name)
    call("cuLibraryGetKernelCount", ctypes.byref(count), library)
    call("cuLibraryEnumerateKernels", kernels, 2, library)
    call("cuLibraryGetModule", ctypes.byref(module), library)
    call("cuKernelGetFunction", ctypes.byref(function), kernel)
    call("cuKernelGetAttribute", ctypes.byref(threads), 0, kernel, 0)  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    if count.value != 2 or kernel.value not in list(kernels) or threads.value < 32:
        raise Failed(f"a library is said to have {count.value} kernels, one of {threads.value} threads")
    return function, module


def main() -> None:
    salt, count, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    context, out = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(64))
    if "wait" in words:
        print("running", flush=True)
        while not Path(words[words.index("wait") + 1]).exists():
            time.sleep(0.01)
    if "bad" in words:
        try:
            load(f"// {salt} bad\n.version 7.0\n.target sm_50\n.visible .entry k(.param .u99 x)\n{{\n    ret;\n}}\n".encode(), words)
        except Failed:
            pass
        else:
            raise Failed("a module that is none was taken")
    before, functions, modules = waits(), [], []
    for _ in range(2 if "twice" in words else 1):
        for number in range(count):
            image, name = ptx(salt, number), f"add_{number}".encode()
            if "library" in words:
                function, module = kernel_of_library(image, name)
            else:
                module, function = load(image, words), ctypes.c_void_p()
                call("cuModuleGetFunction", ctypes.byref(function), module, name)
            functions.append((number, function))
            modules.append(module)
    print("module waits", waits() - before, file=sys.stderr)
    for (number, function), module in zip(functions, modules, strict=True):
        more = ctypes.c_uint32(1000)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(more))
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        got = (ctypes.c_uint64 * 2)()
        call("cuMemcpyDtoH_v2", got, out, ctypes.c_size_t(16))
        if got[0] & 0xFFFFFFFF != 1000 + number:
            raise Failed(f"kernel {number} gave {got[0]}")
        table = (ctypes.c_uint32 * 4)()
        if "leak" in words:  # an address that only the kernel told
            call("cuMemcpyDtoH_v2", table, ctypes.c_uint64(got[1]), ctypes.c_size_t(16))
            if list(table) != [10, 20, 30, number]:
                raise Failed(f"table {number} is {list(table)}")
        if "global" in words:
            address, size = ctypes.c_uint64(), ctypes.c_size_t()
            call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, f"table_{number}".encode())
            if (address.value, size.value) != (got[1], 16):
                raise Failed(f"table {number} is said to be at {address.value:x}, {size.value} bytes")
            if cuda.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), module, b"no_such") != 500:
                raise Failed("a variable that is none was found")
    for module in modules if "library" not in words else []:
        call("cuModuleUnload", module)
    print("right")


try:
    main()
except Failed as failed:
    sys.exit(f"wrong: {failed}")
