"""Independent thread scheduling: a thread that waits for another one of the same warp, block or grid does not stop its progress."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from soft import scheduling
from soft.nvrtc import library
from soft.scheduling import convergence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2600), pytest.mark.skipif(library() is None, reason="the NVRTC wheel is not installed")]
NAMES = [n for n in scheduling.CASES if n not in scheduling.MISSING]
TESTS = Path(__file__).resolve().parents[1]


def run(names: list[str], prefix: tuple[str, ...] = (), **more: str) -> dict[str, str]:
    """The outcome of each case. One that hangs ends its process; the others go on in another."""
    found: dict[str, str] = {}
    fault = [str(TESTS / "fault")] if "FAULT" in more else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*fault, str(TESTS.parent), str(TESTS)]), **more}
    while rest := [n for n in names if n not in found]:
        command = [*prefix, sys.executable, "-m", "soft.scheduling", *rest]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=2400, check=False)
        begun = ""
        for line in done.stdout.splitlines():
            word, name, *more = line.split(" ", 2)
            if word == "begin":
                begun = name
            else:
                found[name] = " ".join([word, *more])
        if begun and begun not in found:
            found[begun] = "hangs"
        elif not begun:
            return {n: done.stderr for n in names}
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_threads_that_wait_for_one_another(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == "right"


@pytest.mark.wide
def test_lanes_that_go_apart_at_once() -> None:
    """The same programs where lanes do not wait long before they go apart."""
    found = run(NAMES, GPUVIRT_SOFT_LANES="always")
    assert set(found.values()) == {"right"}, found


def test_a_value_of_the_setting_that_is_none() -> None:
    found = run(["mutex_of_all_lanes"], GPUVIRT_SOFT_LANES="alway")
    assert "GPUVIRT_SOFT_LANES=alway: it is 'always' or unset" in found["mutex_of_all_lanes"], found


def test_lanes_out_of_step_are_noticed(tmp_path: Path) -> None:
    """An engine in which lanes that have gone apart meet only at exchanges."""
    found = run(list(convergence.IN_STEP), FAULT="lanes", GPUVIRT_CACHE=str(tmp_path), GPUVIRT_SOFT_LANES="always")
    assert all(text.startswith("wrong") for text in found.values()), found


@pytest.mark.long
def test_on_one_core() -> None:
    core = str(min(os.sched_getaffinity(0)))
    found = run(NAMES, ("taskset", "-c", core))
    assert set(found.values()) == {"right"}, found


@pytest.mark.long
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_on_older_processors(isa: str) -> None:
    found = run(NAMES, GPUVIRT_SOFT_ISA=isa)
    assert set(found.values()) == {"right"}, found
