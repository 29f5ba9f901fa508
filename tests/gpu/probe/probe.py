#!/usr/bin/env python3
"""Facts about a real CUDA driver and GPU: `python3 probe.py [--json FILE] [SECTION...]`. Needs Python 3.9, the driver, cc for one section; no more.
Every section runs in a process of its own with a time limit: a crash or a hang is a fact like any other. Exit: 0 all was asked, whatever the
answers; 77 there is no driver. PROBE_DRIVER names another library than libcuda.so.1."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

BUDGET, MIB, GIB = 165.0, 1 << 20, 1 << 30  # BUDGET: seconds for all
PTX = b""".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .u64 word = 42;
.visible .entry look(.param .u64 out, .param .u64 flag, .param .u64 rounds) { .reg .pred %p<3>; .reg .b32 %r<2>; .reg .b64 %d<6>;
ld.param.u64 %d1, [out]; ld.param.u64 %d2, [flag]; ld.param.u64 %d3, [rounds]; mov.u64 %d4, %globaltimer; st.global.u64 [%d1], %d4;
L: ld.volatile.global.u32 %r1, [%d2]; setp.ne.u32 %p1, %r1, 0; sub.u64 %d3, %d3, 1; setp.eq.or.u64 %p2, %d3, 0, %p1; @!%p2 bra L;
mov.u64 %d5, %globaltimer; st.global.u64 [%d1+8], %d5; st.global.u32 [%d1+16], %r1; ret; }
"""  # look: reads a word until it is not 0, so many times at most, and tells when it began and ended by the GPU's clock, and what it saw
TABLES = [
    "6bd5fb6c5bf4e74a8987d93912fd9df9", "a094798c2e742e7493f20800200c0a66", "42d85a8123f6cb478298f6e78a3aecdc", "c693336e1121df11a8c368f355d89593",
    "263e88607cd2614392f6bbd5006dfa7e", "d4082055bde6704b8d34ba123c66e1f2", "21318c60971432488ca641ff7324c8f2", "1734dc26800d47458726c0f1e7dd8bca",
    "6e163fbeb958444d835ce182aff1991e", "f8cff95121468b4eb9e2fb469e7c0dd9", "da9151d33ae6cc41a5c04f26d533e328",
]
OLD = [2000, 3000, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000, 9020, 10000, 10010, 10020]
VERSIONS = [*OLD, *range(11000, 11090, 10), *range(12000, 12100, 10), *range(13000, 13060, 10), 14000]
FOLDERS = "/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/wsl/lib"  # where the driver may be besides the linker's own places
READ_WRITE = create_string_buffer(struct.pack("iii", 1, 0, 3))  # for device 0
EXPORTABLE = create_string_buffer(struct.pack("iiiiQQ", 1, 1, 1, 0, 0, 0))  # memory of device 0, by descriptor
context, module = c_void_p(), c_void_p()  # this process's

def library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("PROBE_DRIVER") or "libcuda.so.1")

def cu(name: str, *args: Any) -> str:
    """Calls the driver, numbers as 64-bit words: "ok", the error's name, or "absent"."""
    function = getattr(library(), name, None)
    return error(function(*(c_uint64(a) if isinstance(a, int) else a for a in args))) if function else "absent"

def error(code: int) -> str:
    text = ctypes.c_char_p()
    if code:
        library().cuGetErrorName(code, byref(text))
    return "ok" if code == 0 else (text.value or b"").decode() or str(code)

def made(name: str, *args: Any) -> c_uint64:
    """What a call writes to its first argument; 0 when it fails."""
    out = c_uint64()
    return out if cu(name, byref(out), *args) == "ok" else c_uint64(0)

def say(fact: str, **what: Any) -> None:
    print(json.dumps({"fact": fact, **{k: getattr(v, "value", v) for k, v in what.items()}}), flush=True)

def start() -> None:
    for name, *args in (("cuInit", 0), ("cuDevicePrimaryCtxRetain", byref(context), 0), ("cuCtxSetCurrent", context)):
        if (result := cu(name, *args)) != "ok":
            sys.exit(say("stopped", call=name, result=result) or 3)

