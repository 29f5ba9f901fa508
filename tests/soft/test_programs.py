"""Classic CUDA programs, compiled by nvcc, over the shim on the software GPU: each compares with its own reference and says so by its exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, clean_environment, run_program, start_server
from faults import fault
from soft import cuda_programs, program_table
from soft.cuda_programs import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = list(cuda_programs.sources())
HEAVY = [name for name in PROGRAMS if cuda_programs.is_heavy(name)]
LIGHT = [name for name in PROGRAMS if name not in HEAVY]
HALVES = [LIGHT[::2], LIGHT[1::2]]


@pytest.fixture(scope="module")
def executables(kept: Path) -> list[Path]:
    """The light programs in two executables, which are compiled beside each other."""
    return cuda_programs.compile_all([cuda_programs.together(half) for half in HALVES], kept)


def serve(folder: Path, *options: str, **env: str) -> Server:
    cache = os.environ.get("GPUVIRT_CACHE", str(folder))  # tests/soft has one of its own
    return start_server(folder, "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", *options, env=clean_environment(GPUVIRT_CACHE=cache, **env))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve(tmp_path_factory.mktemp("pool"))
    yield server
    server.stop()


def run_halves(server: Server, executables: list[Path], seed: int) -> dict[str, Outcome]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        parts = threads.map(lambda pair: cuda_programs.run_together(server, *pair, seed), zip(executables, HALVES, strict=True))
    return {name: outcome for part in parts for name, outcome in part.items()}


@pytest.fixture(scope="module")
def outcomes(pool: Server, executables: list[Path], seed: int) -> dict[str, Outcome]:
    return run_halves(pool, executables, seed)


@pytest.mark.parametrize("name", LIGHT)
def test_program(outcomes: dict[str, Outcome], seed: int, name: str) -> None:
    got = outcomes[name]
    assert got.code == 0 and f"{name}: right" in got.text, f"seed {seed}: {got}"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, executables: list[Path], seed: int) -> Iterator[dict[str, Outcome]]:
    server = serve(tmp_path_factory.mktemp("broken"), **fault("launches"))
    yield run_halves(server, executables, seed)
    server.stop()


@pytest.mark.parametrize("name", LIGHT)
def test_program_notices_lost_launches(broken: dict[str, Outcome], name: str) -> None:
    """The deliberate fault: a worker that drops every launch. A program that is right all the same checks nothing."""
    assert broken[name].code != 0 and f"{name}: right" not in broken[name].text, broken[name]


def test_the_page_lists_the_programs() -> None:
    listed = program_table.listed(program_table.PAGE.read_text())
    assert listed == sorted(listed) and set(LIGHT) <= set(listed) <= set(PROGRAMS)


def wrong_on_a_server_of_its_own(folder: Path, executables: list[Path], seed: int, **env: str) -> dict[str, Outcome]:
    server = serve(folder, **env)
    try:
        return {name: got for name, got in run_halves(server, executables, seed).items() if got.code != 0}
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_programs_on_older_processors(tmp_path: Path, executables: list[Path], seed: int, isa: str) -> None:
    wrong = wrong_on_a_server_of_its_own(tmp_path, executables, seed, GPUVIRT_SOFT_ISA=isa)
    assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.long
def test_programs_with_lanes_apart(tmp_path: Path, executables: list[Path], seed: int) -> None:
    wrong = wrong_on_a_server_of_its_own(tmp_path, executables, seed, GPUVIRT_SOFT_LANES="always")
    assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("schedule", [pytest.param(s, marks=pytest.mark.long if i else pytest.mark.wide) for i, s in enumerate(("1", "2", "3", "4,cores"))])
def test_programs_under_seeded_schedules(tmp_path: Path, executables: list[Path], seed: int, schedule: str) -> None:
    wrong = wrong_on_a_server_of_its_own(tmp_path, executables, seed, GPUVIRT_SOFT_SCHEDULE=schedule)
    assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_alone(kept: Path, pool: Server, seed: int, name: str) -> None:
    """As a user would have it: compiled by itself, in a process by itself."""
    executable = cuda_programs.compile_text(cuda_programs.sources()[name].read_text(), kept)
    done = run_program(pool, [executable, str(seed)], "--gpus", "2", timeout=300)
    assert done.returncode == 0 and f"{name}: right" in done.stdout, f"seed {seed}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.long
@pytest.mark.parametrize("name", HEAVY)
def test_program_alone_notices_lost_launches(kept: Path, tmp_path: Path, seed: int, name: str) -> None:
    executable = cuda_programs.compile_text(cuda_programs.sources()[name].read_text(), kept)
    server = serve(tmp_path, **fault("launches"))
    try:
        done = run_program(server, [executable, str(seed)], "--gpus", "2", timeout=300)
    finally:
        server.stop()
    assert done.returncode != 0 and f"{name}: right" not in done.stdout, done.stdout
