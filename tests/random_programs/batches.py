"""Programs by the seeds that they are of, in batches: each a process and a session, in which addresses and objects come again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import c_build
from random_programs import runner, shrink
from random_programs.runner import Failure, Program, Target

LENGTH = 300  # operations of a program; its steps are twice as many
BATCH = 16  # programs of one process

# What CUDA has a defined result for, and mapped memory here has not (docs/DESIGN.md): the host, or a host function, uses a mapped allocation
# while the device works, or before the program has waited by a call of CUDA, or learns by a word of it that something else is done.
NOT_KEPT = frozenset(("mapped_at_work", "polled_value"))


@dataclass(frozen=True)
class Found:
    program: Program
    failure: Failure
    steps: int  # that were right before


def run_seeds(
    target: Target, first: int, steps: int, without: frozenset[str] = NOT_KEPT, length: int = LENGTH
) -> Iterator[tuple[int, int, Found | None]]:
    """Runs programs from a seed on until so many steps are done or one fails: after each batch the steps so far, the next seed, what failed."""
    done = 0
    while done < steps:
        programs = {seed: runner.program_of(seed, length, without | target.lacks) for seed in range(first, first + BATCH)}
        lowered = {seed: program.lowered() for seed, program in programs.items()}
        right, failure = runner.run(target, [one.text for one in lowered.values()])
        if failure:
            before = sum(one.steps for seed, one in lowered.items() if seed < failure.seed)
            yield done + before, first, Found(programs.get(failure.seed, programs[first]), failure, done + before + max(0, failure.line))
            return
        done, first = done + right, first + BATCH
        yield done, first, None


def told(target: Target, found: Found, seconds: float = 60, repeat: int = 10) -> str:
    """What failed, made smaller, as steps; it is kept for a replay."""
    fails = shrink.fails_at(target, repeat)
    if not fails(found.program):
        return f"{shrink.explained(found.program, found.failure)}\nnot again in {repeat} runs; kept in {shrink.keep(found.program, found.failure)}"
    small = shrink.shrink(found.program, fails, seconds)
    _, again = runner.run(target, [small.lowered().text], 10 * repeat)
    kept = shrink.keep(small, again or found.failure)
    again_by = f"PYTHONPATH=tests python -m random_programs --pool URL --link '{target.link}' --replay {kept.relative_to(c_build.ROOT)}"
    return f"{shrink.explained(small, again or found.failure)}\nagain: {again_by}"


def mistaken(folder: Path, name: str) -> Path:
    """The folder of a client library with a mistake."""
    from conformance import building
    from random_programs.seeded_bugs import SEEDED

    instead = {}
    for place, right, wrong in SEEDED[name].changes():
        source = c_build.NATIVE / "shim" / place
        text = source.read_text()
        assert text.count(right) == 1, f"{place} has changed: seeded_bugs.py no longer fits"
        instead[source] = folder / source.name
        instead[source].write_text(text.replace(right, wrong))
    return building.driver(folder / "libcuda.so.1", instead=instead).parent
