"""`gpuvirt ps`: the sessions of a pool."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL
from gpuvirt.transport.table import named


@click.command(epilog="\b\nExample:\n  gpuvirt ps --pool tcp://gpu-host:7070")
@POOL
@JSON
def ps(pool: str | None, as_json: bool) -> None:
    """List a pool's sessions: program, user, GPUs, link, memory.

    Of sessions with other tokens only an admin's token is told the program and the user.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    found = ask_pool(resolve({"pool": pool}), "ps")["sessions"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    from gpuvirt.sizes import format_size

    table = Table("session", "program", "pid", "user", "from", "GPUs", "link", "memory", "launches", "since")
    for s in found:
        memory = "?" if s.get("memory_used") is None else format_size(s["memory_used"])
        gpus, since = ",".join(map(str, s["devices"])), f"{time.time() - s['started']:.0f} s"
        own = s["program"] is not None
        who = (s["program"], str(s["pid"]), f"{s['user']}@{s['host']}", s["peer"]) if own else ("-", "-", "-", "-")
        table.add_row(s["session"], *who, gpus, _link(s), memory, str(s.get("launches", "?")), since)
    Console(markup=False, emoji=False).print(table)  # names are others' texts


def _link(session: dict[str, Any]) -> str:
    """The transport, and how it is sealed where it could be."""
    row = named(session["link"])
    return f"{session['link']} ({session.get('cipher') or 'plain'})" if row is not None and row.seals else str(session["link"])
