"""`python -m tests.bench`: what calls cost, beside the bare transport in the same run."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench import runner


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if unit == "GB/s" or abs(value) >= 10 else f"{value:.2f}"


def table(report: dict[str, Any]) -> Table:
    title = f"{report['backend']}, {report['machine']['cores']} cores, median of {report['rounds']} rounds"
    drawn = Table(title=title, box=box.SIMPLE_HEAD)
    for name in ("", "link", "unit"):
        drawn.add_column(name)
    for name in ("measured", "least…most", "bare", "over bare", "target"):
        drawn.add_column(name, justify="right")
    drawn.add_column("met")
    for row in report["rows"]:
        unit = row["unit"]
        beyond = "" if row["beyond"] is None else f"×{row['beyond']:.2f}" if unit == "GB/s" else f"+{number(row['beyond'], unit)}"
        target = "" if row["target"] is None else f"{'≥' if unit == 'GB/s' else '≤'} {number(row['target'], unit)}"
        met = {None: "", True: "yes", False: "[red]no[/red]"}[row["met"]]
        extremes = f"{number(row['low'], unit)}…{number(row['high'], unit)}"
        drawn.add_row(row["text"], row["link"], unit, number(row["value"], unit), extremes, number(row["bare"], unit), beyond, target, met)
    return drawn


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often bare transport and calls are measured, in turns.")
@click.option("--tiny", is_flag=True, help="Only show that it works.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def main(rounds: int, tiny: bool, as_json: bool) -> None:
    """What driver calls cost their caller on a software GPU, beside the bare transport in the same run."""
    report = runner.report(rounds, tiny)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(table(report))


if __name__ == "__main__":
    main()
