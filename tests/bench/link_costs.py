"""`python -m tests.bench.link_costs`: what sealing costs the records of a tcp link, plain and sealed in turns in one run.

Times are microseconds, medians of the rounds: a one-way record in a burst and in a long row (until the last one was answered), a waiting call,
and the processor time of both ends for these; beside them what sealing and opening one frame takes alone, of a record and of 64 KiB.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from tests import c_build

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native/transport"


def measure(folder: Path, rounds: int, records: int) -> dict[str, Any]:
    sources = [*sorted((ROOT / "native/wire").glob("*.c")), *sorted((ROOT / "native/transport").rglob("*.c"))]
    helpers = [HERE / "pair.c", HERE / "sealed_peer.c", Path(__file__).with_suffix(".c")]
    program = c_build.program(folder / "link_costs", [*sources, *helpers], variant="plain", libraries=("-ldl",))
    done = subprocess.run([str(program), str(rounds), str(records)], capture_output=True, text=True, timeout=900, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@click.command(help=__doc__)
@click.option("--rounds", default=41, show_default=True)
@click.option("--records", default=20000, show_default=True, help="one-way records in a row")
def main(rounds: int, records: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), rounds, records)
    for name, figures in found.items():
        print(f"{name:20}" + "".join(f"  {what} {value:.3f}" for what, value in figures.items()))
    waiting = found["waiting"]
    least = waiting["least_plain"] + 2 * found["aead"]["least_frame_64"]  # the request and its answer, each sealed and opened
    print(f"a waiting call is {least / waiting['least_sealed']:.2f} times as fast as the cipher alone would allow (least times)")


if __name__ == "__main__":
    main()
