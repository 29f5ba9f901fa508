"""`python -m tests.bench.notebooks`: how long people wait for their first result when together they have more memory than the GPU.

Ten CuPy notebooks (tests/e2e/programs/notebook.py) think, compute on all that they have, and think again; each has two fifths of the memory of one
software GPU. Before that one of them has the GPU for itself: its cells are the compute and copy with which the others are compared. `beyond` is what
a cell of the ten took to its first result above the median of those. The GPU's memory in use is looked at all the while. Target: 95 of 100 cells
wait at most 1 s beyond.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import click

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from tests.bench.pools import clean_environment, pool

NOTEBOOK = Path(__file__).parents[1] / "e2e" / "programs" / "notebook.py"
GPU_MIB = 256
TARGET = 1.0  # s


def start(url: str, folder: Path, name: str, cells: int, think: float) -> subprocess.Popen[str]:
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "-q", "--pool", url, "--", sys.executable]
    line += [str(NOTEBOOK), str(GPU_MIB * 2 // 5 + 1), str(cells), name, str(folder / name), str(think)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=clean_environment())


def right(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate(timeout=3600)
    if (process.returncode, out) != (0, "running\nright\n"):
        raise RuntimeError(f"a notebook ended with {process.returncode}: {out}")


def measure(folder: Path, notebooks: int, cells: int, think: float) -> tuple[list[float], list[float], float]:
    """Seconds to the first results of one alone, and of all together; the largest part of the GPU's memory that was ever in use."""
    most = 0.0
    with pool(folder, "--gpu-memory", f"{GPU_MIB}m", "--idle", "0") as url, ExitStack() as running:
        right(start(url, folder, "1000", cells, 0.5))
        alone = json.loads((folder / "1000").read_text())
        ask, started = resolve({"pool": url}), [start(url, folder, str(seed), cells, think) for seed in range(notebooks)]
        for process in started:
            running.callback(process.kill)
        while any(process.poll() is None for process in started):
            (device,) = ask_pool(ask, "devices")["devices"]
            most = max(most, device["memory_used"] / device["memory"])
            time.sleep(0.5)
        for process in started:
            right(process)
    return alone, [wait for seed in range(notebooks) for wait in json.loads((folder / str(seed)).read_text())], most


@click.command(help=__doc__)
@click.option("--notebooks", default=10, show_default=True)
@click.option("--cells", default=10, show_default=True, help="of each notebook")
@click.option("--think", default=20.0, show_default=True, help="seconds between two cells, from half to one and a half of that")
def main(notebooks: int, cells: int, think: float) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        alone, waits, most = measure(Path(name), notebooks, cells, think)
    base = median(alone)
    beyond = sorted(max(0.0, wait - base) for wait in waits)
    click.echo(f"alone: first result after {base:.2f} s (median of {len(alone)})")
    click.echo(f"{notebooks} notebooks: {median(waits):.2f} s (median of {len(waits)}), the longest {max(waits):.2f} s")
    p95 = quantiles(beyond, n=20)[-1]
    click.echo(f"beyond that: median {median(beyond):.2f} s, p95 {p95:.2f} s (target at most {TARGET:.0f}), the longest {beyond[-1]:.2f} s")
    click.echo(f"of the GPU's memory at most {most:.0%} were in use; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
