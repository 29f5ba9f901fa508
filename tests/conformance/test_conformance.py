"""The driver API as its documentation says, by programs that any driver runs: see programs/conformance.h."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conformance.building import cases, refused, subjects
from e2e.harness import Server, run_program

pytestmark = pytest.mark.slow

LINKS = [
    "tcp",
    pytest.param("shm", marks=pytest.mark.wide),
    pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.long),
]

# What the devices of a driver that is our own say that they do not have.
LACKING_BY_THE_DRIVER = "MEMORY_POOLS_SUPPORTED|POSIX_FILE_DESCRIPTOR_SUPPORTED|shares|conditions_can_be_set"


def assert_all_ok(done: subprocess.CompletedProcess[str], subject: str, lacking: str = "") -> None:
    """lacking: the devices may be without what some cases need; a regular expression of it."""
    names = [case.name for case in cases() if case.program == subject]
    passed = [re.sub(f" not here: .*(?:{lacking}).*", " ok", line) if lacking else line for line in done.stdout.splitlines()]
    assert (done.returncode, passed) == (0, [f"{name} ok" for name in names]), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("subject", subjects())
@pytest.mark.parametrize("link", LINKS)
def test_conforms(pool: Server, programs: dict[str, Path], subject: str, link: str) -> None:
    assert_all_ok(run_program(pool, [programs[subject], "--unchecked"], "--gpus", "2", "--link", link), subject)


@pytest.mark.wide
@pytest.mark.parametrize("subject", subjects())
def test_by_the_driver(request: pytest.FixtureRequest, programs: dict[str, Path], subject: str) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    server = request.getfixturevalue("chained_sharing" if subject == "ipc" else "chained")
    assert_all_ok(run_program(server, [programs[subject], "--unchecked"], "--gpus", "2"), subject, LACKING_BY_THE_DRIVER)


@pytest.mark.parametrize("subject", subjects())
def test_the_sources_say_what_the_programs_do(programs: dict[str, Path], subject: str) -> None:
    """What docs/COVERAGE.md tells is read from the sources by a regular expression: it must find every case."""
    from gpuvirt import paths

    env = {"LD_LIBRARY_PATH": str(paths.library("libcuda.so.1").parent)}
    listed = subprocess.run([programs[subject], "--list"], capture_output=True, text=True, env=env, check=True).stdout
    assert listed.splitlines() == [f"{case.name}\t{' '.join(case.functions)}" for case in cases() if case.program == subject]


def test_every_function_refuses_something() -> None:
    """Each function that is observed is also called with something wrong, which it must not answer by CUDA_SUCCESS."""
    looks_at_nothing = {"cuTexObjectDestroy", "cuSurfObjectDestroy"}  # a driver answers CUDA_SUCCESS for any number
    assert {function for case in cases() for function in case.functions} - refused() == looks_at_nothing
