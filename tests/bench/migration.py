"""`python -m tests.bench.migration`: how long a session stands still that goes to another host of its pool, beside a move within its host.

Two daemons of this machine, a program with so much memory that holds no zeros, over tcp. The image passes sealed (CURVE) from the one daemon to the
other. Moves there and back, and within the host, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click

from gpuvirt.client.connect import ask
from gpuvirt.transport.pool import check_pool, parse_pool
from tests.bench.pools import pool

HOLDS = Path(__file__).parent / "programs" / "holds.py"
LIMIT = 60.0


@click.command(help=__doc__)
@click.option("--mib", default=512, show_default=True, help="that the program has")
@click.option("--rounds", default=5, show_default=True)
def main(mib: int, rounds: int) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, ExitStack() as undo:
        folder = Path(name)

        def server(state: str, *options: str) -> str:
            every = ("--gpus", "2", "--gpu-memory", f"{2 * mib + 256}m", "--name", state)
            return undo.enter_context(pool(folder, *every, *options, GPUVIRT_STATE=f"{name}/{state}"))

        oak = server("oak", "--head")
        server("elm", "--join", oak)
        line = [sys.executable, "-m", "gpuvirt.cli", "run", "-q", "--pool", oak, "--link", "tcp", "--", sys.executable, str(HOLDS), str(mib)]
        program = undo.enter_context(subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert program.stdin is not None and program.stdout is not None and program.stdout.readline() == "running\n"
        status = check_pool(parse_pool(oak))

        def session() -> tuple[str, str, list[int]]:
            (found,) = ask(status, "ps")["sessions"]
            return found["session"], found["server"], found["devices"]

        within, between, sizes = [], [], []
        for round_ in range(rounds + 1):
            number, host, devices = session()
            here = ask(status, "move", session=number, devices=[1 - devices[0]], limit=LIMIT)["seconds"]
            there = ask(status, "move", session=number, host={"oak": "elm", "elm": "oak"}[host], limit=LIMIT)
            if round_:  # the first one warms up
                within.append(here)
                between.append(there["seconds"])
                sizes.append(there["bytes"])
        program.stdin.close()
        assert program.stdout.read() == "right\n"
    size = median(sizes) / 1e6
    click.echo(f"image of {size:.0f} MB: within its host {median(within):.3f} s ({size / median(within):.0f} MB/s)")
    click.echo(f"to another host {median(between):.3f} s ({size / median(between):.0f} MB/s), {median(between) / median(within):.2f} times that")
    click.echo(f"median of {rounds}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
