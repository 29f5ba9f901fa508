"""What there is in a GPU's memory before this program has written any. Arguments: how many MiB; then "look", which prints how many words of device
memory and of a block's shared memory are not zero; or "fill", which writes all of both and looks again, prints the same, and waits for a line on
stdin and looks once more."""

from __future__ import annotations

import array
import ctypes
import sys

PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.shared .align 4 .b8 s[32768];
.visible .entry fill() {
    .reg .u32 %t, %i, %a;
    .reg .pred %p;
    mov.u32 %t, %tid.x;
    shl.b32 %i, %t, 2;
again:
    mov.u32 %a, s;
    add.u32 %a, %a, %i;
    st.shared.u32 [%a], 0xa5a5a5a5;
    add.u32 %i, %i, 128;
    setp.lt.u32 %p, %i, 32768;
    @%p bra again;
    ret;
}
.visible .entry look(.param .u64 p) {
    .reg .u32 %t, %i, %a, %v;
    .reg .u64 %o, %x;
    .reg .pred %p;
    ld.param.u64 %o, [p];
    mov.u32 %t, %tid.x;
    shl.b32 %i, %t, 2;
again:
    mov.u32 %a, s;
    add.u32 %a, %a, %i;
    ld.shared.u32 %v, [%a];
    cvt.u64.u32 %x, %i;
    add.u64 %x, %o, %x;
    st.global.u32 [%x], %v;
    add.u32 %i, %i, 128;
    setp.lt.u32 %p, %i, 32768;
    @%p bra again;
    ret;
}
"""
SHARED, PART = 32768, 16 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code:
        sys.exit(f"error {code}")


size, fills = int(sys.argv[1]) << 20, sys.argv[2] == "fill"
context, module, memory, out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
check(cuda.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(SHARED)))


def launch(name: bytes, *arguments: ctypes.c_uint64) -> None:
    function = ctypes.c_void_p()
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
    places = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(one) for one in arguments))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, places, None))


def words(address: int, count: int) -> int:
    """How many are not zero."""
    found = 0
    for start in range(0, count, PART):
        part = ctypes.create_string_buffer(min(PART, count - start))
        check(cuda.cuMemcpyDtoH_v2(part, ctypes.c_uint64(address + start), ctypes.c_size_t(len(part))))
        found += len(part) // 4 - array.array("I", part.raw).count(0)
    return found


def look() -> None:
    launch(b"look", out)
    print(f"memory={words(memory.value, size)} shared={words(out.value, SHARED)}", flush=True)


look()
if fills:
    check(cuda.cuMemsetD32_v2(memory, 0xA5A5A5A5, ctypes.c_size_t(size // 4)))
    launch(b"fill")
    look()
    sys.stdin.readline()
    look()
