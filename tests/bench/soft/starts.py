"""`python -m tests.bench.soft.starts`: start-up time on the software GPU, by library.

Each library does one thing in a program of its own under `gpuvirt run`: first with an empty cache (everything it launches is translated and
compiled), then again in further programs, with the cache that the first one left. Results are checked as the tests check them. "First call" is from
before the call to its checked result (making the library's handle and loading its modules included), "program" the whole command: local pool, worker,
importing CuPy, the call, the end.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tests.soft.libraries import running

ROWS = {
    "CuPy exp": "cupy/exp/float/(1000,)",
    "CuPy sort": "cupy/sort/int32/(33, 65)",
    "cuBLAS gemm": "cublas/gemm/float/127x65x33 NN",
    "cuFFT": "cufft/1D/C2C/60 forward",
    "cuRAND": "curand/XORWOW/normal, double/20000 from 1000",
    "cuSOLVER LU": "cusolver/LU/float/33",
    "cuSOLVER eigen": "cusolver/eigen, symmetric or Hermitian/float/33 L",
    "cuSPARSE SpMV": "cusparse/SpMV, csr/float/37x53 0.15",
    "cuSPARSE SpGEMM": "cusparse/SpGEMM/float/37x53 0.15",
    "cuDNN convolution": "cudnn/convolution forward, NCHW/float/2x8x12x10 16x3x3 pad=1",
    "cuDNN batch norm": "cudnn/batch norm training, NCHW/float/spatial",
}


def start(name: str, cache: Path) -> dict[str, Any]:
    """One program's seconds: (first call, all of it), and how many kernels it used."""
    begin = time.monotonic()
    [record] = running.run(name.split("/", 1)[0], [name], cache / "log", cache=cache, limit=600)
    whole = time.monotonic() - begin
    if not record.right:
        raise click.ClickException(str(record))
    return {"call": record.seconds, "program": whole, "kernels": len(record.kernels)}


def row(name: str, again: int) -> dict[str, Any]:
    """A first program and `again` later ones."""
    with tempfile.TemporaryDirectory() as folder:
        first = start(name, Path(folder))
        later = [start(name, Path(folder)) for _ in range(again)]
    return {"empty": first, "full": {k: statistics.median(r[k] for r in later) for k in first}, "rounds": later}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rows", default="", help="Only these, separated by commas.")
@click.option("--again", default=3, show_default=True, help="Programs with a full cache; the median is shown.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
def main(rows: str, again: int, as_json: bool) -> None:
    """The command."""
    wanted = [r for r in rows.split(",") if r] or list(ROWS)
    unknown = [r for r in wanted if r not in ROWS]
    if unknown or again < 1:
        raise click.UsageError(f"rows are: {', '.join(ROWS)}" if unknown else "--again is at least 1")
    before = os.getloadavg()
    figures = {name: row(ROWS[name], again) for name in wanted}
    load = [*before, *os.getloadavg()]
    if as_json:
        click.echo(json.dumps({"rows": figures, "load": load}))
        return
    table = Table(title=f"Starting (load {load[0]:.1f} before, {load[3]:.1f} at the end), seconds", box=box.SIMPLE_HEAD)
    for column in ("", "kernels", "first call, cache empty", "cache full", "program, cache empty", "cache full"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in figures.items():
        empty, full = found["empty"], found["full"]
        table.add_row(name, str(empty["kernels"]), *(f"{x:.2f}" for x in (empty["call"], full["call"], empty["program"], full["program"])))
    Console(width=None if os.isatty(1) else 120).print(table)


if __name__ == "__main__":
    main()
