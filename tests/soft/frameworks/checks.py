"""The output of programs of checks: one line of JSON a check."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

CHECKS: list[Callable[[], object]] = []


def check(function: Callable[[], object]) -> Callable[[], object]:
    """Marks a function that asserts."""
    CHECKS.append(function)
    return function


def main() -> None:
    """Runs all of them, whatever fails."""
    for function in CHECKS:
        wrong = ""
        try:
            function()
        except Exception:
            wrong = traceback.format_exc()
        print(json.dumps([function.__name__, wrong]), flush=True)