def kernel() -> tuple[c_uint64, c_uint64]:
    """The function, and 4 KiB of zeros for it."""
    memory, result = made("cuMemAlloc_v2", 4096), cu("cuModuleLoadData", byref(module), PTX)
    say("loaded", module=result, memory=cu("cuMemsetD8_v2", memory, 0, 4096))
    return made("cuModuleGetFunction", module, b"look"), memory

def launch(function: c_uint64, stream: Any, *args: Any) -> str:
    values = [c_uint64(getattr(a, "value", a)) for a in args]
    return cu("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, (c_void_p * len(values))(*map(ctypes.addressof, values)), None)

def child(*args: Any, **how: Any) -> subprocess.Popen[str]:
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **how}
    return subprocess.Popen([sys.executable, __file__, "--child", *map(str, args)], **how)

# ---- sections: each prints facts, in a process of its own

def here() -> None:
    count = c_int()
    results = [cu("cuInit", 0), cu("cuDeviceGetCount", byref(count))]
    if results != ["ok", "ok"] or not count.value:
        sys.exit(f"its library is there, but cuInit says {results[0]}; devices: {count.value}")

def attributes() -> None:
    number, count, size, name = c_int(), c_int(), c_size_t(), create_string_buffer(200)
    results = [cu("cuInit", 0), cu("cuDriverGetVersion", byref(number)), cu("cuDeviceGetCount", byref(count))]
    say("driver", results=results, version=number, devices=count)
    for device in range(count.value):
        results = [cu("cuDeviceGetName", name, 200, device), cu("cuDeviceTotalMem_v2", byref(size), device)]
        say("device", n=device, results=results, name=name.value.decode(), bytes=size)
        for n in range(1, 180):
            result = cu("cuDeviceGetAttribute", byref(number), n, device)
            say("attribute", device=device, n=n, value=number.value if result == "ok" else result)

def hint() -> None:
    """What each wanted address becomes, or the error; the second process asks while the first one still holds its own."""
    start()
    for place in (0, 0x10000000000, 0x200000000000, 0x300040000000, 0x600000000000, 0x7C0000000000):
        got = {}
        for i, size in enumerate((2 * MIB, GIB, 64 * GIB, 1024 * GIB)):
            at, wanted = c_uint64(), place and place + i * 0x8000000000
            result = cu("cuMemAddressReserve", byref(at), size, 0, wanted, 0)
            got[f"{size // MIB} MiB at {wanted:#x}"] = hex(at.value) if result == "ok" else result
        say("reserved", **got)
    time.sleep(2)

