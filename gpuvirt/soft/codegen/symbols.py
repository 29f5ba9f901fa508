"""Names of functions in generated code."""

from __future__ import annotations

ENTRY = "gv_kernel"


def function_symbol(name: str) -> str:
    """A device function's code for 32 lanes."""
    return f'"f.{name}"'


def lane_symbol(symbol: str) -> str:
    """A function's code for one lane, by the name of that for 32."""
    return f'"lane.{symbol.strip(chr(34))}"'
