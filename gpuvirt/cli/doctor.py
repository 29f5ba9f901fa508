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
    """Check the libraries, the software GPU's compiler, the pool, the token, the ports and the link; print a remedy for each failure.

    Without a pool only this machine is checked. Exits with 1 if a check failed.
    """
    from gpuvirt.client.checks import FAIL, run_checks

    results = run_checks(pool)
    if as_json:
        click.echo(json.dumps([{"check": r.name, "status": r.status, "text": r.text, "remedy": r.remedy} for r in results], indent=2))
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for r in results:
            click.echo(f"{click.style(f'{r.status:4}', fg=colours[r.status])}  {r.name}: {r.text}" + (f"; {r.remedy}" if r.remedy else ""))
    sys.exit(any(r.status == FAIL for r in results))
