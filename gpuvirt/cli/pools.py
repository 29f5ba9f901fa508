"""`gpuvirt pools`: the pools of this network."""

from __future__ import annotations

import dataclasses
import json

import click

from gpuvirt.cli.options import JSON

EXAMPLES = "\b\nExamples:\n  gpuvirt pools\n  GPUVIRT_TOKEN=gpuvirt1.... gpuvirt run --pool find -- python train.py"


@click.command(epilog=EXAMPLES)
@JSON
def pools(as_json: bool) -> None:
    """List the servers that announce themselves in this network (`gpuvirt serve --announce`), and whether your token is of their pool.

    Whoever announces something may be anybody: a pool is yours when its server proves that it holds the secret of your token, as it must for
    every program.
    """
    from gpuvirt.transport.discovery import NONE_FOUND, announced, own_digest

    own = own_digest(None)
    found = sorted(announced(), key=lambda each: each.name)
    if as_json:
        rows = [{**dataclasses.asdict(each), "addresses": [at.url for at in each.addresses], "own": each.pool == own} for each in found]
        click.echo(json.dumps(rows, indent=2))
        return
    if not found:
        click.echo(f"gpuvirt: {NONE_FOUND}", err=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("server", "address", "GPUs", "pool", "your token's")
    for each in found:
        addresses = "\n".join(at.url for at in each.addresses)
        table.add_row(each.name, addresses, f"{each.gpus} ({each.backend})", each.pool, "yes" if each.pool == own else "no" if own else "?")
    Console(markup=False, emoji=False, highlight=False).print(table)  # names are others' texts
