"""Programs in which threads wait for one another, under seeded schedules: in any order that CUDA allows they are right, and the same seed goes the same way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults import fault
from soft import scheduling
from soft.libraries import case, running
from soft.nvrtc import library
from soft.scheduling import convergence, processes
from soft.scheduling.seeded_bugs import BUGS, Bug

pytestmark = [pytest.mark.slow, pytest.mark.skipif(library() is None, reason="the NVRTC wheel is not installed")]
TESTS = Path(__file__).resolve().parents[1]
READ_CLOCKS = {"atomics_that_wait", "barriers_and_semaphores_of_the_library"}  # how long the library's waits sleep depends on the time
CASES = list(scheduling.CASES)


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    paths = [str(TESTS.parent), str(TESTS), *filter(None, [more.pop("PYTHONPATH", "")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
    return subprocess.run([sys.executable, "-m", "soft.scheduling.seeds", *arguments], capture_output=True, text=True, env=env, check=False)


@pytest.mark.wide
def test_some_seeds() -> None:
    names = CASES[::4]
    done = run("--seeds", "5", *names)
    assert done.returncode == 0 and f"{len(names)} cases, 0 wrong" in done.stdout, done.stdout + done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lanes", [pytest.param("", id="together", marks=pytest.mark.wide), pytest.param("always", id="apart", marks=pytest.mark.long)])
def test_every_case(lanes: str) -> None:
    done = run("--seeds", "3", *CASES, GPUVIRT_SOFT_LANES=lanes)
    assert done.returncode == 0 and f"{len(CASES)} cases, 0 wrong" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_on_all_cores() -> None:
    """Several threads run blocks, each with numbers of its own."""
    done = run("--seeds", "2", *CASES, GPUVIRT_SOFT_SCHEDULE="0,cores")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("every", [6, pytest.param(3, marks=pytest.mark.long)])
def test_a_seed_goes_the_same_way_again(every: int) -> None:
    names = [name for name in CASES[::every] if name not in READ_CLOCKS]
    script = (
        "import sys; from soft.scheduling import CASES; from soft.scheduling.seeds import reseed\n"
        "for name in sys.argv[1:]:\n"
        "    CASES[name]()\n"
        "    for seed in (3, 4, 3):\n"
        "        reseed(seed); CASES[name](); print(name, seed, reseed(0))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "GPUVIRT_SOFT_SCHEDULE": "0"}
    told = [
        subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, env=env, timeout=600, check=True).stdout for _ in "ab"
    ]
    assert told[0] == told[1]
    drew = [line.split() for line in told[0].splitlines()]
    for (name, _, first), (_, _, other), (_, _, again) in zip(drew[::3], drew[1::3], drew[2::3], strict=True):
        assert first == again != other, name


def test_what_was_ended_goes_on(tmp_path: Path) -> None:
    state, name = tmp_path / "state.json", "named_barriers"
    assert run("--seeds", "3", "--state", str(state), name).returncode == 0
    found = json.loads(state.read_text())
    assert found[name]["next"] == 3 and not found[name]["running"]
    state.write_text(json.dumps({name: {**found[name], "running": True}}))  # seed 3 ended the process
    done = run("--seeds", "5", "--state", str(state), name)
    assert done.returncode == 1 and "seed 3: hangs, or ended the process" in done.stdout, done.stdout
    assert json.loads(state.read_text())[name]["next"] == 5


def test_wrong_settings() -> None:
    for text in ("-1", "x", "7,", "7,core", "18446744073709551616", " 7"):
        done = run("--seeds", "1", "named_barriers", GPUVIRT_SOFT_SCHEDULE=text)
        assert f"GPUVIRT_SOFT_SCHEDULE={text}: it is a number, or a number and ',cores', or unset" in done.stdout + done.stderr, (text, done)
    assert "there is no case nothing" in run("nothing").stderr


def test_the_seeded_bugs_fit_the_engine() -> None:
    assert all(bug.text() for bug in BUGS) and {bug.case for bug in BUGS} <= set(scheduling.CASES)


@pytest.mark.parametrize("bug", [pytest.param(b, id=b.name, marks=[pytest.mark.wide] if i else []) for i, b in enumerate(BUGS)])
def test_a_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    """And again by the seed that found it."""
    instead = str(bug.write(tmp_path / "instead"))
    done = run("--seeds", str(bug.seeds), bug.case, SOFT_ENGINE_INSTEAD=instead)
    found = re.search(r"^    seed (\d+): (.*)$", done.stdout, re.M)
    assert done.returncode == 1 and found, done.stdout + done.stderr
    again = run("--first", found[1], "--seeds", "1", bug.case, SOFT_ENGINE_INSTEAD=instead)
    assert again.returncode == 1 and f"seed {found[1]}: {found[2]}" in again.stdout, again.stdout


@pytest.mark.wide
def test_lanes_out_of_step_are_found(tmp_path: Path) -> None:
    """What was wrong in sparse Cholesky factorizations once: lanes that have gone apart do not keep in step."""
    done = run("--seeds", "10", *convergence.IN_STEP, GPUVIRT_CACHE=str(tmp_path), **fault("lanes"))
    assert done.returncode == 1, done.stdout
    assert all(re.search(rf"^{name}: 10 seeds, (?!0)\d+ wrong", done.stdout, re.M) for name in convergence.IN_STEP), done.stdout


def solvers(library: str) -> list[str]:
    """Cases whose kernels wait for rows that other blocks compute."""
    waits = {"cusolver": ("csrchol",), "cusparse": ("csrilu02", "csric02", "SpSM")}[library]
    found = [c.id for c in case.cases_of(library) if c.id.split("/")[1] in waits]
    return [one for one in found if "/SpSM/" not in one] + [one for one in found if "/SpSM/" in one][::12]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("schedule", ["1", "2", "3", "4,cores"])
@pytest.mark.parametrize("name", ["cusolver", "cusparse"])
def test_sparse_solvers(name: str, schedule: str, tmp_path: Path) -> None:
    ids = solvers(name)
    records = running.run(name, ids, tmp_path, limit=1800, more={"GPUVIRT_SOFT_SCHEDULE": schedule})
    wrong = [str(record) for record in records if not record.right or record.refused]
    assert len(records) == len(ids) >= 4 and not wrong, "\n".join(wrong)


def test_the_count_of_processes_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """And says what the wrong ones did."""
    state, runs = tmp_path / "count.json", list[int]()

    def once(number: int) -> str:
        runs.append(number)
        return "run 3: wrong" if number == 3 else ""

    assert processes.repeat(once, 7, 2, state).done == 7
    count = processes.repeat(once, 20, 2, state)
    assert (count.done, count.wrong, count.said) == (20, 1, ["run 3: wrong"])
    assert sorted(runs) == [*range(20)]
    line = [sys.executable, "-m", "soft.scheduling.processes", "--times", "4", "--", "sh", "-c", "echo it is wrong; exit 3"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(TESTS)})
    assert done.returncode == 1 and "exit status 3: it is wrong" in done.stdout and "4 runs, 4 wrong" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(14400)
def test_sparse_cholesky_in_a_thousand_processes(tmp_path: Path) -> None:
    """Three at a time. It was wrong now and then on a busy machine once; it goes on where it was ended, as long as build/ is there."""
    state = TESTS.parent / "build" / "sparse_cholesky.json"
    state.parent.mkdir(exist_ok=True)
    id = next(c.id for c in case.cases_of("cusolver") if "/csrchol/double/" in c.id)

    def once(number: int) -> str:
        (record,) = running.run("cusolver", [id], tmp_path / str(number), limit=300)
        return "" if record.right and not record.refused else f"run {number}: {record}"

    count = processes.repeat(once, 1000, 3, state)
    state.unlink(missing_ok=True)
    assert count.done == 1000 and not count.wrong, "\n".join(count.said)


@pytest.mark.long
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("lanes", ["", "always"], ids=["together", "apart"])
def test_a_thousand_seeds(lanes: str) -> None:
    """Goes on where it was ended, as long as build/ is there."""
    state = TESTS.parent / "build" / f"seeds-{lanes or 'together'}.json"
    state.parent.mkdir(exist_ok=True)
    for _ in range(10):  # a seed that hangs ends the process
        done = run("--seeds", "1000", "--state", str(state), GPUVIRT_SOFT_LANES=lanes)
        if f"{len(CASES)} cases, " in done.stdout:
            break
    state.unlink(missing_ok=True)
    assert done.returncode == 0 and f"{len(CASES)} cases, 0 wrong" in done.stdout, done.stdout + done.stderr
