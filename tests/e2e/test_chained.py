"""The examples, faults and device output through the cuda backend, chained on our own shim: tests the parts together, not a real driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, run_program

from gpuvirt.demo import programs
from gpuvirt.demo.programs import Program

pytestmark = pytest.mark.slow


IN_TEST = ("cuda/tour.cu", "cupy/streams.py")


@pytest.mark.parametrize("program", [pytest.param(p, marks=[] if p.name in IN_TEST else pytest.mark.wide, id=p.name) for p in programs.PROGRAMS])
def test_example(chained: Server, program: Program, tmp_path: Path) -> None:
    examples = programs.find_examples(None)
    if program.name.endswith(".cu"):
        programs.build_cuda(examples / program.name, tmp_path / Path(program.name).stem)
    out = tmp_path / programs.output_name(program)
    line = programs.command(program, examples, tmp_path, 5, out)
    # The launcher sets this for software GPUs; here the server says that it has a real one.
    done = run_program(chained, list(line), "--gpus", "2", timeout=240, CUPY_COMPILE_WITH_PTX="1")
    assert done.returncode == 0, done.stderr
    assert programs.check(program, 5, out) == []


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("null", ["cudaErrorIllegalAddress"]),
        ("after", ["cudaErrorIllegalAddress"] * 3),
        ("trap", ["cudaErrorLaunchFailure"]),
        ("assert", ["cudaErrorAssert"]),
    ],
)
def test_device_faults(chained: Server, build: Callable[..., Path], case: str, expected: list[str]) -> None:
    done = run_program(chained, [build("faults"), case])
    assert done.returncode == 0 and done.stdout.split() == expected, done.stdout + done.stderr


def test_device_printf(chained: Server, build: Callable[..., Path]) -> None:
    done = run_program(chained, [build("prints")])
    lanes = [f"lane {lane}: text 10.50 123456789012345 x     7|" for lane in range(2)]
    assert (done.returncode, done.stdout.splitlines()) == (0, [*lanes, "host"]), done.stderr
