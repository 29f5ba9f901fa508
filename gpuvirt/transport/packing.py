"""msgpack, as the control channel and the workers use it."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped,unused-ignore]


def pack(message: dict[str, Any]) -> bytes:
    """One message as bytes."""
    raw: bytes = msgpack.packb(message)
    return raw


def unpack(raw: bytes) -> dict[str, Any]:
    """One message from bytes that may come from anywhere.

    Raises:
        ValueError: they are not one map.
    """
    try:
        message = msgpack.unpackb(raw)
    except Exception as error:  # msgpack has many ways to dislike its input
        raise ValueError("this is not msgpack") from error
    if not isinstance(message, dict):
        raise ValueError("this is not a map")
    return message
