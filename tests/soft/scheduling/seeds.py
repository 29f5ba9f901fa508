"""The cases under seeded schedules (native/backend/soft/engine/schedule.h), all in this process.

    python -m soft.scheduling.seeds --seeds 1000                       # every case; PYTHONPATH=.:tests
    python -m soft.scheduling.seeds --seeds 1 --first 17 mutex_then_barrier    # again what was wrong
    python -m soft.scheduling.seeds --seeds 1000 --state build/seeds.json      # goes on where it was ended

Prints a line for each case, and one for each seed that is wrong. Exit status 1: some are. A seed that hangs ends the process at its deadline, with the
threads' stacks; with --state the next run counts it as wrong and goes on behind it.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soft.kernels import engine
from soft.scheduling import CASES

DEADLINE = 300  # seconds a seed
SHOWN = 5  # wrong seeds of a case


@dataclass
class Progress:
    """How far each case has come; in a file if there is one."""

    path: Path | None
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.cases = json.loads(self.path.read_text())

    def of(self, name: str, first: int) -> dict[str, Any]:
        found = self.cases.setdefault(name, {"next": first, "wrong": {}, "seconds": 0.0, "running": False})
        if found["running"]:
            found["wrong"][str(found["next"])] = "hangs, or ended the process"
            found["next"] += 1
        return found

    def save(self) -> None:
        if self.path is not None:
            temporary = self.path.with_suffix(".new")
            temporary.write_text(json.dumps(self.cases))
            os.replace(temporary, self.path)


def reseed(seed: int) -> int:
    """Begins the schedules of a seed; what the grids since the last one drew, as one number."""
    function = engine().soft_exec_schedule
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
    return int(function(seed))


def run_case(name: str, first: int, seeds: int, progress: Progress) -> dict[str, Any]:
    found = progress.of(name, first)
    while found["next"] < first + seeds:
        found["running"] = progress.path is not None
        progress.save()
        begun = time.monotonic()
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        try:
            reseed(found["next"])
            CASES[name]()
        except Exception as error:  # the next seed is to run all the same
            found["wrong"][str(found["next"])] = f"{type(error).__name__}: {str(error)[:300]!r}"
        faulthandler.cancel_dump_traceback_later()
        found["seconds"] += time.monotonic() - begun
        found["next"] += 1
        found["running"] = False
    progress.save()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    os.environ.setdefault("GPUVIRT_SOFT_SCHEDULE", "0")
    progress, wrong = Progress(options.state), 0
    for name in options.cases or CASES:
        found = run_case(name, options.first, options.seeds, progress)
        wrong += len(found["wrong"])
        print(f"{name}: {found['next'] - options.first} seeds, {len(found['wrong'])} wrong, {found['seconds']:.1f} s", flush=True)
        for seed, why in list(found["wrong"].items())[:SHOWN]:
            print(f"    seed {seed}: {why}", flush=True)
    print(f"{len(options.cases or CASES)} cases, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a thread of the engine's may still be in a grid
