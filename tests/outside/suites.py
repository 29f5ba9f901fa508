"""Test suites of Python packages (CuPy's, Numba's), run by pytest against the installed package: a seeded sample, file by file."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from . import results
from .judging import UNSUPPORTED, End, last_line
from .results import Results, Row
from .running import Place

PLUGIN = Path(__file__).with_name("plugin")
OUTCOMES = {"passed": results.PASSED, "skipped": results.SKIPPED, "failed": results.WRONG}
LISTING_LIMIT_S = 3600.0
# CuPy looks for cuFFT's headers among the runtime's, where wheels do not have them, and for libcudadevrt in a toolkit.
NOT_INSTALLED = re.compile(r"cannot open source file|CUDA is not found")
REFUSED = re.compile(r"NOT_SUPPORTED|NotSupported")


@dataclass(frozen=True)
class Suite:
    """`folder`: where pytest runs; it must not hold the package's own source, which would be imported in place of the installed one.
    `tests`: what it is to look for tests in, with `options` as for a single file."""

    name: str
    folder: Path
    tests: tuple[str, ...]
    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    base: Path | None = None  # where the files are that tests are named by; None: the folder


class SuiteError(Exception):
    """The checkout is not what the verb expects, or pytest cannot list its tests."""


def cupy(checkout: Path) -> Suite:
    folder = checkout / "tests"
    if not (folder / "cupy_tests").is_dir():
        raise SuiteError(f"{folder} has no cupy_tests; name a checkout of CuPy's repository, at the tag of the installed version")
    options = ("-c", str(checkout / "pyproject.toml"), "--rootdir", str(folder), "-m", "not slow and not multi_gpu")
    return Suite("cupy", folder, ("cupy_tests", "cupyx_tests"), options, (("CUPY_TEST_GPU_LIMIT", "1"),))


def numba(checkout: Path) -> Suite:
    """Numba's tests are in its wheel; what runs them, and what they are linked with, is in the checkout."""
    folder = checkout / "testing"
    found = importlib.util.find_spec("numba_cuda")
    if not (folder / "pytest.ini").is_file() or not found or not found.origin:
        raise SuiteError(f"{folder} does not run numba-cuda's tests, or it is not installed; name a checkout of the installed version's tag")
    tests = Path(found.origin).parent / "numba" / "cuda" / "tests"
    options = ("-p", "conftest", "-c", "/dev/null", "--rootdir", str(tests), "-o", "consider_namespace_packages=true")
    return Suite("numba", folder, (str(tests),), options, base=tests)


def pytest_line(arguments: Sequence[str]) -> list[str]:
    plugins = ["-p", "gpuvirt_outside", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout"]
    return [sys.executable, "-P", "-m", "pytest", "-q", *plugins, *arguments]


def environment(suite: Suite, **more: str) -> dict[str, str]:
    own = [str(suite.folder)] if suite.base else []  # for its conftest
    path = [str(PLUGIN), *own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", **dict(suite.environment), **more}


def names(suite: Suite, place: Place) -> tuple[list[str], list[Row]]:
    """All tests of the suite, which are listed once and kept in the work folder, and a row of each file that cannot be read."""
    listed = place.work / f"{suite.name}-tests.txt"
    broken = Path(f"{listed}.broken")
    if not listed.exists():
        made = listed.with_suffix(".new")
        for old in (made, Path(f"{made}.broken")):
            old.unlink(missing_ok=True)
        line = pytest_line([*suite.tests, *suite.options, "--collect-only", "-q", "-q", "--continue-on-collection-errors"])
        end = replace(place, timeout=LISTING_LIMIT_S).run(line, suite.folder, environment(suite, OUTSIDE_LIST=str(made)))
        if not made.exists():
            raise SuiteError(f"pytest did not list the tests of {suite.folder} (exit {end.code}):\n{end.text[-3000:]}")
        if Path(f"{made}.broken").exists():
            Path(f"{made}.broken").replace(broken)
        made.replace(listed)
    rows = [Row(name, results.LEFT_OUT, cause) for name, cause in map(json.loads, broken.read_text().splitlines())] if broken.exists() else []
    return sorted(set(listed.read_text().splitlines())), rows


def sample(tests: Sequence[str], size: int, seed: int) -> list[str]:
    """A part of the tests; a smaller sample with the same seed is the beginning of a larger one."""
    order = sorted(tests)
    random.Random(seed).shuffle(order)
    return order[:size]


def by_file(tests: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(test.partition("::")[0], []).append(test)
    return found


def select(tests: Sequence[str], only: Sequence[str]) -> list[str]:
    return [test for test in tests if not only or any(fnmatch(test, f"*{pattern}*") for pattern in only)]


def run_file(suite: Suite, place: Place, file: str, tests: Sequence[str], kept: Results) -> None:
    """Runs the tests of one file. One that takes its process with it, or stands still, is noted, and the others go on in another process."""
    left = list(tests)
    key = re.sub(r"\W+", "_", file)
    wanted, report = place.work / f"{suite.name}-{key}.run", place.work / f"{suite.name}-{key}.report"
    while left:
        wanted.write_text("".join(f"{test}\n" for test in left))
        report.write_text("")
        variables = environment(suite, OUTSIDE_RUN=str(wanted), OUTSIDE_REPORT=str(report))
        line = pytest_line([str((suite.base or suite.folder) / file), *suite.options])
        end = place.run(line, suite.folder, variables, lambda: _last_change(report))
        rows = list(_read(report, end))
        done = {row.program for row in rows}
        if not rows:  # not even the first one began
            verdict = results.LATE if end.code is None else results.CRASHED
            rows = [Row(test, verdict, f"its file did not begin: {last_line(end)}") for test in left]
            done = set(left)
        for row in rows:
            kept.add(row)
        left = [test for test in left if test not in done]
    wanted.unlink()
    report.unlink()


def _last_change(report: Path) -> float:
    """On the monotonic clock."""
    return time.monotonic() - (time.time() - report.stat().st_mtime)


def _read(report: Path, end: End) -> Iterator[Row]:
    """The tests that ended, and the one that was running when the process ended."""
    running, since = "", 0.0
    for line in report.read_text().splitlines():
        kind, name, *rest = json.loads(line)
        if kind == "start":
            running = name
            continue
        outcome, cause = rest
        verdict = OUTCOMES[outcome]
        if verdict == results.WRONG and (REFUSED.search(cause) or ("gpuvirt: " in cause and UNSUPPORTED.search(cause.partition("gpuvirt: ")[2]))):
            verdict = results.UNSUPPORTED
        elif verdict == results.WRONG and NOT_INSTALLED.search(cause):
            verdict = results.LEFT_OUT
        yield Row(name, verdict, cause, since)
        running = "" if running == name else running
    if running:
        yield Row(running, results.LATE if end.code is None else results.CRASHED, last_line(end))
