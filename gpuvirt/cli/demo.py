"""`gpuvirt demo`: the examples on two software GPUs, compared with NumPy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpuvirt.transport.table import NAMES, TRANSPORTS

TABLE_WIDTH = 110  # columns, where the output is no terminal


@click.command(epilog="\b\nExamples:\n  gpuvirt demo --seed 42 --transport shm\n  gpuvirt demo --only cupy/sorting.py")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of the programs' random input.")
@click.option(
    "--transport", "transports", multiple=True, type=click.Choice(NAMES), help="Use only this one; may be repeated.  [default: all of this host]"
)
@click.option("--only", multiple=True, metavar="NAME", help="Run only this example, such as cupy/sorting.py; may be repeated.")
@click.option("--examples", type=click.Path(path_type=Path, file_okay=False), help="Folder of the examples.  [default: the checkout's]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def demo(seed: int, transports: tuple[str, ...], only: tuple[str, ...], examples: Path | None, as_json: bool) -> None:
    """Run the examples, unmodified, on two software GPUs.

    Starts a private pool, runs each example through `gpuvirt run` over each transport, compares its results with NumPy
    and prints a table. Exits with 1 if any result is wrong.
    """
    from rich.console import Console
    from rich.table import Table

    from gpuvirt.demo import runner
    from gpuvirt.demo.programs import DemoError

    here = tuple(row.name for row in TRANSPORTS if not row.missing())
    progress = Console(stderr=True, soft_wrap=True)
    rows: list[runner.Row] = []
    try:
        with progress.status("starting") as status:
            for item in runner.run(seed, transports or here, examples, only):
                if isinstance(item, str):
                    status.update(item)
                    continue
                rows.append(item)
                progress.print(
                    f"{item.program} over {item.transport}: {'ok' if item.ok else item.problems[0]} ({item.seconds:.1f} s)", highlight=False
                )
    except DemoError as error:
        raise SystemExit(_fail(str(error))) from None

    if as_json:
        click.echo(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        table = Table(title=f"Examples on two software GPUs, seed {seed}")
        for heading in ("program", "device", "transport", "result"):
            table.add_column(heading, no_wrap=True)
        for heading in ("calls", "waits", "launches", "seconds"):
            table.add_column(heading, justify="right")
        for row in rows:
            figures = ("-" if v is None else str(v) for v in (row.calls, row.waits, row.launches))
            table.add_row(row.program, row.device, row.transport, "[green]ok" if row.ok else "[red]WRONG", *figures, f"{row.seconds:.1f}")
        # A pipe or a log has no width: use long lines rather than cut names.
        Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)
    if not all(row.ok for row in rows):
        raise SystemExit(1)


def _fail(text: str) -> int:
    click.echo(f"gpuvirt: {text}", err=True)
    return 125
