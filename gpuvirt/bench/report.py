"""The rows of the table: medians over the rounds, bare figures, targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gpuvirt.bench.measure import FAR_TRANSPORT
from gpuvirt.bench.program import Figures
from gpuvirt.client import links
from gpuvirt.transport.table import named

MESSAGE_TARGET_US = 3.0


@dataclass(frozen=True)
class Quantity:
    """One line of the table.

    Attributes:
        bare: name of the bare transport's figure; "" when there is none.
        target: by link, the largest time or the smallest ratio of a rate to the bare rate; None: no target, or none over that link.
        beyond: the target is the largest difference to the bare time.
    """

    name: str
    text: str
    unit: str = "µs"
    bare: str = ""
    target: Callable[[links.Link], float | None] | None = None
    beyond: bool = False


def _sealed(link: links.Link) -> bool:
    row = named(link.kind)
    return row is not None and row.seals and not link.plain


def _one_way(link: links.Link) -> float:
    row = named(link.kind)
    return row.one_way_target if row else 1.0


def _fixed(value: float) -> Callable[[links.Link], float]:
    return lambda link: value


def _unsealed(value: float) -> Callable[[links.Link], float | None]:
    """Copies over a sealed link are held against what the cipher allows, which tests/native/transport/bulk_rates.c measures."""
    return lambda link: None if _sealed(link) else value


QUANTITIES = (
    Quantity("attach_ms", "attach, to the device's properties", "ms", target=_fixed(20.0)),
    Quantity("launch_burst", "cuLaunchKernel, 8 parameters, bursts of 256", target=_one_way),
    Quantity("launch_sustained", "the same, in a row, executed"),
    Quantity("record_burst", "cuEventRecord, bursts of 256", target=_one_way),
    Quantity("isolated", "cuEventRecord alone, every 200 µs", target=_one_way),
    Quantity("isolated_p90", "  90th percentile", target=_one_way),
    Quantity("isolated_idle", "cuEventRecord after 10 ms of sleep"),
    Quantity("wait_awake", "waiting call, one after the other", bare="bare_round_trip", target=_fixed(3.0), beyond=True),
    Quantity("wait_idle", "waiting call after 10 ms of sleep", bare="bare_round_trip"),
    Quantity("sync", "record an event and synchronise", bare="bare_round_trip"),
    Quantity("h2d", "to the device, pageable", "GB/s", "bare_h2d", _unsealed(0.75)),
    Quantity("d2h", "from the device, pageable", "GB/s", "bare_d2h", _unsealed(0.75)),
    Quantity("h2d_pinned", "to the device, pinned", "GB/s", "bare_h2d_pinned", _unsealed(0.9)),
    Quantity("d2h_pinned", "from the device, pinned", "GB/s", "bare_d2h_pinned", _unsealed(0.9)),
    Quantity("step_us", "a training step of 18 kernels", "µs"),
)


@dataclass
class Row:
    """value: the rounds' median; low, high: their extremes. compared: the median over the rounds of value / bare (rates) or value - bare (times).
    target: in the unit of `compared` where there is a bare figure and a target, else in `unit`. The waits of a step compare with the reads."""

    name: str
    text: str
    link: str
    unit: str
    value: float
    low: float
    high: float
    bare: float | None = None
    compared: float | None = None
    target: float | None = None
    met: bool | None = None


def rows(result: Figures) -> list[Row]:
    """The table's lines, in its order."""
    found = []
    for quantity in QUANTITIES:
        for at, link in enumerate(result["links"]):
            found.append(_row(quantity, link, [made[at] for made in result["rounds"]], result["amounts"]["copy_bytes"]))
    for at, link in enumerate(result["links"]):
        figures = [made[at] for made in result["rounds"]]
        if all("waits" in f for f in figures):
            more = [float(f["waits"]) - float(f["reads"]) for f in figures]
            text = f"waits of {result['amounts']['steps']} steps, beside {figures[0]['reads']:.0f} reads"
            found.append(Row("waits", text, link, "", median(more), min(more), max(more), target=0.0, met=max(more) <= 0))
        found += _message_rows(link, figures)
    if result["far"]:
        ratios = [float(f["over_allowed"]) for f in result["far"]]
        text = f"{result['amounts']['steps']} steps from 30 ms away, over local + reads × RTT"
        found.append(Row("far_training", text, FAR_TRANSPORT, "×", median(ratios), min(ratios), max(ratios), target=1.1, met=median(ratios) <= 1.1))
    return found


