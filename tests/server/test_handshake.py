"""The Python messages against the C header: a small C program fills and prints each of them."""

from __future__ import annotations

import hashlib
import hmac
import struct
import subprocess
from pathlib import Path

import pytest

from gpuvirt.transport import handshake as hs

ROOT = Path(__file__).parent.parent.parent

# Every field gets a value of its own, so that two fields that changed places show.
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include "native/wire/handshake.h"
#include "native/wire/record.h"
static void out(const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", ((const unsigned char *)data)[i]);
    printf("\n");
}
static void fill(uint8_t *to, size_t size, int first) { for (size_t i = 0; i < size; i++) to[i] = (uint8_t)(first + (int)i); }
int main(void) {
    struct gv_greeting g = {.magic = GV_MAGIC, .version_min = 0x0102, .version_max = 0x0304, .control_port = 0x0506, .flags = 0x0708,
                            .boot_id = "boot", .unix_path = "/run/x.sock", .server_name = "server"};
    fill(g.nonce, sizeof g.nonce, 10);
    out(&g, sizeof g);
    struct gv_hello h = {.magic = GV_MAGIC, .version = GV_WIRE_VERSION, .kind = GV_HELLO_CHANNEL, .link = GV_LINK_SHM, .channel = 0x0304,
                         .session = 0x1122334455667788u, .pid = 0x01020304, .gpus = 0x05060708, .memory = 0x1020304050607080u,
                         .epoch = 0x0a0b0c0d, .flags = GV_HELLO_NO_WAIT, .program = "program", .user = "user", .host = "host"};
    fill(h.token_id, sizeof h.token_id, 60);
    fill(h.nonce, sizeof h.nonce, 80);
    fill(h.launch, sizeof h.launch, 200);
    fill(h.proof, sizeof h.proof, 120);
    out(&h, sizeof h);
    struct gv_welcome w = {.magic = GV_MAGIC, .version = 1, .channels = 7, .status = GV_WELCOME_BUSY, .session = 0x1122334455667788u,
                           .command_ring = 1u << 20, .reply_ring = 1u << 21, .bulk_out_ring = 1u << 22, .bulk_in_ring = 1u << 23, .grace_s = 99,
                           .text = "why"};
    fill(w.proof, sizeof w.proof, 160);
    out(&w, sizeof w);
    unsigned constants[] = {GV_WIRE_VERSION, GV_HELLO_SESSION, GV_HELLO_CHANNEL, GV_HELLO_CHECK, GV_HELLO_RESUME, GV_HELLO_ENDED,
                            GV_LINK_TCP, GV_LINK_SHM, GV_HELLO_NO_WAIT, GV_GREETING_SOFTWARE, GV_WELCOME_OK, GV_WELCOME_VERSION,
                            GV_WELCOME_DENIED, GV_WELCOME_BUSY, GV_WELCOME_FAILED, GV_WELCOME_UNKNOWN};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) printf("%u ", constants[i]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("c")
    (folder / "print.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Werror", f"-I{ROOT}", "print.c", "-o", "print"], cwd=folder, check=True)
    return subprocess.run([str(folder / "print")], capture_output=True, text=True, check=True).stdout.splitlines()


def filled(size: int, first: int) -> bytes:
    return bytes((first + i) % 256 for i in range(size))


def test_greeting(printed: list[str]) -> None:
    raw = bytes.fromhex(printed[0])
    greeting = hs.Greeting(filled(32, 10), 0x0102, 0x0304, 0x0506, 0x0708, "boot", "/run/x.sock", "server")
    assert hs.Greeting.unpack(raw) == greeting
    assert greeting.pack() == raw


def test_hello(printed: list[str]) -> None:
    raw = bytes.fromhex(printed[1])
    hello = hs.Hello(
        filled(32, 80), 1, hs.HELLO_CHANNEL, hs.LINK_SHM, 0x0304, 0x1122334455667788, filled(16, 60), 0x01020304, 0x05060708, 0x1020304050607080,
        0x0A0B0C0D, hs.HELLO_NO_WAIT, "program", "user", "host",
        filled(16, 200),
    )  # fmt: skip
    assert hs.Hello.unpack(raw) == hello
    assert raw[-32:] == filled(32, 120)
    assert hello.pack(b"key", bytes(32))[:-32] == raw[:-32]


