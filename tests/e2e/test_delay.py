"""Programs over delayed links: the same results, and no answer earlier than the delay."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, kill_client, kill_worker, run_line, run_program

from gpuvirt.demo import programs
from gpuvirt.demo.programs import Program

pytestmark = pytest.mark.slow

RTT = 0.02
FAR = ("delay(rtt=20ms,tcp)", "delay(rtt=20ms,shm)")
PROGRAMS = ("vector_add", "copies", "threads", "host_functions", "limits")


@pytest.mark.parametrize(
    "link", [*FAR, *(pytest.param(link, marks=pytest.mark.wide) for link in ("delay(rtt=5ms,rate=500mbit,auto)", "delay(rate=1gbit,tcp)"))]
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(pool: Server, build: Callable[..., Path], program: str, link: str) -> None:
    assert_right(run_program(pool, [build(program)], "--link", link, "--gpus", "2"))


@pytest.mark.parametrize("link", FAR)
@pytest.mark.parametrize("mode", ["before", "after", "exec"])
def test_fork(pool: Server, build: Callable[..., Path], mode: str, link: str) -> None:
    assert_right(run_program(pool, [build("forks"), mode], "--link", link))


def answers(pool: Server, build: Callable[..., Path], link: str, count: int, stats: Path) -> tuple[float, int]:
    """Runs `count` reads; the seconds they took and all waits of the program."""
    done = run_program(pool, [build("answers"), str(count)], "--link", link, f"--stats={stats}")
    assert_right(done)
    seconds = re.search(r"seconds ([0-9.]+)", done.stderr)
    assert seconds
    return float(seconds[1]), int(json.loads(stats.read_text())["waits"])


def check_answers(pool: Server, build: Callable[..., Path], link: str, stats: Path) -> None:
    answers(pool, build, link, 1, stats)  # both sides know the program's module from here on
    for _ in range(10):  # on a busy machine a program's start may take a wait more
        few, waits_for_few = answers(pool, build, link, 5, stats)
        many, waits_for_many = answers(pool, build, link, 25, stats)
        assert few >= 5 * RTT and many >= 25 * RTT
        if waits_for_many - waits_for_few == 20:
            return
    raise AssertionError(f"{waits_for_few} waits for 5 answers, {waits_for_many} for 25")


@pytest.mark.parametrize("link", FAR)
def test_no_answer_is_early(pool: Server, build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    check_answers(pool, build, link, tmp_path / "stats.json")


@pytest.mark.parametrize("link", ["delay(rtt=1ms,tcp)", "shm"])
def test_an_early_answer_would_be_noticed(pool: Server, build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """The deliberate fault: links that are not as far. On a busy machine answers may be late all the same, so it has several tries."""
    with pytest.raises(AssertionError):
        for _ in range(20):
            check_answers(pool, build, link, tmp_path / "stats.json")


@pytest.mark.parametrize("link", FAR)
def test_stats_count_the_same(pool: Server, build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """What a program does, and the transport it does it over, are the same from afar."""
    figures = []
    for name in (link, re.sub(r".*,(\w+)\)", r"\1", link)):
        assert_right(run_program(pool, [build("vector_add")], "--link", name, f"--stats={tmp_path / 'stats.json'}"))
        figures.append(json.loads((tmp_path / "stats.json").read_text()))
    for key in ("calls", "launches", "transport", "server"):
        assert figures[0][key] == figures[1][key]
    assert figures[0]["wait_s"] >= RTT


def test_two_programs_at_once(pool: Server, build: Callable[..., Path]) -> None:
    lines = [[*run_line(pool, "--link", link), str(build("threads"))] for link in FAR]
    programs = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()) for line in lines]
    for program in programs:
        out, err = program.communicate(timeout=120)
        assert (program.returncode, out) == (0, "right\n"), out + err


@pytest.mark.parametrize("link", FAR)
@pytest.mark.parametrize("mode", ["wait", *(pytest.param(mode, marks=pytest.mark.wide) for mode in ("flood", "copy", "sleep"))])
def test_client_killed(own_pool: Callable[..., Server], build: Callable[..., Path], mode: str, link: str) -> None:
    kill_client(own_pool(), build("busy"), mode, link)


@pytest.mark.parametrize("link", FAR)
@pytest.mark.parametrize("mode", ["flood", *(pytest.param(mode, marks=pytest.mark.wide) for mode in ("wait", "copy"))])
def test_worker_killed(own_pool: Callable[..., Server], build: Callable[..., Path], mode: str, link: str) -> None:
    server = own_pool()
    err = kill_worker(server, build("busy"), mode, link)
    assert server.url in err, err


EXAMPLES = [p for p in programs.PROGRAMS if p.name in ("cuda/tour.cu", "cupy/streams.py", "cupy/sorting.py")]


@pytest.mark.wide
@pytest.mark.parametrize("link", FAR)
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.name)
def test_example(pool: Server, program: Program, tmp_path: Path, link: str) -> None:
    assert len(EXAMPLES) == 3
    examples = programs.find_examples(None)
    if program.name.endswith(".cu"):
        programs.build_cuda(examples / program.name, tmp_path / Path(program.name).stem)
    out = tmp_path / programs.output_name(program)
    line = programs.command(program, examples, tmp_path, 11, out)
    done = run_program(pool, list(line), "--gpus", "2", "--link", link, timeout=240)
    assert done.returncode == 0, done.stderr
    assert programs.check(program, 11, out) == []
