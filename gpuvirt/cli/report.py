"""`gpuvirt report`: what users have had in a month."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL
from gpuvirt.cli.servers import say_silent


def month(text: str) -> str:
    """A month: 2026-01."""
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text):
        raise click.BadParameter(f"{text!r} is not a month such as 2026-01")
    return text


@click.command(epilog="\b\nExamples:\n  gpuvirt report --pool tcp://gpu-host:7070\n  gpuvirt report --month 2026-01 --user alice --json")
@POOL
@click.option("--month", type=month, metavar="YYYY-MM", help="Which month, in UTC.  [default: this one]")
@click.option("--user", metavar="NAME", help="Only this user; a token without one is a user of the name 'token NAME'.")
@JSON
def report(pool: str | None, month: str | None, user: str | None, as_json: bool) -> None:
    """Show what each user has had of a server in a month.

    GPU-hours count GPUs times the hours for which leases had them: reserved, all of it; attached, while something under the lease had its memory;
    given back, while all that ran under it was parked. The rest of what was reserved had nothing running. The peak is the most memory that the user's
    sessions had together, looked at every few seconds. Bytes are those over links, in is towards the GPU; network is the hours lost to it.
    An admin's token sees all users, another one its own. With --json: the month, and a list of users with sums in seconds and bytes.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    answer = ask_pool(resolve({"pool": pool}), "report", month=month, user=user)
    say_silent(answer)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    if not answer["users"]:
        click.echo(f"nothing was used in {answer['month']}")
        return
    from rich.console import Console
    from rich.table import Table

    click.echo(f"GPU-hours and use in {answer['month']}")
    table = Table("user", box=None, pad_edge=False, padding=(0, 1, 0, 0))  # 80 columns hold it
    for column in ("reserved", "attached", "given\nback", "sessions", "peak", "launches", "in", "out", "network"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in answer["users"]:
        table.add_row(row["user"], *_cells(row))
    if len(answer["users"]) > 1:
        names = ("reserved", "attached", "parked", "sessions", "launches", "bytes_in", "bytes_out", "network")
        total = {name: sum(row[name] for row in answer["users"]) for name in names}
        table.add_row("all", *_cells(total | {"peak_memory": None}))
    Console(markup=False, emoji=False).print(table)  # names are others' texts


def _cells(row: dict[str, Any]) -> list[str]:
    from gpuvirt.sizes import format_short

    hours = [f"{row[name] / 3600:.2f}" for name in ("reserved", "attached", "parked")]
    peak = "" if row["peak_memory"] is None else format_short(row["peak_memory"])
    return [
        *hours,
        str(row["sessions"]),
        peak,
        format_short(row["launches"], 1000),
        format_short(row["bytes_in"]),
        format_short(row["bytes_out"]),
        f"{row['network'] / 3600:.2f}",
    ]
