"""`gpuvirt ps`: the leases of a pool and their sessions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL
from gpuvirt.cli.servers import gpus_of, has_many, say_silent
from gpuvirt.transport.table import named

COLUMNS = ("lease", "session", "state", "program", "pid", "user", "from", "GPUs", "link", "memory", "launches", "since")
DETAILS = ("pid", "from", "link", "launches")  # not in a terminal narrower than WIDE columns
WIDE = 120
PIPE = 200  # columns where there is no terminal


@click.command(epilog="\b\nExample:\n  gpuvirt ps --pool tcp://gpu-host:7070")
@POOL
@JSON
def ps(pool: str | None, as_json: bool) -> None:
    """List a pool's leases and the sessions that work under each: program, user, GPUs, link, memory.

    A lease is queued while it waits for its GPUs, attached while something runs under it, parked when all of that has given its memory back,
    suspended while it gives way to one of a higher priority, else idle. Behind its GPUs stands the part of their compute that it has reserved
    (--compute). A session says how much memory it has given back, and whether it waits for memory that others have.
    In a pool of many hosts the name of the host stands before the numbers of its GPUs.
    Of those of other tokens only an admin's token is told the program and the user. In a terminal of less than 120 columns some are left out.
    With --json: a list of leases, each with its list of sessions.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    answer = ask_pool(resolve({"pool": pool}), "ps")
    say_silent(answer)
    sessions = {s["session"]: s for s in answer["sessions"]}
    leases = [{**lease, "sessions": [sessions[s] for s in lease["sessions"] if s in sessions]} for lease in answer["leases"]]
    if as_json:
        click.echo(json.dumps(leases, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False)  # names are others' texts
    if not console.is_terminal:
        console.width = max(console.width, PIPE)
    table = Table(box=None, pad_edge=False)
    shown = [name for name in COLUMNS if console.width >= WIDE or name not in DETAILS]
    for name in shown:
        table.add_column(name, no_wrap=name in ("lease", "session"))
    for row in _rows(leases, has_many(answer)):
        table.add_row(*(row.get(name, "") for name in shown))
    console.print(table)
    for lease in sorted((lease for lease in leases if lease["state"] == "queued"), key=lambda lease: lease["place"]):
        click.echo(f"{lease['lease'][:8]} waits at place {lease['place']} of {lease['queued']}: {lease['why']}")
    for lease in (lease for lease in leases if lease["state"] == "suspended"):
        click.echo(f"{lease['lease'][:8]} gives way: {lease['suspended']}")
    for session in (session for lease in leases for session in lease["sessions"]):
        if line := _room(session):
            click.echo(f"{session['session']} {line}")


def _rows(leases: list[dict[str, Any]], many: bool) -> Iterator[dict[str, str]]:
    """What stands in which column. many: the pool has many hosts."""
    for lease in leases:
        gpus = gpus_of(lease, lease["devices"], many) or f"wants {lease['gpus']}"
        gpus += f" × {lease['compute']:.3g}" if lease.get("compute") else ""
        whose = {"lease": lease["lease"][:8], "GPUs": gpus}
        if lease["named"] or not lease["sessions"]:  # the shell or the program that has the GPUs
            yield {**whose, "state": lease["state"], **_who(lease), "since": _since(lease)}
        for session in lease["sessions"]:
            said = {"session": session["session"], "state": session["state"], "link": _link(session), "since": _since(session)}
            yield {**whose, **said, **_who(session), **_figures(session)}


def _who(one: dict[str, Any]) -> dict[str, str]:
    if one["program"] is None:
        return dict.fromkeys(("program", "pid", "user", "from"), "-")
    return {"program": one["program"], "pid": str(one["pid"]), "user": f"{one['user']}@{one['host']}", "from": one["peer"] or ""}


def _figures(session: dict[str, Any]) -> dict[str, str]:
    from gpuvirt.sizes import format_size

    memory = "?" if session.get("memory_used") is None else format_size(session["memory_used"])
    return {"memory": memory, "launches": str(session.get("launches", "?"))}


def _room(session: dict[str, Any]) -> str:
    """What is said of the memory of a session that is parked, or waits for some; "": nothing."""
    from gpuvirt.sizes import format_size

    said = []
    if session["parked"] is not None:
        said.append(f"gave back {format_size(session['parked'])}")
    if session.get("place"):
        said.append(f"waits for {format_size(session['waits_for'])} that others have, at place {session['place']} of {session['waiting']}")
    return " and ".join(said)


def _since(one: dict[str, Any]) -> str:
    return f"{time.time() - one['started']:.0f} s"


def _link(session: dict[str, Any]) -> str:
    """The transport, and how it is sealed where it could be."""
    row = named(session["link"])
    return f"{session['link']} ({session.get('cipher') or 'plain'})" if row is not None and row.seals else str(session["link"])
