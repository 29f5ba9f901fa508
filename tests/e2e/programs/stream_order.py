"""Copies to pinned host memory on one stream, waited for in some other way than on that stream: stream_order.py CASE,... [ROUNDS]."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable

SIZE = 16 << 20  # bytes: at 500 Mbit/s they arrive a quarter of a second after the device has copied them
NON_BLOCKING = 1
DISABLE_TIMING = 2
PER_THREAD = ctypes.c_void_p(2)
NOT_READY = 600
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 word, .param .u32 value) {
    .reg .b64 %a; .reg .b32 %v;
    ld.param.u64 %a, [word];
    ld.param.u32 %v, [value];
    st.volatile.global.u32 [%a], %v;
    ret;
}
.visible .entry await(.param .u64 word, .param .u32 value) {
    .reg .b64 %a; .reg .b32 %v, %n; .reg .pred %p;
    ld.param.u64 %a, [word];
    ld.param.u32 %v, [value];
AGAIN:
    ld.volatile.global.u32 %n, [%a];
    setp.ne.u32 %p, %n, %v;
    @%p bra AGAIN;
    ret;
}
"""
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} returned {code}"


def stream(flags: int = NON_BLOCKING) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(made), flags)
    return made


def event() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(made), DISABLE_TIMING)
    return made


def until_ready(name: str, what: ctypes.c_void_p) -> None:
    while (code := getattr(cuda, name)(what)) == NOT_READY:
        pass
    assert code == 0, f"{name} returned {code}"


class Program:
    """A buffer on the device, one on the host, and a copy between them for each round."""

    def __init__(self) -> None:
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.memory, self.word, host = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        call("cuCtxSetCurrent", self.context)
        call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(SIZE))
        call("cuMemAlloc_v2", ctypes.byref(self.word), ctypes.c_size_t(4096))
        call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(SIZE), 0)
        self.host = host
        self.seen = (ctypes.c_ubyte * SIZE).from_address(host.value or 0)
        self.value = 0
        module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.functions = {name: ctypes.c_void_p() for name in (b"put", b"await")}
        for name, function in self.functions.items():
            call("cuModuleGetFunction", ctypes.byref(function), module, name)

    def launch(self, name: bytes, on: ctypes.c_void_p) -> None:
        word, value = ctypes.c_uint64(self.word.value), ctypes.c_uint32(self.value)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(word), ctypes.addressof(value))
        call("cuLaunchKernel", self.functions[name], 1, 1, 1, 1, 1, 1, 0, on, arguments, None)

    def copy_before_word(self, other: ctypes.c_void_p, by_kernels: bool = False) -> None:
        """Copies on a stream that then writes a word, for which `other` waits."""
        copying = stream()
        self.copy(copying)
        if by_kernels:
            self.launch(b"put", copying)
            self.launch(b"await", other)
        else:
            call("cuStreamWriteValue32_v2", copying, self.word, ctypes.c_uint32(self.value), 0)
            call("cuStreamWaitValue32_v2", other, self.word, ctypes.c_uint32(self.value), 1)

    def prepare(self) -> None:
        self.value += 1
        call("cuMemsetD8_v2", self.memory, ctypes.c_ubyte(self.value), ctypes.c_size_t(SIZE))
        call("cuMemsetD32_v2", self.word, 0, ctypes.c_size_t(1))
        call("cuCtxSynchronize")
        ctypes.memset(self.host, 0, SIZE)

    def copy(self, on: ctypes.c_void_p | None) -> None:
        call("cuMemcpyDtoHAsync_v2", self.host, self.memory, ctypes.c_size_t(SIZE), on)

    def work(self, on: ctypes.c_void_p | None) -> None:
        """A command that is no copy to the host."""
        call("cuMemsetD8Async", ctypes.c_uint64(self.word.value + 64), ctypes.c_ubyte(1), ctypes.c_size_t(64), on)

    def missing(self) -> int:
        return SIZE - bytes(self.seen).count(self.value)

    def copy_before(self, other: ctypes.c_void_p) -> None:
        """Copies on a stream that `other` then waits for by an event."""
        copying, done = stream(), event()
        self.copy(copying)
        call("cuEventRecord", done, copying)
        call("cuStreamWaitEvent", other, done, 0)


# ---- what a wait covers; each returns how many bytes were missing then ----------------------------------------------------


