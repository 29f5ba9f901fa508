"""The runner over a checkout of tiny programs, and over a tiny suite of tests: each verdict occurs, and a run can go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import c_build
import pytest
from outside import results, samples, suites
from outside.results import Results
from outside.running import place
from outside.toolkit import Toolkit

PROGRAMS = {
    "passes": "cuInit(0); int n; return cuDeviceGetCount(&n) || n != 2;",
    "is_wrong": 'cuInit(0); std::printf("expected 3, got 4\\n"); return 1;',
    "is_refused": "cuInit(0); char luid[8]; unsigned mask; return cuDeviceGetLuid(luid, &mask, 0) != CUDA_SUCCESS;",
    "crashes": "cuInit(0); raise(SIGSEGV);",
    "hangs": "cuInit(0); for (;;) pause();",
    "does_not_compile": "return not_declared;",
}
TEXT = "#include <cuda.h>\n#include <csignal>\n#include <cstdio>\n#include <unistd.h>\nint main() {{ {} }}\n"
TESTS = """
import os, time, pytest
def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.skip(reason="no reason")
def test_is_skipped(): pass
def test_is_refused(): raise RuntimeError("cudaErrorNotSupported: operation not supported")
def test_lacks_a_header(): raise RuntimeError('k.cu(1): catastrophic error: cannot open source file "cufftXt.h"')
def test_lacks_a_toolkit(): raise RuntimeError("CUDA is not found.")
def test_dies(): os.abort()
def test_stands_still(): time.sleep(1000)
@pytest.mark.xfail
def test_is_expected_to_fail(): assert False
def test_breaks_down(broken): pass
@pytest.fixture
def broken(): yield; raise ValueError("in teardown")
def test_comes_last(): pass
"""


def run(checkout: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tests.outside", "rival", str(checkout), "--work", str(tmp_path / "work"), "--resume", str(tmp_path / "kept.jsonl")]
    return subprocess.run([*line, *options], cwd=c_build.ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.wide
def test_a_checkout_of_programs(tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "test"
    folder.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (folder / f"{name}.cu").write_text(TEXT.format(text))
    (folder / "part_of_one.cu").write_text("int nothing;\n")
    done = run(folder.parent, tmp_path, "--timeout", "90", "--json", str(tmp_path / "all.json"))
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    rows = {row["program"]: (row["verdict"], row["cause"]) for row in found["rows"]}
    assert {name: verdict for name, (verdict, _) in rows.items()} == {
        "passes": results.PASSED,
        "is_wrong": results.WRONG,
        "is_refused": results.UNSUPPORTED,
        "crashes": results.CRASHED,
        "hangs": results.LATE,
        "does_not_compile": results.UNBUILT,
    }
    assert rows["is_wrong"][1] == "expected 3, got 4" and "cuDeviceGetLuid is not supported" in rows["is_refused"][1]
    assert "SIGSEGV" in rows["crashes"][1]
    assert "not_declared" in rows["does_not_compile"][1] and found["ratio"] == 1 / 6

    again = run(folder.parent, tmp_path, "--only", "passes", "--only", "hangs")
    assert again.returncode == 1 and "passes  " not in again.stdout.split("rival:")[0], "nothing was left to be run"
    (tmp_path / "kept.jsonl").unlink()
    right = run(folder.parent, tmp_path, "--only", "pass*")
    assert right.returncode == 0 and "100.0 %" in right.stdout, right.stdout + right.stderr


def test_a_sample_that_lacks_a_library_keeps_no_other_from_being_built(tmp_path: Path) -> None:
    rules = {"lacks": "make -lmissing", "good": "make", "bad": "fail", "fine": "make"}
    text = "rule make\n  command = touch $out\nrule fail\n  command = false\n"
    text += "".join(f"build {name}/{name}.out: {rule}\nbuild {name}: phony {name}/{name}.out\n" for name, rule in rules.items())
    (tmp_path / "build.ninja").write_text(text)
    toolkit = Toolkit(tmp_path)
    known = samples.Samples(tmp_path, tmp_path, None, toolkit, frozenset(rules), {})
    known.build_all([samples.Sample(name, Path(name)) for name in rules], 2, 60.0)
    assert sorted(path.parent.name for path in tmp_path.glob("*/*.out")) == ["fine", "good"]


@pytest.mark.slow
def test_a_suite_of_tests(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_unreadable.py").write_text("import there_is_no_such_module\n")
    suite = suites.Suite("numba", folder, (".",), ("--rootdir", str(folder), "-c", "/dev/null"))
    kept = Results("numba", tmp_path / "kept.jsonl")
    with place(tmp_path / "work", "auto", 1, 75) as where:
        tests, unread = suites.names(suite, where)
        assert [row.program for row in unread] == ["test_unreadable.py"] and "there_is_no_such_module" in unread[0].cause
        assert len(tests) == 11
        chosen = [test for test in tests if "comes_last" not in test]
        suites.run_file(suite, where, "test_it.py", chosen, kept)
    verdicts = {name.partition("::test_")[2]: row.verdict for name, row in kept.rows.items()}
    assert verdicts == {
        "passes": results.PASSED,
        "fails": results.WRONG,
        "is_skipped": results.SKIPPED,
        "is_refused": results.UNSUPPORTED,
        "lacks_a_header": results.LEFT_OUT,
        "lacks_a_toolkit": results.LEFT_OUT,
        "dies": results.CRASHED,
        "stands_still": results.LATE,
        "is_expected_to_fail": results.PASSED,
        "breaks_down": results.WRONG,
    }
    assert "assert 1 == 2" in kept.rows["test_it.py::test_fails"].cause and kept.rows["test_it.py::test_is_skipped"].cause == "no reason"
    assert Results("numba", tmp_path / "kept.jsonl").rows == kept.rows
