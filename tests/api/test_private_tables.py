"""Export tables (cuGetExportTable) and the driver query, with the fake driver."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import subprocess
import threading
import uuid
from pathlib import Path

import c_build
import pytest
from api.building import ROOT

RUNTIME = "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"
BUFFERS = "a094798c-2e74-2e74-93f2-0800200c0a66"
CURRENT = "42d85a81-23f6-cb47-8298-f6e78a3aecdc"
STORAGE = "c693336e-1121-df11-a8c3-68f355d89593"
CHECKS = "263e8860-7cd2-6143-92f6-bbd5006dfa7e"
INTEGRITY = "d4082055-bde6-704b-8d34-ba123c66e1f2"
IDENTITIES = "21318c60-9714-3248-8ca6-41ff7324c8f2"
CUBLASLT = "1734dc26-800d-4745-8726-c0f1e7dd8bca"
CUFFT = "6e163fbe-b958-444d-835c-e182aff1991e"
TOOLS = "7cb63f9b-9ca4-8e42-a484-beb66e6aed7f"
INVALID_HANDLE = 400

P = ctypes.c_void_p


@pytest.fixture
def lib(fake_driver: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(fake_driver))


def table(lib: ctypes.CDLL, name: str) -> int:
    out = P()
    identity = ctypes.create_string_buffer(uuid.UUID(name).bytes, 16)
    assert lib.cuGetExportTable(ctypes.byref(out), identity) == 0
    assert out.value
    return out.value


def slot(lib: ctypes.CDLL, name: str, number: int, *types: type) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    address = P.from_address(table(lib, name) + 8 * number).value
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)


@pytest.mark.parametrize(
    ("name", "slots"),
    [(RUNTIME, 13), (BUFFERS, 7), (CURRENT, 4), (CHECKS, 4), (INTEGRITY, 3), (IDENTITIES, 64), (CUBLASLT, 17), (CUFFT, 64), (TOOLS, 64)],
)
def test_size_word(lib: ctypes.CDLL, name: str, slots: int) -> None:
    assert ctypes.c_uint64.from_address(table(lib, name)).value == slots * 8


def test_unknown_tables_are_refused(lib: ctypes.CDLL) -> None:
    out = P(1)
    for name in ("f8cff951-2146-8b4e-b9e2-fb469e7c0dd9", "00000000-1111-2222-3333-444444444444"):
        assert lib.cuGetExportTable(ctypes.byref(out), uuid.UUID(name).bytes) == 500
        assert out.value is None
    log = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))).decode()
    assert "00000000-1111-2222-3333-444444444444" in log and "f8cff951" not in log


def test_slots_nobody_was_seen_to_call(lib: ctypes.CDLL) -> None:
    for _ in range(2):
        assert slot(lib, CUBLASLT, 5)() == 801
        assert slot(lib, IDENTITIES, 63)() == 801
        assert slot(lib, TOOLS, 5)() == 801
    log = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))).decode()
    assert log.count("slot 5 of the private table 1734dc26") == 1
    assert log.count("slot 63 of the private table 21318c60") == 1


def test_groups_of_multiprocessors(lib: ctypes.CDLL) -> None:
    """What cuBLASLt asks for: a device that does not tell says so without a line to the user."""
    order, groups = P(1), P(1)
    tell, free = slot(lib, CUBLASLT, 4, P, P, P), slot(lib, CUBLASLT, 13, P, P, P)
    before = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log")))
    assert tell(ctypes.addressof(order), ctypes.addressof(groups), 12345) == 801
    assert order.value is None and groups.value is None
    assert ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))) == before
    ctypes.c_int.in_dll(lib, "fake_groups").value = 66
    try:
        assert tell(ctypes.addressof(order), ctypes.addressof(groups), 12345) == 0
        assert order.value and groups.value
        assert list(ctypes.string_at(order.value, 67)) == [*range(100, 166), 0]
        assert list(ctypes.string_at(groups.value, 67)) == [*range(66), 0]
        assert free(order, groups, 12345) == 0
        assert tell(None, ctypes.addressof(groups), 0) == 1
    finally:
        ctypes.c_int.in_dll(lib, "fake_groups").value = 0


def test_runtime_table(lib: ctypes.CDLL) -> None:
    context = P()
    assert slot(lib, RUNTIME, 2, P, ctypes.c_int)(ctypes.addressof(context), 0) == 0
    assert context.value
    assert slot(lib, RUNTIME, 2, P, ctypes.c_int)(ctypes.addressof(context), 2) == 101
    assert slot(lib, RUNTIME, 12)() == 0
    module = P()
    assert slot(lib, RUNTIME, 1, P, P)(ctypes.addressof(module), 0) == 0
    assert ctypes.c_char_p.in_dll(lib, "fake_called").value == b"impl_cuModuleLoadData"


def test_buffers_are_writable(lib: ctypes.CDLL) -> None:
    for number, size in ((2, 1024), (6, 14)):
        buffer, n = P(), ctypes.c_size_t()
        assert slot(lib, BUFFERS, number, P, P)(ctypes.addressof(buffer), ctypes.addressof(n)) == 0
        assert n.value == size and buffer.value
        ctypes.memset(buffer.value, 0x5A, 8 * (1024 if number == 2 else 64))


def test_identities_and_functions(lib: ctypes.CDLL) -> None:
    value = ctypes.c_uint64()
    assert slot(lib, IDENTITIES, 4, P, P)(None, ctypes.addressof(value)) == 0
    assert value.value == 9
    # What slot 51 gives for a stream is what slot 39 is asked about.
    for handle in (0, 1, 2):
        inner = P()
        assert slot(lib, IDENTITIES, 51, P, P, P)(None, handle, ctypes.addressof(inner)) == 0
        assert slot(lib, IDENTITIES, 39, P, P, P)(None, inner, ctypes.addressof(value)) == 0
        assert value.value == 1234
    seen = []
    callback = ctypes.CFUNCTYPE(None, P, P, P)(lambda opaque, function, owner: seen.append((opaque, function, owner is not None)))
    assert slot(lib, CUFFT, 7, P, P, type(callback), P)(None, 5, callback, 77) == 3
    assert seen == [(77, 1, True), (77, 2, True), (77, 3, True)]


# ---- context-local storage -------------------------------------------------------------------------------------------------

DESTRUCTOR = ctypes.CFUNCTYPE(None, P, P, P)


def test_storage(lib: ctypes.CDLL) -> None:
    put, delete, get = slot(lib, STORAGE, 0, P, P, P, P), slot(lib, STORAGE, 1, P, P), slot(lib, STORAGE, 2, P, P, P)
    value = P()

    def look(context: int, key: int) -> int | None:
        rc = get(ctypes.addressof(value), context, key)
        assert rc in (0, INVALID_HANDLE)
        assert rc == 0 or value.value is None
        return value.value

    assert look(0x1000, 1) is None
    for context in (0x1000, 0x2000):
        for key in range(1, 40):
            assert put(context, key, context + key, None) == 0
    assert [look(c, k) for c in (0x1000, 0x2000) for k in range(1, 40)] == [c + k for c in (0x1000, 0x2000) for k in range(1, 40)]
    assert put(0x1000, 3, 0xABC, None) == 0
    assert (look(0x1000, 3), look(0x2000, 3)) == (0xABC, 0x2003)
    assert delete(0x1000, 3) == 0
    assert delete(0x1000, 3) == INVALID_HANDLE
    assert (look(0x1000, 3), look(0x1000, 4)) == (None, 0x1004)


def test_what_another_thread_changes_is_seen(lib: ctypes.CDLL) -> None:
    put, get = slot(lib, STORAGE, 0, P, P, P, P), slot(lib, STORAGE, 2, P, P, P)
    value = P()
    put(0x3000, 1, 10, None)
    get(ctypes.addressof(value), 0x3000, 1)
    other = threading.Thread(target=put, args=(0x3000, 1, 20, None))
    other.start()
    other.join()
    assert get(ctypes.addressof(value), 0x3000, 1) == 0
    assert value.value == 20


def test_current_context_is_meant_by_null(lib: ctypes.CDLL) -> None:
    put, get, current = slot(lib, STORAGE, 0, P, P, P, P), slot(lib, STORAGE, 2, P, P, P), slot(lib, CURRENT, 2, P)
    context, value = P(), P()
    assert current(ctypes.addressof(context)) == 0
    assert put(None, 5, 55, None) == 0
    assert get(ctypes.addressof(value), context.value, 5) == 0
    assert value.value == 55


STORAGE_TEST = """
#include <stdio.h>
#include <string.h>
#include "abi/context_storage.h"
#include "abi/md2.h"

