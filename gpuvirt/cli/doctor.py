"""`gpuvirt doctor`: checks of the installation and of a pool."""

from __future__ import annotations

import json
import sys

import click

from gpuvirt.cli.options import JSON, POOL


@click.command(epilog="\b\nExample:\n  gpuvirt doctor --pool tcp://gpu-host:7070")
@POOL
@JSON
def doctor(pool: str | None, as_json: bool) -> None:
    """Check the libraries, the software GPU's compiler, RDMA, the pool, the token, the ports and the link; print a remedy for each failure.

    Without a pool only this machine is checked. Exits with 1 if a check failed.
    """
    from gpuvirt.client.checks import FAIL, run_checks

    results = run_checks(pool)
    if as_json:
        told = ({"check": r.name, "status": r.status, "text": r.text, "remedy": r.remedy} | ({"ports": r.ports} if r.ports else {}) for r in results)
        click.echo(json.dumps([*told], indent=2))
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for r in results:
            click.echo(f"{click.style(f'{r.status:4}', fg=colours[r.status])}  {r.name}: {r.text}" + (f"; {r.remedy}" if r.remedy else ""))
            if len(r.ports) > 1:
                from rich.console import Console

                from gpuvirt.client.fabric_view import port_table

                Console(markup=False, emoji=False, highlight=False).print(port_table(r.ports))
    sys.exit(any(r.status == FAIL for r in results))
