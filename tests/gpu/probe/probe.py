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
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

BUDGET, MIB, GIB = 165.0, 1 << 20, 1 << 30  # BUDGET: seconds for all
PTX = b""".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .u64 word = 42;
.visible .entry spin(.param .u64 out, .param .u64 rounds, .param .u64 unused) { .reg .pred %p<2>; .reg .b64 %d<6>;
ld.param.u64 %d1, [out]; ld.param.u64 %d2, [rounds]; mov.u64 %d3, %globaltimer; st.volatile.global.u64 [%d1], %d3;
L: ld.volatile.global.u64 %d4, [%d1]; sub.u64 %d2, %d2, 1; setp.ne.u64 %p1, %d2, 0; @%p1 bra L;
mov.u64 %d5, %globaltimer; st.volatile.global.u64 [%d1+8], %d5; ret; }
.visible .entry flag(.param .u64 in, .param .u64 out, .param .u64 limit) { .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %d<7>;
ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; ld.param.u64 %d3, [limit]; mov.u64 %d4, %globaltimer;
L: ld.volatile.global.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra D;
mov.u64 %d5, %globaltimer; sub.u64 %d6, %d5, %d4; setp.lt.u64 %p2, %d6, %d3; @%p2 bra L;
D: add.u32 %r2, %r1, 1; st.volatile.global.u32 [%d2], %r2; ret; }
"""
TABLES = [
    "6bd5fb6c5bf4e74a8987d93912fd9df9", "a094798c2e742e7493f20800200c0a66", "42d85a8123f6cb478298f6e78a3aecdc", "c693336e1121df11a8c368f355d89593",
    "263e88607cd2614392f6bbd5006dfa7e", "d4082055bde6704b8d34ba123c66e1f2", "21318c60971432488ca641ff7324c8f2", "1734dc26800d47458726c0f1e7dd8bca",
    "6e163fbeb958444d835ce182aff1991e", "f8cff95121468b4eb9e2fb469e7c0dd9", "da9151d33ae6cc41a5c04f26d533e328",
]
OLD = [2000, 3000, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000, 9020, 10000, 10010, 10020]
VERSIONS = [*OLD, *range(11000, 11090, 10), *range(12000, 12100, 10), *range(13000, 13060, 10), 14000]
context, module = c_void_p(), c_void_p()  # this process's
READ_WRITE = struct.pack("iii", 1, 0, 3)  # for device 0

def library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("PROBE_DRIVER") or "libcuda.so.1")

def cu(name: str, *args: Any) -> str:
    """Calls the driver: "ok", the error's name, or "absent". Numbers go as 64-bit words, bytes and buffers as pointers."""
    function = getattr(library(), name, None)
    return error(function(*map(word, args))) if function else "absent"

def word(value: Any) -> Any:
    return c_uint64(value) if isinstance(value, int) else value

def error(code: int) -> str:
    text = ctypes.c_char_p()
    return "ok" if code == 0 else (library().cuGetErrorName(code, byref(text)), (text.value or b"").decode() or str(code))[1]

def say(fact: str, **what: Any) -> None:
    print(json.dumps({"fact": fact, **{k: getattr(v, "value", v) for k, v in what.items()}}), flush=True)

def must(name: str, *args: Any) -> None:
    if (result := cu(name, *args)) != "ok":
        say("stopped", call=name, result=result)
        sys.exit(3)

def start() -> None:
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)

def kernel(name: bytes) -> c_void_p:
    if not module:
        must("cuModuleLoadData", byref(module), PTX)
    return c_void_p(made("cuModuleGetFunction", module, name).value)