def costs() -> None:
    """Microseconds of each step for three sizes: the median of nine, and the most."""
    start()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", f"{folder}/timer.so", Path(__file__).with_suffix(".c")], check=True)
        timed = ctypes.CDLL(f"{folder}/timer.so").timed
    timed.restype = ctypes.c_double
    (look, memory), at, handle, plain, rounds, out = kernel(), c_uint64(), c_uint64(), c_uint64(), c_uint64(1), ctypes.addressof
    parameters = (c_void_p * 3)(out(memory), out(memory), out(rounds))
    for size in (2 * MIB, 16 * MIB, 128 * MIB):
        steps: dict[str, tuple[Any, ...]] = {
            "cuMemAddressReserve": (out(at), size, 0, 0, 0), "cuMemCreate": (out(handle), size, out(EXPORTABLE), 0),
            "cuMemMap": (at, size, 0, handle, 0), "cuMemSetAccess": (at, size, out(READ_WRITE), 1), "cuMemUnmap": (at, size),
            "cuMemRelease": (handle,), "cuMemAddressFree": (at, size), "cuMemAlloc_v2": (out(plain), size), "cuMemFree_v2": (plain,),
            "cuLaunchKernel": (look, 1, 1, 1, 1, 1, 1, 0, 0, out(parameters), 0),
        }
        found: dict[str, list[tuple[float, str]]] = {name: [] for name in steps}
        for name in [*steps] * 9:
            words, code = (c_uint64 * 11)(*(getattr(a, "value", a) for a in steps[name])), c_int()
            found[name].append((round(timed(getattr(library(), name), words, byref(code)), 2), error(code.value)))
        for name, times in found.items():
            say("cost", call=name, mib=size // MIB, us=sorted(times)[4][0], most_us=max(times)[0], results=sorted({result for _, result in times}))

def ipc() -> None:
    """Mapped memory at a wanted address, shared with another process and other devices; the old IPC handles of it and of a plain allocation."""
    ours, theirs = socket.socketpair()
    other = child("ipc_other", theirs.fileno(), pass_fds=[theirs.fileno()])
    theirs.close()
    start()
    size, fd, at, count, handle = 32 * MIB, c_int(-1), c_uint64(), c_int(), c_uint64()
    results = [cu("cuMemCreate", byref(handle), size, EXPORTABLE, 0), cu("cuMemAddressReserve", byref(at), size, 0, 0x200000000000, 0)]
    results += [cu("cuMemMap", at, size, 0, handle, 0), cu("cuMemSetAccess", at, size, READ_WRITE, 1)]
    results += [cu("cuMemsetD8_v2", at, 0x42, size), cu("cuCtxSynchronize")]
    say("memory", create_reserve_map_access_set_synchronize=results, at=hex(at.value))
    say("export", result=cu("cuMemExportToShareableHandle", byref(fd), handle, 1, 0))
    old, plain = create_string_buffer(64), made("cuMemAlloc_v2", size)
    say("ipc_handle", of_mapped=cu("cuIpcGetMemHandle", old, at), of_plain=cu("cuIpcGetMemHandle", old, plain))
    socket.send_fds(ours, [struct.pack("QQ", at.value, size) + old.raw], [max(fd.value, 0)])
    print(other.communicate()[0], end="", flush=True)
    cu("cuDeviceGetCount", byref(count))
    for peer in range(1, count.value):
        can = c_int()
        result = cu("cuDeviceCanAccessPeer", byref(can), peer, 0)
        say("peer", device=peer, result=result, can=can, set_access=cu("cuMemSetAccess", at, size, struct.pack("iii", 1, peer, 3), 1))

def gpudirect() -> None:
    """Whether the driver makes a dma-buf of mapped memory that was made for it, or not; what follows from its attributes is in those."""
    start()
    for capable in (0, 1):
        size, fd, at, handle = 4 * MIB, c_int(-1), made("cuMemAddressReserve", 4 * MIB, 0, 0, 0), c_uint64()
        results = [cu("cuMemCreate", byref(handle), size, struct.pack("iiiiQQ", 1, 0, 1, 0, 0, capable << 8), 0)]
        results += [cu("cuMemMap", at, size, 0, handle, 0), cu("cuMemSetAccess", at, size, READ_WRITE, 1)]
        results += [cu("cuMemGetHandleForAddressRange", byref(fd), at.value + 4096, 2 * MIB, 1, 0), cu("cuFlushGPUDirectRDMAWrites", 0, 100)]
        say("dma_buf", capable=capable, create_map_access_range_flush=results)

def ipc_other(descriptor: str) -> None:
    note, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(descriptor)), 200, 1)
    start()
    (there, size), handle, at, value = struct.unpack_from("QQ", note), c_uint64(), c_uint64(), c_uint64()
    results = [cu("cuMemImportFromShareableHandle", byref(handle), fds[0], 1), cu("cuMemAddressReserve", byref(at), size, 0, there, 0)]
    results += [cu("cuMemMap", at, size, 0, handle, 0), cu("cuMemSetAccess", at, size, READ_WRITE, 1), cu("cuMemcpyDtoH_v2", byref(value), at, 8)]
    say("import", import_reserve_map_access_read=results, same_address=at.value == there, right=value.value == 0x4242424242424242)
    by_value = type("Handle", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_char * 64)]})
    say("ipc_open", of_plain=cu("cuIpcOpenMemHandle_v2", byref(at), by_value.from_buffer_copy(note[16:80]), 1))