static int destroyed, again;

static void destructor(CUcontext ctx, void *key, void *value) {
    void *left;
    /* It may look into the table again, and finds its own entry gone. */
    if (storage_get(ctx, key, &left) != CUDA_ERROR_INVALID_HANDLE) again++;
    destroyed += (int)(intptr_t)value;
}

int main(void) {
    CUcontext a = (CUcontext)0x100, b = (CUcontext)0x200;
    void *v;
    for (intptr_t k = 1; k <= 100; k++) storage_put(a, (void *)k, (void *)k, destructor);
    storage_put(b, (void *)1, (void *)1000, destructor);
    storage_get(a, (void *)7, &v);
    storage_delete(a, (void *)100);
    storage_drop(a);
    if (storage_get(a, (void *)7, &v) == 0 || storage_get(b, (void *)1, &v) != 0) return 1;
    if (destroyed != 4950 || again) return 2;
    storage_drop(b);
    if (destroyed != 5950) return 3;

    /* RFC 1319, A.5. */
    static const char *const vectors[][2] = {
        {"", "8350e5a3e24c153df2275c9f80692773"},
        {"a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"},
        {"abc", "da853b0d3f88d99b30283a69e6ded6bb"},
        {"message digest", "ab4f496bfb2a530b219ff33031fe06b0"},
        {"abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "da33def2a42df13975352846c30338cd"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890", "d5976f79d83d3a0dc9806c3c66f3efd8"},
    };
    for (unsigned i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        struct md2 m;
        uint8_t digest[MD2_SIZE];
        char text[33];
        md2_begin(&m);
        /* In two pieces, so that a block is filled across a border. */
        size_t n = strlen(vectors[i][0]);
        md2_add(&m, vectors[i][0], n / 3);
        md2_add(&m, vectors[i][0] + n / 3, n - n / 3);
        md2_end(&m, digest);
        for (unsigned j = 0; j < MD2_SIZE; j++) sprintf(text + 2 * j, "%02x", digest[j]);
        if (strcmp(text, vectors[i][1])) return 10 + (int)i;
    }
    return 0;
}
"""


def test_storage_destructors_and_md2_vectors(includes: list[Path], tmp_path: Path) -> None:
    source = tmp_path / "storage.c"
    source.write_text(STORAGE_TEST)
    shim = ROOT / "native" / "shim"
    sources = [source, shim / "abi" / "context_storage.c", shim / "abi" / "md2.c"]
    program = c_build.program(tmp_path / "storage", sources, variant="address", flags=[f"-I{folder}" for folder in includes])
    assert subprocess.run([str(program)], timeout=60, check=False).returncode == 0


# ---- the driver query ------------------------------------------------------------------------------------------------------


def pi_permutation() -> list[int]:
    """MD2's table, made anew: a shuffle of 0..255 driven by the digits of pi."""
    digits = iter(pi_digits(1000))

    def random_below(n: int) -> int:
        limit, x, y = 10, next(digits), 10
        while limit < n:
            x, y, limit = x * 10 + next(digits), y * 10, limit * 10
        return x % n if x < y // n * n else random_below(n)

    table = list(range(256))
    for i in range(2, 257):
        j = random_below(i)
        table[j], table[i - 1] = table[i - 1], table[j]
    return table


