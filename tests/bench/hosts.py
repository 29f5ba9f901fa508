"""`python -m tests.bench.hosts`: what it costs that a server is one host of a pool: the wait until a program knows its GPU, and leases a second.

A pool of two daemons on this machine (the head has one GPU, and programs ask for two), and a server by itself, in turns. Programs ask the server, the
host that has the GPUs, and the head, which sends them there. Processes (programs/attaches.py), each with a lease of its own, attach over shm, one
after the other. Target: 50 ms more than a server by itself.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click

from tests.bench.attaches import waits
from tests.bench.pools import pool

TARGET_MS = 50.0


@click.command(help=__doc__)
@click.option("--count", default=20, show_default=True, help="of processes that attach in each round")
@click.option("--rounds", default=5, show_default=True)
def main(count: int, rounds: int) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, ExitStack() as undo:
        folder = Path(name)

        def server(state: str, *options: str) -> str:
            return undo.enter_context(pool(folder, *options, GPUVIRT_STATE=f"{name}/{state}"))

        alone, head = server("alone", "--gpus", "2"), server("head", "--head", "--name", "head")
        other = server("more", "--gpus", "2", "--join", head, "--name", "more")
        ways = {"a server by itself": alone, "the host that has the GPUs": other, "the head, which sends it there": head}
        found: dict[str, list[float]] = {}
        rates: dict[str, list[float]] = {}
        for round_ in range(rounds + 1):
            for said, url in ways.items():
                each, rate = waits(url, count, 0.0, 2, True)
                if round_:  # the first one warms up
                    found.setdefault(said, []).append(median(each))
                    rates.setdefault(said, []).append(rate)
        base = median(found["a server by itself"])
        for said, medians in found.items():
            middle = median(medians)
            click.echo(f"{said}: median of {rounds} medians {middle:.1f} ms ({middle - base:+.1f}); {median(rates[said]):.0f} leases a second")
    click.echo(f"target {TARGET_MS:.0f} ms more; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
