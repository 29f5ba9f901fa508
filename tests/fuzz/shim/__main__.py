"""Hostile servers against the client library for as long as wanted: python -m fuzz.shim [--seconds N] [--first SEED] [--jobs N].

A session that fails is printed, and its link and seed are added to seeds.txt, so that the tests run it from then on.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.shim import build_fuzzer

SEEDS = Path(__file__).with_name("seeds.txt")
LINKS = ["shm", "tcp(plain)", "tcp(channels=3)"]
BATCH = 500  # sessions


def batch(program: Path, link: str, first: int, seconds: float) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        line = [str(program), str(BATCH), str(seconds), str(first), link, "on"]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout, done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="the first seed")
    parser.add_argument("--jobs", type=int, default=3, help="programs at the same time; each mostly waits")
    options = parser.parse_args()
    until, sessions, failures = time.monotonic() + options.seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        program = build_fuzzer.build(Path(folder) / "shim_fuzz")

        def one(number: int) -> None:
            nonlocal sessions, failures
            left = until - time.monotonic()
            if left <= 0:
                return
            link = LINKS[number % len(LINKS)]
            told, failed = batch(program, link, options.first + number * BATCH, left)
            sessions += int(told.split()[0]) if told else 0
            for seed, why in re.findall(r"^session (\d+) over [^:]*: (.*)", failed, re.MULTILINE):
                failures += 1
                with SEEDS.open("a") as file:
                    file.write(f"{link} {seed} {why[:80]}\n")
            print(told.splitlines()[0] if told else "ended early", failed, sep="\n" if failed else "", flush=True)

        number = 0
        while time.monotonic() < until:
            list(pool.map(one, range(number, number + options.jobs)))
            number += options.jobs
    print(f"{sessions} sessions, {failures} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
