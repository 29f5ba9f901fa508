"""The Python messages against the C header: its constants, and what the messages promise. Their bytes are compared in tests/native."""

from __future__ import annotations

import hashlib
import hmac
import re
import subprocess
from pathlib import Path

import pytest

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import table
from gpuvirt.transport.transport import ServerEnd, Transport

ROOT = Path(__file__).parent.parent.parent
HEADER = ROOT / "native/wire/handshake.h"
# Names that differ: what Python calls them.
NAMES = {"STATE_EVERY_S": "STATE_EVERY", "SECRET_SIZE": None, "DESCRIPTORS_MAX": None}


def test_constants(tmp_path: Path) -> None:
    """Each number of the header that Python has too, and the wire version."""
    defined = re.findall(r"^#define GV_(\w+) ", HEADER.read_text(), re.MULTILINE)
    lines = "".join(f'    printf("{name} %u\\n", (unsigned)GV_{name});\n' for name in defined if name not in ("HANDSHAKE_H", "MAGIC"))
    program = f'#include <stdio.h>\n#include "native/wire/handshake.h"\n#include "native/wire/record.h"\nint main(void) {{\n{lines}'
    program += '    printf("WIRE_VERSION %u\\n", GV_WIRE_VERSION);\n    return 0;\n}\n'
    (tmp_path / "print.c").write_text(program)
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Werror", f"-I{ROOT}", "print.c", "-o", "print"], cwd=tmp_path, check=True)
    printed = subprocess.run([str(tmp_path / "print")], capture_output=True, text=True, check=True).stdout
    values = {name: int(value) for name, value in map(str.split, printed.splitlines())}
    assert len(values) > 60
    tags = {name for name in values if name.startswith("TAG_")} - {"TAG_CRITICAL", "TAG_PAD", "TAG_PROOF"}  # those are numbers in a table there
    ours = {NAMES.get(name, name): value for name, value in values.items() if name not in tags}
    assert {name: getattr(hs, name) for name in ours if name} == {name: value for name, value in ours.items() if name}


def test_proofs_are_what_the_header_says() -> None:
    """native/wire/transcript.h, written out."""
    key, greeting, state = b"k" * 32, hs.Greeting(b"n" * 32).pack(), hs.State().pack()
    transcript = hs.Transcript(greeting)
    hello = transcript.prove_hello(hs.Hello(b"c" * 32), key)
    digest = hashlib.sha256(b"gpuvirt wire 2" + greeting + hello[:-32]).digest()
    assert hello[-32:] == hmac.new(key, b"gpuvirt client" + digest, hashlib.sha256).digest()
    transcript.add(state)
    welcome = transcript.prove_welcome(hs.Welcome(session=5), key)
    digest = hashlib.sha256(b"gpuvirt wire 2" + greeting + hello + state + welcome[:-32]).digest()
    assert welcome[-32:] == hmac.new(key, b"gpuvirt server" + digest, hashlib.sha256).digest()
    digest = hashlib.sha256(b"gpuvirt wire 2" + greeting + hello + state + welcome).digest()
    assert transcript.session_key(key) == hmac.new(key, b"gpuvirt session" + digest, hashlib.sha256).digest()


def through(greeting: bytes, state: bytes, alter: tuple[int, int] | None) -> tuple[bool, bool]:
    """One handshake with a byte altered on its way (message, position): whether the server takes the hello, and the client the welcome."""
    key = b"k" * 32

    def relay(which: int, raw: bytes) -> bytes:
        if alter is None or alter[0] != which:
            return raw
        return raw[: alter[1]] + bytes([raw[alter[1]] ^ 0x10]) + raw[alter[1] + 1 :]

    server, client = hs.Transcript(greeting), hs.Transcript(relay(0, greeting))
    hello = client.prove_hello(hs.Hello(b"c" * 32, program="p", transports=(hs.Offer("tcp", 4),)), key)
    taken = server.hello_proved(relay(1, hello), key)
    server.add(state)
    welcome = server.prove_welcome(hs.Welcome(session=7, blob=b"blob", address="tcp://h:1"), key)
    client.add(relay(2, state))
    return taken, client.welcome_proved(relay(3, welcome), key)


