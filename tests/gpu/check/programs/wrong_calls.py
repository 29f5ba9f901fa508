"""Answers of the driver to invalid calls and to queries whose answers differ between drivers: one line of JSON each, for comparing two drivers."""

from __future__ import annotations

import ctypes
import json
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

driver = ctypes.CDLL("libcuda.so.1")
PTX = b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }\n.visible .global .u32 g;\n"


def name_of(code: int) -> str:
    text = ctypes.c_char_p()
    return "CUDA_SUCCESS" if code == 0 else (driver.cuGetErrorName(code, byref(text)), (text.value or b"").decode() or str(code))[1]


def call(name: str, *args: Any) -> str:
    found = getattr(driver, name, None)
    return name_of(found(*(c_uint64(a) if isinstance(a, int) else a for a in args))) if found else "absent"


def new(name: str, *args: Any) -> c_uint64:
    out = c_uint64()
    call(name, byref(out), *args)
    return out


class Answers(dict[str, str]):
    """Told one by one, so that a driver that crashes on one of them has still answered those before."""

    def __setitem__(self, what: str, answer: str) -> None:
        print(json.dumps([what, answer]), flush=True)


answers = Answers()


def ask(what: str, name: str, *args: Any) -> None:
    answers[what] = call(name, *args)


def main() -> None:
    out, number, size, word, big = c_uint64(), c_int(), c_size_t(), ctypes.create_string_buffer(64), 1 << 60
    ask("any call before cuInit", "cuDeviceGetCount", byref(number))
    ask("cuInit with flags 1", "cuInit", 1)
    ask("cuInit", "cuInit", 0)
    ask("cuDeviceGet of device -1", "cuDeviceGet", byref(number), -1)
    ask("cuDeviceGet of device 99", "cuDeviceGet", byref(number), 99)
    ask("cuDeviceGet to NULL", "cuDeviceGet", None, 0)
    ask("attribute 0", "cuDeviceGetAttribute", byref(number), 0, 0)
    ask("attribute 9999", "cuDeviceGetAttribute", byref(number), 9999, 0)
    ask("cuMemAlloc without a context", "cuMemAlloc_v2", byref(out), 256)
    ask("cuCtxGetCurrent without a context", "cuCtxGetCurrent", byref(out))
    answers["the current context then"] = "none" if not out.value else "some"
    ask("cuCtxGetDevice without a context", "cuCtxGetDevice", byref(number))
    ask("cuCtxPopCurrent of an empty stack", "cuCtxPopCurrent_v2", byref(out))
    context = new("cuDevicePrimaryCtxRetain", 0)
    ask("cuCtxSetCurrent", "cuCtxSetCurrent", context)
    ask("cuMemAlloc of 0 bytes", "cuMemAlloc_v2", byref(out), 0)
    ask("cuMemAlloc of too much", "cuMemAlloc_v2", byref(out), big)
    ask("cuMemAllocHost of too much", "cuMemAllocHost_v2", byref(out), big)
    ask("cuMemFree of NULL", "cuMemFree_v2", 0)
    ask("cuMemFree of what never was", "cuMemFree_v2", 0x123400)
    memory = new("cuMemAlloc_v2", 4096)
    ask("cuMemFree of a middle", "cuMemFree_v2", memory.value + 256)
    ask("cuMemcpyHtoD beyond the end", "cuMemcpyHtoD_v2", memory.value + 4090, bytes(64), 64)
    ask("cuMemcpyHtoD of 0 bytes to nowhere", "cuMemcpyHtoD_v2", 0, bytes(8), 0)
    ask("cuMemcpyHtoD to NULL", "cuMemcpyHtoD_v2", 0, bytes(8), 8)
    ask("cuMemcpyDtoH from a host address", "cuMemcpyDtoH_v2", word, ctypes.addressof(word), 8)
    ask("cuMemcpy between host addresses", "cuMemcpy", ctypes.addressof(word), ctypes.addressof(word) + 32, 8)
    ask("cuMemsetD32 at an odd address", "cuMemsetD32_v2", memory.value + 1, 0, 4)
    ask("cuMemsetD8 beyond the end", "cuMemsetD8_v2", memory, 0, 1 << 30)
    ask("cuPointerGetAttribute of a host address", "cuPointerGetAttribute", byref(out), 2, ctypes.addressof(word))
    ask("cuPointerGetAttribute 999", "cuPointerGetAttribute", byref(out), 999, memory)
    ask("cuMemGetAddressRange of a host address", "cuMemGetAddressRange_v2", byref(out), byref(size), ctypes.addressof(word))
    ask("cuMemHostUnregister of what is not", "cuMemHostUnregister", word)
    ask("cuMemFreeHost of what is not", "cuMemFreeHost", word)
    ask("cuModuleLoadData of nonsense", "cuModuleLoadData", byref(out), b"nonsense" + bytes(64))
    ask("cuModuleLoadData of wrong PTX", "cuModuleLoadData", byref(out), PTX.replace(b"ret;", b"rat;"))
    ask("cuModuleLoadData of empty text", "cuModuleLoadData", byref(out), bytes(64))
    ask("cuModuleLoad of no file", "cuModuleLoad", byref(out), b"/nowhere/at/all")
    module = new("cuModuleLoadData", PTX)
    ask("cuModuleGetFunction of no such", "cuModuleGetFunction", byref(out), module, b"nothing")
    ask("cuModuleGetGlobal of no such", "cuModuleGetGlobal_v2", byref(out), byref(size), module, b"nothing")
    k = c_void_p(new("cuModuleGetFunction", module, b"k").value)
    params = (c_void_p * 1)(ctypes.addressof(memory))

    def launch(what: str, *grid: int, stream: Any = None, function: Any = k, given: Any = params) -> None:
        ask(what, "cuLaunchKernel", function, *grid, stream, given, None)

    launch("a launch with a grid of 0", 0, 1, 1, 32, 1, 1, 0)
    launch("a launch with a block of 0", 1, 1, 1, 0, 1, 1, 0)
    launch("a launch with 2048 threads", 1, 1, 1, 2048, 1, 1, 0)
    launch("a launch with a grid of 65536 in y", 1, 65536, 1, 32, 1, 1, 0)
    launch("a launch with 2^31 blocks", 1 << 31, 1, 1, 32, 1, 1, 0)
    launch("a launch with 1 MiB of shared memory", 1, 1, 1, 32, 1, 1, 1 << 20)
    launch("a launch without parameters", 1, 1, 1, 32, 1, 1, 0, given=None)
    launch("a launch of no function", 1, 1, 1, 32, 1, 1, 0, function=None)
    ask("cuFuncSetAttribute of too much shared memory", "cuFuncSetAttribute", k, 8, 1 << 20)
    ask("cuFuncSetAttribute of attribute 99", "cuFuncSetAttribute", k, 99, 1)
    ask("cuFuncGetAttribute of attribute 99", "cuFuncGetAttribute", byref(number), 99, k)
    stream, event, other = new("cuStreamCreate", 0), new("cuEventCreate", 0), new("cuEventCreate", 0)
    untimed = new("cuEventCreate", 2)
    ask("cuStreamCreate with flags 77", "cuStreamCreate", byref(out), 77)
    ask("cuStreamCreateWithPriority -1000", "cuStreamCreateWithPriority", byref(out), 0, -1000)
    ask("cuEventCreate with flags 77", "cuEventCreate", byref(out), 77)
    ask("cuEventQuery of an event never recorded", "cuEventQuery", event)
    ask("cuEventSynchronize of it", "cuEventSynchronize", event)
    ask("cuEventElapsedTime of two never recorded", "cuEventElapsedTime", byref(ctypes.c_float()), event, other)
    ask("cuStreamWaitEvent of one never recorded", "cuStreamWaitEvent", stream, event, 0)
    call("cuEventRecord", event, stream)
    call("cuEventRecord", untimed, stream)
    call("cuCtxSynchronize")
    ask("cuEventElapsedTime with one untimed", "cuEventElapsedTime", byref(ctypes.c_float()), event, untimed)
    ask("cuStreamQuery of an idle stream", "cuStreamQuery", stream)
    ask("cuStreamEndCapture without a capture", "cuStreamEndCapture", stream, byref(out))
    ask("cuStreamIsCapturing", "cuStreamIsCapturing", stream, byref(number))
    ask("cuStreamBeginCapture of the legacy stream", "cuStreamBeginCapture_v2", None, 0)
    # Nothing here waits: the waits are for a word that is 0 to be at least 0, and what a driver should refuse are writes.
    call("cuMemsetD32_v2", memory, 0, 1024)
    call("cuCtxSynchronize")
    ask("cuStreamWriteValue32 at an odd address", "cuStreamWriteValue32_v2", stream, memory.value + 2, 1, 0)
    ask("cuStreamWriteValue64 at half a word", "cuStreamWriteValue64_v2", stream, memory.value + 4, 1, 0)
    ask("cuStreamWriteValue32 to NULL", "cuStreamWriteValue32_v2", stream, 0, 1, 0)
    ask("cuStreamWriteValue32 with flags 2", "cuStreamWriteValue32_v2", stream, memory, 0, 2)
    ask("cuStreamWaitValue32 with flags 77", "cuStreamWaitValue32_v2", stream, memory, 0, 76)
    ask("cuStreamWaitValue32 for at least 0", "cuStreamWaitValue32_v2", stream, memory, 0, 0)
    ask("cuStreamWaitValue64 for at least 0", "cuStreamWaitValue64_v2", stream, memory, 0, 0)
    ask("cuStreamWriteValue32 by its first version", "cuStreamWriteValue32", stream, memory, 0, 0)
    ask("cuStreamBatchMemOp of none", "cuStreamBatchMemOp_v2", stream, 0, None, 0)
    operation = (ctypes.c_uint32 * 12)(77)
    ask("cuStreamBatchMemOp of an unknown operation", "cuStreamBatchMemOp_v2", stream, 1, operation, 0)
    ask("cuStreamBatchMemOp with flags 1", "cuStreamBatchMemOp_v2", stream, 1, operation, 1)
    ask("cuStreamSynchronize after them", "cuStreamSynchronize", stream)
    for n in range(14):
        answers[f"limit {n}"] = f"{call('cuCtxGetLimit', byref(size), n)} {size.value}"
    ask("cuCtxSetLimit 99", "cuCtxSetLimit", 99, 1)
    ask("cuCtxGetLimit 99", "cuCtxGetLimit", byref(size), 99)
    ask("cuCtxSetLimit of too much stack", "cuCtxSetLimit", 0, 1 << 40)
    ask("cuDeviceCanAccessPeer of itself", "cuDeviceCanAccessPeer", byref(number), 0, 0)
    answers["its answer"] = str(number.value)
    ask("cuCtxEnablePeerAccess to itself", "cuCtxEnablePeerAccess", context, 0)
    ask("cuDevicePrimaryCtxSetFlags while active", "cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    ask("cuGetProcAddress of no name", "cuGetProcAddress_v2", b"cuNothing", byref(out), 12000, 0, byref(number))
    ask("cuGetExportTable of no table", "cuGetExportTable", byref(out), bytes(16))
    ask("cuGetErrorName of 12345", "cuGetErrorName", 12345, byref(out))
    for code in (1, 2, 100, 200, 201, 209, 218, 222, 400, 500, 600, 700, 701, 702, 709, 716, 719, 800, 801, 900, 906, 999):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, byref(text))
        answers[f"the text of error {code}"] = (text.value or b"").decode()
    for n in range(10):
        answers[f"attribute {n} of a function"] = f"{call('cuFuncGetAttribute', byref(number), n, k)} {number.value}"
    ask("cuModuleUnload", "cuModuleUnload", module)
    ask("cuStreamDestroy", "cuStreamDestroy_v2", stream)
    ask("cuCtxSynchronize at the end", "cuCtxSynchronize")


main()
