"""Memory sizes as text."""

from __future__ import annotations

import re

UNIT = 2 << 20  # bytes: device memory is had in whole units, as a GPU gives it (GV_WINDOW_ALIGN)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes of ``512m``, ``4g``, ``1.5GiB`` or a plain number; units are powers of 1024 (``4g`` is 4 GiB).

    Raises:
        ValueError: the text is not a size, or is zero or 2**63 bytes or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size; write it like 512m or 4g")
    size = int(float(match[1]) * (1 << _UNITS[match[2].lower()]))
    if not 0 < size < 1 << 63:
        raise ValueError(f"{text!r} is out of range")
    return size


def whole_units(size: int) -> int:
    """What can be had of so many bytes of device memory: the whole units in it, one at least; 0, which stands for no limit, stays 0."""
    return max(UNIT, size - size % UNIT) if size else 0


def format_size(size: int) -> str:
    """Bytes as text for people, such as ``4.0 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_short(value: float, thousand: int = 1024) -> str:
    """A number in at most 5 characters: 0, 9.5, 950, 1.2k, 34M, 5.0G."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5:
            return f"{value:.0f}{unit}" if value >= 9.95 or value == int(value) else f"{value:.1f}{unit}"
        value /= thousand
    return f"{value:.0f}P"
