"""`python -m tests.bench.verbs_costs`: what a record costs over verbs, on the software libibverbs, whose own cost is taken off.

By the number of sending threads: microseconds of processor time a record at the sender, at the receiver, and of both links' own threads (for these
with the library's cost); and how many doorbells, work requests and polls there were a record. No speed of a network is in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from tests import c_build

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native/transport"
SOFTVERBS = ROOT / "tests/softverbs"


def measure(folder: Path, records: int, rounds: int, threads: tuple[int, ...]) -> dict[str, Any]:
    sources = [*sorted((ROOT / "native/wire").glob("*.c")), *sorted((ROOT / "native/transport").rglob("*.c"))]
    helpers = [HERE / "pair.c", HERE / "sealed_peer.c", Path(__file__).with_suffix(".c")]
    program = c_build.program(folder / "verbs_costs", [*sources, *helpers], variant="plain", libraries=("-ldl",))
    parts = [path for path in sorted(SOFTVERBS.glob("*.c")) if not path.name.startswith(("test_", "ends"))]
    library = c_build.library(folder / "libibverbs.so.1", parts, variant="plain", flags=())
    env = {**os.environ, "GPUVIRT_IBVERBS": str(library), "SOFTVERBS_FABRIC": str(folder / "fabric"), "SOFTVERBS_DEVICES": "1"}
    line = [str(program), str(records), str(rounds), *map(str, threads)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, check=True, env=env)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@click.command(help=__doc__)
@click.option("--records", default=20000, show_default=True, help="records a round, of all threads together")
@click.option("--rounds", default=21, show_default=True)
@click.option("--threads", default=(1, 2, 10, 100), multiple=True, show_default=True)
def main(records: int, rounds: int, threads: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), records, rounds, threads)
    for number, figures in found.items():
        print(f"{number:>4} threads" + "".join(f"  {what} {value:.3f}" for what, value in figures.items()))
        ours = figures["sender"] + figures["receiver"] + figures["link_threads"]
        print(f"     {'':8}{ours:.3f} us a record in all; one doorbell for {1 / figures['doorbells']:.0f} records")


if __name__ == "__main__":
    main()
