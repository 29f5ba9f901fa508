"""What the framework programs share: how a test is announced, timed and reported. A line of JSON each: a run that is stopped loses nothing."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

WARM, VALUES, STEPS = 3, 5, 200


class Options:
    device = "cuda"
    steps = STEPS


options = Options()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def figures() -> tuple[int, int] | None:
    """This process's calls and waits so far; None on a machine's own driver, which does not count them."""
    try:
        counted = ctypes.CDLL("libcuda.so.1").gpuvirt_figures
    except (OSError, AttributeError):
        return None
    out = (ctypes.c_uint64 * 3)()
    counted(out)
    return int(out[0]), int(out[1])


def timed(step: Callable[[], Any], finish: Callable[[], Any], read: Callable[[Any], float], per_step: int = 0) -> dict[str, Any]:
    """Runs a step: a few times for its numbers, then for about a second without looking at them (10 steps at least, options.steps at most).

    Args:
        step: one training step; returns what `read` turns into a number.
        finish: waits until the device has done all.
        per_step: images (or the like) in one step.
    """
    values = [read(step()) for _ in range(VALUES)]
    begin = time.perf_counter()
    for _ in range(WARM):
        step()
    finish()
    steps = min(options.steps, max(10, int(WARM / (time.perf_counter() - begin))))
    before, begin = figures(), time.perf_counter()
    for _ in range(steps):
        step()
    after = figures()  # before the wait for the end, which is not the step's own
    finish()
    seconds = (time.perf_counter() - begin) / steps
    found: dict[str, Any] = {"values": values, "step_ms": seconds * 1e3, "steps": steps}
    if before and after:
        found |= {"calls_per_step": (after[0] - before[0]) / steps, "waits_per_step": (after[1] - before[1]) / steps}
    return found | ({"images_s": per_step / seconds} if per_step else {})


def main(tests: dict[str, Callable[[], dict[str, Any]]], version: Callable[[], str]) -> int:
    """Runs the tests asked for. After one that fails the process ends (9), since an error may stay in its context; whoever runs us goes on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", default=",".join(tests))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    options.device, options.steps = given.device, given.steps
    if given.list:
        print(*tests)
        return 0
    say(version=version())
    for name in given.tests.split(","):
        say(test=name, begin=True)
        try:
            say(test=name, ok=True, **tests[name]())
        except Exception as error:
            traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1]  # the call that stopped it, as far as Python knows
            told = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            say(test=name, ok=False, error=f"{told} in `{(last.line or last.name)[:90]}`")
            sys.stderr.flush()
            return 9
    return 0
