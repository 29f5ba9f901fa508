"""Runs calls.c through `gpuvirt run` on a software GPU beside the bare transport's ping-pong, in turns, and compares the two."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpuvirt.demo.runner import pool

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LINKS = ("shm", "tcp")
BACKEND = "software GPU"
Figures = dict[str, float]


@dataclass(frozen=True)
class Quantity:
    """One line of the table. bare: what of the bare transport's figures stands beside it; target: the most (time) or the least (rate)."""

    name: str
    text: str
    unit: str = "µs"
    bare: Callable[[dict[str, Any], str, Figures], float] | None = None
    target: Callable[[float, str], float] | None = None


def bare_round_trip(bare: dict[str, Any], link: str, calls: Figures) -> float:
    """A shared word, or plain sockets, between two processes that spin."""
    return float(bare[f"bare_{link}"]["round_trip"]["p50"])


def bare_bulk(bare: dict[str, Any], link: str, calls: Figures) -> float:
    """Shared memory: memcpy of the same size by the same program. TCP: plain sockets."""
    return calls["memcpy"] if link == "shm" else float(bare["bare_tcp"]["bulk_GB_s"])


def one_way_target(bare: float, link: str) -> float:
    return 0.5 if link == "shm" else 1.0


QUANTITIES = (
    Quantity("launch_burst", "cuLaunchKernel, 8 parameters, bursts of 256", target=one_way_target),
    Quantity("launch_sustained", "the same, 20,000 in a row, executed"),
    Quantity("record_burst", "cuEventRecord, bursts of 256", target=one_way_target),
    Quantity("isolated", "cuEventRecord alone, every 200 µs", target=one_way_target),
    Quantity("isolated_p90", "  90th percentile", target=one_way_target),
    Quantity("isolated_idle", "cuEventRecord after 10 ms of sleep"),
    Quantity("wait_awake", "waiting call, one after the other", bare=bare_round_trip, target=lambda bare, link: bare + 3),
    Quantity("wait_idle", "waiting call after 10 ms of sleep", bare=bare_round_trip),
    Quantity("sync", "record an event and synchronise", bare=bare_round_trip),
    Quantity("h2d", "64 MiB to the device, pageable", "GB/s", bare_bulk, lambda bare, link: 0.75 * bare),
    Quantity("d2h", "64 MiB from the device, pageable", "GB/s", bare_bulk, lambda bare, link: 0.75 * bare),
    Quantity("h2d_pinned", "64 MiB to the device, pinned", "GB/s", bare_bulk, lambda bare, link: 0.9 * bare),
    Quantity("d2h_pinned", "64 MiB from the device, pinned", "GB/s", bare_bulk, lambda bare, link: 0.9 * bare),
)


@dataclass
class Row:
    """Medians over the rounds; `low` and `high` are the rounds' extremes; beyond: the median of value / bare (rates) or value - bare (times)."""

    name: str
    text: str
    link: str
    unit: str
    value: float
    low: float
    high: float
    bare: float | None
    beyond: float | None
    target: float | None
    met: bool | None


def build(folder: Path, tiny: bool) -> tuple[Path, Path]:
    """Compiles the two programs: (calls, pingpong)."""
    cc = shutil.which("cc") or "gcc"
    options = ["-O2", "-pthread", *(["-DTINY"] if tiny else [])]
    link = sorted(map(str, [*(ROOT / "native/wire").glob("*.c"), *(ROOT / "native/transport").glob("*.c")]))
    made = []
    for name, more in (("calls", ["-ldl"]), ("pingpong", link)):
        subprocess.run([cc, *options, str(HERE / f"{name}.c"), *more, "-o", str(folder / name)], check=True)
        made.append(folder / name)
    return made[0], made[1]


def figures(line: list[str]) -> Any:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_") or k == "GPUVIRT_LIB_DIR"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def measure(rounds: int, tiny: bool = False, links: tuple[str, ...] = LINKS) -> list[dict[str, Any]]:
    """Each round: the bare transports, then the calls over each link. {"bare": pingpong's, "shm": calls', "tcp": calls'}."""
    results = []
    with tempfile.TemporaryDirectory(prefix="gpuvirt-bench-") as name:
        folder = Path(name)
        calls, pingpong = build(folder, tiny)
        with pool(1, folder) as url:
            for _ in range(rounds):
                result = {"bare": figures([str(pingpong)])}
                for link in links:
                    result[link] = figures([sys.executable, "-P", "-m", "gpuvirt", "run", "--pool", url, "--link", link, "--", str(calls)])
                results.append(result)
    return results


def compare(results: list[dict[str, Any]], links: tuple[str, ...] = LINKS) -> list[Row]:
    """One row for each quantity and link; a round's value is compared with the same round's bare figure."""
    rows = []
    for quantity in QUANTITIES:
        for link in links:
            values = [float(r[link][quantity.name]) for r in results]
            bares = [quantity.bare(r["bare"], link, r[link]) for r in results] if quantity.bare else []
            rate = quantity.unit == "GB/s"
            beyond = median(v / b if rate else v - b for v, b in zip(values, bares, strict=True)) if bares else None
            bare = median(bares) if bares else None
            target = quantity.target(bare or 0.0, link) if quantity.target else None
            value = median(values)
            met = None if target is None else value >= target if rate else value <= target
            rows.append(Row(quantity.name, quantity.text, link, quantity.unit, value, min(values), max(values), bare, beyond, target, met))
    return rows


def report(rounds: int, tiny: bool = False) -> dict[str, Any]:
    """Everything a reader needs: on what, how often, what came out."""
    results = measure(rounds, tiny)
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "machine": platform.machine()}
    return {"backend": BACKEND, "rounds": rounds, "machine": machine, "rows": [asdict(r) for r in compare(results)], "raw": results}
