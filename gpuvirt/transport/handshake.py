"""The handshake in front of every connection: GREETING, HELLO, STATEs, WELCOME.

native/wire/handshake.h describes the format; tests compare the two implementations.

A message is a head (magic, two numbers, its size) and fields (tag, size, bytes); little-endian. Fields that are zero or empty are omitted. Proofs are
computed over all bytes of the connection so far (native/wire/transcript.h, here `Transcript`).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, fields
from typing import Any, Protocol

from gpuvirt.transport import hkdf

MAGIC = b"GPUVIRT\0"
WIRE_VERSION = 2
HEAD_SIZE = 16
MESSAGE_MAX = 8192
GREETING_LEAST = 320
NONCE_SIZE = 32
PROOF_SIZE = 32
TOKEN_ID_SIZE = 16
LAUNCH_SIZE = 16
LEASE_SIZE = 16
PROCESS_SIZE = 16
TRANSPORT_NAME = 16
TRANSPORTS_MAX = 8
BLOB_MAX = 512
KEY_EXCHANGE_MAX = 2048
EXCHANGE_SIZE = 33  # a cipher, an X25519 public key (native/transport/seal/exchange.h)

MESSAGE_HELLO = 1
MESSAGE_STATE = 2
MESSAGE_WELCOME = 3

TAG_CRITICAL = 0x8000
TAG_PAD = 5
TAG_PROOF = 127

HELLO_SESSION = 1
HELLO_CHANNEL = 2
HELLO_CHECK = 3
HELLO_RESUME = 4
HELLO_ENDED = 5

NEEDS_SAME_HOST = 1
NEEDS_DESCRIPTORS = 2
NEEDS_NETWORK = 4

GREETING_SOFTWARE = 1
HELLO_NO_WAIT = 1
HELLO_NOTICES = 2

STATE_EVERY = 5  # seconds
STATE_WAITING = 1
STATE_PARKED = 2

WELCOME_OK = 0
WELCOME_VERSION = 1
WELCOME_DENIED = 2
WELCOME_BUSY = 3
WELCOME_FAILED = 4
WELCOME_UNKNOWN = 5
WELCOME_MOVED = 6

MOVES_MAX = 4

_HEAD = struct.Struct("<8sHHI")
_FIELD = struct.Struct("<HH")
_FORMATS = {2: "<H", 4: "<I", 8: "<Q"}


class HandshakeError(Exception):
    """The bytes are not the message that was expected."""


class OtherVersion(HandshakeError):
    """The peer does not speak our wire version. older: the peer is the older side."""

    def __init__(self, version: int) -> None:
        self.version, self.older = version, version < WIRE_VERSION
        super().__init__(f"wire version {version}")


class Codec(Protocol):
    """Encodes and decodes one field's value; an empty list of bytes omits the field."""

    def encode(self, value: Any) -> list[bytes]: ...

    def decode(self, raw: bytes, before: Any) -> Any: ...


@dataclass(frozen=True)
class _Number:
    size: int

    def encode(self, value: int) -> list[bytes]:
        return [struct.pack(_FORMATS[self.size], value)] if value else []

    def decode(self, raw: bytes, before: Any) -> int:
        if len(raw) != self.size:
            raise HandshakeError("a number of another size")
        return int.from_bytes(raw, "little")


@dataclass(frozen=True)
class _Signed:
    def encode(self, value: int) -> list[bytes]:
        return [struct.pack("<i", value)] if value else []

    def decode(self, raw: bytes, before: Any) -> int:
        if len(raw) != 4:
            raise HandshakeError("a number of another size")
        return int.from_bytes(raw, "little", signed=True)


@dataclass(frozen=True)
class _Bytes:
    size: int

    def encode(self, value: bytes) -> list[bytes]:
        if len(value) != self.size:
            raise ValueError(f"this field has {self.size} bytes")
        return [value] if any(value) else []

    def decode(self, raw: bytes, before: Any) -> bytes:
        if len(raw) != self.size:
            raise HandshakeError("a field of another size")
        return raw


@dataclass(frozen=True)
class _Text:
    room: int  # bytes of the C array, its NUL included

    def encode(self, value: str) -> list[bytes]:
        # Cut so that it fits, never inside a character.
        raw = value.encode()[: self.room - 1].decode("utf-8", "ignore").encode()
        return [raw] if raw else []

    def decode(self, raw: bytes, before: Any) -> str:
        if len(raw) >= self.room:
            raise HandshakeError("a text that is too long")
        # Made printable, because logs and terminals show it.
        text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
        return "".join(c if c.isprintable() else "?" for c in text)