def own(p: Program) -> int:
    copying = stream()
    p.copy(copying)
    call("cuStreamSynchronize", copying)
    return p.missing()


def by_event(p: Program) -> int:
    other = stream()
    p.copy_before(other)
    call("cuStreamSynchronize", other)
    return p.missing()


def by_event_of_the_other(p: Program) -> int:
    other, done = stream(), event()
    p.copy_before(other)
    call("cuEventRecord", done, other)
    call("cuEventSynchronize", done)
    return p.missing()


def stream_query(p: Program) -> int:
    other = stream()
    p.copy_before(other)
    until_ready("cuStreamQuery", other)
    return p.missing()


def event_query(p: Program) -> int:
    other, done = stream(), event()
    p.copy_before(other)
    call("cuEventRecord", done, other)
    until_ready("cuEventQuery", done)
    return p.missing()


def chain(p: Program) -> int:
    first, second, done = stream(), stream(), event()
    p.copy_before(first)
    call("cuEventRecord", done, first)
    call("cuStreamWaitEvent", second, done, 0)
    call("cuStreamSynchronize", second)
    return p.missing()


def recorded_again(p: Program) -> int:
    copying, other, done = stream(), stream(), event()
    p.copy(copying)
    call("cuEventRecord", done, copying)
    call("cuStreamWaitEvent", other, done, 0)
    call("cuEventRecord", done, stream())
    call("cuStreamSynchronize", other)
    return p.missing()


def destroyed(p: Program) -> int:
    copying, other, done = stream(), stream(), event()
    p.copy(copying)
    call("cuEventRecord", done, copying)
    call("cuStreamWaitEvent", other, done, 0)
    call("cuEventDestroy_v2", done)
    call("cuStreamDestroy_v2", copying)
    call("cuStreamSynchronize", other)
    return p.missing()


def host_function(p: Program) -> int:
    other, found = stream(), []
    look = HOST_FUNCTION(lambda _: found.append(p.missing()))
    p.copy_before(other)
    call("cuLaunchHostFunc", other, look, None)
    call("cuStreamSynchronize", other)
    return found[0]


def context(p: Program) -> int:
    p.copy_before(stream())
    call("cuCtxSynchronize")
    return p.missing()


def legacy(p: Program) -> int:
    p.copy(stream(0))
    call("cuStreamSynchronize", None)
    return p.missing()


def legacy_copy(p: Program) -> int:
    """A copy that waits, on the legacy stream."""
    p.copy(stream(0))
    few = (ctypes.c_ubyte * 64)()
    call("cuMemcpyDtoH_v2", few, p.word, ctypes.c_size_t(64))
    return p.missing()


def blocking(p: Program) -> int:
    """A blocking stream after the legacy one."""
    other = stream(0)
    p.copy(None)
    p.work(other)
    call("cuStreamSynchronize", other)
    return p.missing()


def across_legacy(p: Program) -> int:
    """A blocking stream after the legacy one after a blocking stream."""
    other = stream(0)
    p.copy(stream(0))
    p.work(None)
    p.work(other)
    call("cuStreamSynchronize", other)
    return p.missing()


def per_thread(p: Program) -> int:
    """One thread's own default stream, waited for on another's after the legacy stream."""
    def copy() -> None:
        call("cuCtxSetCurrent", p.context)
        p.copy(PER_THREAD)
        p.work(None)

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    p.work(PER_THREAD)
    call("cuStreamSynchronize", PER_THREAD)
    return p.missing()


# ---- the same where only device memory shows the order ------------------------------------------------------------------


def by_word(p: Program) -> int:
    other = stream()
    p.copy_before_word(other)
    call("cuStreamSynchronize", other)
    return p.missing()


def by_word_waited_first(p: Program) -> int:
    """The wait is posted before the copy."""
    copying, other = stream(), stream()
    call("cuStreamWaitValue32_v2", other, p.word, ctypes.c_uint32(p.value), 1)
    p.copy(copying)
    call("cuStreamWriteValue32_v2", copying, p.word, ctypes.c_uint32(p.value), 0)
    call("cuStreamSynchronize", other)
    return p.missing()


def by_kernels(p: Program) -> int:
    other = stream()
    p.copy_before_word(other, by_kernels=True)
    call("cuStreamSynchronize", other)
    return p.missing()


