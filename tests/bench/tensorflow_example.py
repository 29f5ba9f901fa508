"""`python -m tests.bench.tensorflow_example PACKAGES`: examples/tensorflow/cifar10_cnn.py on the processor, on a software GPU, and from afar.

PACKAGES is a folder with TensorFlow, such as .venv/xla. Pictures a second are those of all epochs but the first. Calls, waits and bytes are of one
epoch: the difference between a run with one more and a run with one less.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.pools import clean_environment

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tensorflow" / "cifar10_cnn.py"
LINKS = {"software GPU": "auto", "1 ms away": "delay(rtt=1ms,tcp)", "30 ms away": "delay(rtt=30ms,tcp)"}
LAST = re.compile(r"(?:(\d+) pictures/s, )?accuracy ([\d.]+)\n$")
COUNTED = ("calls", "waits", "wait_s", "launches", "bytes_out", "bytes_in")


def run(packages: Path, epochs: int, images: int, link: str | None) -> tuple[float, float, dict[str, float]]:
    """Pictures a second, accuracy, and the session's figures. link None: without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.json"
        gpuvirt = [sys.executable, "-P", "-m", "gpuvirt", "run", "--local", "-q", "--link", link or "", f"--stats={stats}", "--"]
        line = [*(gpuvirt if link else []), sys.executable, str(EXAMPLE), "--epochs", str(epochs), "--images", str(images)]
        env = clean_environment(PYTHONPATH=str(packages))
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
        found = LAST.search(done.stdout)
        if done.returncode or not found or ("GPUs: none" in done.stdout) == bool(link):
            raise click.ClickException(f"the example failed: {done.stdout[-500:]}{done.stderr[-2000:]}")
        return float(found[1] or 0), float(found[2]), json.loads(stats.read_text()) if link else {}


@click.command(help=__doc__)
@click.argument("packages", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--images", default=4000, show_default=True, help="Pictures of an epoch.")
def main(packages: Path, images: int) -> None:
    table = Table("where", "pictures/s", "accuracy", *COUNTED, box=box.SIMPLE)
    speed, accuracy, _ = run(packages, 3, images, None)
    table.add_row(f"TensorFlow's own CPU backend, {os.cpu_count()} cores", f"{speed:.0f}", f"{accuracy:.3f}")
    for where, link in LINKS.items():
        _, _, less = run(packages, 2, images, link)
        speed, accuracy, more = run(packages, 3, images, link)
        epoch = [more[name] - less[name] for name in COUNTED]
        table.add_row(where, f"{speed:.0f}", f"{accuracy:.3f}", *(f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in epoch))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
