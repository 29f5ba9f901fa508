"""The backend with the real compiler above it: PTX in, results out of device memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest

from gpuvirt.soft.host import ctypes_bridge, jit

HERE = Path(__file__).parent

PTX = """
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .u32 counter = 5;
.extern .shared .align 16 .b8 dynamic[];

.visible .entry rotate(.param .u64 data, .param .u32 n)
{
    .shared .align 4 .b8 tile[4096];
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    mul.wide.u32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    shl.b32 %r6, %r4, 2;
    mov.u32 %r7, tile;
    add.s32 %r8, %r7, %r6;
    @%p1 bra SKIP;
    ld.global.u32 %r9, [%rd3];
    st.shared.u32 [%r8], %r9;
SKIP:
    bar.sync 0;
    add.s32 %r10, %r4, 1;
    rem.u32 %r11, %r10, %r3;
    shl.b32 %r12, %r11, 2;
    add.s32 %r13, %r7, %r12;
    ld.shared.u32 %r14, [%r13];
    @%p1 bra DONE;
    st.global.u32 [%rd3], %r14;
    mov.u64 %rd4, counter;
    atom.global.add.u32 %r15, [%rd4], 1;
DONE:
    ret;
}

.visible .entry wild()
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    mov.u64 %rd1, 4096;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry stops()
{
    trap;
    ret;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("bridge") / "libbridge.so"
    backend, flags = c_build.soft_backend()
    sources = [HERE / "bridge.c", *backend]
    c_build.library(target, sources, flags=flags, libraries=["-lm"])
    loaded = ctypes.CDLL(str(target))
    loaded.bridge_open.restype = ctypes.c_uint64
    loaded.bridge_global.restype = ctypes.c_uint64
    loaded.bridge_open.argtypes = [ctypes.c_void_p]
    loaded.bridge_load.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    loaded.bridge_global.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    loaded.bridge_launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 3, ctypes.c_char_p, ctypes.c_uint32]
    loaded.bridge_error.restype = loaded.bridge_printed.restype = ctypes.c_char_p
    assert jit.register_library(loaded) == []
    return loaded


@pytest.fixture
def memory(library: ctypes.CDLL) -> Iterator[int]:
    bridge = ctypes_bridge.Bridge()
    address = library.bridge_open(bridge.address)
    assert address, library.bridge_error()
    yield address
    library.bridge_close()


def load(library: ctypes.CDLL) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    assert library.bridge_load(PTX.encode(), ctypes.byref(module)) == 0, library.bridge_error()
    return module


@pytest.mark.timeout(120)
def test_shared_memory_barrier_and_global(library: ctypes.CDLL, memory: int) -> None:
    module = load(library)
    n, threads, blocks = 3000, 256, 12
    data = (ctypes.c_uint32 * n).from_address(memory)
    data[:] = list(range(100, 100 + n))
    expected = [data[(i // threads) * threads + (i % threads + 1) % threads] for i in range(n - 1) if i < n - n % threads]
    counter = ctypes.c_uint32.from_address(library.bridge_global(module, b"counter"))
    assert counter.value == 5
    assert library.bridge_launch(module, 0, blocks, threads, struct.pack("<QI", memory, n), 12) == 0
    assert library.bridge_sync() == 0, library.bridge_error()
    assert data[: len(expected)] == expected
    assert counter.value == 5 + n


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kernel", "status", "text"), [(1, 700, b"illegal address 0x1000 in kernel wild"), (2, 719, b"trap")])
def test_faults(library: ctypes.CDLL, memory: int, kernel: int, status: int, text: bytes) -> None:
    module = load(library)
    assert library.bridge_launch(module, kernel, 4, 64, None, 0) == 0
    assert library.bridge_sync() == status
    assert text in library.bridge_error()