def hostflag() -> None:
    """Who sees a word that the host writes to mapped memory, and how soon: a running kernel, a waiting stream, a graph that was captured waiting."""
    start()
    host, seen, (look, memory) = made("cuMemHostAlloc", 4096, 2), c_uint64(), kernel()
    say("mapped_memory", allocated=bool(host), device_pointer=cu("cuMemHostGetDevicePointer_v2", byref(seen), host, 0))
    if not seen:
        return
    flag, stream, another = c_uint64.from_address(host.value), made("cuStreamCreate", 1), made("cuStreamCreate", 1)

    def busy(on: Any) -> bool:
        return cu("cuStreamQuery", on) == "CUDA_ERROR_NOT_READY"

    def observe(who: str, on: Any, result: str) -> None:
        """Something was queued that waits for the flag: does it wait, does another stream go on, how long after the write does it end?"""
        other = launch(look, another, memory, memory.value + 64, 1)
        time.sleep(0.1)
        waits, other_done, begin, flag.value = busy(on), not busy(another), time.perf_counter(), 1
        while busy(on) and time.perf_counter() < begin + 2:
            pass
        us = round((time.perf_counter() - begin) * 1e6, 1)
        say("seen_by", who=who, result=result, waits=waits, passed=not busy(on), us=us, other_stream=other, other_done=other_done)
        flag.value = 0

    observe("running kernel", stream, launch(look, stream, memory.value + 128, seen, 5 * 10**6))
    for bits, kind, flags in ((32, "greater or equal", 0), (64, "greater or equal", 0), (32, "equal", 1), (64, "equal", 1)):
        observe(f"stream, {bits} bits, {kind}", stream, cu(f"cuStreamWaitValue{bits}_v2", stream, seen, 1, flags))
    observe("legacy default stream", None, cu("cuStreamWaitValue32_v2", None, seen, 1, 0))
    for number, mode in enumerate(("global", "thread local", "relaxed")):
        graph, run = c_uint64(), c_uint64()
        results = [cu("cuStreamBeginCapture_v2", stream, number), cu("cuStreamWaitValue32_v2", stream, seen, 1, 0)]
        results += [cu("cuStreamEndCapture", stream, byref(graph)), cu("cuGraphInstantiateWithFlags", byref(run), graph, 0) if graph else "no graph"]
        say("capture", mode=mode, begin_wait_end_instantiate=results)
        if run:
            observe(f"graph, captured {mode}", stream, cu("cuGraphLaunch", run, stream))