def test_every_byte_is_under_a_proof() -> None:
    """What is altered in greeting or hello both sides find; what is altered later the client does."""
    greeting, state = hs.Greeting(b"n" * 32, unix_path="/run/x").pack(), hs.State(place=2, queued=3).pack()
    assert through(greeting, state, None) == (True, True)
    hello = hs.Transcript(greeting).prove_hello(hs.Hello(b"c" * 32, program="p", transports=(hs.Offer("tcp", 4),)), b"k")
    welcome = hs.Welcome(session=7, blob=b"blob", address="tcp://h:1").pack()
    for which, raw in enumerate((greeting, hello, state, welcome)):
        for at in range(len(raw)):
            taken, welcomed = through(greeting, state, (which, at))
            assert not welcomed and taken == (which > 1), (which, at)


def test_text_from_a_peer_is_made_harmless() -> None:
    assert hs.Hello.unpack(hs.Hello(bytes(32), program="x\x1b[2J\n").pack()).program == "x?[2J?"
    assert hs.Hello.unpack(hs.Hello(bytes(32), program="é" * 100).pack()).program == "é" * 31


@pytest.mark.parametrize("size", [0, 1, 15, 16, 319, 321, 8193])
def test_other_sizes_are_refused(size: int) -> None:
    for message in (hs.Greeting, hs.Hello, hs.State, hs.Welcome):
        with pytest.raises(hs.HandshakeError):
            message.unpack((hs.MAGIC + b"\2\0\2\0" + bytes(9000))[:size])


def test_a_blob_has_an_end() -> None:
    with pytest.raises(ValueError, match="at most 512"):
        hs.Welcome(blob=bytes(513)).pack()


# ---- the choice -------------------------------------------------------------------------------------------------------------------

NET, UNIX = hs.NEEDS_NETWORK, hs.NEEDS_SAME_HOST | hs.NEEDS_DESCRIPTORS
ROCE = Transport("roce", NET, 4, False, True, 1.0, ServerEnd)
PIGEON = hs.Offer("pigeon")


@pytest.mark.parametrize(
    ("asked", "offered", "provides", "expected"),
    [
        (("shm", "tcp"), ("shm", "tcp"), UNIX, "shm"),  # same host
        (("shm", "tcp"), ("shm", "tcp"), NET, "tcp"),  # another one, or no unix socket
        (("tcp",), ("shm", "tcp"), NET, "tcp"),  # --link tcp
        (("roce", "tcp"), ("shm", "roce", "tcp"), NET, "roce"),  # the client's order counts
        (("tcp", "roce"), ("shm", "roce", "tcp"), NET, "tcp"),
        (("roce", "tcp"), ("shm", "tcp"), NET, "tcp"),  # what the server does not offer is passed over
        (("pigeon", "tcp"), ("tcp",), NET, "tcp"),
        (("shm",), ("tcp",), UNIX, "does not offer the link shm; it offers tcp"),
        (("shm",), ("shm", "tcp"), NET, "shm needs a connection over the server's unix socket"),
        (("tcp",), ("shm", "tcp"), UNIX, "tcp needs a connection over the network"),
        ((), ("tcp",), NET, "does not offer the link that the client speaks"),
    ],
)
def test_choice(asked: tuple[str, ...], offered: tuple[str, ...], provides: int, expected: str) -> None:
    rows = {row.name: row for row in (*table.TRANSPORTS, ROCE)}
    offers = [rows[name].offer if name in rows else PIGEON for name in asked]
    try:
        found = table.choose(offers, [rows[name] for name in offered], provides).name
    except table.NoTransport as error:
        assert expected in str(error)
    else:
        assert found == expected


def test_usable() -> None:
    assert [row.name for row in table.usable(NET | UNIX)] == ["shm", "verbs", "tcp"]
    assert [row.name for row in table.usable(NET)] == ["verbs", "tcp"]
    assert [row.name for row in table.usable(NET | hs.NEEDS_SAME_HOST)] == ["verbs", "tcp"]
    assert table.usable(0) == []