def _row(quantity: Quantity, link: str, figures: list[Figures], copy_bytes: int) -> Row:
    values = [float(f[quantity.name]) for f in figures]
    rate = quantity.unit == "GB/s"
    text = f"{copy_bytes >> 20} MiB {quantity.text}" if rate else quantity.text
    row = Row(quantity.name, text, link, quantity.unit, median(values), min(values), max(values))
    if quantity.bare and all(quantity.bare in f for f in figures):
        bares = [float(f[quantity.bare]) for f in figures]
        row.bare = median(bares)
        row.compared = median(v / b if rate else v - b for v, b in zip(values, bares, strict=True))
    needs_bare = rate or quantity.beyond
    if quantity.target is None or links.parse(link).delayed or (needs_bare and row.compared is None):
        return row
    row.target = quantity.target(links.parse(link))
    if row.target is None:
        return row
    if rate:
        row.met = row.compared is not None and row.compared >= row.target
    elif quantity.beyond:
        row.met = row.compared is not None and row.compared <= row.target
    else:
        row.met = row.value <= row.target
    return row


def _message_rows(link: str, figures: list[Figures]) -> list[Row]:
    most = [f["rates"][-1] for f in figures]
    values = [v for v in (message_us(rate) for rate in most) if v is not None]
    if len(values) < len(most):
        return []
    text = f"processor time a message, {most[0]['threads']:.0f} threads, both sides, kernels taken off"
    target = None if links.parse(link).delayed else MESSAGE_TARGET_US
    met = None if target is None else median(values) <= target
    return [Row("message_us", text, link, "µs", median(values), min(values), max(values), target=target, met=met)]


def message_us(rate: Figures) -> float | None:
    """Processor time of both sides for one launch, without the kernel's execution, in µs; None when the worker's is not known."""
    if "worker_us" not in rate:
        return None
    return float(rate["client_us"]) + float(rate["worker_us"]) - float(rate["kernel_us"])


@dataclass
class RateRow:
    """Launches from some threads at once: medians over the rounds. Times are processor microseconds a launch."""

    link: str
    threads: int
    rate: float
    client_us: float
    worker_us: float | None
    kernel_us: float | None
    message_us: float | None


def rate_rows(result: Figures) -> list[RateRow]:
    found = []
    for at, link in enumerate(result["links"]):
        for i, threads in enumerate(result["amounts"]["threads"]):
            made = [figures[at]["rates"][i] for figures in result["rounds"]]
            known = all("worker_us" in m for m in made)
            found.append(
                RateRow(
                    link,
                    threads,
                    median(float(m["rate"]) for m in made),
                    median(float(m["client_us"]) for m in made),
                    median(float(m["worker_us"]) for m in made) if known else None,
                    median(float(m["kernel_us"]) for m in made) if known else None,
                    median(message_us(m) or 0.0 for m in made) if known else None,
                )
            )
    return found


def as_dict(result: Figures) -> dict[str, Any]:
    """Everything, for scripts: the table, the launch rates, and each round's figures."""
    return {
        **{name: value for name, value in result.items() if name not in ("rounds", "far")},
        "notes": notes(result),
        "rows": [asdict(row) for row in rows(result)],
        "launch_rates": [asdict(row) for row in rate_rows(result)],
        "rounds": result["rounds"],
        "far": result["far"],
    }


def notes(result: Figures) -> list[str]:
    """Notes that a reader needs to interpret the figures."""
    found = []
    if result["software"]:
        found.append(
            "The device is a software GPU: its kernels run on the server's processor cores, so rates of launches and steps are not those of a GPU."
        )
    delayed = [link for link in result["links"] if links.parse(link).delayed]
    if not result["same_host"]:
        found.append("The server is on another host: there is no bare transport to measure beside, and the worker's processor time is not known.")
    elif delayed:
        found.append("A link with a delay has no bare transport beside it, and no targets.")
    if result["same_host"] and len(delayed) < len(result["links"]):
        found.append(
            "Bare: two processes that spin. Times: one shared word (shm) or 64 bytes through sockets (tcp), there and back; rates: the same bytes "
            "through a ring in shared memory or plain sockets, user buffer to user buffer."
        )
    if any(_sealed(links.parse(link)) for link in result["links"]):
        found.append("Copies over a sealed link have no target here, because the cipher takes processor time of its own; tcp(plain) has one.")
    return found