def pi_digits(n: int) -> list[int]:
    """3, 1, 4, 1, 5, ..."""
    scale = 10 ** (n + 10)

    def arctan(inverse: int) -> int:
        total = term = scale // inverse
        k, sign = 1, 1
        while term:
            term //= inverse * inverse
            k, sign = k + 2, -sign
            total += sign * (term // k)
        return total

    return [int(d) for d in str(4 * (4 * arctan(5) - arctan(239)))[:n]]


def md2(data: bytes) -> bytes:
    """MD2 after RFC 1319, in Python."""
    table = pi_permutation()
    pad = 16 - len(data) % 16
    data += bytes([pad]) * pad
    checksum, last = bytearray(16), 0
    for at in range(0, len(data), 16):
        for i in range(16):
            checksum[i] ^= table[data[at + i] ^ last]
            last = checksum[i]
    state = bytearray(48)
    for at in range(0, len(data) + 16, 16):
        block = (data + bytes(checksum))[at : at + 16]
        for i in range(16):
            state[16 + i] = block[i]
            state[32 + i] = block[i] ^ state[i]
        t = 0
        for r in range(18):
            for i in range(48):
                t = state[i] = state[i] ^ table[t]
            t = (t + r) % 256
    return bytes(state[:16])


def test_driver_query(lib: ctypes.CDLL) -> None:
    """Three questions; the third answer is checked against an HMAC-MD2 of our own."""
    assert md2(b"abc").hex() == "da853b0d3f88d99b30283a69e6ded6bb"
    ask = slot(lib, INTEGRITY, 1, ctypes.c_uint32, ctypes.c_uint64, P)
    result = (ctypes.c_uint64 * 2)()
    answers = []
    for version in (12080, 12081, 13000, 13001):
        assert ask(version, 1700000000, ctypes.addressof(result)) == 0
        answers.append(list(result))
    assert answers[0] == answers[2] != answers[1] == answers[3]

    device = (ctypes.c_char * 4096).in_dll(lib, "fake_device")
    identity = hashlib.sha256(b"device").digest()[:16]
    # struct gv_device_info: name 256, uuid 16, memory 8, chunk 8, flags 4, reserved 4, then the attributes.
    device[256:272] = identity
    attributes = (ctypes.c_int32 * 192).from_buffer(device, 296)
    attributes[50], attributes[33], attributes[34] = 1, 0xC1, 3
    ctypes.c_int.in_dll(lib, "fake_count").value = 1
    ctypes.c_int.in_dll(lib, "fake_version").value = 13000
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_uint64
    own = table(lib, INTEGRITY)
    function = P.from_address(own + 8).value or 0
    message = struct.pack("<IIIIQQQQ", 13000, 13002, os.getpid(), libc.pthread_self() & 0xFFFFFFFF, table(lib, RUNTIME), own, function, 1700000000)
    message += identity + struct.pack("<iii", 1, 0xC1, 3)
    key = bytes.fromhex("146addae53a9a752aa0841360bf55a9f")
    # The standard library has no MD2, so the two pads are put on by hand.
    expected = md2(bytes(k ^ 0x5C for k in key) + md2(bytes(k ^ 0x36 for k in key) + message))
    assert ask(13002, 1700000000, ctypes.addressof(result)) == 0
    assert bytes(result) == expected
    assert ask(13002, 1700000001, ctypes.addressof(result)) == 0
    assert bytes(result) != expected
