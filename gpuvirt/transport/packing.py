"""msgpack, as the control channel and the workers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped,unused-ignore]


def pack(message: dict[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """One message as bytes. default: makes of what msgpack does not know something that it does."""
    raw: bytes = msgpack.packb(message, default=default)
    return raw


def unpack(raw: bytes) -> dict[str, Any]:
    """Decodes one message from untrusted bytes.

    Raises:
        ValueError: the bytes are not one map.
    """
    try:
        message = msgpack.unpackb(raw)
    except Exception as error:  # msgpack raises exceptions of many types for invalid input
        raise ValueError("this is not msgpack") from error
    if not isinstance(message, dict):
        raise ValueError("this is not a map")
    return message
