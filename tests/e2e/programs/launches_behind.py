"""Launches ten kernels behind a host function that does not return before the server's log (argument 1) names argument 2 of them as ready to run; if
that is 0, before all launches are with the server. Prints how many it named then, and whether the kernels did what they should."""

import ctypes
import json
import sys
import threading
import time
from pathlib import Path

log, wanted = Path(sys.argv[1]), int(sys.argv[2])
KERNELS = 10
counted = threading.Event()
cuda = ctypes.CDLL("libcuda.so.1")
ptx = ".version 7.0\n.target sm_50\n.address_size 64\n" + "".join(
    f".visible .entry k{i}(.param .u64 p) {{ .reg .b64 %d<2>; .reg .b32 %r<2>; ld.param.u64 %d1, [p]; ld.global.u32 %r1, [%d1]; "
    f"mad.lo.u32 %r1, %r1, 3, {i}; st.global.u32 [%d1], %r1; ret; }}\n"
    for i in range(KERNELS)
)


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert not status, f"{name}: {status}"


def ready():
    return {json.loads(line)["kernel"] for line in log.read_text().splitlines()} if log.exists() else set()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def hold(_):
    if not wanted:
        counted.wait(100)
    end = time.monotonic() + 100
    while len(ready()) < wanted and time.monotonic() < end:
        time.sleep(0.01)


context, module, stream, at, other = (ctypes.c_void_p() for _ in range(5))
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuMemAlloc_v2", ctypes.byref(at), 4)
call("cuMemsetD32_v2", at, 1, 1)
call("cuModuleLoadData", ctypes.byref(module), ptx.encode())
call("cuCtxSynchronize")
call("cuLaunchHostFunc", stream, hold, None)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(at))
for i in range(KERNELS):
    kernel = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(kernel), module, f"k{i}".encode())
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)
call("cuMemAlloc_v2", ctypes.byref(other), 4)  # answered when the server has them all
before = len(ready())
counted.set()
call("cuStreamSynchronize", stream)
found, value = ctypes.c_uint32(), 1
call("cuMemcpyDtoH_v2", ctypes.byref(found), at, 4)
for i in range(KERNELS):
    value = value * 3 + i
print(before if not wanted else "held until they were ready", "right" if found.value == value % 2**32 else "wrong")
