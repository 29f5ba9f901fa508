"""`python -m tests.bench.soft`: the software GPU beside NumPy on the same cores, through the driver shim and a worker of its own.

Each row runs the thing on the GPU and in NumPy in turns; the ratio is the median of the turns' ratios. Arrays are on the device; see program.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.pools import clean_environment

PROGRAM = Path(__file__).resolve().parent / "program.py"


def run(*options: str, url: str = "", **more: str) -> dict[str, Any]:
    """The program's figures, on a pool of its own or that at `url`."""
    more = {k: v for k, v in os.environ.items() if k == "GPUVIRT_CACHE" or k.startswith("GPUVIRT_SOFT")} | more
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", *(["--pool", url] if url else ["--local"]), "--", sys.executable, str(PROGRAM), *options]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False, env=clean_environment(**more))
    if done.returncode == 2:
        raise click.UsageError("the program refused its options; see above")
    if done.returncode:
        raise click.ClickException(f"{' '.join(line)}: exit {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(figures: dict[str, Any]) -> Table:
    """The report as a reader sees it."""
    load = " ".join(f"{x:.1f}" for x in figures["load"])
    shown = Table(title=f"{figures['device']} beside NumPy {figures['numpy']} on {figures['cores']} cores (load {load})", box=box.SIMPLE_HEAD)
    shown.add_column("")
    for name in ("software GPU", "NumPy", "", "ratio", "least…most", "target", "met"):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in figures["rows"]:
        if "error" in row:
            shown.add_row(row["text"], "[red]failed[/red]")
            continue
        cells = [row["text"] + ("" if row["right"] else " [red]WRONG RESULT[/red]"), number(row["gpu"])]
        if "cpu" in row:
            ratios = [g / c for g, c in zip(row["gpu_rounds"], row["cpu_rounds"], strict=True)]
            target = f"≥ {row['target']:g}" if row["target"] is not None else ""
            met = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[row["met"]]
            cells += [number(row["cpu"]), row["unit"], f"{row['ratio']:.2f}", f"{min(ratios):.2f}…{max(ratios):.2f}", target, met]
        else:
            cells += ["", row["unit"]]
        shown.add_row(*cells)
    return shown


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rows", default="", help="Only these, separated by commas.")
@click.option("--rounds", default=7, show_default=True, help="Turns of each.")
@click.option("--seconds", default=0.2, show_default=True, help="What a turn takes, about.")
@click.option("--tiny", is_flag=True, help="Small sizes: to see whether everything runs.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
def main(rows: str, rounds: int, seconds: float, tiny: bool, as_json: bool) -> None:
    """The command."""
    figures = run(f"--rows={rows}", f"--rounds={rounds}", f"--seconds={seconds}", f"--small={64 if tiny else 1}")
    if as_json:
        click.echo(json.dumps(figures))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(table(figures))
        for row in figures["rows"]:
            if "error" in row:
                console.print(f"{row['name']}: {row['error']}", markup=False)
    wrong = [r["name"] for r in figures["rows"] if "error" in r or not r["right"]]
    if wrong:
        raise click.ClickException(f"failed or wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
