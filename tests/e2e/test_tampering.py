"""What SECURITY.md says of data connections: a relay that knows no token replaces what it carries, and neither end notices.

When records are authenticated, these tests fail, and SECURITY.md and README.md promise more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.cutter import DOWN, UP, Cutter
from e2e.harness import Server, run_program

ROOT = Path(__file__).parent.parent.parent
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


@pytest.mark.parametrize("which", [UP, DOWN])
def test_a_relay_without_a_token_replaces_data(pool: Server, which: int) -> None:
    def rewrite(direction: int, data: bytes) -> bytes:
        return data.replace(b"Z" * 64, b"Y" * 64) if direction == which else data

    relay = Cutter(pool.info["port"], rewrite=rewrite)
    try:
        done = run_program(relay.url, [sys.executable, "-c", COPY], "--link", "tcp", GPUVIRT_TOKEN=pool.token())
    finally:
        relay.close()
    assert done.returncode == 0, done.stderr
    assert "Y" in done.stdout, "the relay could not replace data: SECURITY.md says that it can"


def test_the_pages_say_so() -> None:
    security, readme = ((ROOT / name).read_text() for name in ("SECURITY.md", "README.md"))
    assert "neither encrypted nor authenticated after the handshake" in security
    two_machines = readme.partition("## Two machines")[2].partition("\n## ")[0]
    assert "Nothing encrypts or authenticates what follows the handshake" in two_machines and "SECURITY.md" in two_machines