def blocking() -> None:
    """Which calls wait while a kernel runs, or a host function, on a stream that does not block others: microseconds, with and without it."""
    start()
    host, seen, (look, memory), spare = made("cuMemHostAlloc", 4096, 2), c_uint64(), kernel(), made("cuMemAlloc_v2", 4 * MIB)
    cu("cuMemHostGetDevicePointer_v2", byref(seen), host, 0)
    flag, stream, other = c_uint64.from_address(host.value), made("cuStreamCreate", 1), made("cuStreamCreate", 1)
    pinned, pageable = made("cuMemHostAlloc", 4 * MIB, 0), create_string_buffer(4 * MIB)
    at, event, mapped, handle, old, size, fresh = c_uint64(), c_uint64(), c_uint64(), c_uint64(), c_uint64(), c_size_t(), c_void_p()
    returns, one = threading.Event(), c_uint64(1)
    parameters = (c_void_p * 3)(*map(ctypes.addressof, (memory, memory, one)))
    waits = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: returns.wait(1.0) and None)
    nothing = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
    cu("cuEventCreate", byref(event), 2), cu("cuMemAddressReserve", byref(mapped), 32 * MIB, 0, 0, 0)
    wait = ("cuStreamSynchronize", other)
    entries: list[list[tuple[Any, ...]]] = [
        [("cuMemHostAlloc", byref(at), 4 * MIB, 0)], [("cuMemFreeHost", at)], [("cuMemAlloc_v2", byref(at), 32 * MIB)], [("cuMemFree_v2", at)],
        [("cuMemAlloc_v2", byref(old), 4096)], [("cuMemFree_v2", old)], [("cuMemCreate", byref(handle), 32 * MIB, EXPORTABLE, 0)],
        [("cuMemMap", mapped, 32 * MIB, 0, handle, 0)], [("cuMemSetAccess", mapped, 32 * MIB, READ_WRITE, 1)], [("cuMemUnmap", mapped, 32 * MIB)],
        [("cuMemRelease", handle)], [("cuMemHostRegister_v2", pageable, 4 * MIB, 0)],
        [("cuMemcpyHtoDAsync_v2", spare, pageable, 4 * MIB, other), wait], [("cuMemHostUnregister", pageable)],
        [("cuMemcpyHtoDAsync_v2", spare, pinned, 4 * MIB, other)],
        [("cuMemcpyHtoDAsync_v2", spare, pinned, 4 * MIB, other), wait], [("cuMemcpyHtoDAsync_v2", spare, pageable, 4 * MIB, other)],
        [("cuMemcpyHtoDAsync_v2", spare, pageable, 4 * MIB, other), wait], [("cuMemcpyDtoHAsync_v2", pageable, spare, 4 * MIB, other), wait],
        [("cuMemcpyDtoHAsync_v2", pinned, spare, 4 * MIB, other), wait], [("cuMemsetD8Async", spare, 1, 4 * MIB, other), wait],
        [("cuLaunchHostFunc", other, nothing, None)], [("cuLaunchHostFunc", other, nothing, None), wait],
        [("cuEventRecord", event, other), ("cuEventSynchronize", event)], [("cuEventDestroy_v2", event)], [("cuEventCreate", byref(event), 2)],
        [("cuStreamCreate", byref(old), 1)], [("cuStreamDestroy_v2", old)], [("cuMemGetInfo_v2", byref(size), byref(size))],
        [("cuModuleLoadData", byref(fresh), PTX), ("cuModuleGetFunction", byref(old), fresh, b"look")],
        [("cuLaunchKernel", old, 1, 1, 1, 1, 1, 1, 0, other, parameters, None), wait], [("cuModuleUnload", fresh)],
        [("cuStreamWriteValue32_v2", other, spare, 1, 0), wait], [("cuMemAllocManaged", byref(at), 4 * MIB, 1)], [("cuMemFree_v2", at)],
        [("cuCtxCreate_v2", byref(fresh), 0, 0)], [("cuCtxDestroy_v2", fresh)], [("cuCtxSetCurrent", context)],
    ]
    took: list[dict[str, Any]] = [{} for _ in entries]
    for beside in ("nothing", "kernel", "host function", "wait"):
        for found, entry in zip(took, entries):  # noqa: B905 - Python 3.9
            flag.value = 0
            returns.clear()
            if beside == "kernel":
                launch(look, stream, memory, seen, 2 * 10**6)
            elif beside == "host function":
                cu("cuLaunchHostFunc", stream, waits, None)
            elif beside == "wait":
                cu("cuStreamWaitValue32_v2", stream, seen, 1, 0)
            opener = threading.Timer(1.0, setattr, (flag, "value", 1))
            opener.start()
            time.sleep(0.003)
            begin = time.perf_counter()
            results = [cu(*call) for call in entry]
            found[beside] = round((time.perf_counter() - begin) * 1e6)
            found["result"] = next((result for result in results if result != "ok"), "ok")
            opener.cancel()
            flag.value = 1
            returns.set()
            cu("cuStreamSynchronize", stream)
    for found, entry in zip(took, entries):  # noqa: B905 - Python 3.9
        say("blocking", call=" + ".join(call[0] for call in entry), **found)

def repeat() -> None:
    """Values that a client might foretell, if they are the same in every process."""
    start()
    at, size, texture, (look, memory), pinned = c_uint64(), c_size_t(), c_uint64(), kernel(), made("cuMemHostAlloc", 4096, 2)
    linear = struct.pack("iiQiIQ", 2, 0, memory.value, 0x20, 1, 4096).ljust(256, b"\0")
    say("texture", result=cu("cuTexObjectCreate", byref(texture), linear, bytes(256), None))
    cu("cuModuleGetGlobal_v2", byref(at), byref(size), module, b"word")
    values = {"global": at, "function": look, "module": module, "texture": texture, "allocation": memory, "pinned": pinned, "context": context}
    say("values", **{k: hex(v.value or 0) for k, v in values.items()})
    time.sleep(2)

