"""Prints the report as tables."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from gpuvirt.bench.program import Figures
from gpuvirt.bench.report import Row, notes, rate_rows, rows


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "":
        return f"{value:.0f}"
    return f"{value:.1f}" if unit in ("GB/s", "ms") or abs(value) >= 10 else f"{value:.2f}"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    if row.unit == "GB/s":
        return f"≥ ×{row.target:g}"
    return f"≤ +{row.target:g}" if row.compared is not None or row.name == "waits" else f"≤ {row.target:g}"


def _compared(row: Row) -> str:
    if row.compared is None:
        return ""
    return f"×{row.compared:.2f}" if row.unit == "GB/s" else f"+{_number(row.compared, row.unit)}"


def show(result: Figures, console: Console) -> None:
    """Prints the two tables and the notes."""
    kind = " (software GPU)" if result["software"] and "software" not in result["device"] else ""
    title = f"{result['device']}{kind} at {result['server']}; medians of {len(result['rounds'])} rounds"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in ("", "link", "unit"):
        table.add_column(name)
    for name in ("measured", "least…most", "bare", "to bare", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met")
    for row in rows(result):
        met = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[row.met]
        extremes = f"{_number(row.low, row.unit)}…{_number(row.high, row.unit)}"
        value = f"+{_number(row.value, row.unit)}" if row.name == "waits" else _number(row.value, row.unit)
        table.add_row(row.text, row.link, row.unit, value, extremes, _number(row.bare, row.unit), _compared(row), _target(row), met)
    console.print(table)
    rates = Table(title="Launches from many threads, a stream each; processor time in µs a launch", box=box.SIMPLE_HEAD)
    rates.add_column("link")
    for name in ("threads", "launches/s", "client", "worker", "of it kernels", "without kernels"):
        rates.add_column(name, justify="right")
    for rate in rate_rows(result):
        times = (rate.client_us, rate.worker_us, rate.kernel_us, rate.message_us)
        rates.add_row(rate.link, str(rate.threads), f"{rate.rate:,.0f}", *(_number(t, "µs") for t in times))
    console.print(rates)
    for note in notes(result):
        console.print(note, highlight=False)