@dataclass(frozen=True)
class _Blob:
    most: int

    def encode(self, value: bytes) -> list[bytes]:
        if len(value) > self.most:
            raise ValueError(f"this field has at most {self.most} bytes")
        return [value] if value else []

    def decode(self, raw: bytes, before: Any) -> bytes:
        if len(raw) > self.most:
            raise HandshakeError("a field that is too long")
        return raw


@dataclass(frozen=True)
class Offer:
    """A transport that an end can speak, and what it needs of the connection (NEEDS_*)."""

    name: str = ""
    needs: int = 0


def _pack_offer(offer: Offer) -> bytes:
    return struct.pack("<I", offer.needs) + offer.name.encode("ascii")


def _unpack_offer(raw: bytes) -> Offer:
    if not 5 <= len(raw) < 4 + TRANSPORT_NAME or 0 in raw[4:]:
        raise HandshakeError("an offer that is none")
    return Offer(raw[4:].decode("ascii", "replace"), int.from_bytes(raw[:4], "little"))


@dataclass(frozen=True)
class _Offer:
    def encode(self, value: Offer) -> list[bytes]:
        return [_pack_offer(value)] if value.name else []

    def decode(self, raw: bytes, before: Any) -> Offer:
        return _unpack_offer(raw)


@dataclass(frozen=True)
class _Offers:
    def encode(self, value: tuple[Offer, ...]) -> list[bytes]:
        return [_pack_offer(offer) for offer in value]

    def decode(self, raw: bytes, before: tuple[Offer, ...]) -> tuple[Offer, ...]:
        if len(before) == TRANSPORTS_MAX:
            raise HandshakeError("too many transports")
        return (*before, _unpack_offer(raw))


_NONCE, _KEY_EXCHANGE = (1, _Bytes(NONCE_SIZE)), (2, _Blob(KEY_EXCHANGE_MAX))
_FLAGS, _TEXT = (3, _Number(4)), (4, _Text(256))
_SESSION = (34, _Number(8))
# For each message its attributes in the order of the fields: tag and codec.
_GREETING: dict[str, tuple[int, Codec]] = {
    "nonce": _NONCE, "flags": _FLAGS, "control_port": (16, _Number(2)), "boot_id": (17, _Text(40)), "unix_path": (18, _Text(108)),
    "server_name": (19, _Text(64)), "key_exchange": _KEY_EXCHANGE,
}  # fmt: skip
_HELLO: dict[str, tuple[int, Codec]] = {
    "purpose": (32, _Number(2)), "channel": (35, _Number(2)), "nonce": _NONCE, "token_id": (33, _Bytes(TOKEN_ID_SIZE)), "session": _SESSION,
    "epoch": (36, _Number(4)), "flags": _FLAGS, "pid": (39, _Number(4)), "gpus": (37, _Number(4)), "memory": (38, _Number(8)),
    "priority": (51, _Signed()), "wait_ms": (52, _Number(4)), "compute": (53 | TAG_CRITICAL, _Number(4)),
    "program": (40, _Text(64)), "user": (41, _Text(32)), "host": (42, _Text(64)), "launch": (43, _Bytes(LAUNCH_SIZE)),
    "process": (45, _Bytes(PROCESS_SIZE)), "exec_id": (46, _Bytes(PROCESS_SIZE)), "lease": (47, _Bytes(LEASE_SIZE)),
    "transports": (44, _Offers()), "key_exchange": _KEY_EXCHANGE,
}  # fmt: skip
_STATE: dict[str, tuple[int, Codec]] = {"state": (48, _Number(2)), "place": (49, _Number(4)), "queued": (50, _Number(4)), "text": _TEXT}
_WELCOME: dict[str, tuple[int, Codec]] = {
    "status": (64, _Number(4)), "session": _SESSION, "transport": (44, _Offer()), "descriptors": (65, _Number(2)), "connections": (66, _Number(2)),
    "blob": (67, _Blob(BLOB_MAX)), "grace_s": (68, _Number(4)), "text": _TEXT, "address": (69, _Text(300)), "key_exchange": _KEY_EXCHANGE,
}  # fmt: skip


def _encode(message: Any, table: dict[str, tuple[int, Codec]]) -> bytes:
    body = b""
    for name, (tag, codec) in table.items():
        for raw in codec.encode(getattr(message, name)):
            body += _FIELD.pack(tag, len(raw)) + raw
    return body


