"""The client's side of named leases, and of gangs of them: opened, renewed and given back over the control channel."""

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

from gpuvirt.client.connect import ask_restarted
from gpuvirt.client.settings import Settings
from gpuvirt.transport.control import ControlError, RequestRefused
from gpuvirt.transport.handshake import LEASE_SIZE, MOVES_MAX
from gpuvirt.transport.pool import PoolStatus, check_pool, parse_pool, user

RESTART = 30.0  # seconds that a server may take to be started anew: who waits for others has time
ASK_EVERY = 1.0  # seconds between two questions of a lease that waits; well below the time after which it would end
SOON = 0.05  # seconds, when a gang has its GPUs


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
        preempted: why it is to be given back, as was said when it was renewed last; "": it is not.
        suspended: why what works under it is parked and its GPUs are others' for a while, likewise; "": it has them.
        suspensions: how often that has been, as far as its host knows.
    """

    status: PoolStatus
    id: bytes = field(repr=False)
    number: str
    devices: tuple[int, ...]
    expiry: float
    preempted: str = ""
    suspended: str = ""
    suspensions: int = 0

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
        answer = self._ask("lease_renew")
        self.preempted, self.suspended = str(answer.get("preempted", "")), str(answer.get("suspended", ""))
        self.suspensions = int(answer.get("suspensions", 0))

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


class GangBroken(ControlError):
    """A gang is not whole any more: one of its leases has ended, or its host has gone, before all of them had their GPUs."""


class _Opening:
    """A lease that is being opened.

    Attributes:
        status: of the host that has it, as far as is known.
        said: what was said of it last, {}: nothing yet.
        answered: when that was.
    """

    def __init__(self, status: PoolStatus, id: bytes, wanted: dict[str, Any], queue: bool, wait: float) -> None:
        self.status, self._id, self._wanted, self._queue, self._wait = status, id, wanted, queue, wait
        self.said: dict[str, Any] = {}
        self.began = self.answered = time.monotonic()

    def open(self, again: bool = False) -> None:
        """Raises:
        ControlError: the server cannot grant it, not without waiting, or does not answer.
        """
        left = max(self._wait - (time.monotonic() - self.began), 0.001) if self._wait else 0
        waiting = {"queue": self._queue, "wait_ms": round(left * 1000), "again": again}
        answer, self.status = ask_restarted(self.status, "lease_open", lease=self._id, **self._wanted, **waiting)
        self._follow(answer)

    def _follow(self, answer: dict[str, Any]) -> None:
        """The host that was asked may say that another has the lease."""
        self.said = answer
        if "elsewhere" in answer:
            self.said, self.status = ask_lease(self.status, "lease_renew", self._id)
        self.answered = time.monotonic()

    def ask_again(self) -> None:
        """Raises:
        RequestRefused: it waits no more.
        ControlError: there has been no answer for as long as a server may take to be started anew.
        """
        try:
            try:
                answer, self.status = ask_restarted(self.status, "lease_renew", lease=self._id)
                self._follow(answer)
            except RequestRefused:  # a server that was started anew knows only the leases that had their GPUs
                self.open(again=True)
        except RequestRefused:
            raise
        except ControlError:
            if time.monotonic() - self.answered > RESTART:
                raise

    def release(self) -> None:
        with contextlib.suppress(ControlError):  # then it ends because nobody renews it
            ask_lease(self.status, "lease_release", self._id)

    @property
    def waits(self) -> bool:
        return not self.said["devices"]

    @property
    def late(self) -> bool:
        """Whether it has waited for as long as it wanted to."""
        return bool(self._wait) and time.monotonic() - self.began >= self._wait

    @property
    def place(self) -> str:
        """For people: at which place of the queue, and why."""
        return f"place {self.said['place']} of {self.said['queued']} ({self.said['why']})"

    def lease(self) -> NamedLease:
        return NamedLease(self.status, self._id, str(self.said["number"]), tuple(self.said["devices"]), float(self.said["expiry"]))


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
    opening = _Opening(status, id or secrets.token_bytes(LEASE_SIZE), _wanted(settings, program), not settings.no_wait, settings.wait or 0.0)
    _open([opening], settings.gpus, told, pause)
    return opening.lease()


def open_gang(
    status: PoolStatus,
    settings: Settings,
    size: int,
    preemptible: bool = False,
    program: str | None = None,
    told: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[NamedLease]:
    """Opens so many leases, each of which may be at another host, and waits until all have their GPUs: none has any before. Else as `open_lease`.

    Args:
        settings: of each of them; `no_wait` is not for gangs.
        preemptible: they give way to a higher priority: they are suspended, and given back when `NamedLease.preempted` of one of them says so, soon.

    Raises:
        GangBroken: a host was lost meanwhile; open another gang.
        ControlError: as for `open_lease`.
    """
    wanted = _wanted(settings, program) | {"preemptible": preemptible}
    if size > 1:
        wanted |= {"gang": secrets.randbits(62) | 1, "gang_size": size}
    openings = [
        _Opening(status, secrets.token_bytes(LEASE_SIZE), wanted | {"last": number == size}, size > 1 or not settings.no_wait, settings.wait or 0.0)
        for number in range(1, size + 1)
    ]
    _open(openings, settings.gpus * size, told, pause)
    return [opening.lease() for opening in openings]


def _wanted(settings: Settings, program: str | None) -> dict[str, Any]:
    """What is asked for, and for whom, as the control channel says it."""
    holder = {"program": program or Path(sys.argv[0] or "python").name, "pid": os.getpid(), "user": user(), "host": socket.gethostname()}
    return {
        "holder": holder,
        "gpus": settings.gpus,
        "memory": settings.memory or 0,
        "compute": settings.compute or 0,
        "priority": settings.priority,
    }


def _open(openings: list[_Opening], gpus: int, told: Callable[[str], None] | None, pause: Callable[[float], None]) -> None:
    """Opens leases, and returns when all of them have their GPUs; else none is left. gpus: of all together, for people."""
    last = None
    try:
        for opening in openings:
            opening.open()
        final = openings[-1]  # of a gang the one that was told of all
        while any(opening.waits for opening in openings):
            if final.waits:
                place = final.said["number"], final.said["place"], final.said["queued"]
                if told and place != last:
                    told(f"waiting for {_count(gpus)} of {final.status.address.url}: {final.place}")
                last = place
            pause(ASK_EVERY if final.waits else SOON)
            try:
                for opening in openings:
                    opening.ask_again()
            except ControlError as error:
                late = openings[0].late
                raise error if len(openings) == 1 or late else GangBroken(str(error)) from None
    except BaseException:
        for opening in openings:
            if opening.said or len(openings) == 1:
                opening.release()
        raise


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
