"""Links PTX by the driver's API and checks what the linked kernels do, what is refused, and the linker's words. Prints "right" and exits 0, or says
what was wrong. With the word "driver": the server's driver decides what it links, and says so only when the link is completed."""

from __future__ import annotations

import ctypes
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
PTX, CUBIN, LIBRARY, NVVM = 1, 0, 4, 5
INFO, INFO_SIZE, ERROR, ERROR_SIZE, LEVEL = 3, 4, 5, 6, 7
INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_HANDLE, NOT_FOUND = 1, 200, 209, 400, 301

HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
MAIN = """
.extern .func (.param .b32 r) scale_%(n)d(.param .b32 x);
.extern .global .align 4 .u32 bias;
.visible .entry k(.param .u64 out)
{
    .reg .b32 %%r<4>; .reg .b64 %%q<4>;
    ld.param.u64 %%q0, [out];
    mov.u32 %%r0, %%tid.x;
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %%r0; call (b), scale_%(n)d, (a); ld.param.b32 %%r1, [b]; }
    ld.global.u32 %%r2, [bias];
    add.u32 %%r1, %%r1, %%r2;
    mad.wide.u32 %%q1, %%r0, 4, %%q0;
    st.global.u32 [%%q1], %%r1;
    ret;
}
"""
# The second module calls the first one's helper: each has what the other lacks.
OTHER = """
.visible .global .align 4 .u32 bias = 7;
.visible .func (.param .b32 r) scale_%(n)d(.param .b32 x)
{
    .reg .b32 %%r<2>; ld.param.b32 %%r0, [x]; mul.lo.u32 %%r0, %%r0, %(n)d; st.param.b32 [r], %%r0; ret;
}
"""
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (190).to_bytes(2, "little") + bytes(44)


class Failed(Exception):
    pass


def expect(code: int, name: str, *args: object) -> None:
    got = getattr(cuda, name)(*args)
    if got != code:
        raise Failed(f"{name}: {got} and not {code}")


def check(condition: bool, what: object) -> None:
    if not condition:
        raise Failed(str(what))


class Link:
    """A link with buffers for its words."""

    def __init__(self, room: int = 4096) -> None:
        self.info, self.error = ctypes.create_string_buffer(b"?" * 10, room), ctypes.create_string_buffer(b"?" * 10, room)
        self.options = (ctypes.c_int * 5)(INFO, INFO_SIZE, ERROR, ERROR_SIZE, LEVEL)
        self.values = (ctypes.c_void_p * 5)(ctypes.addressof(self.info), room, ctypes.addressof(self.error), room, 2)
        self.state = ctypes.c_void_p()
        expect(0, "cuLinkCreate_v2", 5, self.options, self.values, ctypes.byref(self.state))

    def add(self, text: str | bytes, name: str | None, kind: int = PTX, code: int = 0) -> None:
        data = text.encode() if isinstance(text, str) else text
        expect(code, "cuLinkAddData_v2", self.state, kind, data, len(data), name.encode() if name else None, 0, None, None)

    def complete(self, code: int = 0) -> bytes:
        image, size = ctypes.c_void_p(), ctypes.c_size_t()
        expect(code, "cuLinkComplete", self.state, ctypes.byref(image), ctypes.byref(size))
        return ctypes.string_at(image, size.value) if not code else b""

    def close(self) -> None:
        expect(0, "cuLinkDestroy", self.state)


