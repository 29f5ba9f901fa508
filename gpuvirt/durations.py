"""Times as people write them."""

from __future__ import annotations

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def format_duration(seconds: float) -> str:
    """For people, in the largest unit of which there are two: 90 s, 5 m, 30 h, 12 d."""
    unit = next((unit for unit in ("d", "h", "m") if seconds >= 2 * UNITS[unit]), "s")
    return f"{max(seconds, 0.0) / UNITS[unit]:.0f} {unit}"


def parse_duration(text: str) -> float:
    """Seconds, from 500ms, 10s, 2m, 12h or 30d.

    Raises:
        ValueError: it is none of these, or zero, or longer than a century.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhd])", text, re.ASCII)
    found = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < found <= 36500 * UNITS["d"]:
        raise ValueError(f"{text!r} is no time such as 10s, 2m, 12h or 30d")
    return found