def launch(function: c_void_p, stream: Any, *args: Any) -> str:
    values = [c_uint64(getattr(a, "value", a) or 0) for a in (*args, 0, 0)]
    return cu("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, (c_void_p * len(values))(*map(ctypes.addressof, values)), None)

def made(name: str, *args: Any) -> c_uint64:
    """What a call writes to its first argument; 0 when it fails."""
    out = c_uint64()
    return out if cu(name, byref(out), *args) == "ok" else c_uint64(0)

def soon(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()

def child(*args: Any, **how: Any) -> subprocess.Popen[str]:
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **how}
    return subprocess.Popen([sys.executable, __file__, "--child", *map(str, args)], **how)

# ---- sections: each prints facts, in a process of its own

def attributes() -> None:
    start()
    number, count, size = c_int(), c_int(), c_size_t()
    say("driver", results=[cu("cuDriverGetVersion", byref(number)), cu("cuDeviceGetCount", byref(count))], version=number, devices=count)
    for d in range(count.value):
        name, bus = create_string_buffer(200), create_string_buffer(32)
        results = [cu("cuDeviceGetName", name, 200, d), cu("cuDeviceTotalMem_v2", byref(size), d), cu("cuDeviceGetPCIBusId", bus, 32, d)]
        say("device", n=d, name=name.value.decode(), bytes=size, pci=bus.value.decode(), results=results)
        for n in range(1, 180):
            result = cu("cuDeviceGetAttribute", byref(number), n, d)
            say("attribute", device=d, n=n, value=number.value if result == "ok" else result)
    for n in range(14):
        say("limit", n=n, result=cu("cuCtxGetLimit", byref(size), n), value=size)

def hint(hold: str = "0") -> None:
    start()
    for place in (0, 0x10000000000, 0x200000000000, 0x300040000000, 0x600000000000, 0x7C0000000000):
        for i, size in enumerate((2 * MIB, GIB, 64 * GIB, 1024 * GIB)):
            got, asked = c_uint64(), place and place + i * 0x8000000000
            say("reserve", mib=size // MIB, asked=hex(asked), result=cu("cuMemAddressReserve", byref(got), size, 0, asked, 0), got=hex(got.value))
    time.sleep(float(hold))  # so that another process asks while this one holds

def costs() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return say("stopped", result="no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        subprocess.run([compiler, "-std=gnu11", "-O1", "-o", program, Path(__file__).with_suffix(".c"), "-ldl"], check=True)
        done = subprocess.run([program, PTX], check=False)
        say("program", exit=done.returncode)

def create(size: int) -> tuple[c_uint64, list[str]]:
    """Device memory that can be exported, for RDMA too where possible."""
    handle, props = c_uint64(), [struct.pack("iiiiQBBHI", 1, 1, 1, 0, 0, 0, rdma, 0, 0) for rdma in (1, 0)]
    sizes = [made("cuMemGetAllocationGranularity", props[1], which).value for which in (0, 1)]
    results = [cu("cuMemCreate", byref(handle), size, p, 0) for p in props]
    say("create", granularity=sizes[0], recommended=sizes[1], for_rdma=results[0], result=results[1])
    return handle, results

def ipc() -> None:
    ours, theirs = socket.socketpair()
    other = child("ipc_other", theirs.fileno(), pass_fds=[theirs.fileno()])
    theirs.close()
    start()
    size, fd, dma, at, count, (handle, results) = 32 * MIB, c_int(-1), c_int(-1), c_uint64(), c_int(), create(32 * MIB)
    results = [cu("cuMemAddressReserve", byref(at), size, 0, 0x200000000000, 0), cu("cuMemMap", at, size, 0, handle, 0)]
    results += [cu("cuMemSetAccess", at, size, READ_WRITE, 1), cu("cuMemsetD8_v2", at, 0x42, size), cu("cuCtxSynchronize")]
    say("export", reserve_map_access_set_synchronize=results, result=cu("cuMemExportToShareableHandle", byref(fd), handle, 1, 0), at=hex(at.value))
    legacy, plain = create_string_buffer(64), made("cuMemAlloc_v2", size)
    say("legacy_handle", of_mapped=cu("cuIpcGetMemHandle", legacy, at), of_plain=cu("cuIpcGetMemHandle", legacy, plain))
    say("dma_buf", result=cu("cuMemGetHandleForAddressRange", byref(dma), at, size, 1, 0))
    socket.send_fds(ours, [struct.pack("QQ", at.value, size) + legacy.raw], [max(fd.value, 0)])
    print(other.communicate()[0], end="", flush=True)
    say("devices", result=cu("cuDeviceGetCount", byref(count)), count=count)
    for a, b in [(a, b) for a in range(count.value) for b in range(count.value) if a != b]:
        can = c_int()
        result = cu("cuDeviceCanAccessPeer", byref(can), a, b)
        access = "-" if b else cu("cuMemSetAccess", at, size, struct.pack("iii", 1, a, 3), 1)
        say("peer", device=a, memory_of=b, can=can, result=result, set_access=access)

def ipc_other(descriptor: str) -> None:
    note, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(descriptor)), 200, 1)
    start()
    (there, size), handle, at, value = struct.unpack_from("QQ", note), c_uint64(), c_uint64(), c_uint64()
    results = [cu("cuMemImportFromShareableHandle", byref(handle), fds[0], 1), cu("cuMemAddressReserve", byref(at), size, 0, there, 0)]
    results += [cu("cuMemMap", at, size, 0, handle, 0), cu("cuMemSetAccess", at, size, READ_WRITE, 1), cu("cuMemcpyDtoH_v2", byref(value), at, 8)]
    say("import", import_reserve_map_access_read=results, same_address=at.value == there, right=value.value == 0x4242424242424242)
    by_value = type("Handle", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_char * 64)]})
    say("legacy_open", result=cu("cuIpcOpenMemHandle_v2", byref(at), by_value.from_buffer_copy(note[16:80]), 1), at=hex(at.value))

