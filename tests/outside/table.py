"""What a run found, as a table: counts by verdict, the ratio beside its target, and the causes of what did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import results
from .results import Row

EXPLAINED = 12  # causes of skipped tests that are listed; the others are counted


@dataclass(frozen=True)
class Target:
    """`passed`: the part of those that count. `skipped`: the most that may be skipped, as part of all."""

    passed: float
    skipped: float = 1.0


TARGETS = {"samples": Target(0.95), "rival": Target(1.0), "cupy": Target(0.99, 0.15), "numba": Target(0.99, 0.25), "frameworks": Target(1.0)}


def render(suite: str, rows: Iterable[Row]) -> RenderableType:
    """The tables of one suite."""
    rows = sorted(rows, key=lambda row: (results.VERDICTS.index(row.verdict), row.program))
    parts: list[RenderableType] = [_counts(suite, rows)]
    unusual = [row for row in rows if row.verdict not in (results.PASSED, results.SKIPPED)]
    if unusual:
        parts.append(_causes(unusual))
    if skipped := [row for row in rows if row.verdict == results.SKIPPED]:
        parts.append(_skips(skipped))
    return Group(*parts)


def show(suite: str, rows: Iterable[Row], console: Console | None = None) -> None:
    (console or Console()).print(render(suite, rows))


def _counts(suite: str, rows: list[Row]) -> Table:
    table = Table(title=f"{suite}: {len(rows)} programs", box=box.SIMPLE, title_justify="left")
    found = results.counts(rows)
    for verdict in found:
        table.add_column(verdict, justify="right")
    table.add_column("passed / counted", justify="right")
    table.add_column("target", justify="right")
    target, ratio = TARGETS[suite], results.ratio(rows)
    reached = "-" if ratio is None else f"{100 * ratio:.1f} %"
    table.add_row(*map(str, found.values()), reached, f"≥ {100 * target.passed:.0f} %")
    skipped = found.get(results.SKIPPED, 0)
    if skipped:
        table.caption = f"skipped: {100 * skipped / len(rows):.1f} % of all, at most {100 * target.skipped:.0f} %"
    return table


def _causes(rows: list[Row]) -> Table:
    table = Table("verdict", "program", "cause", box=box.SIMPLE)
    for row in rows:
        table.add_row(row.verdict, Text(row.program, overflow="fold"), Text(row.cause, overflow="fold"))
    return table


def _skips(rows: list[Row]) -> Table:
    table = Table("skipped", "reason", box=box.SIMPLE)
    reasons = Counter(row.cause for row in rows).most_common()
    for reason, count in reasons[:EXPLAINED]:
        table.add_row(str(count), Text(reason, overflow="fold"))
    if left := sum(count for _, count in reasons[EXPLAINED:]):
        table.add_row(str(left), f"{len(reasons) - EXPLAINED} other reasons")
    return table