def by_word_and_event(p: Program) -> int:
    first, second, done = stream(), stream(), event()
    p.copy_before_word(first)
    call("cuEventRecord", done, first)
    call("cuStreamWaitEvent", second, done, 0)
    call("cuStreamSynchronize", second)
    return p.missing()


def by_event_and_word(p: Program) -> int:
    """A third stream writes the word."""
    writing, other = stream(), stream()
    p.copy_before(writing)
    call("cuStreamWriteValue32_v2", writing, p.word, ctypes.c_uint32(p.value), 0)
    call("cuStreamWaitValue32_v2", other, p.word, ctypes.c_uint32(p.value), 1)
    call("cuStreamSynchronize", other)
    return p.missing()


def by_word_queried(p: Program) -> int:
    other = stream()
    p.copy_before_word(other)
    until_ready("cuStreamQuery", other)
    return p.missing()


def by_word_in_host_function(p: Program) -> int:
    other, found = stream(), []
    look = HOST_FUNCTION(lambda _: found.append(p.missing()))
    p.copy_before_word(other)
    call("cuLaunchHostFunc", other, look, None)
    call("cuStreamSynchronize", other)
    return found[0]


# ---- what a wait must not cover: the copy cannot be made before the program goes on ---------------------------------------


def gated(p: Program, copying: ctypes.c_void_p | None, wait: Callable[[], None]) -> int:
    go_on = threading.Event()
    hold = HOST_FUNCTION(lambda _: (go_on.wait(), None)[1])
    call("cuLaunchHostFunc", copying, hold, None)
    p.copy(copying)
    wait()
    assert p.missing() == SIZE
    go_on.set()
    call("cuStreamSynchronize", copying)
    return p.missing()


def unordered_legacy(p: Program) -> int:
    def wait() -> None:
        p.work(None)
        call("cuStreamSynchronize", None)

    return gated(p, stream(), wait)


def unordered_stream(p: Program) -> int:
    def wait() -> None:
        other = stream(0)
        p.work(other)
        call("cuStreamSynchronize", other)

    return gated(p, stream(), wait)


def unordered_event(p: Program) -> int:
    """The event is recorded before the copy."""
    copying, other, before = stream(), stream(), event()

    def wait() -> None:
        call("cuStreamWaitEvent", other, before, 0)
        p.work(other)
        call("cuStreamSynchronize", other)

    p.work(copying)
    call("cuEventRecord", before, copying)
    return gated(p, copying, wait)


def unordered_kernels(p: Program) -> int:
    """Kernels wait for no copy that the device has not made, although work is queued behind it."""
    copying, other = stream(), stream()

    def wait() -> None:
        p.work(copying)
        p.launch(b"put", other)
        p.launch(b"await", other)
        call("cuStreamSynchronize", other)

    return gated(p, copying, wait)


def not_followed(p: Program) -> int:
    """Kernels wait for no copy that nothing is queued behind: its bytes are on their way when the wait is over. A busy machine may be late once."""
    copying, other = stream(), stream()
    for _ in range(5):
        p.copy(copying)
        time.sleep(0.05)  # the device has made the copy by then
        p.launch(b"put", other)
        call("cuStreamSynchronize", other)
        under_way = p.missing()
        call("cuStreamSynchronize", copying)
        if under_way:
            return p.missing()
        p.prepare()
    return SIZE


ORDERED = (
    own, by_event, by_event_of_the_other, stream_query, event_query, chain, recorded_again, destroyed, host_function, context, legacy, legacy_copy,
    blocking, across_legacy, per_thread, by_word, by_word_waited_first, by_kernels, by_word_and_event, by_event_and_word, by_word_queried,
    by_word_in_host_function,
)  # fmt: skip
UNORDERED = (unordered_legacy, unordered_stream, unordered_event, unordered_kernels, not_followed)
CASES: dict[str, Callable[[Program], int]] = {case.__name__: case for case in (*ORDERED, *UNORDERED)}


def main(cases: list[str], rounds: int) -> None:
    p, wrong = Program(), False
    for case in cases:
        for number in range(1, rounds + 1):
            p.prepare()
            missing = CASES[case](p)
            if missing:
                print(f"{case}, round {number}: {missing} of {SIZE} bytes had not come")
                wrong = True
    if wrong:
        sys.exit(1)
    print("right")


main(sys.argv[1].split(","), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