def waitvalue() -> None:
    start()
    host, seen, memory, spin = made("cuMemHostAlloc", 4096, 2), c_uint64(), made("cuMemAlloc_v2", 4096), kernel(b"spin")
    say("mapped_memory", allocate=bool(host), device_pointer=cu("cuMemHostGetDevicePointer_v2", byref(seen), host, 0))
    cell = c_uint64.from_address(host.value) if host else c_uint64()
    streams = [made("cuStreamCreate", 1) for _ in range(129)]
    s = streams[0]

    def idle(stream: Any) -> bool:
        return cu("cuStreamQuery", stream) != "CUDA_ERROR_NOT_READY"

    def released(kind: str, result: str, stream: Any) -> None:
        early = result == "ok" and soon(lambda: idle(stream), 0.1)
        cell.value = 1
        say("wait", kind=kind, result=result, passed_early=early, passed=result == "ok" and soon(lambda: idle(stream), 2))
        cell.value = 0

    for kind, flags in (("greater_or_equal", 0), ("equal", 1), ("and_flush", 2 | 1 << 30)):
        released(f"32_{kind}", cu("cuStreamWaitValue32_v2", s, seen, 1, flags), s)
        released(f"64_{kind}", cu("cuStreamWaitValue64_v2", s, seen, 1, flags), s)
    batch = struct.pack("Q5QQ5Q", 1, seen.value, 1, 0, 0, 0, 2, seen.value + 64, 7, 0, 0, 0)
    released("batch_wait_and_write", cu("cuStreamBatchMemOp_v2", s, 2, batch, 0), s)
    released("legacy_default_stream", cu("cuStreamWaitValue32_v2", None, seen, 1, 0), None)
    for mode in range(3):
        graph, executable = c_uint64(), c_uint64()
        results = [cu("cuStreamBeginCapture_v2", s, mode), cu("cuStreamWaitValue32_v2", s, seen, 1, 0) if seen else "-"]
        results.append(cu("cuStreamEndCapture", s, byref(graph)))
        results.append(cu("cuGraphInstantiateWithFlags", byref(executable), graph, 0) if graph else "no graph")
        say("capture", mode=mode, begin_wait_end_instantiate=results)
        if executable:
            released("in_a_graph", cu("cuGraphLaunch", executable, s), s)
    for n in (1, 8, 32, 64, 128):  # does another stream go on while n wait?
        results = [cu("cuStreamWaitValue32_v2", stream, seen, 1, 0) for stream in streams[:n]]
        results.append(launch(spin, streams[n], memory, 1))
        went_on = soon(lambda: idle(streams[n]), 0.5)  # noqa: B023
        cell.value = 1
        say("streams_waiting", n=n, results=sorted(set(results)), another_went_on=went_on, synchronize=cu("cuCtxSynchronize"))
        cell.value = 0

