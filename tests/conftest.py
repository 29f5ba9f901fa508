"""Rules for all tests: every skip must be listed with its reason in tests/expected_skips.txt."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest
from cpu_times import Recorder

EXPECTED = Path(__file__).with_name("expected_skips.txt")
LONGEST = Path(__file__).with_name("longest_files.txt")  # as python -m tests.cpu_times --longest prints them
skipped: list[tuple[str, str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=Path, metavar="FILE", help="write each test's CPU and wall seconds (tests/cpu_times.py)")


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores Ctrl-C in what it puts into the background, and an ignored signal stays so over exec: in programs under test, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ImportError):  # only some tests need it
        from hypothesis import HealthCheck, settings

        # On a machine that is busy with other things any example may take long.
        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")
    if path := config.getoption("--cpu-times"):
        config.pluginmanager.register(Recorder(path))


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is marked `sampled(n)` every n-th case is in `make check`, the first one included; the others are slow."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")  # of what -m has left
def pytest_order_files(items: list[pytest.Item]) -> None:
    """Files that take long come first, then those with many tests: a run that ends with a long one has one core at work at its end."""
    longest = {name: i for i, name in enumerate(LONGEST.read_text().split())}
    files = [item.nodeid.partition("::")[0] for item in items]
    many = Counter(files)
    ranks = {file: (longest.get(file, len(longest)), -many[file], i) for i, file in enumerate(dict.fromkeys(files))}
    items.sort(key=lambda item: ranks[item.nodeid.partition("::")[0]])


def expected_skips() -> list[tuple[str, str]]:
    """Pairs of a test id pattern and a reason pattern; lines "tests/file.py::test* | reason*"."""
    lines = (line.strip() for line in EXPECTED.read_text().splitlines())
    pairs = [line.split("|", 1) for line in lines if line and not line.startswith("#")]
    return [(test.strip(), reason.strip()) for test, reason in pairs]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped.append((report.nodeid, reason.removeprefix("Skipped: ")))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    allowed = expected_skips()
    surprises = [(test, why) for test, why in skipped if not any(fnmatch(test, t) and fnmatch(why, r) for t, r in allowed)]
    if surprises:
        for test, why in surprises:
            print(f"\nunexpected skip: {test}: {why} (list it in {EXPECTED.name} with its reason, or make it run)")
        if exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
