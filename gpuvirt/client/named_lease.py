"""The client's side of a named lease: opened, renewed and given back over the control channel."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuvirt.client.connect import ask, ask_restarted
from gpuvirt.client.settings import Settings
from gpuvirt.transport.control import ControlError, RequestRefused
from gpuvirt.transport.handshake import LEASE_SIZE, MOVES_MAX
from gpuvirt.transport.pool import PoolStatus, check_pool, parse_pool, user

RESTART = 30.0  # seconds that a server may take to be started anew: who waits for others has time
ASK_EVERY = 1.0  # seconds between two questions of a lease that waits; well below the time after which it would end


def ask_lease(status: PoolStatus, op: str, id: bytes, **arguments: Any) -> tuple[dict[str, Any], PoolStatus]:
    """Asks about a lease, at the host of the pool that has it: whoever has had it says which that is.

    Args:
        status: of a host that has it, or has had it.

    Returns:
        The answer, and the host that has given it.

    Raises:
        RequestRefused: the lease has ended.
        ControlError: no answer.
    """
    for _ in range(MOVES_MAX):
        answer, status = ask_restarted(status, op, lease=id, **arguments)
        if "elsewhere" not in answer:
            return answer, status
        status = check_pool(parse_pool(answer["elsewhere"]), status.token.text())
    raise ControlError(f"the lease goes from host to host, at last to {status.address.url}")


@dataclass
class NamedLease:
    """A lease that this process has opened.

    Attributes:
        status: of the host that has it, as far as is known.
        id: 16 bytes, by which programs join it.
        number: by which `gpuvirt ps` shows it.
        devices: their ordinals on the server when it was opened.
        expiry: seconds after which it ends unless it is renewed or something runs under it.
    """

    status: PoolStatus
    id: bytes = field(repr=False)
    number: str
    devices: tuple[int, ...]
    expiry: float

    @property
    def period(self) -> float:
        """Seconds after which to renew it: three attempts may fail."""
        return self.expiry / 4

    def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        answer, self.status = ask_lease(self.status, op, self.id, **arguments)
        return answer

    def renew(self) -> None:
        """Raises:
        RequestRefused: the lease has ended.
        ControlError: no answer.
        """
        self._ask("lease_renew")

    def present_devices(self) -> tuple[int, ...]:
        """The ordinals of its devices now: `gpuvirt move` changes them.

        Raises:
            ControlError: the lease has ended, or no answer.
        """
        return tuple(self._ask("lease_show")["devices"])

    def show(self) -> list[dict[str, Any]]:
        """The sessions that work under it, as `gpuvirt ps --json` shows them.

        Raises:
            ControlError: the lease has ended, or no answer.
        """
        sessions: list[dict[str, Any]] = self._ask("lease_show")["sessions"]
        return sessions

    def park(self) -> None:
        """What this process has on the GPUs is parked once it is quiet, which also renews the lease.

        Raises:
            RequestRefused: the lease has ended.
            ControlError: no answer.
        """
        self._ask("lease_park", holder={"pid": os.getpid(), "host": socket.gethostname()})

    def release(self) -> int:
        """Gives the GPUs back; what runs on them is ended. Returns how many programs that were.

        Raises:
            ControlError: the lease has ended already, or no answer.
        """
        return int(self._ask("lease_release")["sessions"])

    def let_go(self, limit: float) -> None:
        """The lease ends with the last program that works under it. limit: seconds for the answer.

        Raises:
            ControlError: the lease has ended already, or no answer.
        """
        self._ask("lease_release", when_idle=True, limit=limit)


def open_lease(
    status: PoolStatus,
    settings: Settings,
    id: bytes | None = None,
    program: str | None = None,
    told: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> NamedLease:
    """Opens a lease, and waits until it has its GPUs, unless the settings say otherwise.

    Args:
        settings: how many GPUs, the memory on each, and how to wait for them.
        id: None: a new one.
        program: whose it is, for `gpuvirt ps`; None: this program.
        told: called with a line for the user when it has to wait, and whenever its place is another.
        pause: lets so many seconds pass; what it raises ends the lease.

    Returns:
        The lease, at the host of the pool that has its GPUs: `NamedLease.status` is that host's, where `status` may be another's.

    Raises:
        ControlError: the server cannot grant it, not without waiting or not in time, or does not answer.
    """
    id = id or secrets.token_bytes(LEASE_SIZE)
    began = time.monotonic()
    holder = {"program": program or Path(sys.argv[0] or "python").name, "pid": os.getpid(), "user": user(), "host": socket.gethostname()}
    wanted = {"gpus": settings.gpus, "memory": settings.memory or 0, "compute": settings.compute or 0, "priority": settings.priority}

    def open_it(again: bool) -> dict[str, Any]:
        nonlocal status
        left = max(settings.wait - (time.monotonic() - began), 0.001) if settings.wait else 0
        waiting = {"queue": not settings.no_wait, "wait_ms": round(left * 1000), "again": again}
        answer, status = ask_restarted(status, "lease_open", lease=id, holder=holder, **wanted, **waiting)
        return answer

    def follow(answer: dict[str, Any]) -> dict[str, Any]:
        """The host that was asked may say that another has the lease."""
        nonlocal status
        if "elsewhere" in answer:
            answer, status = ask_lease(status, "lease_renew", id)
        return answer

    def ask_again() -> dict[str, Any]:
        nonlocal status
        try:
            answer, status = ask_restarted(status, "lease_renew", lease=id)
            return follow(answer)
        except RequestRefused:  # a server that was started anew knows only the leases that had their GPUs
            return follow(open_it(True))

    opened, answered = open_it(False), time.monotonic()
    last = None
    try:
        opened = follow(opened)
        while not opened["devices"]:
            place = opened["number"], opened["place"], opened["queued"]
            if told and place != last:
                told(f"waiting for {_count(settings.gpus)} of {status.address.url}: place {place[1]} of {place[2]} ({opened['why']})")
            last = place
            pause(ASK_EVERY)
            try:
                opened, answered = ask_again(), time.monotonic()
            except RequestRefused:
                raise
            except ControlError:
                if time.monotonic() - answered > RESTART:
                    raise
    except BaseException:
        with contextlib.suppress(ControlError):  # then it ends because nobody renews it
            ask(status, "lease_release", lease=id)
        raise
    return NamedLease(status, id, str(opened["number"]), tuple(opened["devices"]), float(opened["expiry"]))


def find_lease(status: PoolStatus, id: bytes) -> NamedLease:
    """A lease that others have opened, at the host of the pool that has it.

    Raises:
        ControlError: it has ended, or no answer.
    """
    shown, status = ask_lease(status, "lease_show", id)
    return NamedLease(status, id, str(shown["number"]), tuple(shown["devices"]), float(shown["expiry"]))


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def say_waiting(settings: Settings) -> Callable[[str], None]:
    """For `open_lease`: says it on stderr, unless the settings are quiet."""
    return lambda line: None if settings.quiet else print(f"gpuvirt: {line}", file=sys.stderr, flush=True)


def stands(status: PoolStatus, id: bytes) -> bool:
    """Whether there is this lease, for this token.

    Raises:
        ControlError: no answer.
    """
    try:
        ask_lease(status, "lease_show", id)
    except RequestRefused:
        return False
    return True
