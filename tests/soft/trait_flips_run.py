"""Runs the kernels of trait_flips.py, with the opcode table as it is and with one trait of it another.

    python -m soft.trait_flips_run NUMBER...      runs them and prints a line of JSON each

Each is run in a process of its own, for a wrong table may well crash or hang; the caches of compiled code are off, for they do not know of the table.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np
from soft import kernels, trait_flips
from soft.trait_flips import Flip, Kernel

from gpuvirt.soft import errors, pipeline
from gpuvirt.soft.host import object_cache
from gpuvirt.soft.ptx.module import Module

HANGS, HANGS_THOUGH_RIGHT = 20, 150  # seconds
Outcome = Any


def run(one: Kernel, flip: Flip | None) -> Outcome:
    """The array's words, or why there are none: an error of the compiler or of the launch, or what it says of a value that differs between lanes
    though the table says that it does not."""
    object_cache.read = lambda key: None
    object_cache.write = lambda key, description, code: False
    lost: list[str] = []
    emit = pipeline.Emitter.run

    def note(self: pipeline.Emitter) -> str:
        text = emit(self)
        lost.extend(self.lost)
        return text

    pipeline.Emitter.run = note  # type: ignore[method-assign]
    if flip is not None:
        flip.apply()
    if one.eager:
        os.environ["GPUVIRT_SOFT_LANES"] = "always"
    array = np.zeros(max(len(one.want), len(one.start)), np.uint32)
    array[: len(one.start)] = one.start
    try:
        kernels.Kernels(one.text).launch("k", 1, one.threads, array)
    except kernels.LaunchError as error:
        return [error.code, *array.tolist()][: len(one.want)]
    except errors.SoftError as error:
        return f"{type(error).__name__}: {error}"
    return f"{lost[0]} differs between lanes" if lost else array[: len(one.want)].tolist()


def ir(one: Kernel, flip: Flip | None) -> str:
    if flip is not None:
        flip.apply()
    return pipeline.translate(Module(one.text), "k", (one.threads, 1, 1))[0]


def forked(function: Any, *args: Any, limit: int = HANGS) -> Outcome:
    """What a function gives in a child of this process, which has `limit` seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            signal.alarm(limit)
            with os.fdopen(write, "w") as out:
                json.dump(function(*args), out)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"killed: {signal.Signals(os.WTERMSIG(status)).name}"
    return json.loads(text) if text else "no answer"


def main(numbers: list[int]) -> None:
    kernels.engine()
    flips = trait_flips.all_flips()
    right: dict[Kernel, Outcome] = {}
    for number in numbers:
        flip = flips[number]
        key = flip.kernel._replace(want=tuple(flip.kernel.want))  # type: ignore[arg-type]
        if key not in right:
            right[key] = forked(run, trait_flips.patient(flip.kernel), None, limit=HANGS_THOUGH_RIGHT)
        changed = flip.costs and forked(ir, flip.kernel, flip) != forked(ir, flip.kernel, None)
        print(json.dumps([number, right[key], forked(run, flip.kernel, flip), changed]), flush=True)


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or list(range(len(trait_flips.all_flips()))))