def _decode(cls: Any, table: dict[str, tuple[int, Codec]], body: bytes) -> dict[str, Any]:
    by_tag = {tag: (name, codec) for name, (tag, codec) in table.items()}
    found: dict[str, Any] = {}
    at = 0
    while at < len(body):
        if len(body) - at < _FIELD.size:
            raise HandshakeError("half a field")
        tag, size = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        if size > len(body) - at:
            raise HandshakeError("a field that reaches beyond its message")
        raw, at = body[at : at + size], at + size
        if tag not in by_tag:
            if tag & TAG_CRITICAL:
                raise HandshakeError(f"a field that must be understood and is not known ({tag:#x})")
            continue
        name, codec = by_tag[tag]
        if name in found and not isinstance(codec, _Offers):
            raise HandshakeError("a field twice")
        found[name] = codec.decode(raw, found.get(name, ()))
    defaults = {field.name: field.default for field in fields(cls)}
    zeros = {name: bytes(codec.size) for name, (_, codec) in table.items() if isinstance(codec, _Bytes)}
    return {name: found.get(name, zeros.get(name, _empty(defaults[name]))) for name in table}


def _empty(default: Any) -> Any:
    """The value of an attribute whose field was omitted; it may differ from the constructor's default."""
    return 0 if isinstance(default, int) else default


def message_size(head: bytes) -> int:
    """The whole message's size in bytes, from its first `HEAD_SIZE` bytes.

    Raises:
        OtherVersion: of another wire version.
        HandshakeError: no message, or of an impossible size.
    """
    if len(head) < HEAD_SIZE or head[:8] != MAGIC:
        raise HandshakeError("this is no message of a gpuvirt handshake")
    _, version, _, size = _HEAD.unpack_from(head)
    if version != WIRE_VERSION:
        raise OtherVersion(version)
    if not HEAD_SIZE <= size <= MESSAGE_MAX:
        raise HandshakeError(f"a message of {size} bytes")
    return int(size)


def greeting_size(head: bytes) -> int:
    """As `message_size`, for a greeting, whose head says which versions the server speaks."""
    if len(head) < HEAD_SIZE or head[:8] != MAGIC:
        raise HandshakeError("this is not a gpuvirt server's greeting")
    _, low, high, size = _HEAD.unpack_from(head)
    if high < WIRE_VERSION or low > WIRE_VERSION:
        raise OtherVersion(high if high < WIRE_VERSION else low)
    if not HEAD_SIZE <= size <= MESSAGE_MAX:
        raise HandshakeError(f"a greeting of {size} bytes")
    return int(size)


def _body(raw: bytes, kind: int, proved: bool) -> bytes:
    if message_size(raw) != len(raw) or _HEAD.unpack_from(raw)[2] != kind:
        raise HandshakeError("this is another message")
    if not proved:
        return raw[HEAD_SIZE:]
    tail = _FIELD.size + PROOF_SIZE
    if len(raw) < HEAD_SIZE + tail or raw[-tail:-PROOF_SIZE] != _FIELD.pack(TAG_PROOF, PROOF_SIZE):
        raise HandshakeError("a message without its proof")
    return raw[HEAD_SIZE:-tail]


def _message(kind: int, body: bytes, proved: bool) -> bytes:
    """Head and body; with a proof of zeros at the end, which a `Transcript` fills in."""
    if proved:
        body += _FIELD.pack(TAG_PROOF, PROOF_SIZE) + bytes(PROOF_SIZE)
    return _HEAD.pack(MAGIC, WIRE_VERSION, kind, HEAD_SIZE + len(body)) + body


@dataclass(frozen=True)
class Greeting:
    """Server to client: the server's identity, its wire versions, a nonce."""

    nonce: bytes
    version_min: int = WIRE_VERSION
    version_max: int = WIRE_VERSION
    control_port: int = 0
    flags: int = 0
    boot_id: str = ""
    unix_path: str = ""
    server_name: str = ""
    key_exchange: bytes = b""

    def pack(self) -> bytes:
        if len(self.unix_path.encode()) > 107:
            raise ValueError("the path of the unix socket is too long")
        body = _encode(self, _GREETING)
        missing = GREETING_LEAST - HEAD_SIZE - len(body) - _FIELD.size
        if missing > 0:
            body += _FIELD.pack(TAG_PAD, missing) + bytes(missing)
        return _HEAD.pack(MAGIC, self.version_min, self.version_max, HEAD_SIZE + len(body)) + body

    @classmethod
    def unpack(cls, raw: bytes) -> Greeting:
        if greeting_size(raw) != len(raw):
            raise HandshakeError("a greeting of another size")
        _, low, high, _ = _HEAD.unpack_from(raw)
        return cls(version_min=low, version_max=high, **_decode(cls, _GREETING, raw[HEAD_SIZE:]))


