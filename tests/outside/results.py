"""Verdicts on programs, kept in a file as they come so that a run can be stopped and go on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path

PASSED = "passed"
WAIVED = "waived"  # the program said by itself that it does not apply here
SKIPPED = "skipped"  # the same of a test
LEFT_OUT = "left out"  # its own build needs what is not installed, or its checkout says that it is not run
UNSUPPORTED = "unsupported"  # gpuvirt named what it does not support
WRONG = "wrong"
CRASHED = "crashed"
LATE = "timed out"
UNBUILT = "does not compile"
VERDICTS = (PASSED, WAIVED, SKIPPED, LEFT_OUT, UNSUPPORTED, WRONG, CRASHED, LATE, UNBUILT)
NOT_COUNTED = (WAIVED, SKIPPED, LEFT_OUT)


@dataclass(frozen=True)
class Row:
    """One program or test. `seconds` is what it ran, without compiling."""

    program: str
    verdict: str
    cause: str = ""
    seconds: float = 0.0


class ResultsError(Exception):
    """The file is another suite's or damaged; the text names a remedy."""


class Results:
    """The rows of one suite; with a file, those of earlier runs included, the last one of each program."""

    def __init__(self, suite: str, path: Path | None = None, again: Container[str] = ()) -> None:
        self.suite = suite
        self.rows: dict[str, Row] = {}
        self._path = path
        self._lock = threading.Lock()
        if path and path.exists():
            self._read(path, again)

    def _read(self, path: Path, again: Container[str]) -> None:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                suite, row = found.pop("suite"), Row(**found)
            except (ValueError, TypeError, KeyError, AttributeError) as wrong:
                if number == len(lines):  # the run was killed while it wrote
                    path.write_text("".join(f"{whole}\n" for whole in lines[:-1]))
                    break
                raise ResultsError(f"{path}, line {number}: not a result ({wrong}); name another file with --resume") from None
            if suite != self.suite:
                raise ResultsError(f"{path} has results of {suite}, not of {self.suite}; name another file with --resume")
            self.rows[row.program] = row
        self.rows = {name: row for name, row in self.rows.items() if row.verdict not in again}

    def add(self, row: Row) -> None:
        with self._lock:
            self.rows[row.program] = row
            if self._path:
                with self._path.open("a") as out:
                    out.write(json.dumps({"suite": self.suite, **asdict(row)}) + "\n")

    def __contains__(self, program: str) -> bool:
        return program in self.rows


def counts(rows: list[Row]) -> dict[str, int]:
    """How many rows have each verdict, in the order of VERDICTS, those that occur."""
    found = Counter(row.verdict for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def ratio(rows: list[Row]) -> float | None:
    """The passed ones' part of those that count; None where none counts."""
    counted = [row for row in rows if row.verdict not in NOT_COUNTED]
    return sum(row.verdict == PASSED for row in counted) / len(counted) if counted else None