def run(image: bytes, n: int) -> None:
    module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    expect(0, "cuModuleLoadData", ctypes.byref(module), image)
    expect(0, "cuModuleGetFunction", ctypes.byref(function), module, b"k")
    expect(0, "cuMemAlloc_v2", ctypes.byref(memory), 128)
    args = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    expect(0, "cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, args, None)
    out = (ctypes.c_uint32 * 32)()
    expect(0, "cuMemcpyDtoH_v2", out, memory, 128)
    check(list(out) == [i * n + 7 for i in range(32)], list(out))
    expect(0, "cuModuleUnload", module)
    expect(0, "cuMemFree_v2", memory)


def two_that_call_each_other(n: int, filler: int = 0) -> None:
    link = Link()
    link.add(HEAD + MAIN % {"n": n}, "main.ptx")
    link.add(HEAD + f"// {'x' * 80}\n" * filler + OTHER % {"n": n}, None)
    run(link.complete(), n)
    check(b"2 inputs linked" in link.info.value, link.info.value)
    check(link.values[1] == len(link.info.value) + 1, link.values[1])
    check(link.error.value == b"" and not link.values[3], link.error.value)
    expect(INVALID_VALUE, "cuLinkComplete", link.state, ctypes.byref(ctypes.c_void_p()), None)  # it is complete
    link.add(HEAD, "late.ptx", code=INVALID_VALUE)
    link.close()
    expect(INVALID_HANDLE, "cuLinkDestroy", link.state)


def own_images() -> None:
    """What the linker made is an input like any other, by the type that it has for the program."""
    link, again = Link(), Link()
    link.add(HEAD + MAIN % {"n": 4}, "main.ptx")
    link.add(HEAD + OTHER % {"n": 4}, "other.ptx")
    again.add(link.complete(), "linked.cubin", CUBIN)
    link.close()
    run(again.complete(), 4)
    again.close()


def refused() -> None:
    link = Link()
    link.add(HEAD + MAIN % {"n": 3}, "main.ptx")
    link.complete(INVALID_IMAGE)
    for name in ("scale_3", "bias"):
        check(f"undefined reference to '{name}' in 'main.ptx'".encode() in link.error.value, link.error.value)
    check(link.info.value == b"", link.info.value)
    link.add(HEAD + OTHER % {"n": 3}, "late.ptx")  # and what was missing may still come
    run(link.complete(), 3)
    link.close()

    if "driver" in sys.argv:
        return
    link = Link()
    link.complete(INVALID_IMAGE)
    check(b"nothing to link" in link.error.value, link.error.value)
    for kind, data, said in ((CUBIN, ELF, b"machine code"), (NVVM, b"BC\xc0\xde", b"NVVM or LTO"), (CUBIN, b"what?", b"neither a cubin nor PTX")):
        link.add(data, "thing.o", kind, INVALID_IMAGE if data == b"what?" else NO_BINARY)
        check(b"'thing.o'" in link.error.value and said in link.error.value, link.error.value)
    link.add(b"!<arch>\n", "empty.a", LIBRARY)
    link.complete(NO_BINARY)
    check(b"'empty.a'" in link.error.value and b"no device code" in link.error.value, link.error.value)
    link.close()

    link = Link(room=16)  # words are cut to fit
    link.add(HEAD + MAIN % {"n": 3}, "main.ptx")
    link.complete(INVALID_IMAGE)
    check(len(link.error.value) == 15, link.error.value)
    link.close()

    link = Link()
    link.add(HEAD + ".visible .entry k( {", "broken.ptx")
    image, size = ctypes.c_void_p(), ctypes.c_size_t()
    code = cuda.cuLinkComplete(link.state, ctypes.byref(image), ctypes.byref(size))
    check(code == 218 and b"broken.ptx" in link.error.value, (code, link.error.value))
    link.close()


def arguments() -> None:
    state = ctypes.c_void_p()
    expect(INVALID_VALUE, "cuLinkCreate_v2", 0, None, None, None)
    expect(INVALID_VALUE, "cuLinkCreate_v2", 1, None, None, ctypes.byref(state))
    expect(0, "cuLinkCreate_v2", 0, None, None, ctypes.byref(state))
    expect(INVALID_VALUE, "cuLinkAddData_v2", state, PTX, None, 4, None, 0, None, None)
    expect(INVALID_VALUE, "cuLinkAddData_v2", state, 6, b"abcd", 4, None, 0, None, None)
    expect(NOT_FOUND, "cuLinkAddFile_v2", state, PTX, b"/no/such/file.ptx", 0, None, None)
    expect(0, "cuLinkDestroy", state)
    expect(INVALID_HANDLE, "cuLinkAddData_v2", state, PTX, b"abcd", 4, None, 0, None, None)


def in_threads(context: ctypes.c_void_p) -> None:
    wrong: list[BaseException] = []

    def one(n: int) -> None:
        try:
            expect(0, "cuCtxSetCurrent", context)
            for i in range(3):
                two_that_call_each_other(10 * n + i)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def main() -> None:
    context = ctypes.c_void_p()
    expect(0, "cuInit", 0)
    expect(0, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    expect(0, "cuCtxSetCurrent", context)
    two_that_call_each_other(3)
    two_that_call_each_other(5, filler=6000)  # half a megabyte, which is too much for one record each way
    own_images()
    refused()
    arguments()
    in_threads(context)


try:
    main()
except Failed as failure:
    sys.exit(str(failure))
print("right")
