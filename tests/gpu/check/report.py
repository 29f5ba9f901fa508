"""Rows as they come, a table at the end, everything as JSON. Passing and failing is about correctness; a speed is only told."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# What becomes of a row. Only WRONG fails the check; STOPPED: somebody else's program needs a call that this version refuses by name.
OK, WRONG, STOPPED, MISSING, NOT_RUN, TOLD = "ok", "WRONG", "stopped", "not here", "not run", ""
MARKS = {OK: "ok", WRONG: "WRONG", STOPPED: "stopped", MISSING: "not here", NOT_RUN: "not run", TOLD: ""}


@dataclass
class Row:
    """One line of the table.

    Attributes:
        part: which part of the check.
        name: what was run.
        link: native (no link), or the text of a link.
        figures: what was measured, by name; a ratio is remote / native.
    """

    part: str
    name: str
    link: str
    result: str
    detail: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        shown = "  ".join(f"{name} {_short(value)}" for name, value in self.figures.items() if name not in ("values",))
        return f"{self.part:<12} {self.name:<26} {self.link:<22} {MARKS[self.result]:<8} {shown}{'  ' if shown and self.detail else ''}{self.detail}"


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Report:
    """Collects rows, prints each at once, and keeps the JSON file current: a time limit loses nothing.

    Args:
        label: "real GPU" or "chained"; stands in every title.
        budget: seconds for everything.
    """

    def __init__(self, label: str, machine: dict[str, Any], budget: float, file: Path | None) -> None:
        self.label, self.machine, self.file = label, machine, file
        self.rows: list[Row] = []
        self.begin = time.monotonic()
        self.end = self.begin + budget
        self.when = time.strftime("%Y-%m-%d %H:%M:%S %z")
        self._save()

    def left(self) -> float:
        return self.end - time.monotonic()

    def add(self, *rows: Row) -> None:
        for row in rows:
            self.rows.append(row)
            print(f"{time.monotonic() - self.begin:6.1f} s  {row.line()}", flush=True)
        self._save()

    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.result == WRONG]

    def exit_code(self) -> int:
        """0 when something was compared, more than that workers start, and nothing was wrong."""
        return 1 if self.failed() or not any(row.result == OK and row.part != "start" for row in self.rows) else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "when": self.when,
            "machine": self.machine,
            "seconds": round(time.monotonic() - self.begin, 1),
            "exit": self.exit_code(),
            "counts": {mark: sum(row.result == mark for row in self.rows) for mark in (OK, WRONG, STOPPED, MISSING, NOT_RUN)},
            "rows": [asdict(row) for row in self.rows],
        }

    def _save(self) -> None:
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_name(f".{self.file.name}.tmp")
            fresh.write_text(json.dumps(self.as_json(), indent=1) + "\n")
            fresh.replace(self.file)

    def table(self) -> None:
        title = f"gpuvirt on {self.machine['gpu']} ({self.label}), {self.when}"
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            print(f"\n{title}\n")
            print(*(row.line() for row in self.rows), sep="\n")
        else:
            table = Table(title=title, show_lines=False)
            for column in ("part", "what", "link", "result", "figures", "detail"):
                table.add_column(column, overflow="fold")
            styles = {OK: "green", WRONG: "bold red", STOPPED: "yellow"}
            for row in self.rows:
                figures = ", ".join(f"{name} {_short(value)}" for name, value in row.figures.items() if name != "values")
                table.add_row(row.part, row.name, row.link, MARKS[row.result], figures, row.detail, style=styles.get(row.result))
            Console(width=170).print(table, markup=False)
        counts = ", ".join(f"{n} {mark}" for mark, n in self.as_json()["counts"].items() if n)
        print(f"{self.label}: {counts}; {time.monotonic() - self.begin:.0f} s; {'failed' if self.exit_code() else 'passed'}")
