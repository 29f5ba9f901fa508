"""CPU seconds of the whole process tree and wall seconds of each test, and tables of them.

    pytest --cpu-times=build/times.json ...
    python -m tests.cpu_times build/times.json [--most 30]      # by area and tier, and the dearest tests
    python -m tests.cpu_times --longest build/*.json > tests/longest_files.txt

On a shared machine wall time says what others do; CPU time is that of the tests. Servers and workers count for the test during which they calculate.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TICK = os.sysconf("SC_CLK_TCK")
LONG_S = 30.0
TIERS = ("test", "slow", "wide", "long")


def _children(pid: int) -> Iterator[int]:
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        return  # it has ended


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process, of its living descendants, and of all that these have waited for."""
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / TICK
        todo += _children(one)
    return total


class Recorder:
    """A pytest plugin that writes {test: [CPU seconds, wall seconds, tier, when it began by the monotonic clock]} at the end of the run.

    Of xdist's processes each hands its part over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, tuple[float, float, str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        cpu, wall = tree_seconds(os.getpid()), time.monotonic()
        result = yield
        tier = next((name for name in reversed(TIERS) if item.get_closest_marker(name)), "test")
        self.rows[item.nodeid] = (tree_seconds(os.getpid()) - cpu, time.monotonic() - wall, tier, wall)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.rows |= getattr(node, "workeroutput", {}).get("cpu_times", {})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        handed_over: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if handed_over is not None:
            handed_over["cpu_times"] = self.rows
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows, indent=0))


def area(test: str) -> str:
    """tests/native/soft/test_x.py::test_y -> native/soft; tests/soft/test_x.py::test_y -> soft."""
    return "/".join(test.split("::")[0].split("/")[1:-1]) or "."


def table(rows: dict[str, list[Any]], key: Any) -> str:
    """Lines of tests, CPU seconds and wall seconds, the dearest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for test, (cpu, wall, *rest) in rows.items():
        for name in (key(test, rest), "all"):
            sums[name] = [sums[name][0] + 1, sums[name][1] + cpu, sums[name][2] + wall]
    order = sorted(sums.items(), key=lambda pair: -pair[1][1])
    return "\n".join(f"{count:6.0f} tests  {cpu:8.1f} s CPU  {wall:8.1f} s wall  {name}" for name, (count, cpu, wall) in order)


def longest(runs: list[dict[str, list[Any]]]) -> list[str]:
    """Files that take more than half a minute in one of the runs, the longest first."""
    wall: dict[str, float] = {}
    for run in runs:
        mine: dict[str, float] = defaultdict(float)
        for test, (_, seconds, *_) in run.items():
            mine[test.partition("::")[0]] += seconds
        wall |= {file: max(seconds, wall.get(file, 0.0)) for file, seconds in mine.items()}
    return sorted((file for file, seconds in wall.items() if seconds > LONG_S), key=lambda file: -wall[file])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--longest", action="store_true", help="only print the files that take longest, for the order of the next runs")
    parser.add_argument("--most", type=int, default=30, help="how many single tests and modules")
    args = parser.parse_args()
    runs = [json.loads(file.read_text()) for file in args.file]
    if args.longest:
        print("\n".join(longest(runs)))
        return
    rows = {test: row for run in runs for test, row in run.items()}
    print(table(rows, lambda test, rest: area(test)), "\n")
    print(table(rows, lambda test, rest: rest[0] if rest else "test"), "\n")
    print("\n".join(table(rows, lambda test, rest: test.split("::")[0]).splitlines()[: args.most + 1]), "\n")
    dearest = sorted(rows.items(), key=lambda row: -row[1][0])[: args.most]
    print("\n".join(f"{cpu:8.1f} s CPU  {wall:8.1f} s wall  {test}" for test, (cpu, wall, *_) in dearest))


if __name__ == "__main__":
    main()
