"""`python -m tests.bench.parking`: how long a session's memory takes to be parked and to come back, beside a plain copy of the same bytes.

A CuPy program fills device memory with numbers by chance, so that no page is left out, and waits. It is parked by hand (`gpuvirt park` without its
start: the request alone); then its next call, which waits for its memory, is timed in the program. Beside it, in turns: memcpy of as many bytes from
pages to pages that are there, and what the file system takes to write as many to a file like the session's, and to read them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import numpy as np

from gpuvirt import paths
from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.errors import GpuvirtError
from tests.bench.pools import clean_environment, pool

PIECE = 1 << 20  # bytes of one write, of one read
PATIENCE = 60.0  # seconds for a session to be idle
# PROGRAM BYTES: after each line on standard input, reads one number of what it has on the GPU and prints the seconds which that took; at the end
# whether all numbers are as they were.
PROGRAM = """
import sys, time
import cupy as cp
words = int(sys.argv[1]) // 8
values = cp.random.default_rng(7).integers(0, 1 << 62, words, dtype=cp.int64)
total = int(values.sum())
cp.get_default_memory_pool().free_all_blocks()
print("ready", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    values[:1].get()
    print(time.perf_counter() - began, flush=True)
print(int(values.sum()) == total, flush=True)
"""


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def park(url: str) -> float:
    """Parks the only session as soon as it is idle. Returns the seconds of the attempt that succeeded."""
    asked, deadline = resolve({"pool": url}), time.monotonic() + PATIENCE
    (session,) = ask_pool(asked, "ps")["sessions"]
    while True:
        began = time.perf_counter()
        try:
            ask_pool(asked, "park", session=session["session"], limit=PATIENCE)
            return time.perf_counter() - began
        except GpuvirtError as error:
            if "not idle" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def sessions(url: str, size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to park, and to come back."""
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "-q", "--pool", url, "--", sys.executable, "-c", PROGRAM, str(size)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()) as process:
        try:
            if said(process) != "ready":
                raise RuntimeError("the program did not begin")
            assert process.stdin is not None
            away, back = [], []
            for _ in range(rounds):
                away.append(park(url))
                process.stdin.write("\n")
                process.stdin.flush()
                back.append(float(said(process)))
            process.stdin.close()
            if said(process) != "True":
                raise RuntimeError("what came back is not what was parked")
            return away, back
        finally:
            process.kill()


def timed(what: str, size: int, file: int, source: np.ndarray, target: np.ndarray) -> float:
    began = time.perf_counter()
    if what == "memcpy":
        np.copyto(target, source)
    else:
        call, view = (os.pwrite, source.data) if what == "write" else (os.preadv, target.data)
        for at in range(0, size, PIECE):
            piece = view[at : at + PIECE]
            call(file, piece if what == "write" else [piece], at)
    return time.perf_counter() - began


@click.command(help=__doc__)
@click.option("--mib", default=1024, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(mib: int, rounds: int) -> None:
    size, before = mib << 20, os.getloadavg()[0]
    source = np.random.default_rng(7).integers(0, 256, size, dtype=np.uint8)
    target = np.ones(size, np.uint8)
    plain: dict[str, list[float]] = {"memcpy": [], "write": [], "read": []}
    away: list[float] = []
    back: list[float] = []
    with tempfile.TemporaryDirectory() as name, pool(Path(name), "--gpu-memory", f"{3 * mib}m", "--idle", "0") as url:
        folder = paths.private_dir(paths.cache_root() / "parked")
        for what in plain:
            with tempfile.TemporaryFile(dir=folder) as file:
                if what == "read":
                    timed("write", size, file.fileno(), source, target)
                plain[what] = [timed(what, size, file.fileno(), source, target) for _ in range(rounds)]
        away, back = sessions(url, size, rounds)
    base = median(plain["memcpy"])
    for title, seconds in {"parked": away, "back": back, **plain}.items():
        middle = median(seconds)
        times = f"{middle:6.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
        click.echo(f"{title:8} {times}, {size / middle / 1e9:5.2f} GB/s, {middle / base:5.2f} × memcpy")
    both, file = median(away) + median(back), median(plain["write"]) + median(plain["read"])
    click.echo(f"parked and back {both:.3f} s, {both / (2 * base):.2f} × two copies; {both / file:.2f} × write and read of a file")
    click.echo(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