def concurrent(rounds: str = "", when: str = "") -> None:
    """One kernel alone, then one in each of two processes at once: how long each took by the GPU's clock, and for how long both ran."""
    start()
    (look, memory), clock = kernel(), (c_uint64 * 2)()

    def spun(rounds: int, when: float = 0) -> list[int]:
        time.sleep(max(0.0, when - time.time()))
        results = [launch(look, None, memory, memory.value + 64, rounds), cu("cuMemcpyDtoH_v2", clock, memory, 16)]
        say("kernel", rounds=rounds, begin_ns=clock[0], end_ns=clock[1], results=results)
        return [*clock]

    begin, end, tried = 0, 1, 500
    while 0 < end - begin < 5e7:  # warm then; and a wait may slow down as it goes on
        begin, end, tried = *spun(4 * tried), 4 * tried
    if rounds:  # this is the second process
        spun(int(rounds), float(when))
    elif end > begin:
        many, at = int(tried * 0.3e9 / (end - begin)), time.time() + 4  # about 0.3 s, when both are ready
        alone, other, ours = spun(many), child("concurrent", many, at), spun(many, at)
        said = json.loads(other.communicate()[0].splitlines()[-1])
        theirs = [said["begin_ns"], said["end_ns"]]
        ms = [round((b - a) / 1e6, 2) for a, b in (alone, ours, theirs)]
        say("two_at_once", alone_ms=ms[0], each_ms=ms[1:], both_ran_ms=(min(ours[1], theirs[1]) - max(ours[0], theirs[0])) / 1e6, other=said)

def checkpoint() -> None:
    """The driver's own checkpoint of another process, which holds a GiB."""
    other = child("checkpointed", stdin=subprocess.PIPE)
    assert other.stdout and other.stdin
    if (first := other.stdout.readline()) != "ready\n":
        return say("stopped", result="no process with a GiB to checkpoint", because=first.strip())
    cu("cuInit", 0)
    state, lock = c_int(-1), struct.pack("I", 10000).ljust(64, b"\0")  # milliseconds
    for name in ("GetState", "Lock", "Checkpoint", "GetState", "Restore", "Unlock"):
        begin = time.perf_counter()
        result = cu(f"cuCheckpointProcess{name}", other.pid, {"GetState": byref(state), "Lock": lock}.get(name, bytes(128)))
        say("checkpoint", call=name, result=result, ms=round((time.perf_counter() - begin) * 1e3, 1), state=state)
    print(other.communicate("go\n", timeout=15)[0], end="")

def checkpointed() -> None:
    start()
    memory, value = made("cuMemAlloc_v2", GIB), c_uint64()
    if not memory:
        return print("no GiB of memory", flush=True)
    results = [cu("cuMemsetD8_v2", memory, 0x37, GIB), cu("cuCtxSynchronize")]
    print("ready", flush=True)
    sys.stdin.readline()
    results.append(cu("cuMemcpyDtoH_v2", byref(value), memory.value + GIB - 8, 8))
    say("memory_afterwards", results=results, right=value.value == 0x3737373737373737)

PATTERN = 0x5EED5EED

def leftover() -> None:
    """Whether memory of a process that was killed comes to another one as it was left: at most 16 GiB are written, and 1 MiB of each 64 read."""
    writer = child("leftover_written")
    assert writer.stdout
    said = json.loads(writer.stdout.readline() or "{}")
    writer.kill()
    writer.communicate()
    start()
    found = other = looked = 0
    for _ in range(said.get("chunks", 0)):
        if not (memory := made("cuMemAlloc_v2", 64 << 20)):
            break
        piece = create_string_buffer(1 << 20)
        if cu("cuMemcpyDtoH_v2", piece, memory, len(piece)) == "ok":
            words = struct.unpack(f"{len(piece) // 4}I", piece.raw)
            found, other, looked = found + words.count(PATTERN), other + len(words) - words.count(PATTERN) - words.count(0), looked + len(words)
    say("leftover", written_MiB=said.get("chunks", 0) * 64, looked_at_words=looked, pattern_words=found, other_words=other)

