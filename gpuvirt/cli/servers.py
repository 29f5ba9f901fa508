"""How answers of a pool of many hosts are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def has_many(answer: dict[str, Any]) -> bool:
    """Whether it is of more than one host."""
    return int(answer.get("hosts", 1)) > 1


def gpus_of(entry: dict[str, Any], devices: Sequence[int], many: bool) -> str:
    """GPUs by their numbers, in a pool of many hosts with the host's name before them; "": none."""
    numbers = ",".join(map(str, devices))
    return f"{entry.get('server', '?')}:{numbers}" if many and numbers else numbers


def say_silent(answer: dict[str, Any]) -> None:
    """On stderr: hosts that have not answered the one that was asked."""
    if names := answer.get("silent"):
        one = len(names) == 1
        what = "host of the pool does" if one else "hosts of the pool do"
        click.echo(f"gpuvirt: {', '.join(names)}: {'this' if one else 'these'} {what} not answer; what is there is not shown", err=True)
