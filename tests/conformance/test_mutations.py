"""Each function that a case observes is made to do nothing, and the case must fail.

A function that answers CUDA_SUCCESS whatever it is given also refuses nothing, which any case would notice. So the cases run with --effects-only,
without what they ask wrongly, except for functions of which nothing but their refusals can be seen.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
from pathlib import Path

import pytest
from conformance.building import cases
from conformance_cases import Case
from e2e.harness import Server, clean_environment

pytestmark = pytest.mark.wide

SAMPLE = 25
SEED = 7
SECONDS = 20  # a case that waits for what the function would have done
SECONDS_UNBROKEN = 240  # a case that ends by itself, on a machine that is busy with other things


def observed() -> dict[str, Case]:
    """Each function with the first case that sees what it does."""
    found: dict[str, Case] = {}
    for case in sorted(cases(), key=lambda case: case.hint):
        for function in case.functions:
            found.setdefault(function, case)
    return found


def run(pool: Server, breakable: Path, program: Path, case: Case, broken: str) -> str:
    """What the program says of the case with `broken` doing nothing, or that it did not end in time."""
    env = clean_environment(LD_LIBRARY_PATH=str(breakable), GPUVIRT_POOL=pool.url, GPUVIRT_LINK="tcp", GPUVIRT_GPUS="2", GV_BREAK_FUNCTION=broken)
    env["GPUVIRT_LAUNCH"] = secrets.token_hex(16)  # the processes of a case share a lease
    line = [str(program), "--unchecked" if case.hint else "--effects-only", case.name]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    # A session of its own: the case is a child of the program, and must end with it.
    with subprocess.Popen(line, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True) as process:
        try:
            said, logged = process.communicate(timeout=SECONDS_UNBROKEN if broken == "none" else SECONDS)
            return said if said == f"{case.name} ok\n" else said + logged
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{case.name}: not ended in time\n"


SAMPLED = set(random.Random(SEED).sample(sorted(observed()), SAMPLE))


@pytest.mark.parametrize("function", sorted(observed()))
def test_a_function_that_does_nothing_is_noticed(lenient: Server, programs: dict[str, Path], breakable: Path, function: str) -> None:
    case = observed()[function]
    said = run(lenient, breakable, programs[case.program], case, function)
    assert f"{case.name} ok" not in said, f"{case.program}/{case.name} says that {function} works when it does nothing"
    # Not for another reason: the case has begun, and told what is wrong.
    assert said.startswith(f"{case.name}: ") and "cuInit(0) answers" not in said, said


def test_nothing_broken(lenient: Server, programs: dict[str, Path], breakable: Path) -> None:
    """That the cases fail is the broken function's doing: with none broken those of the sample pass, in the same library and the same way."""
    for case in {observed()[function] for function in sorted(SAMPLED)}:
        assert run(lenient, breakable, programs[case.program], case, "none") == f"{case.name} ok\n", case.program