@dataclass(frozen=True)
class Hello:
    """Client to server: the request, the client's transports, a nonce, a proof that the client holds the key."""

    nonce: bytes
    purpose: int = HELLO_SESSION
    channel: int = 0
    session: int = 0
    token_id: bytes = bytes(TOKEN_ID_SIZE)
    pid: int = 0
    gpus: int = 1
    memory: int = 0
    priority: int = 0
    wait_ms: int = 0
    compute: int = 0
    epoch: int = 0
    flags: int = 0
    program: str = ""
    user: str = ""
    host: str = ""
    launch: bytes = bytes(LAUNCH_SIZE)
    process: bytes = bytes(PROCESS_SIZE)
    exec_id: bytes = bytes(PROCESS_SIZE)
    lease: bytes = bytes(LEASE_SIZE)
    transports: tuple[Offer, ...] = ()
    key_exchange: bytes = b""

    def pack(self) -> bytes:
        """The message with a proof of zeros."""
        return _message(MESSAGE_HELLO, _encode(self, _HELLO), proved=True)

    @classmethod
    def unpack(cls, raw: bytes) -> Hello:
        """Reads the message; the proof is checked apart, by `Transcript.hello_proved`, once it is known whose key it is."""
        return cls(**_decode(cls, _HELLO, _body(raw, MESSAGE_HELLO, proved=True)))


@dataclass(frozen=True)
class State:
    """Server to client, before the welcome: the client waits, or its session is parked."""

    state: int = STATE_WAITING
    place: int = 0
    queued: int = 0
    text: str = ""

    def pack(self) -> bytes:
        return _message(MESSAGE_STATE, _encode(self, _STATE), proved=False)

    @classmethod
    def unpack(cls, raw: bytes) -> State:
        return cls(**_decode(cls, _STATE, _body(raw, MESSAGE_STATE, proved=False)))


@dataclass(frozen=True)
class Welcome:
    """Server to client: granted, refused (and why) or moved, the transport chosen, a proof that the server holds the key too."""

    status: int = WELCOME_OK
    session: int = 0
    transport: Offer = Offer()
    descriptors: int = 0
    connections: int = 0
    blob: bytes = b""
    grace_s: int = 0
    text: str = ""
    address: str = ""
    key_exchange: bytes = b""

    def pack(self) -> bytes:
        """The message with a proof of zeros, as a refusal carries."""
        return _message(MESSAGE_WELCOME, _encode(self, _WELCOME), proved=True)

    @classmethod
    def unpack(cls, raw: bytes) -> Welcome:
        return cls(**_decode(cls, _WELCOME, _body(raw, MESSAGE_WELCOME, proved=True)))


class Transcript:
    """All bytes of a connection's handshake so far, and the proofs over them.

    Args:
        greeting: the greeting's bytes.
    """

    def __init__(self, greeting: bytes) -> None:
        self._hash = hashlib.sha256(b"gpuvirt wire 2" + greeting)

    def add(self, raw: bytes) -> None:
        """A message without a proof."""
        self._hash.update(raw)

    def _mac(self, key: bytes, label: bytes) -> bytes:
        return hmac.new(key, label + self._hash.digest(), hashlib.sha256).digest()

    def _prove(self, raw: bytes, key: bytes, label: bytes) -> bytes:
        self._hash.update(raw[:-PROOF_SIZE])
        proof = self._mac(key, label)
        self._hash.update(proof)
        return raw[:-PROOF_SIZE] + proof

    def _proved(self, raw: bytes, key: bytes, label: bytes) -> bool:
        self._hash.update(raw[:-PROOF_SIZE])
        expected = self._mac(key, label)
        self._hash.update(raw[-PROOF_SIZE:])
        return hmac.compare_digest(raw[-PROOF_SIZE:], expected)

    def prove_hello(self, hello: Hello, key: bytes) -> bytes:
        """The hello's bytes with its proof."""
        return self._prove(hello.pack(), key, b"gpuvirt client")

    def hello_proved(self, raw: bytes, key: bytes) -> bool:
        """Whether the hello `raw` was made by a holder of `key`, for this connection."""
        return self._proved(raw, key, b"gpuvirt client")

    def prove_welcome(self, welcome: Welcome, key: bytes) -> bytes:
        """The welcome's bytes with its proof."""
        return self._prove(welcome.pack(), key, b"gpuvirt server")

    def welcome_proved(self, raw: bytes, key: bytes) -> bool:
        """Whether the welcome `raw` was made by a server that holds `key`, in answer to this hello."""
        return self._proved(raw, key, b"gpuvirt server")

    def session_key(self, secret: bytes) -> bytes:
        """The key of a session's further connections, once its welcome is part of the transcript."""
        return self._mac(secret, b"gpuvirt session")

    def sealed_session_keys(self, secret: bytes, shared: bytes) -> tuple[bytes, bytes]:
        """The same after a key exchange, and the secret that the link is sealed by.

        Args:
            shared: what the exchange made both ends share.
        """
        key = hkdf.extract(self._hash.digest(), secret + shared)
        return hkdf.expand(key, b"gpuvirt session", 32), hkdf.expand(key, b"gpuvirt link", 32)
