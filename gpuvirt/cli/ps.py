"""`gpuvirt ps`: the leases of a pool and their sessions."""

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
    """List a pool's leases and the sessions that work under each: program, user, GPUs, link, memory.

    A lease is queued while it waits for its GPUs, attached while something runs under it, parked when all of that has given its memory back,
    else idle. A session says how much memory it has given back, and whether it waits for memory that others have.
    Of those of other tokens only an admin's token is told the program and the user.
    With --json: a list of leases, each with its list of sessions.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    answer = ask_pool(resolve({"pool": pool}), "ps")
    sessions = {s["session"]: s for s in answer["sessions"]}
    leases = [{**lease, "sessions": [sessions[s] for s in lease["sessions"] if s in sessions]} for lease in answer["leases"]]
    if as_json:
        click.echo(json.dumps(leases, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("lease", "session", "state", "program", "pid", "user", "from", "GPUs", "link", "memory", "launches", "since")
    for lease in leases:
        gpus = ",".join(map(str, lease["devices"])) or f"wants {lease['gpus']}"
        name = lease["lease"][:8]
        if lease["named"] or not lease["sessions"]:  # the shell or the program that has the GPUs
            table.add_row(name, "", lease["state"], *_who(lease), gpus, "", "", "", _since(lease))
        for session in lease["sessions"]:
            table.add_row(name, session["session"], session["state"], *_who(session), gpus, _link(session), *_figures(session), _since(session))
    Console(markup=False, emoji=False).print(table)  # names are others' texts
    for lease in sorted((lease for lease in leases if lease["state"] == "queued"), key=lambda lease: lease["place"]):
        click.echo(f"{lease['lease'][:8]} waits at place {lease['place']} of {lease['queued']}: {lease['why']}")
    for session in (session for lease in leases for session in lease["sessions"]):
        if line := _room(session):
            click.echo(f"{session['session']} {line}")


def _who(one: dict[str, Any]) -> tuple[str, str, str, str]:
    if one["program"] is None:
        return "-", "-", "-", "-"
    return one["program"], str(one["pid"]), f"{one['user']}@{one['host']}", one["peer"] or ""


def _figures(session: dict[str, Any]) -> tuple[str, str]:
    from gpuvirt.sizes import format_size

    memory = "?" if session.get("memory_used") is None else format_size(session["memory_used"])
    return memory, str(session.get("launches", "?"))


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
