"""The measurements: which, over which links, how often."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuvirt.bench.program import BenchProgram, Figures
from gpuvirt.client import links
from gpuvirt.client.connect import Connected, ask
from gpuvirt.client.environment import apply, variables
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import ControlError
from gpuvirt.transport.pool import PoolStatus
from gpuvirt.transport.table import TRANSPORTS

FAR_TRANSPORT = next(row.name for row in TRANSPORTS if row.needs & hs.NEEDS_NETWORK and not row.missing())  # what a distant server is reached by
FAR = f"delay(rtt=30ms,{FAR_TRANSPORT})"  # the link of the distant training loop
FAR_RTT_MS = 30.0


@dataclass(frozen=True)
class Amounts:
    """Numbers of repetitions.

    Attributes:
        rounds: measuring programs per link, in turns with the other links; each has its own bare figures.
        calls: bursts and idle calls per round.
        sustained: launches in a row.
        copy_bytes, copies: size in bytes and number of copies each way, per round.
        threads: numbers of threads for the launch rate.
        launches: launches of all threads together.
        steps: steps of the training loop, which reads its loss every `read_every` steps.
        settle_s: seconds of pause before each program, in which the server starts its next worker.
    """

    rounds: int
    calls: int
    sustained: int
    copy_bytes: int
    copies: int
    threads: tuple[int, ...]
    launches: int
    steps: int
    read_every: int = 50
    settle_s: float = 2.0


FULL = Amounts(5, 41, 20000, 64 << 20, 5, (1, 2, 4, 8, 16, 32, 64, 100), 20000, 400)
QUICK = Amounts(3, 11, 5000, 64 << 20, 2, (1, 8, 100), 10000, 200)
TINY = Amounts(2, 3, 500, 1 << 20, 1, (1, 4), 400, 100, settle_s=0)


def with_rounds(amounts: Amounts, rounds: int) -> Amounts:
    return replace(amounts, rounds=rounds)


def links_to_measure(asked: str, status: PoolStatus) -> list[str]:
    """The link that was asked for; with `auto` each one that leads to this server."""
    if asked != "auto":
        return [asked]
    return status.links()[0]


def bare_transport(link: str, status: PoolStatus) -> str:
    """The bare transport to measure beside a link: none for a server on another host or a link with a delay, because a bare transport connects two
    processes of this host."""
    parsed = links.parse(link)
    if not status.same_host or parsed.delayed:
        return "none"
    return status.links()[0][0] if parsed.kind == "auto" else parsed.kind


def worker_of(program: BenchProgram, status: PoolStatus) -> int:
    """The process id of a program's worker; 0 when it is on another host or not known."""
    if not status.same_host:
        return 0
    try:
        sessions = ask(status, "ps")["sessions"]
    except ControlError:
        return 0
    return next((int(s["worker_pid"]) for s in sessions if s["pid"] == program.pid), 0)


def one_round(link: str, environment: dict[str, str], status: PoolStatus, amounts: Amounts) -> Figures:
    """Measures everything once over one link, with one program."""
    found: Figures = {"link": link}
    with BenchProgram(bare_transport(link, status), {**environment, "GPUVIRT_LINK": link}) as program:
        found |= program.about
        for command in (
            f"oneway {amounts.calls} {amounts.sustained}",
            f"isolated {amounts.calls}",
            f"waiting {amounts.calls}",
            f"copies {amounts.copy_bytes} {amounts.copies}",
            f"training {amounts.steps} {amounts.read_every}",
        ):
            found |= program.ask(command)
        worker = worker_of(program, status)
        found["rates"] = []
        for threads in amounts.threads:
            found["rates"].append(program.ask(f"rate {threads} {amounts.launches} {worker} own"))
    if found.get("right") != 1:
        raise WrongResult(f"over {link} the training loop's losses are not those that this machine's processor computes")
    found["stats"] = program.stats
    return found


class WrongResult(GpuvirtError):
    """The GPU computed a wrong result, so that no time counts."""


def far_training(environment: dict[str, str], steps: int, read_every: int) -> Figures:
    """The training loop with 30 ms of added round-trip time, beside the same loop without."""
    found: Figures = {}
    for name, link in (("local", FAR_TRANSPORT), ("far", FAR)):
        with BenchProgram("none", {**environment, "GPUVIRT_LINK": link}) as program:
            program.ask(f"training {read_every} {read_every}")
            found[name] = program.ask(f"training {steps} {read_every}")
        if found[name].get("right") != 1:
            raise WrongResult(f"over {link} the training loop's losses are not those that this machine's processor computes")
    found["allowed_us"] = found["local"]["loop_us"] + found["far"]["reads"] * FAR_RTT_MS * 1e3
    found["over_allowed"] = found["far"]["loop_us"] / found["allowed_us"]
    return found


def run(connected: Connected, amounts: Amounts) -> Iterator[str | Figures]:
    """Yields a line of text when a measurement begins and, last, all figures."""
    status, settings = connected.status, connected.settings
    environment = apply(variables(replace(settings, stats=None), status))
    chosen = links_to_measure(settings.link, status)
    rounds: list[list[Figures]] = []
    far: list[Figures] = []
    yield "warming up"
    for link in chosen:  # compiles the kernels and touches the worker's memory
        with BenchProgram("none", {**environment, "GPUVIRT_LINK": link}) as program:
            program.ask("training 1 1")
            program.ask("oneway 1 100")
            device = program.about["device"]
    for number in range(amounts.rounds):
        made: list[Figures] = []
        for link in chosen:
            yield f"round {number + 1} of {amounts.rounds}, over {link}"
            time.sleep(amounts.settle_s)
            made.append(one_round(link, environment, status, amounts))
        rounds.append(made)
        if status.same_host and settings.link == "auto":
            yield f"round {number + 1} of {amounts.rounds}, a training loop from 30 ms away"
            far.append(far_training(environment, amounts.steps, amounts.read_every))
    yield {
        "server": status.address.url,
        "device": device,
        "software": status.software,
        "same_host": status.same_host,
        "links": chosen,
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "machine": platform.machine()},
        "amounts": vars_of(amounts),
        "rounds": rounds,
        "far": far,
    }


def vars_of(amounts: Amounts) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(amounts).items()}
