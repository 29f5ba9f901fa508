"""`gpuvirt bench`: times of driver calls, copies and launches on a pool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from gpuvirt.cli.options import JSON, ProgramCommand, announce, program_options

TABLE_WIDTH = 150  # columns, where the output is no terminal


@click.command(
    cls=ProgramCommand,
    epilog="\b\nExamples:\n  gpuvirt bench --local\n  gpuvirt bench --pool tcp://gpu-host:7070 --quick\n"
    "  gpuvirt bench --local --link 'delay(rtt=30ms,rate=10gbit,tcp)'\n  gpuvirt bench --json > figures.json",
)
@program_options
@click.option(
    "--rounds", type=click.IntRange(1, 1000), metavar="N", help="Number of rounds; each measures everything once.  [default: 5, with --quick 3]"
)
@click.option("--quick", is_flag=True, help="Fewer repetitions: some 30 seconds.")
@click.option("--tiny", is_flag=True, hidden=True)
@JSON
def bench(rounds: int | None, quick: bool, tiny: bool, as_json: bool, **options: Any) -> None:
    """Measure driver calls, copies, launches and a training step, beside the bare transport in the same run.

    Without a pool (--pool, GPUVIRT_POOL, configuration file) a private local one is started, and ended with the measurements. Without --link, each
    link that reaches the server is measured.

    Exits with 0 when everything was measured, whether or not targets are met, with 1 when a result was wrong, with 125 when gpuvirt itself failed.
    """
    from rich.console import Console

    from gpuvirt.bench import measure, report, table
    from gpuvirt.client.connect import connected
    from gpuvirt.client.settings import resolve

    settings = resolve(options)
    amounts = measure.TINY if tiny else measure.QUICK if quick else measure.FULL
    if rounds is not None:
        amounts = measure.with_rounds(amounts, rounds)
    progress = Console(stderr=True, soft_wrap=True)
    result: dict[str, Any] = {}
    try:
        with progress.status("starting") as status, connected(settings) as found:
            announce(found, settings)
            for item in measure.run(found, amounts):
                if isinstance(item, dict):
                    result = item
                elif progress.is_terminal:
                    status.update(item)
                else:
                    progress.print(f"gpuvirt: {item}", highlight=False)
    except measure.WrongResult as error:
        click.echo(f"gpuvirt: {error}", err=True)
        sys.exit(1)
    _write_stats(settings.stats, result)
    if as_json:
        click.echo(json.dumps(report.as_dict(result), indent=2))
    else:
        table.show(result, Console(width=None if sys.stdout.isatty() else TABLE_WIDTH))


def _write_stats(target: str | None, result: dict[str, Any]) -> None:
    """Writes one line of JSON for each measuring program."""
    if not target:
        return
    lines = [json.dumps(figures["stats"]) for made in result["rounds"] for figures in made]
    if target == "-":
        for line in lines:
            click.echo(f"gpuvirt: {line}", err=True)
    else:
        Path(target).write_text("\n".join(lines) + "\n")
