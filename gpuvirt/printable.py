"""Texts of others, before they reach a terminal or a log."""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    r"""The text with everything that is not printable (controls, line ends, marks of direction) as \x1b or \u202e."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def all_printable(value: Any) -> Any:
    """A value of maps, lists and texts, each text in it made `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {all_printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [all_printable(item) for item in value]
    return value