def hostfunction() -> None:
    start()
    (a, b, c), block, ran = (made("cuStreamCreate", 1) for _ in "abc"), threading.Event(), threading.Event()
    memory, spin = made("cuMemAlloc_v2", 4096), kernel(b"spin")
    function = ctypes.CFUNCTYPE(None, c_void_p)
    wait, run = function(lambda _: (block.wait(8), None)[1]), function(lambda _: ran.set())
    results = [launch(spin, c, memory, 1), cu("cuCtxSynchronize"), cu("cuLaunchHostFunc", a, wait, None)]
    results += [cu("cuLaunchHostFunc", b, run, None), launch(spin, c, memory, 1)]
    say("one_blocks", results=results, anothers_ran=ran.wait(0.5), kernel_ran=soon(lambda: cu("cuStreamQuery", c) == "ok", 0.5))
    calls = {name: (byref(c_uint64()), MIB) for name in ("cuMemAlloc_v2", "cuMemAllocHost_v2")}
    for name, args in {**calls, "cuModuleLoadData": (byref(c_uint64()), PTX), "cuMemFree_v2": (memory,)}.items():
        done: list[str] = []  # which calls wait for a host function that blocks?
        thread = threading.Thread(target=lambda n=name, x=args, d=done: d.append(cu("cuCtxSetCurrent", context) and cu(n, *x)), daemon=True)
        thread.start()
        thread.join(0.7)
        say("meanwhile", call=name, result=done[0] if done else "waits")
    block.set()
    say("afterwards", result=cu("cuCtxSynchronize"), anothers_ran=ran.wait(1))

def repeat(hold: str = "0") -> None:
    start()
    at, size, spin, texture, surface = c_uint64(), c_size_t(), kernel(b"spin"), c_uint64(), c_uint64()
    plain, pinned, event, stream = made("cuMemAlloc_v2", 4096), made("cuMemHostAlloc", 4096, 2), made("cuEventCreate", 0), made("cuStreamCreate", 1)
    cu("cuModuleGetGlobal_v2", byref(at), byref(size), module, b"word")
    linear = struct.pack("iiQiIQ", 2, 0, plain.value, 0x20, 1, 4096).ljust(256, b"\0")
    array = made("cuArray3DCreate_v2", struct.pack("QQQiII", 64, 64, 0, 0x20, 1, 2))
    picture = struct.pack("QQ", 0, array.value).ljust(256, b"\0")
    results = [cu("cuTexObjectCreate", byref(texture), linear, bytes(256), None)]
    results.append(cu("cuSurfObjectCreate", byref(surface), picture) if array else "no array")
    say("objects", texture_surface=results)
    names = {"global": at, "function": spin, "module": module, "texture": texture, "surface": surface, "allocation": plain, "pinned": pinned}
    say("values", **{k: hex(v.value or 0) for k, v in {**names, "context": context, "stream": stream, "event": event}.items()})
    time.sleep(float(hold))

def concurrent(rounds: str = "2000", when: str = "0") -> None:
    start()
    memory, clock, spin = made("cuMemAlloc_v2", 4096), (c_uint64 * 2)(), kernel(b"spin")
    results = [launch(spin, None, memory, 100), cu("cuCtxSynchronize")]
    time.sleep(max(0.0, float(when) - time.time()))
    results += [launch(spin, None, memory, int(rounds)), cu("cuCtxSynchronize"), cu("cuMemcpyDtoH_v2", clock, memory, 16)]
    say("kernel", rounds=int(rounds), begin_ns=clock[0], end_ns=clock[1], results=results)

def checkpoint() -> None:
    other = child("checkpointed", stdin=subprocess.PIPE)
    assert other.stdout and other.stdin
    if (first := other.stdout.readline()) != "ready\n":
        return say("stopped", result="no process with a GiB to checkpoint", because=first.strip())
    state, zeros = c_int(-1), bytes(128)
    cu("cuInit", 0)
    lock = struct.pack("I", 10000).ljust(64, b"\0")  # milliseconds
    for name in ("GetState", "Lock", "Checkpoint", "GetState", "Restore", "Unlock"):
        begin = time.perf_counter()
        result = cu(f"cuCheckpointProcess{name}", other.pid, {"GetState": byref(state), "Lock": lock}.get(name, zeros))
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

