"""A pytest plugin for others' test suites: lists the tests, or runs those of a list and writes how each ended as soon as it has.

OUTSIDE_LIST: a file to which the collected tests' names are written. OUTSIDE_RUN: a file with the names to run, one a line, and
OUTSIDE_REPORT: the file of JSON lines, ["start", name] and ["end", name, outcome, cause]. It knows nothing of gpuvirt.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

GPUVIRT = re.compile(r"^gpuvirt: .*$", re.M)
BROKEN: list[str] = []


def report(*what: str) -> None:
    with open(os.environ["OUTSIDE_REPORT"], "a") as out:
        out.write(json.dumps(what) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if path := os.environ.get("OUTSIDE_LIST"):
        with open(path, "a") as out:
            out.writelines(f"{item.nodeid}\n" for item in items if "\n" not in item.nodeid)
        return
    wanted = set(Path(os.environ["OUTSIDE_RUN"]).read_text().splitlines())
    left = [item for item in items if item.nodeid not in wanted]
    items[:] = [item for item in items if item.nodeid in wanted]
    config.hook.pytest_deselected(items=left)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed and (path := os.environ.get("OUTSIDE_LIST")):
        with open(f"{path}.broken", "a") as out:
            out.write(json.dumps([report.nodeid, last_line(str(report.longrepr))]) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    report("start", nodeid)


_failed: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid
    if report.failed and name not in _failed:
        said = GPUVIRT.findall(report.capstderr)
        _failed[name] = " | ".join(filter(None, [last_line(report.longreprtext), *said[:1]]))
    elif report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _failed.setdefault(name, "")
        write_end(name, "skipped", reason.removeprefix("Skipped: "))
    if report.when == "teardown":
        cause = _failed.pop(name, None)
        if cause is None:
            write_end(name, "passed", "")
        elif cause:
            write_end(name, "failed", cause)


def write_end(name: str, outcome: str, cause: str) -> None:
    report("end", name, outcome, cause)


def last_line(text: str) -> str:
    """The line of a traceback that says what was wrong: of chained exceptions the last one that is named, else the last line that pytest marks."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ") and line[1:].strip()]
    plain = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in marked if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)]
    return (named or marked or plain or ["?"])[-1][:240]
