"""What exit codes and words of programs are taken for."""

from __future__ import annotations

import pytest
from outside import results, suites, table
from outside.judging import WAIVED_EXIT, End, judge
from outside.results import Results, ResultsError, Row
from rich.console import Console

REFUSED = "gpuvirt: cuMemFoo is not supported (no reason): it returned CUDA_ERROR_NOT_SUPPORTED\n"


LATER = "gpuvirt: fence (command 8) failed on tcp://h:1 with CUDA error 801: kernels that launch kernels are not supported; its context is lost\n"


@pytest.mark.parametrize(
    ("end", "verdict", "cause"),
    [
        (End(0, "Test PASSED\n", ""), results.PASSED, ""),
        (End(0, "Errors: 0 FAILED: 0\n", ""), results.PASSED, ""),
        (End(0, "Device assert failed as expected\n", ""), results.PASSED, ""),
        (End(0, "done\n", REFUSED), results.PASSED, ""),  # it asked, and did without
        (End(0, "Done!\n", LATER), results.UNSUPPORTED, LATER[9:-1]),  # it looks at no error
        (End(0, "[x] comparing\nResult = FAIL\nbye\n", ""), results.WRONG, "Result = FAIL"),
        (End(0, "sum: Test failed!\n", ""), results.WRONG, "sum: Test failed!"),
        (End(0, "no such GPU, waiving this sample\n", ""), results.WAIVED, "no such GPU, waiving this sample"),
        (End(2, "needs two GPUs\n", ""), results.WAIVED, "needs two GPUs"),
        (End(2, "CUDA error\n", REFUSED), results.UNSUPPORTED, REFUSED[9:-1]),
        (End(1, "CUDA error\n", REFUSED), results.UNSUPPORTED, REFUSED[9:-1]),
        (End(1, "line 3: expected 4, got 5\nbye\n", ""), results.WRONG, "line 3: expected 4, got 5"),
        (End(1, "CUDA error 700\n", "gpuvirt: kernel k: address 0\n"), results.WRONG, "CUDA error 700 | kernel k: address 0"),
        (End(134, "", "a.cu:3: Assertion `x == 1' failed.\n"), results.WRONG, "a.cu:3: Assertion `x == 1' failed."),
        (End(139, "hello\n", ""), results.CRASHED, "SIGSEGV: hello"),
        (End(255, "no luck\n", ""), results.WRONG, "exit 255: no luck"),
        (End(-11, "", ""), results.CRASHED, "SIGSEGV: no output"),
        (End(125, "", "gpuvirt: no server\n"), results.CRASHED, "gpuvirt run: exit 125: gpuvirt: no server"),
        (End(None, "step 1\nstep 2\n", ""), results.LATE, "step 2"),
    ],
)
def test_verdicts(end: End, verdict: str, cause: str) -> None:
    assert judge(end, WAIVED_EXIT) == (verdict, cause)


def test_the_exit_code_of_waived_is_the_samples_only() -> None:
    assert judge(End(2, "bad\n", ""))[0] == results.WRONG


def test_results_are_kept_as_they_come(tmp_path) -> None:
    file = tmp_path / "kept.jsonl"
    first = Results("rival", file)
    for row in (Row("a", results.PASSED, "", 1.5), Row("b", results.WRONG, "why")):
        first.add(row)
    assert Results("rival", file).rows == first.rows
    assert set(Results("rival", file, (results.WRONG,)).rows) == {"a"}, "what is to be run again is not there"
    first.add(Row("b", results.PASSED))
    assert Results("rival", file).rows["b"].verdict == results.PASSED, "the last row of a program is its result"
    with pytest.raises(ResultsError, match="results of rival"):
        Results("samples", file)


def test_a_run_that_was_killed_while_it_wrote_goes_on(tmp_path) -> None:
    file = tmp_path / "kept.jsonl"
    Results("rival", file).add(Row("a", results.PASSED))
    with file.open("a") as out:
        out.write('{"suite": "rival", "prog')
    kept = Results("rival", file)
    kept.add(Row("b", results.PASSED))
    assert set(Results("rival", file).rows) == {"a", "b"}
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(ResultsError, match="line 1"):
        Results("rival", file)


def test_ratios_leave_out_what_did_not_apply() -> None:
    rows = [Row(str(i), verdict) for i, verdict in enumerate(results.VERDICTS)]
    assert results.ratio(rows) == 1 / 6
    assert results.ratio([Row("a", results.WAIVED)]) is None
    console = Console(record=True, width=120)
    table.show("cupy", rows, console)
    text = console.export_text()
    assert "16.7 %" in text and "≥ 99 %" in text and "skipped: 11.1 % of all, at most 15 %" in text


def test_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    tests = [f"test_{i}" for i in range(100)]
    assert suites.sample(tests[::-1], 10, 7) == suites.sample(tests, 50, 7)[:10] != suites.sample(tests, 10, 8)
