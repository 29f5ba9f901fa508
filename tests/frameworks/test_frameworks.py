"""When a framework's program has passed, and that each has one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.frameworks.__main__ import verdict
from tests.frameworks.frameworks import FRAMEWORKS
from tests.outside import results
from tests.outside.judging import End

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("end", "launches", "found"),
    [
        (End(0, "losses\nright\n", ""), 3, results.PASSED),
        (End(0, "losses\nright\n", ""), 0, results.WRONG),  # on the CPU
        (End(0, "right\nnot quite\n", ""), 3, results.WRONG),
        (End(0, "", ""), 3, results.WRONG),
        (End(1, "", "AssertionError: 1 != 2\n"), 3, results.WRONG),
        (End(1, "", "gpuvirt: cuFoo is not supported: it returned CUDA_ERROR_NOT_SUPPORTED\nRuntimeError\n"), 0, results.UNSUPPORTED),
        (End(-11, "", ""), 3, results.CRASHED),
        (End(None, "right\n", ""), 3, results.LATE),
    ],
)
def test_verdicts(end: End, launches: int, found: str) -> None:
    assert verdict(end, launches)[0] == found


def test_each_has_a_program_that_knows_nothing_of_gpuvirt() -> None:
    assert {framework.program for framework in FRAMEWORKS.values()} == {path.name for path in PROGRAMS.glob("*.py")}
    for path in PROGRAMS.glob("*.py"):
        text = path.read_text()
        ast.parse(text)
        assert "gpuvirt" not in text and text.endswith('print("right")\n'), path
