"""What SECURITY.md says of data connections: a relay that knows no token reads nothing of what it carries, and what it alters is noticed.

Over a link that both ends want plain the same relay reads and replaces data: it is one that could.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from e2e.cutter import DOWN, UP, Cutter
from e2e.harness import Server, run_program

SIZE = 1 << 16

# Copies SIZE bytes of "Z" to the device and back, and prints which bytes came back.
COPY = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, (name, code)
context, address, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t({SIZE})
back = ctypes.create_string_buffer({SIZE})
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), size)
call("cuMemcpyHtoD_v2", address, b"Z" * {SIZE}, size)
call("cuMemcpyDtoH_v2", back, address, size)
print("".join(sorted(chr(c) for c in set(back.raw))))
"""


def through(server: Server, link: str, rewrite: Callable[[int, bytes], bytes]) -> subprocess.CompletedProcess[str]:
    relay = Cutter(server.info["port"], rewrite=rewrite)
    try:
        return run_program(relay.url, [sys.executable, "-c", COPY], "--link", link, GPUVIRT_TOKEN=server.token())
    finally:
        relay.close()


@pytest.mark.parametrize("which", [UP, DOWN])
def test_a_relay_replaces_data_of_a_plain_link(own_pool: Callable[..., Server], which: int) -> None:
    def rewrite(direction: int, data: bytes) -> bytes:
        return data.replace(b"Z" * 64, b"Y" * 64) if direction == which else data

    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--plain")
    done = through(server, "tcp(plain)", rewrite)
    assert done.returncode == 0, done.stderr
    assert "Y" in done.stdout, "the relay could not replace data of a plain link"
    assert done.stderr.count("whoever is on the way can read and change what passes") == 1


def test_a_relay_reads_nothing(pool: Server) -> None:
    carried: list[bytes] = []

    def read(direction: int, data: bytes) -> bytes:
        carried.append(data)
        return data

    done = through(pool, "tcp", read)
    assert (done.returncode, done.stdout) == (0, "Z\n"), done.stderr
    everything = b"".join(carried)
    assert len(everything) > 2 * SIZE and b"ZZZZ" not in everything


@pytest.mark.parametrize("which", [UP, DOWN])
def test_what_a_relay_alters_is_noticed(pool: Server, which: int) -> None:
    """One bit of each of three blocks: the connections that carried them are cut and made again, and the right bytes arrive."""
    lock, altered = threading.Lock(), [0]

    def flip(direction: int, data: bytes) -> bytes:
        with lock:
            if direction != which or len(data) < 4096 or altered[0] == 3:
                return data
            altered[0] += 1
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    done = through(pool, "tcp", flip)
    assert altered[0] == 3, "the relay has altered nothing"
    assert (done.returncode, done.stdout) == (0, "Z\n"), done.stderr
