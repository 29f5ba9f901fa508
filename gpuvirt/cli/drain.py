"""`gpuvirt drain`: a host of the pool gives what it has to the others."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.cli.options import JSON, POOL, seconds

if TYPE_CHECKING:
    from rich.text import Text

LOOK = 0.3  # seconds between two looks
NOT_EMPTY = 1


@click.command(epilog="\b\nExamples:\n  gpuvirt drain oak --pool tcp://gpu-host:7070\n  gpuvirt drain oak --undo")
@click.argument("host")
@click.option("--undo", is_flag=True, help="The host takes programs again.")
@click.option("--timeout", default="10m", show_default=True, type=seconds, help="How long to wait until nothing is left there.")
@POOL
@JSON
def drain(host: str, undo: bool, timeout: float, pool: str | None, as_json: bool) -> None:
    """Have a host of the pool give all it has to the others, and take nothing new.

    HOST is its name, as `gpuvirt devices` shows it. Each session moves to another host as soon as one has room, before all that waits; its program
    waits meanwhile, and notices nothing. What cannot move stays until its program ends: sessions over shared memory, for example. When nothing is
    left the exit code is 0, and the host's server can be stopped. After the timeout it is 1; the host stays drained then, as after Ctrl-C, and goes
    on giving what it has to others, until `gpuvirt drain HOST --undo`, or until its server is started anew.
    """
    from rich.console import Console
    from rich.live import Live

    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    settings, began = resolve({"pool": pool}), time.monotonic()

    def ask(do: str) -> dict[str, Any]:
        return ask_pool(settings, "drain", host=host, do=do)

    if undo:
        ask("undo")
        click.echo(f"{host} takes programs again")
        return
    state = ask("begin")
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while (state["leases"] or state["following"]) and time.monotonic() - began < timeout:
            if not state["drained"]:
                raise click.ClickException(f"{host} takes programs again: somebody has undone it")
            live.update(_progress(host, state), refresh=True)
            time.sleep(LOOK)
            state = ask("look")
    if as_json:
        click.echo(json.dumps(state, indent=2))
    elif state["leases"]:
        click.echo(f"{host}: {state['left']} have gone to other hosts, {len(state['leases'])} have not:")
        for lease in state["leases"]:
            click.echo(f"  {lease['program'] or '?'} of {lease['user'] or '?'} ({lease['number']}): {lease['why'] or 'it is about to go'}")
    else:
        click.echo(f"{host} is empty: {state['left']} have gone to other hosts; its server can be stopped")
    sys.exit(NOT_EMPTY if state["leases"] else 0)


def _progress(host: str, state: dict[str, Any]) -> Text:
    from rich.text import Text

    lines = [f"{host}: {state['left']} gone to other hosts, {len(state['leases'])} left"]
    lines += [f"  {lease['program'] or '?'}: {lease['why'] or 'goes'}" for lease in state["leases"][:10]]
    return Text("\n".join(lines))
