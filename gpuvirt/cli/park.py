"""`gpuvirt park`: an idle session gives its GPU's memory back."""

from __future__ import annotations

import json

import click

from gpuvirt.cli.options import JSON, POOL

SLOWEST = 600.0  # seconds for the memory to be written


@click.command(epilog="\b\nExample:\n  gpuvirt park 1f2e3d4c5b6a7988 --pool tcp://gpu-host:7070")
@click.argument("session")
@POOL
@JSON
def park(session: str, pool: str | None, as_json: bool) -> None:
    """Have an idle session give its GPU's memory back until it is needed.

    SESSION is its id, as `gpuvirt ps` shows it. Its memory goes to a file of the server, and comes back with the program's next call, at the same
    addresses; where others have the memory by then, the call waits. The server does it by itself with sessions that have been idle for
    `gpuvirt serve --idle`. One that is not idle keeps its memory.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve
    from gpuvirt.sizes import format_size

    answer = ask_pool(resolve({"pool": pool}), "park", session=session, limit=SLOWEST)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(f"{session}: parked, {format_size(answer['given_back'])} given back")
