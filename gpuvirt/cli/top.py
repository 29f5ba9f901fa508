"""`gpuvirt top`: what a pool does, again and again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.cli.options import JSON, POOL, seconds
from gpuvirt.cli.servers import gpus_of, has_many
from gpuvirt.sizes import format_short

if TYPE_CHECKING:
    from rich.console import RenderableType

LEAST, MOST = 0.1, 3600.0  # seconds between two frames
TERMINATED = 128 + signal.SIGTERM


def interval(text: str) -> float:
    """Seconds between two frames."""
    found = seconds(text)
    if not LEAST <= found <= MOST:
        raise click.BadParameter(f"{text!r} is not between {LEAST:g}s and {MOST:g}s")
    return found


@click.command(epilog="\b\nExamples:\n  gpuvirt top --pool tcp://gpu-host:7070\n  gpuvirt top --json --interval 10s > figures.jsonl")
@POOL
@click.option("--interval", type=interval, default="2s", show_default=True, metavar="TIME", help="Time between two frames.")
@click.option("--once", is_flag=True, help="Print one frame, as in a pipe.")
@JSON
def top(pool: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Show what a pool does: its GPUs' memory, the sessions with what they do in a second, who waits.

    In a terminal the frames replace one another; q or Ctrl-C ends it. In a pipe, and with --once, one frame is printed.
    With --json: frames as JSON, one a line, until it is ended (with --once, one).
    What is shown by the second counts from the frame before, in a session's first frame from its beginning. Bytes are those over the link: in is
    towards the GPU. net is the share of the time that the session lost to the network: a round trip for each answer that it waited for, and while its
    connection was cut. turns, where leases have reserved parts of GPUs' compute, is the share of the time during which it was the session's turn.
    Of other tokens' sessions only an admin's token is shown more than how many they are and what memory they have.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.frames import Frames
    from gpuvirt.client.settings import resolve

    settings, frames = resolve({"pool": pool}), Frames()

    def frame() -> dict[str, Any]:
        return frames.next(ask_pool(settings, "top"))

    if as_json:
        _print_json(frame, interval, once)
        return
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)  # names are others' texts
    if once or not console.is_terminal:
        console.print(_rendered(frame(), sys.maxsize))
        return
    _show(console, frame, interval)


def _print_json(frame: Any, interval: float, once: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        try:
            while True:
                click.echo(json.dumps(frame()))
                if once:
                    return
                time.sleep(interval)
        except BrokenPipeError:  # whoever reads has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(console: Any, frame: Any, interval: float) -> None:
    from rich.live import Live

    def terminated(number: int, stack: object) -> None:
        raise SystemExit(TERMINATED)  # the terminal becomes again what it was

    signal.signal(signal.SIGTERM, terminated)
    with contextlib.suppress(KeyboardInterrupt):
        first = frame()
        with _keys() as ended, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_rendered(first, console.height), refresh=True)
                if ended(interval):
                    return
                first = frame()


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for so many seconds, and says whether q was pressed."""
    if not sys.stdin.isatty():
        yield lambda limit: time.sleep(limit)
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(limit: float) -> bool:
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0]:
                found = os.read(fd, 64)
                if not found or b"q" in found.lower():
                    return True
        return False

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _rendered(frame: dict[str, Any], height: int) -> RenderableType:
    """A frame in at most so many lines, of the sessions those that do most; wide enough for 80 columns, cut where there are fewer."""
    from rich.console import Group
    from rich.text import Text

    totals = frame["totals"]
    many = has_many(frame)
    whose = f"pool of {frame['hosts']} hosts" if many else f"{frame['server']} ({frame['backend']})"
    head = f"{whose}  {time.strftime('%H:%M:%S', time.localtime(frame['at']))}  leases: "
    head += ", ".join(
        f"{totals[state]} {state}" for state in ("attached", "parked", "suspended", "idle", "queued") if totals.get(state) or state != "suspended"
    )
    waits = [_queued(lease) for lease in sorted(frame["leases"], key=lambda lease: lease.get("place", 0)) if lease["state"] == "queued"]
    waits += [_room(session) for session in frame["sessions"] if session.get("place")]
    others = frame["others"]
    if others["sessions"]:
        has, gave_back = format_short(others["memory_used"]), format_short(others["given_back"])
        more = f"{others['sessions']} sessions of others have {has}B, and gave back {gave_back}B"
        waits.append(more)
    room = max(1, height - 6 - len(frame["devices"]) - len(waits))
    sessions = sorted(frame["sessions"], key=lambda session: -session["rates"].get("commands", 0))
    if len(sessions) > room:
        waits.append(f"{len(sessions) - room} more sessions, which do less")
    waits += [f"host {name} does not answer" for name in frame.get("silent", ())]
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in [head, *waits]]
    return Group(lines[0], _devices(frame["devices"], many), Text(""), _sessions(sessions[:room], many), *lines[1:])


def _table(*columns: tuple[str, bool]) -> Any:
    """columns: each one's head, and whether it is a number's."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="reverse")
    for name, number in columns:
        table.add_column(name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _devices(devices: list[dict[str, Any]], many: bool) -> Any:
    table = _table(("GPU", True), ("name", False), ("memory", True), ("used", True), ("", False), ("given back", True), ("sessions", True))
    for device in devices:
        used = device["memory_used"]
        share = "" if used is None else f"{used / device['memory']:4.0%}"
        memory = format_short(device["memory"]), "?" if used is None else format_short(used), share, format_short(device["given_back"])
        table.add_row(gpus_of(device, [device["ordinal"]], many), device["name"], *memory, str(device["sessions"]))
    return table


def _sessions(sessions: list[dict[str, Any]], many: bool) -> Any:
    turns = any("turns_s" in session for session in sessions)
    columns = [("cmd/s", True), ("lnch/s", True), ("in/s", True), ("out/s", True), ("net", True), *([("turns", True)] if turns else [])]
    table = _table(("session", False), ("user", False), ("program", False), ("GPUs", False), ("state", False), ("memory", True), *columns)
    table.columns[1].max_width, table.columns[2].max_width, table.columns[3].max_width = 8, 9, 12 if many else 4
    for session in sessions:
        rates = session["rates"]
        memory = session["parked"] if session["parked"] is not None else session.get("memory_used")
        figures = [format_short(rates[name], 1000) if name in rates else "?" for name in ("commands", "launches", "bytes_in", "bytes_out")]
        figures.append(f"{rates['network']:.0%}" if "network" in rates else "?")
        figures += [f"{rates['turns_s']:.0%}" if "turns_s" in rates else ""] if turns else []
        gpus, state = gpus_of(session, session["devices"], many), session["state"].split()[0]
        table.add_row(
            session["session"][:8], session["user"], session["program"], gpus, state, "?" if memory is None else format_short(memory), *figures
        )
    return table


def _queued(lease: dict[str, Any]) -> str:
    gpus = f"{lease['gpus']} GPU{'s' if lease['gpus'] != 1 else ''}"
    return f"{lease['program']} of {lease['user']} waits for {gpus}, place {lease['place']} of {lease['queued']}: {lease['why']}"


def _room(session: dict[str, Any]) -> str:
    memory = f"{format_short(session['waits_for'])}B of memory"
    return f"{session['session'][:8]} {session['program']} waits for {memory}, place {session['place']} of {session['waiting']}"
