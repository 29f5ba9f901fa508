"""A program again and again, each time in a process of its own, some at the same time: what a busy machine does to it.

    python -m soft.scheduling.processes --times 1000 --at-once 3 -- gpuvirt run -q -- ./program     # PYTHONPATH=.:tests
    python -m soft.scheduling.processes --times 1000 --state build/program.json -- ...              # goes on where it was ended

They run at a low priority, so that others' work on the machine is load for them. Prints what the first wrong ones said. Exit status 1: some ended with
another status than 0, or were killed after --limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

SHOWN = 5  # wrong runs of which the output is kept


@dataclass
class Count:
    """How many have ended, and what those said that were wrong."""

    done: int = 0
    wrong: int = 0
    seconds: float = 0.0  # of all of them together
    said: list[str] = field(default_factory=list)


def repeat(once: Callable[[int], str], times: int, at_once: int, state: Path | None = None) -> Count:
    """Calls it so many times, with the number of the run.

    Args:
        once: "" if it was right, or what was wrong.
        state: keeps the count; a later call goes on from there.
    """
    count = Count(**json.loads(state.read_text())) if state is not None and state.exists() else Count()
    lock = Lock()

    def run(number: int) -> None:
        begun = time.monotonic()
        wrong = once(number)
        with lock:
            count.done += 1
            count.seconds += time.monotonic() - begun
            count.wrong += bool(wrong)
            count.said += [wrong][: SHOWN - len(count.said)] if wrong else []
            if state is not None:
                new = state.with_suffix(".new")
                new.write_text(json.dumps(asdict(count)))
                os.replace(new, state)

    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(run, range(count.done, times)):
            pass  # what it raises, this does
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each")
    parser.add_argument("--state", type=Path)
    parser.add_argument("line", nargs="+", help="the program and its arguments, after --")
    wanted = parser.parse_args()

    def once(number: int) -> str:
        try:
            done = subprocess.run(["nice", *wanted.line], capture_output=True, text=True, timeout=wanted.limit, check=False)
        except subprocess.TimeoutExpired:
            return f"run {number}: not done after {wanted.limit:.0f} s"
        return f"run {number}: exit status {done.returncode}: {(done.stdout + done.stderr)[-500:]}" if done.returncode else ""

    count = repeat(once, wanted.times, wanted.at_once, wanted.state)
    print(*count.said, f"{count.done} runs, {count.wrong} wrong, {count.seconds / max(count.done, 1):.1f} s each", sep="\n")
    return count.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