def leftover_written() -> None:
    start()
    free, total, chunks, name = c_size_t(), c_size_t(), 0, create_string_buffer(200)
    cu("cuMemGetInfo_v2", byref(free), byref(total)), cu("cuDeviceGetName", name, 200, 0)
    while chunks < min(4 if b"software" in name.value else 256, free.value * 3 // 4 // (64 << 20)) and (memory := made("cuMemAlloc_v2", 64 << 20)):
        chunks += cu("cuMemsetD32_v2", memory, PATTERN, 16 << 20) == "ok"
    say("written", chunks=chunks, synchronized=cu("cuCtxSynchronize"))
    time.sleep(60)

def tables() -> None:
    start()
    for uuid in TABLES:
        found = c_uint64()
        result = cu("cuGetExportTable", byref(found), bytes.fromhex(uuid))
        size = c_uint64.from_address(found.value).value if found else 0  # a table without a size word begins with an address
        words = [c_uint64.from_address(found.value + i).value for i in range(0, size, 8)] if size < 8192 else []
        say("table", uuid=uuid[:8], result=result, size=size if size < 8192 else "no size word", empty=[i for i, w in enumerate(words) if not w])

def slots() -> None:
    """The slots of which only the callers' contentment is known: which context, and which numbers, do they give?"""
    start()
    second, inner, a, b = made("cuCtxCreate_v2", 0, 0), c_uint64(), c_uint64(), c_uint64()
    names = {0: "none", context.value: "primary", second.value: "second"}

    def call(uuid: str, n: int, *args: Any) -> str:
        at = made("cuGetExportTable", bytes.fromhex(next(u for u in TABLES if u.startswith(uuid)))).value
        return error(ctypes.CFUNCTYPE(c_int)(c_uint64.from_address(at + 8 * n).value)(*args)) if at else "no table"

    for current in (c_void_p(), context, second):
        results = [cu("cuCtxSetCurrent", current), call("42d8", 2, byref(a))]
        say("context_slot_2", current=names[current.value or 0], results=results, gives=names.get(a.value, "something else"))
    cu("cuCtxSetCurrent", context)
    for which in (context, second):
        results = [call("2131", 4, which, byref(a)), cu("cuCtxGetId", which, byref(b))]
        say("ids_slot_4", of=names[which.value or 0], results=results, gives=a, cuCtxGetId=b)
    streams = {"NULL": c_void_p(0), "legacy": c_void_p(1), "per thread": c_void_p(2), "created": made("cuStreamCreate", 0)}
    for name, stream in streams.items():
        results = [call("2131", 51, context, stream, byref(inner)), call("2131", 39, context, inner, byref(a)), cu("cuStreamGetId", stream, byref(b))]
        say("ids_slots_51_39", stream=name, results=results, inner=hex(inner.value), gives=a, cuStreamGetId=b)

def procs() -> None:
    """cuGetProcAddress: for each name in the library, the versions from which it answers otherwise; flags 1 and 2 where they differ from 0."""
    cu("cuInit", 0)
    lib, process, out, status = library(), ctypes.CDLL(None), c_uint64(), c_int()
    symbol = (ctypes.c_char_p * 4)()  # a Dl_info: file, its address, the symbol, its address
    process.dladdr(lib.cuInit, symbol)
    strings = re.findall(rb"(?<=\0)cu[A-Z]\w+(?=\0)", Path(os.fsdecode(symbol[0] or b"")).read_bytes())

    def answer(name: str, version: int, flags: int) -> str:
        out.value = 0
        code = lib.cuGetProcAddress_v2(name.encode(), byref(out), version, c_uint64(flags), byref(status))
        owner = (symbol[2] or b"not exported").decode() if process.dladdr(out, symbol) else "of no library"
        return owner if out else f"{error(code)}/{status.value}"

    for name in sorted({re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", s.decode()) for s in strings}):
        before: list[str] = []
        for flags in range(3):
            answers: list[str] = []
            for version in VERSIONS:
                found = answer(name, version, flags)
                if not answers or answers[-1].split(":")[1] != found:
                    answers.append(f"{version}:{found}")
            if not flags or answers != before:
                say("proc", name=name, flags=flags, answers=answers)
            before = before or answers

# ---- all of them: how many processes ask at the same time, once and again

ONCE = ("attributes", "leftover", "ipc", "gpudirect", "tables", "slots", "hostflag", "blocking", "costs", "procs", "checkpoint", "concurrent")
SECTIONS = {**dict.fromkeys(ONCE, (1,)), "hint": (2, 1), "repeat": (2, 1)}

def ask(name: str, processes: int, limit: float) -> list[dict[str, Any]]:
    """Runs a section in so many processes at once: the facts of each, how it ended, what else it said."""
    begin, results = time.monotonic(), []
    for process in [child(name, start_new_session=True) for _ in range(processes)]:
        try:
            text, ended = process.communicate(timeout=max(limit - (time.monotonic() - begin), 0.1))[0], ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and its own children, one of which may be held by a checkpoint
            text, ended = process.communicate()[0], f"stopped after {limit:.0f} s"
        code, lines = process.returncode, text.splitlines()
        ended = ended or ("ok" if code == 0 else f"killed by signal {-code}" if code < 0 else f"exit {code}")
        facts = [json.loads(line) for line in lines if line.startswith('{"fact"')]
        said = [line for line in lines if not line.startswith('{"fact"')][-12:]
        results.append({"ended": ended, "seconds": round(time.monotonic() - begin, 2), "facts": facts, "said": said})
    return results

def same(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each fact of several runs, which of its values are the same in all of them."""
    rows = zip(*(run["facts"] for run in runs)) if len(runs) > 1 else ()  # noqa: B905 - Python 3.9
    return [{"fact": f"same_{a['fact']}", **{k: all(b.get(k) == v for b in others) for k, v in a.items() if k != "fact"}} for a, *others in rows]

def show(name: str, section: dict[str, Any]) -> None:
    print(f"\n== {name}: {section['ended']}, {section['seconds']:.1f} s", flush=True)
    many = [f for f in section["facts"] if f["fact"] in ("attribute", "proc")]
    for fact in [f for f in section["facts"] if f not in many]:
        print(f"  {fact['fact']:<16}", *(f"{k}={v}" for k, v in fact.items() if k != "fact"))
    print(f"  ... and {len(many)} in the JSON\n" if many else "", *(f"  | {line}\n" for line in section["said"]), sep="", end="")

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=25.0, help="seconds a section may take")
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}")
    options = parser.parse_args()
    if options.child:
        return globals()[options.child[0]](*options.child[1:]) or 0
    os.environ["LD_LIBRARY_PATH"] = f"{os.environ.get('LD_LIBRARY_PATH', '')}:{FOLDERS}".lstrip(":")
    end, sections = time.monotonic() + BUDGET, {}
    (first,) = ask("here", 1, options.limit)
    if first["ended"] != "ok":
        print("no NVIDIA driver found", *first["said"][-1:], sep=": ")
        return 77
    for name in options.sections or SECTIONS:
        runs = [run for n in SECTIONS[name] for run in ask(name, n, min(options.limit, end - time.monotonic()))]
        ended = next((run["ended"] for run in runs if run["ended"] != "ok"), "ok")
        sections[name] = runs[0] | {"ended": ended, "facts": runs[0]["facts"] + same(runs), "other_runs": runs[1:]}
        show(name, sections[name])
        if options.json:  # as far as we got, in case somebody stops us
            about = {"system": os.uname().release, "when": time.strftime("%Y-%m-%d %H:%M:%S %z"), "sections": sections}
            options.json.write_text(json.dumps(about, indent=1) + "\n")
    return 0

if __name__ == "__main__":
    sys.exit(main())
