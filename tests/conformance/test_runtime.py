"""Programs of the runtime API as its documentation says, which run on any driver, and what hurt other systems of this kind: see runtime/runtime.h."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.building import RUNTIME, cases, runtime_cases, runtime_program
from e2e.cutter import Cutter
from e2e.harness import Server, run_program

pytestmark = pytest.mark.slow

SUBJECTS = sorted(path.stem for path in RUNTIME.glob("*.cu"))
LINKS = [
    "tcp",
    pytest.param("shm", marks=pytest.mark.wide),
    pytest.param("delay(rtt=5ms,tcp)", marks=pytest.mark.long),
]

# What hurt the peers of this project, each with the cases that it is kept out by, and, where it was a matter of waits, how many the case may have:
# a few are the beginning's. Cases of the driver API are those of test_conformance.py.
LESSONS: dict[str, dict[str, int | None]] = {
    "private export tables: unknown ones do not hang": {"lookup/export_table": None},
    "functions are looked up by version": {"lookup/proc_address": None},
    "sizes of parameters come with the module": {"runtime/launches/parameters": 5, "runtime/launches/many_kernels": 5},
    "registrations do not wait": {"runtime/launches/many_kernels": 5, "runtime/launches/symbols": 9},
    "one address of pinned, mapped and managed memory, whatever structure holds it": {
        "runtime/memory/nested_pointers": None,
        "runtime/memory/nested_pointers_on_the_device": None,
        "runtime/memory/pinned_source_written_before": None,
        "runtime/memory/managed": None,
        "managed/shared_with_kernels": None,
    },
    "what a copy brings is there when its event has completed": {
        "runtime/streams/copies_are_visible_at_events": None,
        "runtime/streams/copies_are_visible_through_other_streams": None,
    },
    "errors are told at once where they can be, else by the next call that waits": {
        "runtime/errors/last_error": None,
        "runtime/errors/wild_write": None,
        "runtime/launches/wrong_shapes": 5,
    },
    "host functions see the copies before them": {"runtime/streams/host_functions": None, "runtime/streams/callbacks": None},
    "questions of captures go nowhere": {"runtime/graphs/questions_of_captures": 4},
    "what kernels print costs no synchronisation anything": {"runtime/launches/prints_in_order": 25},
    "structures as parameters, cooperative grids, attributes of functions": {
        "runtime/launches/large_parameters": 6,
        "runtime/launches/cooperative_grid": None,
        "runtime/launches/much_shared_memory": None,
    },
    "ordinals that are none, calls before the start, null pointers": {
        "runtime/errors/before_anything": None,
        "runtime/errors/null_pointers": None,
        "devices/count_and_get": None,
    },
}


@pytest.fixture(scope="session")
def built() -> dict[str, Path]:
    with ThreadPoolExecutor(2) as compilers:
        return dict(zip(SUBJECTS, compilers.map(runtime_program, SUBJECTS), strict=True))


def assert_all_ok(done: subprocess.CompletedProcess[str], subject: str) -> None:
    lines = [f"{name} ok" for name in runtime_cases(subject)]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("link", LINKS)
def test_conforms(pool: Server, built: dict[str, Path], subject: str, link: str) -> None:
    assert_all_ok(run_program(pool, [built[subject]], "--link", link), subject)


# Of pinned memory, where the driver chooses addresses, kernels reach only what is mapped when it is allocated.
NOT_BY_THE_DRIVER = {"nested_pointers", "nested_pointers_on_the_device"}


@pytest.mark.wide
@pytest.mark.parametrize("subject", SUBJECTS)
def test_by_the_driver(chained: Server, built: dict[str, Path], subject: str) -> None:
    """The cuda backend, with our own shim in the place of the driver."""
    names = [name for name in runtime_cases(subject) if name not in NOT_BY_THE_DRIVER]
    done = run_program(chained, [built[subject], *names])
    lines = [line.replace(" not here: attribute(cudaDevAttrMemoryPoolsSupported)", " ok") for line in done.stdout.splitlines()]
    assert (done.returncode, lines) == (0, [f"{name} ok" for name in names]), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def cutter(pool: Server) -> Iterator[Cutter]:
    made = Cutter(int(pool.info["port"]))
    yield made
    made.close()


@pytest.mark.wide
@pytest.mark.parametrize("subject", ["memory", "streams", "graphs"])
def test_a_lost_connection_loses_nothing(pool: Server, built: dict[str, Path], cutter: Cutter, subject: str) -> None:
    """Eight cuts each way, at bytes drawn over what an uncut run carries."""
    env = {"GPUVIRT_TOKEN": pool.token()}
    assert_all_ok(run_program(cutter.url, [built[subject]], "--link", "tcp", **env), subject)
    generator, carried = random.Random(subject), list(cutter.carried)
    assert not cutter.cuts
    cutter.carried = [0, 0]
    for direction in (0, 1):
        cutter.plan[direction][:] = sorted(generator.randrange(carried[direction]) for _ in range(8))
    assert_all_ok(run_program(cutter.url, [built[subject]], "--link", "tcp", **env), subject)
    assert len(cutter.cuts) >= 8


def test_every_lesson_has_cases() -> None:
    known = {f"{case.program}/{case.name}" for case in cases()}
    known |= {f"runtime/{subject}/{name}" for subject in SUBJECTS for name in runtime_cases(subject)}
    assert {case for kept in LESSONS.values() for case in kept} - known == set()


WAITS = sorted({(case, most) for kept in LESSONS.values() for case, most in kept.items() if most is not None})


@pytest.mark.parametrize("case", [case for case, _ in WAITS])
def test_waits(pool: Server, built: dict[str, Path], tmp_path: Path, case: str) -> None:
    _, subject, name = case.split("/")
    stats = tmp_path / "stats"
    done = run_program(pool, [built[subject], name], "--link", "tcp", f"--stats={stats}")
    assert (done.returncode, done.stdout) == (0, f"{name} ok\n"), done.stderr
    assert json.loads(stats.read_text())["waits"] <= dict(WAITS)[case]
