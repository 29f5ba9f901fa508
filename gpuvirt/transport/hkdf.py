"""HKDF-SHA256 (RFC 5869), as native/wire/hkdf.c."""

from __future__ import annotations

import hashlib
import hmac


def extract(salt: bytes, material: bytes) -> bytes:
    """A key of 32 bytes from what is secret and not uniform."""
    return hmac.new(salt, material, hashlib.sha256).digest()


def expand(key: bytes, info: bytes, size: int) -> bytes:
    """`size` bytes (at most 8,160) from a key; `info` names their use."""
    out, block = b"", b""
    for number in range(1, size // 32 + 2):
        block = hmac.new(key, block + info + bytes([number]), hashlib.sha256).digest()
        out += block
    return out[:size]
