"""Random programs for as long as wanted: python -m random_programs --pool URL [--link LINK] [--first SEED] [--steps N]; --replay FILE runs one again.

What fails is made smaller, printed as steps and kept in build-tests/random_programs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from random_programs import batches, runner, shrink


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--link", default="shm")
    parser.add_argument("--libraries", type=Path, help="folder of another libcuda.so.1")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=batches.LENGTH, help="operations of a program")
    parser.add_argument("--without", default=",".join(sorted(batches.NOT_KEPT)), help="features to leave out, with commas")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--repeat", type=int, default=10, help="how often a program runs before it is taken to be right, when it is made smaller")
    parser.add_argument("--seconds", type=float, default=60, help="for making a program smaller")
    options = parser.parse_args()
    target = runner.Target(runner.interpreter(), options.pool, options.link, options.libraries or runner.LIBRARIES)
    if options.replay:
        program = shrink.from_json(options.replay.read_text())
        done, failure = runner.run(target, [program.lowered().text], options.repeat)
        print(shrink.explained(program, failure) if failure else f"{done} steps, nothing is wrong")
        return 1 if failure else 0
    without = frozenset(filter(None, options.without.split(",")))
    first, left, failures, began = options.first, options.steps, 0, time.monotonic()
    while left > 0:
        done = 0
        for progress in batches.run_seeds(target, first, left, without, options.length):
            done, first, found = progress
            if found:
                failures += 1
                print(f"FAIL seed {found.program.seed}: {found.failure.text}", flush=True)
                print(batches.told(target, found, options.seconds, options.repeat), flush=True)
                first = found.program.seed + 1
            total = options.steps - left + done
            print(f"{total} steps, {failures} failures, next seed {first}, {total / (time.monotonic() - began):.0f} a second", flush=True)
        left -= done
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
