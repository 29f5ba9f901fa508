"""Programs by chance give what a sequential model says: over each link, on software GPUs and by the cuda backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import c_build
import pytest
from random_programs import batches, runner, shrink
from random_programs.batches import Found
from random_programs.runner import Target
from random_programs.seeded_bugs import BUGS, SEEDED, Bug

pytestmark = pytest.mark.slow

Targets = Callable[..., Target]


def agree(target: Target, first: int, steps: int) -> int:
    done = 0
    for progress, _, found in batches.run_seeds(target, first, steps):
        assert found is None, batches.told(target, found)
        done = progress
    print(f"{done} steps from seed {first} over {target.link}")
    return done


WIDE, LONG = pytest.mark.wide, pytest.mark.long


@pytest.mark.parametrize(
    ("server", "link", "first", "steps"),
    [
        ("pool", "shm", 1_000, 5_000),
        ("chained", "tcp", 2_000, 5_000),
        pytest.param("pool", "shm", 10_000, 30_000, marks=WIDE),
        pytest.param("pool", "tcp", 20_000, 30_000, marks=WIDE),
        pytest.param("pool", "delay(rtt=2ms,tcp)", 30_000, 4_000, marks=WIDE),
        pytest.param("chained", "shm", 40_000, 20_000, marks=WIDE),
    ],
)
def test_programs_agree_with_the_model(request: pytest.FixtureRequest, target: Targets, server: str, link: str, first: int, steps: int) -> None:
    assert agree(target(request.getfixturevalue(server), link), first, steps) >= steps


# Seeds of a range have a thousand seeds' room for each 250,000 steps or so; one that is done need not be run again when the run was cut off.
LONG_RANGES = [("pool", "shm", 100_000 + 1_000 * i, 100_000) for i in range(6)]
LONG_RANGES += [("pool", "tcp", 200_000 + 1_000 * i, 100_000) for i in range(2)]
LONG_RANGES += [("chained", "tcp", 300_000 + 1_000 * i, 100_000) for i in range(2)] + [("chained", "shm", 310_000, 50_000)]
LONG_RANGES += [("pool", "delay(rtt=2ms,tcp)", 400_000, 20_000), ("pool", "delay(rtt=1ms,shm)", 410_000, 20_000)]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("server", "link", "first", "steps"), LONG_RANGES)
def test_many_programs_agree_with_the_model(request: pytest.FixtureRequest, target: Targets, server: str, link: str, first: int, steps: int) -> None:
    assert agree(target(request.getfixturevalue(server), link), first, steps) >= steps


def test_the_long_test_is_long() -> None:
    assert sum(steps for *_, steps in LONG_RANGES) >= 1_000_000


def test_what_a_seed_stands_for_stays() -> None:
    """The same seed, the same program: also when it is written down and read again."""
    program = runner.program_of(7, 200, batches.NOT_KEPT)
    text = program.lowered().text
    assert text == runner.program_of(7, 200, batches.NOT_KEPT).lowered().text == shrink.from_json(shrink.to_json(program)).lowered().text
    assert text != runner.program_of(8, 200, batches.NOT_KEPT).lowered().text


KEPT = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("server", ["pool", "chained"])
def test_programs_that_have_failed(request: pytest.FixtureRequest, target: Targets, server: str) -> None:
    programs = [shrink.from_json(path.read_text()) for path in KEPT]
    _, failure = runner.run(target(request.getfixturevalue(server), "shm"), [program.lowered().text for program in programs], repeat=5)
    assert failure is None, failure


# ---- that mistakes are found


def test_the_seeded_bugs_fit_the_library() -> None:
    for source, text, _ in (change for bug in BUGS for change in bug.changes()):
        assert (c_build.NATIVE / "shim" / source).read_text().count(text) == 1, f"{source} has changed: seeded_bugs.py no longer fits"


def found_of(target: Target, bug: Bug) -> Found | None:
    return list(batches.run_seeds(target, 50_000, bug.within))[-1][2]


SHRUNK = ("a_source_is_read_before_it_is_written",)
SELDOM = 100_000  # steps


@pytest.mark.parametrize("name", [pytest.param(b.name, marks=LONG if b.within > SELDOM else WIDE) for b in BUGS])
def test_a_seeded_bug_is_found(request: pytest.FixtureRequest, target: Targets, tmp_path: Path, name: str) -> None:
    bug = SEEDED[name]
    server = request.getfixturevalue("chained" if bug.chained else "pool")
    found = found_of(target(server, bug.link, batches.mistaken(tmp_path, name)), bug)
    assert found is not None and found.failure.seed >= 0, f"not found in {bug.within} steps"
    assert "has other bytes" in found.failure.text, found.failure.text
    print(f"{name}: after {found.steps} steps")
    if name in SHRUNK:
        small = shrink.shrink(found.program, shrink.fails_at(target(server, bug.link, tmp_path), 3), 15)
        assert len(small.ops) < len(found.program.ops) / 4, shrink.explained(small, found.failure)
