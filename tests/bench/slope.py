"""`python -m tests.bench.slope`: the effect of network latency on a CuPy training loop, and a cold start.

The loop runs as from 0, 1, 30 and 150 ms away, in turns, 400 and 800 steps. Beside the counted waits the clock is asked: the slope of the loop's time
over the distance is the number of round trips it really made, whatever the counters say. The loop's time is taken inside the program, in steady
state. Client and server have a core each where there are two: they are two machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click

from tests.bench.pools import clean_environment, pool

PROGRAM = Path(__file__).resolve().parent / "programs" / "cupy_training.py"
RTTS_MS = (0.0, 1.0, 30.0, 150.0)
FAR_MS = 30.0  # of the cold start
Runs = dict[tuple[int, float], list[dict[str, Any]]]


def cores() -> tuple[list[str], list[str]]:
    """What to write before the client's and the server's command line."""
    have = sorted(os.sched_getaffinity(0))
    if len(have) < 2 or not shutil.which("taskset"):
        return [], []
    half = len(have) // 2
    client, server = (",".join(map(str, part)) for part in (have[:half], have[half:]))
    return ["taskset", "-c", client], ["taskset", "-c", server]


def link_of(rtt_ms: float) -> str:
    return f"delay(rtt={rtt_ms:g}ms,tcp)"


def one_run(url: str, link: str, steps: int, **more: str) -> dict[str, Any]:
    line = [*cores()[0], sys.executable, "-P", "-m", "gpuvirt", "run", "--pool", url, "--link", link, "--", sys.executable, str(PROGRAM)]
    done = subprocess.run([*line, "--steps", str(steps)], capture_output=True, text=True, timeout=300, check=False, env=clean_environment(**more))
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit {done.returncode}\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    if not figures["right"]:
        raise RuntimeError(f"over {link} the losses are not NumPy's: {figures}")
    return figures


def least_squares(points: list[tuple[float, float]]) -> float:
    """The slope of the line through the points."""
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def evaluate(runs: Runs) -> list[dict[str, Any]]:
    """One row for each number of steps: medians over the rounds."""
    rows = []
    for steps in sorted({steps for steps, _ in runs}):
        found = {rtt: runs[steps, rtt] for s, rtt in runs if s == steps}
        loops = {rtt: median(r["loop_s"] for r in made) for rtt, made in found.items()}
        reads, waits = ({r[name] for made in found.values() for r in made} for name in ("reads", "waits"))
        read = max(reads)
        # Least squares over the medians; the slope of each round beside it shows how much they scatter.
        rounds = range(min(len(made) for made in found.values()))
        slopes = [least_squares([(rtt / 1e3, found[rtt][i]["loop_s"]) for rtt in found]) for i in rounds]
        ratios = {rtt: median(found[rtt][i]["loop_s"] / (found[0.0][i]["loop_s"] + read * rtt / 1e3) for i in rounds) for rtt in found}
        rows.append(
            {
                "steps": steps,
                "reads": read,
                "waits": sorted(waits),
                "step_ms": loops[0.0] / steps * 1e3,
                "loop_s": loops,
                "runs_s": {rtt: [r["loop_s"] for r in made] for rtt, made in found.items()},
                "slope_of_quickest": least_squares([(rtt / 1e3, min(r["loop_s"] for r in made)) for rtt, made in found.items()]),
                "slope": least_squares([(rtt / 1e3, loops[rtt]) for rtt in loops]),
                "slopes": slopes,
                "over_allowed": ratios,
                "waits_are_reads": waits == reads and len(reads) == 1,
                "slope_is_reads": abs(least_squares([(rtt / 1e3, loops[rtt]) for rtt in loops]) - read) <= 0.5,
                "total_met": max(ratios.values()) <= 1.1,
            }
        )
    return rows


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[dict[str, str]]:
    """An environment whose caches are empty: gpuvirt's and CuPy's."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield {"XDG_CACHE_HOME": f"{name}/cache", "CUPY_CACHE_DIR": f"{name}/cupy"}


def cold_start(url: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Import to first result at 0 and at 30 ms, in turns: their difference over 30 ms is the number of round trips."""
    warm: list[float] = []
    waits: set[int] = set()
    one_run(url, "tcp", 50)
    for _ in range(rounds):
        near, far = one_run(url, link_of(0), 50), one_run(url, link_of(FAR_MS), 50)
        warm.append((far["first_result_s"] - near["first_result_s"]) * 1e3 / FAR_MS)
        waits |= {near["waits_first"], far["waits_first"]}
    return {"round_trips": median(warm), "each": warm, "waits": sorted(waits), "met": median(warm) <= 12}


def cold_caches(folder: Path) -> dict[str, Any]:
    """The same with nothing cached on either side: a server and caches of its own for each of the two runs."""
    found: dict[str, Any] = {}
    for rtt in (0.0, FAR_MS):
        with fresh(folder) as env, pool(folder, prefix=cores()[1], **env) as url:
            found[f"{rtt:g}"] = one_run(url, link_of(rtt), 50, **env)
    far, near = found[f"{FAR_MS:g}"], found["0"]
    return {"round_trips": (far["first_result_s"] - near["first_result_s"]) * 1e3 / FAR_MS, "waits": far["waits_first"], "first_result_s": found}


def measure(rounds: int, steps: tuple[int, ...], rtts: tuple[float, ...], say: Any) -> dict[str, Any]:
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="gpuvirt-slope-") as name:
        folder = Path(name)
        with pool(folder, prefix=cores()[1]) as url:
            one_run(url, "tcp", 50)
            for i in range(rounds):
                for count in steps:
                    for rtt in rtts:
                        say(f"round {i + 1} of {rounds}: {count} steps, {rtt:g} ms")
                        runs.setdefault((count, rtt), []).append(one_run(url, link_of(rtt), count))
            say("cold start, warm caches")
            start = cold_start(url, folder, rounds)
        say("cold start, cold caches")
        cold = cold_caches(folder)
    return {"rows": evaluate(runs), "cold_start": start, "cold_caches": cold}


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--tiny", is_flag=True, help="Only show that it works.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, tiny: bool, as_json: bool) -> None:
    """What distance costs a CuPy training loop on a software GPU, and a cold start."""
    result = measure(1 if tiny else rounds, (50,) if tiny else (400, 800), (0.0, 1.0) if tiny else RTTS_MS, lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    for row in result["rows"]:
        times = ", ".join(f"{rtt:g} ms: {seconds:.3f} s (×{row['over_allowed'][rtt]:.2f} of allowed)" for rtt, seconds in row["loop_s"].items())
        click.echo(f"{row['steps']} steps, {row['step_ms']:.2f} ms a step at 0 ms, {row['reads']} reads, waits {row['waits']}: {times}")
        met, quickest = "yes" if row["slope_is_reads"] else "NO", row["slope_of_quickest"]
        click.echo(f"  slope {row['slope']:.2f} (of the quickest runs {quickest:.2f}) for {row['reads']} reads: {met}; total: {row['total_met']}")
    for name in ("cold_start", "cold_caches"):
        click.echo(f"{name}: {result[name]['round_trips']:.1f} round trips, waits {result[name]['waits']}")


if __name__ == "__main__":
    main()