def table(uuid: str) -> tuple[str, int]:
    found = c_uint64()
    return cu("cuGetExportTable", byref(found), bytes.fromhex(uuid)), found.value

def tables() -> None:
    start()
    for uuid in TABLES:
        result, at = table(uuid)
        size = c_uint64.from_address(at).value if at else 0  # a table without a size word begins with an address
        words = [c_uint64.from_address(at + 8 * i).value for i in range(size // 8 if size < 8192 else 3)] if at else []
        say("table", uuid=uuid[:8], result=result, bytes=size if size < 8192 else "no size word", empty=[i for i, w in enumerate(words) if not w])

def slot(uuid: str) -> None:
    """Slots whose arguments are known from what NVIDIA's libraries pass to them; no others are called."""
    start()
    result, at = table(uuid)
    if not at:
        return say("table", uuid=uuid[:8], result=result)
    a, b, c, second, pair, key = c_uint64(), c_uint64(), c_uint64(), made("cuCtxCreate_v2", 0, 0), (c_uint64 * 2)(), c_void_p(0x1234)
    cu("cuCtxSetCurrent", context)

    def call(n: int, *args: Any, plain: bool = False) -> Any:
        code = ctypes.CFUNCTYPE(c_int)(c_uint64.from_address(at + 8 * n).value)(*map(word, args))
        return code if plain else error(code)

    def who(value: int) -> str:
        return {0: "none", context.value: "primary", second.value: "second"}.get(value, "something else")

    if uuid[:4] == "6bd5":
        say("slot_2", result=call(2, byref(a), 0), gives=who(a.value))
    elif uuid[:4] == "a094":
        say("slots_2_6", results=[call(2, byref(a), byref(b)), call(6, byref(a), byref(c))], sizes=[b.value, c.value])
    elif uuid[:4] == "42d8":
        for current in (None, context, second):
            a.value, result = 0, cu("cuCtxSetCurrent", current)
            say("slot_2", current=who(current.value if current else 0), results=[result, call(2, byref(a))], gives=who(a.value))
    elif uuid[:4] == "c693":
        gone = ctypes.CFUNCTYPE(None, c_uint64, c_uint64, c_uint64)(lambda x, k, v: say("destructor", context=who(x), key=hex(k), value=hex(v)))
        results = [call(2, byref(a), context, key), call(0, context, key, 0x5678, gone), call(2, byref(a), context, key)]
        say("miss_put_get", results=results, right=a.value == 0x5678)
        say("delete_get", results=[call(1, context, key), call(2, byref(a), context, key)])
        say("put_destroy", results=[call(0, second, key, 0x9ABC, gone), cu("cuCtxDestroy_v2", second)])
    elif uuid[:4] == "263e":
        a.value = 77
        say("slots_2_3", results=[call(2, context, byref(a), byref(b)), call(3)], wrote=a)
    elif uuid[:4] == "2131":
        results = [call(4, context, byref(a)), call(4, second, byref(b)), cu("cuCtxGetId", context, byref(c))]
        say("slot_4", results=results, primary=a, second=b, cuCtxGetId=c)
        for i, stream in enumerate((0, 1, 2, made("cuStreamCreate", 0), made("cuStreamCreate", 1))):
            results = [call(51, context, stream, byref(a)), call(39, context, a, byref(b)), cu("cuStreamGetId", stream, byref(c))]
            say("slots_51_39", stream=i, results=results, inner=hex(a.value), identity=b, cuStreamGetId=c)
    elif uuid[:4] == "6e16":
        kernel(b"spin")
        each = ctypes.CFUNCTYPE(None, c_uint64, c_uint64, c_uint64)(lambda _, f, o: say("callback", function=hex(f), owner=hex(o)))
        say("slot_7", returned=call(7, context, module, each, None, plain=True))
    elif uuid[:4] == "d408":
        for version in (12080, 12081, 13000, 13001):
            say("slot_1", version=version, result=call(1, version, int(time.time()), pair), values=[hex(pair[0]), hex(pair[1])])

def exported(path: str) -> dict[int, str]:
    """Offsets and names of a library's functions."""
    raw = Path(path).read_bytes()
    at, count = struct.unpack_from("<Q", raw, 40)[0], struct.unpack_from("<H", raw, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", raw, at + 64 * i) for i in range(count)]
    symbols = next(s for s in sections if s[1] == 11)  # SHT_DYNSYM
    text = sections[symbols[6]][4]
    entries = [struct.unpack_from("<IBBHQQ", raw, symbols[4] + 24 * i) for i in range(symbols[5] // 24)]
    return {value: raw[text + name : raw.index(b"\0", text + name)].decode() for name, _, _, defined, value, _ in entries if defined}

def procs() -> None:
    """cuGetProcAddress: for each name, the versions from which it answers otherwise; flags 1 and 2 where they differ from 0."""
    cu("cuInit", 0)
    lib, named = library(), os.environ.get("PROBE_DRIVER", "/libcuda.so")
    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if named in line)
    names, out, status = exported(path), c_uint64(), c_int()
    base = ctypes.cast(lib.cuInit, c_void_p).value - next(offset for offset, name in names.items() if name == "cuInit")
    for name in sorted({re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", n) for n in names.values() if re.match(r"cu[A-Z]", n)}):
        before: list[str] = []
        for flags in range(3):
            answers: list[str] = []
            for version in VERSIONS:
                out.value = 0
                code = lib.cuGetProcAddress_v2(name.encode(), byref(out), version, c_uint64(flags), byref(status))
                answer = names.get(out.value - base, "not exported") if out.value else f"{error(code)}/{status.value}"
                if not answers or answers[-1].split(":")[1] != answer:
                    answers.append(f"{version}:{answer}")
            if not flags or answers != before:
                say("proc", name=name, flags=flags, answers=answers)
            before = before or answers

# ---- all of them

def facts(process: subprocess.Popen[str], limit: float) -> dict[str, Any]:
    """Waits for a section: its facts, how it ended, what else it said."""
    begin = time.monotonic()
    try:
        text, ended = process.communicate(timeout=max(limit, 0.1))[0], ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and its own children, one of which may be held by a checkpoint
        text, ended = process.communicate()[0], f"stopped after {limit:.0f} s"
    lines = text.splitlines()
    found = [json.loads(line) for line in lines if line.startswith('{"fact"')]
    code = process.returncode
    ended = ended or ("ok" if code == 0 else f"killed by signal {-code}" if code < 0 else f"exit {code}")
    said = [line for line in lines if not line.startswith('{"fact"')][-12:]
    return {"ended": ended, "seconds": round(time.monotonic() - begin, 2), "facts": found, "said": said}

def compare(runs: list[dict[str, Any]], fact: str, of: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Which of a fact's values are the same in all runs."""
    rows = [{k: v for f in run["facts"] if f["fact"] == fact for k, v in of(f).items()} for run in runs]
    known = [k for k, v in rows[0].items() if v not in ("0x0", None)]
    return {"fact": "same_in_all_runs", "runs": len(runs), **{k: all(r.get(k) == rows[0][k] for r in rows) for k in known}}

def show(name: str, result: dict[str, Any], seconds: float) -> None:
    print(f"\n== {name}: {result['ended']}, {seconds:.1f} s", flush=True)
    shown = [f for f in result["facts"] if f["fact"] not in ("attribute", "proc")]
    for f in shown:
        print(f"  {f['fact']:<18}", *(f"{k}={v}" for k, v in f.items() if k != "fact"))
    if rest := len(result["facts"]) - len(shown):
        print(f"  ... and {rest} in the JSON")
    if result["ended"] != "ok":
        print(*(f"  | {line}" for line in result["said"]), sep="\n")

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=25.0, help="seconds a section may take")
    parser.add_argument("sections", nargs="*")
    options = parser.parse_args()
    if options.child:
        return globals()[options.child[0]](*options.child[1:]) or 0
    end = time.monotonic() + BUDGET
    result: dict[str, Any] = {"sections": {}, "machine": os.uname().release, "when": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    for place in ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"):
        try:
            library()
        except OSError:
            os.environ["PROBE_DRIVER"] = f"{place}/libcuda.so.1"
    first = facts(child("here", start_new_session=True), options.limit)
    if first["ended"] != "ok" or not first["facts"]:
        print("no NVIDIA driver found", *first["said"][-1:], sep=": ")
        return 77
    result["library"] = first["facts"][0]

    def run(name: str, *args: Any, beside: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """One section, or two processes of it at once; a limit each, and one over all."""
        left = min(options.limit, end - time.monotonic())
        if left <= 1:
            return [{"ended": "not run: out of time", "seconds": 0.0, "facts": [], "said": []}]
        processes = [child(name, *a, start_new_session=True) for a in ([args] if beside is None else [args, beside])]
        return [facts(process, left) for process in processes]

    def keep(name: str, runs: list[dict[str, Any]], *more: dict[str, Any]) -> None:
        whole = {**runs[0], "facts": [*runs[0]["facts"], *more], "ended": next((r["ended"] for r in runs if r["ended"] != "ok"), "ok")}
        result["sections"][name] = whole | {"other_runs": runs[1:]}
        show(name, whole, sum(r["seconds"] for r in runs))
        if options.json:  # as far as we got, in case somebody stops us
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    def wanted(name: str) -> bool:
        return not options.sections or name in options.sections

    for name in filter(wanted, ("attributes", "ipc", "tables", "hostfunction", "waitvalue", "costs", "procs", "checkpoint")):
        keep(name, run(name))
    reserved: Callable[[dict[str, Any]], dict[str, Any]] = lambda f: {f"{f['mib']} MiB at {f['asked']}": f["got"]}  # noqa: E731
    for name, fact, of in (("hint", "reserve", reserved), ("repeat", "values", lambda f: {k: v for k, v in f.items() if k != "fact"})):
        if wanted(name):  # twice at once, then once more
            runs = [*run(name, 2, beside=(2,)), *run(name)]
            keep(name, runs, compare(runs, fact, of))
    if wanted("slots"):
        for uuid in (TABLES[i] for i in (0, 1, 2, 3, 4, 5, 6, 8)):
            keep(f"slots of {uuid[:8]}", run("slot", uuid))
    if wanted("concurrent"):
        keep("concurrent", together(run))
    print()
    return 0

def together(run: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One kernel alone, then one in each of two processes at once: how long each took, and whether the times overlap."""
    def times(r: dict[str, Any]) -> tuple[int, int]:
        return next(((f["begin_ns"], f["end_ns"]) for f in r["facts"] if f["fact"] == "kernel" and f["end_ns"] > f["begin_ns"]), (0, 0))

    short = run("concurrent")
    begin, end = times(short[0])
    if not end:
        return short
    rounds = int(2000 * 0.3e9 / (end - begin))  # about 0.3 s
    alone, both = run("concurrent", rounds), run("concurrent", rounds, time.time() + 4, beside=(rounds, time.time() + 4))
    took, pairs = times(alone[0]), [times(r) for r in both]
    overlap = min(p[1] for p in pairs) - max(p[0] for p in pairs)
    times_ms = {"alone_ms": (took[1] - took[0]) / 1e6, "each_ms": [(b - a) / 1e6 for a, b in pairs], "overlap_ms": overlap / 1e6}
    both[0]["facts"].append({"fact": "two_at_once", **times_ms})
    return both

def here() -> None:
    """Is there a driver with a device?"""
    count = c_int()
    try:
        results = [cu("cuInit", 0), cu("cuDeviceGetCount", byref(count))]
    except OSError:
        sys.exit(77)
    if results != ["ok", "ok"] or not count.value:
        print(f"its library is there, but cuInit says {results[0]}; devices: {count.value}")
        sys.exit(77)
    say("here", devices=count)

if __name__ == "__main__":
    sys.exit(main())