def test_welcome(printed: list[str]) -> None:
    raw = bytes.fromhex(printed[2])
    welcome = hs.Welcome(hs.WELCOME_BUSY, 1, 7, 0x1122334455667788, 1 << 20, 1 << 21, 1 << 22, 1 << 23, 99, "why")
    assert hs.Welcome.unpack(raw) == welcome
    assert raw[-32:] == filled(32, 160)
    assert welcome.pack()[:-32] == raw[:-32]


def test_constants(printed: list[str]) -> None:
    ours = [
        hs.WIRE_VERSION, hs.HELLO_SESSION, hs.HELLO_CHANNEL, hs.HELLO_CHECK, hs.HELLO_RESUME, hs.HELLO_ENDED, hs.LINK_TCP, hs.LINK_SHM,
        hs.HELLO_NO_WAIT, hs.GREETING_SOFTWARE,
        hs.WELCOME_OK, hs.WELCOME_VERSION, hs.WELCOME_DENIED, hs.WELCOME_BUSY, hs.WELCOME_FAILED, hs.WELCOME_UNKNOWN,
    ]  # fmt: skip
    assert [int(word) for word in printed[3].split()] == ours


def test_proofs_are_what_the_header_says() -> None:
    key, server, client = b"k" * 32, b"s" * 32, b"c" * 32
    hello = hs.Hello(client).pack(key, server)
    assert hello[-32:] == hmac.new(key, b"gpuvirt client" + server + hello[:480], hashlib.sha256).digest()
    welcome = hs.Welcome(session=5).pack(key, client, server)
    assert welcome[-32:] == hmac.new(key, b"gpuvirt server" + client + server + welcome[:480], hashlib.sha256).digest()
    expected = hmac.new(key, b"gpuvirt session" + server + client + struct.pack("<Q", 5), hashlib.sha256).digest()
    assert hs.session_key(key, server, client, 5) == expected


PROOFS = r"""
#include <stdio.h>
#include <string.h>
#include "native/wire/proof.h"
static void out(const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", ((const unsigned char *)data)[i]);
    printf("\n");
}
int main(void) {
    uint8_t key[32], server[32], client[32], derived[32];
    memset(key, 'k', 32), memset(server, 's', 32), memset(client, 'c', 32);
    struct gv_hello hello = {.kind = GV_HELLO_SESSION, .link = GV_LINK_TCP, .pid = 5, .gpus = 2, .program = "prog"};
    memcpy(hello.nonce, client, 32);
    gv_hello_prove(&hello, key, server);
    out(&hello, sizeof hello);
    struct gv_welcome welcome = {.session = 77};
    gv_welcome_prove(&welcome, key, client, server);
    out(&welcome, sizeof welcome);
    gv_session_key(derived, key, server, client, 77);
    out(derived, 32);
    return 0;
}
"""


def test_proofs_are_those_of_the_c_side(tmp_path: Path) -> None:
    (tmp_path / "proofs.c").write_text(PROOFS)
    sources = [str(ROOT / "native" / "wire" / name) for name in ("handshake.c", "sha256.c")]
    subprocess.run(["gcc", "-std=gnu11", "-Wall", f"-I{ROOT}", "proofs.c", *sources, "-o", "proofs"], cwd=tmp_path, check=True)
    lines = subprocess.run([str(tmp_path / "proofs")], capture_output=True, text=True, check=True).stdout.split()
    key, server, client = b"k" * 32, b"s" * 32, b"c" * 32
    assert hs.Hello(client, pid=5, gpus=2, program="prog").pack(key, server).hex() == lines[0]
    assert hs.Welcome(session=77).pack(key, client, server).hex() == lines[1]
    assert hs.session_key(key, server, client, 77).hex() == lines[2]


def test_text_from_a_peer_is_made_harmless() -> None:
    raw = hs.Hello(bytes(32), program="x\x1b[2J\n").pack(b"", b"")
    assert hs.Hello.unpack(raw).program == "x?[2J?"
    long = hs.Hello(bytes(32), program="é" * 100).pack(b"", b"")
    assert hs.Hello.unpack(long).program == "é" * 31


@pytest.mark.parametrize("size", [0, 1, 319, 321, 511, 513])
def test_other_sizes_are_refused(size: int) -> None:
    for message in (hs.Greeting, hs.Hello, hs.Welcome):
        with pytest.raises(hs.HandshakeError):
            message.unpack((hs.MAGIC + bytes(600))[:size])
