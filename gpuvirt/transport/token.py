"""Tokens let a client connect. A token is one line of text: an id, a secret and the server's public key.

The secret itself never crosses the wire. Data connections prove it by challenge and response (`handshake`); the control channel uses a Curve25519 key
pair that both sides derive from it, so that it accepts only holders of a token:

    control secret key = HMAC-SHA256(secret, "gpuvirt control")
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from gpuvirt.errors import GpuvirtError

PREFIX = "gpuvirt1."
ID_SIZE = 16
SECRET_SIZE = 32
KEY_SIZE = 32


@dataclass(frozen=True)
class Token:
    """A token. `server_key` is the Curve25519 public key of the server that made it, 32 bytes."""

    id: bytes
    secret: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def text(self) -> str:
        """The token as text: ``gpuvirt1.`` and base64url (without padding) of id, secret, server key."""
        return PREFIX + base64.urlsafe_b64encode(self.id + self.secret + self.server_key).decode().rstrip("=")


def parse_token(text: str) -> Token:
    """Reads a token's text.

    Raises:
        GpuvirtError: the text is not a token. The message does not repeat it.
    """
    text = text.strip()
    wrong = GpuvirtError("this is not a token (gpuvirt1. and 107 more characters); ask the server's owner for what `gpuvirt token show` prints")
    if not text.startswith(PREFIX):
        raise wrong
    body = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if len(raw) != ID_SIZE + SECRET_SIZE + KEY_SIZE:
        raise wrong
    return Token(raw[:ID_SIZE], raw[ID_SIZE : ID_SIZE + SECRET_SIZE], raw[ID_SIZE + SECRET_SIZE :])


def control_secret(secret: bytes) -> bytes:
    """The Curve25519 secret key with which a token's holder speaks to the control channel, 32 bytes."""
    return hmac.new(secret, b"gpuvirt control", hashlib.sha256).digest()
