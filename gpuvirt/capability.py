"""Compute capabilities as people write them."""

from __future__ import annotations

import re

_CAPABILITY = re.compile(r"([1-9]\d?)\.(\d)")


def parse_capability(text: str) -> int:
    """Ten times the compute capability written in `text`: ``8.0`` gives 80, ``12.1`` gives 121.

    Raises:
        ValueError: the text is not a compute capability.
    """
    match = _CAPABILITY.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a compute capability such as 8.0")
    return int(match[1]) * 10 + int(match[2])


def format_capability(capability: int) -> str:
    """The text of ten times a compute capability: 121 gives ``12.1``."""
    return f"{capability // 10}.{capability % 10}"
