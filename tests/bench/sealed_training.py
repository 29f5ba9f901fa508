"""`python -m tests.bench.sealed_training`: what sealing costs a training loop from 30 ms away.

The training loop of `gpuvirt bench` (18 kernels a step, its loss read every 50 steps) over `delay(rtt=30ms,rate=10gbit,tcp)` and the same with
`tcp(plain)`: two programs on one server that takes both, asked in turns, so that both meet what else the machine does. `ratio` is the plain loop's
time to the sealed one's, of each turn: what is left of the plain link's speed (target: the median is at least 0.85). The losses are compared with
those that this machine's processor computes.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import click

from gpuvirt.bench.program import BenchProgram
from gpuvirt.client.connect import connected
from gpuvirt.client.environment import apply, variables
from gpuvirt.client.settings import resolve
from tests.bench.pools import pool
from tests.bench.slope import cores

LINKS = {name: f"delay(rtt=30ms,rate=10gbit,{transport})" for name, transport in (("sealed", "tcp"), ("plain", "tcp(plain)"))}
TARGET = 0.85
READ_EVERY = 50


def measure(folder: Path, turns: int, steps: int) -> list[dict[str, float]]:
    """Seconds of the loop over each link, for each turn; which is first changes from turn to turn."""
    made = []
    with ExitStack() as open_ones:
        url = open_ones.enter_context(pool(folder, "--plain", prefix=cores()[1]))
        found = open_ones.enter_context(connected(resolve({"pool": url, "gpus": 1})))
        environment = apply(variables(found.settings, found.status))
        programs = {name: open_ones.enter_context(BenchProgram("none", {**environment, "GPUVIRT_LINK": link})) for name, link in LINKS.items()}
        for program in programs.values():
            program.ask(f"training {READ_EVERY} {READ_EVERY}")  # kernels are compiled
        for turn in range(turns):
            took = {}
            for name in sorted(programs, reverse=bool(turn % 2)):
                figures = programs[name].ask(f"training {steps} {READ_EVERY}")
                if figures["right"] != 1:
                    raise RuntimeError(f"over {LINKS[name]} the losses are not those that this machine's processor computes")
                took[name] = figures["loop_us"] / 1e6
            made.append(took)
    return made


@click.command(help=__doc__)
@click.option("--turns", default=100, show_default=True)
@click.option("--steps", default=1000, show_default=True, help="of each loop")
def main(turns: int, steps: int) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        made = measure(Path(name), turns, steps)
    ratios = [turn["plain"] / turn["sealed"] for turn in made]
    for name in LINKS:
        times = [turn[name] for turn in made]
        click.echo(f"{name}: {sum(times):.0f} s in all, median {median(times):.3f} s, least {min(times):.3f} s")
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    click.echo(f"plain to sealed: median {median(ratios):.3f} (quartiles {low:.3f} and {high:.3f}), target at least {TARGET}")
    click.echo(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
