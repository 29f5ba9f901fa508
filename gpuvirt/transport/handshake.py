"""The handshake in front of every connection: GREETING, HELLO, WELCOME. The format is native/wire/handshake.h; tests hold the two against each other.

Fixed-size little-endian messages. Proofs:

    hello.proof   = HMAC-SHA256(key, "gpuvirt client" | server nonce | hello without its proof)
    welcome.proof = HMAC-SHA256(key, "gpuvirt server" | client nonce | server nonce | welcome without its proof)

where key is the token's secret (SESSION, CHECK, ENDED) or the session key (CHANNEL, RESUME), which both sides derive (session id: 8 bytes):

    session key   = HMAC-SHA256(secret, "gpuvirt session" | server nonce | client nonce | session id)

None of the labels is followed by a NUL.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

MAGIC = b"GPUVIRT\0"
WIRE_VERSION = 1
NONCE_SIZE = 32
PROOF_SIZE = 32
TOKEN_ID_SIZE = 16
LAUNCH_SIZE = 16

HELLO_SESSION = 1
HELLO_CHANNEL = 2
HELLO_CHECK = 3
HELLO_RESUME = 4
HELLO_ENDED = 5

LINK_TCP = 1
LINK_SHM = 2
LINK_NAMES = {LINK_TCP: "tcp", LINK_SHM: "shm"}

HELLO_NO_WAIT = 1
GREETING_SOFTWARE = 1

WELCOME_OK = 0
WELCOME_VERSION = 1
WELCOME_DENIED = 2
WELCOME_BUSY = 3
WELCOME_FAILED = 4
WELCOME_UNKNOWN = 5

_GREETING = struct.Struct("<8s4H32s40s108s64s60x")
_HELLO = struct.Struct("<8s4HQ16s32sIIQII64s32s64s16s208x32s")
_WELCOME = struct.Struct("<8sHHIQQQQQII256s160x32s")

GREETING_SIZE = _GREETING.size
HELLO_SIZE = _HELLO.size
WELCOME_SIZE = _WELCOME.size
assert (GREETING_SIZE, HELLO_SIZE, WELCOME_SIZE) == (320, 512, 512)


class HandshakeError(Exception):
    """The bytes are not the message that was expected."""


def _text(raw: bytes) -> str:
    """A NUL-terminated field, printable whatever the peer put there: it ends up in logs and terminals."""
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def _field(text: str, size: int) -> bytes:
    """`text` cut so that it fits with its NUL, never inside a character."""
    return text.encode()[: size - 1].decode("utf-8", "ignore").encode()


@dataclass(frozen=True)
class Greeting:
    """Server to client: who I am, which wire versions, a nonce."""

    nonce: bytes
    version_min: int = WIRE_VERSION
    version_max: int = WIRE_VERSION
    control_port: int = 0
    flags: int = 0
    boot_id: str = ""
    unix_path: str = ""
    server_name: str = ""

    def pack(self) -> bytes:
        if len(self.nonce) != NONCE_SIZE:
            raise ValueError("a nonce has 32 bytes")
        if len(self.unix_path.encode()) > 107:
            raise ValueError("the path of the unix socket is too long")
        return _GREETING.pack(
            MAGIC, self.version_min, self.version_max, self.control_port, self.flags, self.nonce,
            _field(self.boot_id, 40), self.unix_path.encode(), _field(self.server_name, 64),
        )  # fmt: skip

    @classmethod
    def unpack(cls, raw: bytes) -> Greeting:
        if len(raw) != GREETING_SIZE or raw[:8] != MAGIC:
            raise HandshakeError("this is not a gpuvirt server's greeting")
        _, low, high, port, flags, nonce, boot_id, path, name = _GREETING.unpack(raw)
        return cls(nonce, low, high, port, flags, _text(boot_id), _text(path), _text(name))


@dataclass(frozen=True)
class Hello:
    """Client to server: what I want, a nonce, proof that I hold the secret."""

    nonce: bytes
    version: int = WIRE_VERSION
    kind: int = HELLO_SESSION
    link: int = LINK_TCP
    channel: int = 0
    session: int = 0
    token_id: bytes = bytes(TOKEN_ID_SIZE)
    pid: int = 0
    gpus: int = 1
    memory: int = 0
    epoch: int = 0
    flags: int = 0
    program: str = ""
    user: str = ""
    host: str = ""
    launch: bytes = bytes(LAUNCH_SIZE)

    def pack(self, key: bytes, server_nonce: bytes) -> bytes:
        """The message, with its proof."""
        raw = _HELLO.pack(
            MAGIC, self.version, self.kind, self.link, self.channel, self.session, self.token_id, self.nonce, self.pid, self.gpus, self.memory,
            self.epoch, self.flags, _field(self.program, 64), _field(self.user, 32), _field(self.host, 64), self.launch,
            bytes(PROOF_SIZE),
        )  # fmt: skip
        return raw[:-PROOF_SIZE] + hello_proof(raw, key, server_nonce)

    @classmethod
    def unpack(cls, raw: bytes) -> Hello:
        """Reads the message; the proof is checked apart, by `hello_proved`, once it is known whose key it is."""
        if len(raw) != HELLO_SIZE or raw[:8] != MAGIC:
            raise HandshakeError("this is not a gpuvirt client's hello")
        (_, version, kind, link, channel, session, token_id, nonce, pid, gpus, memory, epoch, flags, program, user, host, launch, _) = _HELLO.unpack(
            raw
        )
        who = _text(program), _text(user), _text(host)
        return cls(nonce, version, kind, link, channel, session, token_id, pid, gpus, memory, epoch, flags, *who, launch)


@dataclass(frozen=True)
class Welcome:
    """Server to client: granted or refused and why, proof that the server holds the secret too."""

    status: int = WELCOME_OK
    version: int = WIRE_VERSION
    channels: int = 0
    session: int = 0
    command_ring: int = 0
    reply_ring: int = 0
    bulk_out_ring: int = 0
    bulk_in_ring: int = 0
    grace_s: int = 0
    text: str = ""

    def pack(self, key: bytes | None = None, client_nonce: bytes = b"", server_nonce: bytes = b"") -> bytes:
        """The message; with a proof when `key` is given (a refusal carries none)."""
        raw = _WELCOME.pack(
            MAGIC, self.version, self.channels, self.status, self.session, self.command_ring, self.reply_ring, self.bulk_out_ring, self.bulk_in_ring,
            self.grace_s, 0, _field(self.text, 256), bytes(PROOF_SIZE),
        )  # fmt: skip
        return raw if key is None else raw[:-PROOF_SIZE] + welcome_proof(raw, key, client_nonce, server_nonce)

    @classmethod
    def unpack(cls, raw: bytes) -> Welcome:
        if len(raw) != WELCOME_SIZE or raw[:8] != MAGIC:
            raise HandshakeError("this is not a gpuvirt server's welcome")
        _, version, channels, status, session, command, reply, bulk_out, bulk_in, grace, _, text, _ = _WELCOME.unpack(raw)
        return cls(status, version, channels, session, command, reply, bulk_out, bulk_in, grace, _text(text))


def hello_proof(raw: bytes, key: bytes, server_nonce: bytes) -> bytes:
    return hmac.new(key, b"gpuvirt client" + server_nonce + raw[:-PROOF_SIZE], hashlib.sha256).digest()


def hello_proved(raw: bytes, key: bytes, server_nonce: bytes) -> bool:
    """Whether the hello `raw` was made by a holder of `key`, for this connection."""
    return hmac.compare_digest(raw[-PROOF_SIZE:], hello_proof(raw, key, server_nonce))


def welcome_proof(raw: bytes, key: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.new(key, b"gpuvirt server" + client_nonce + server_nonce + raw[:-PROOF_SIZE], hashlib.sha256).digest()


def welcome_proved(raw: bytes, key: bytes, client_nonce: bytes, server_nonce: bytes) -> bool:
    """Whether the welcome `raw` was made by a server that holds `key`, in answer to this hello."""
    return hmac.compare_digest(raw[-PROOF_SIZE:], welcome_proof(raw, key, client_nonce, server_nonce))


def session_key(secret: bytes, server_nonce: bytes, client_nonce: bytes, session: int) -> bytes:
    """The key of a session's further connections."""
    return hmac.new(secret, b"gpuvirt session" + server_nonce + client_nonce + struct.pack("<Q", session), hashlib.sha256).digest()
