"""The client's side of a named lease: opened, renewed and given back over the control channel."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuvirt.client.connect import ask
from gpuvirt.transport.handshake import LEASE_SIZE
from gpuvirt.transport.pool import PoolStatus, user


@dataclass(frozen=True)
class NamedLease:
    """A lease that this process has opened.

    Attributes:
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

    def renew(self) -> None:
        """Raises:
        RequestRefused: the lease has ended.
        ControlError: no answer.
        """
        ask(self.status, "lease_renew", lease=self.id)

    def present_devices(self) -> tuple[int, ...]:
        """The ordinals of its devices now: `gpuvirt move` changes them.

        Raises:
            ControlError: the lease has ended, or no answer.
        """
        return tuple(ask(self.status, "lease_show", lease=self.id)["devices"])

    def show(self) -> list[dict[str, Any]]:
        """The sessions that work under it, as `gpuvirt ps --json` shows them.

        Raises:
            ControlError: the lease has ended, or no answer.
        """
        sessions: list[dict[str, Any]] = ask(self.status, "lease_show", lease=self.id)["sessions"]
        return sessions

    def release(self) -> int:
        """Gives the GPUs back; what runs on them is ended. Returns how many programs that were.

        Raises:
            ControlError: the lease has ended already, or no answer.
        """
        return int(ask(self.status, "lease_release", lease=self.id)["sessions"])

    def let_go(self, limit: float) -> None:
        """The lease ends with the last program that works under it. limit: seconds for the answer.

        Raises:
            ControlError: the lease has ended already, or no answer.
        """
        ask(self.status, "lease_release", lease=self.id, when_idle=True, limit=limit)


def open_lease(status: PoolStatus, gpus: int, memory: int | None, id: bytes | None = None, program: str | None = None) -> NamedLease:
    """Opens a lease.

    Args:
        memory: bytes on each GPU, None: all that this token may have.
        id: None: a new one.
        program: whose it is, for `gpuvirt ps`; None: this program.

    Raises:
        ControlError: the server cannot grant it, or does not answer.
    """
    id = id or secrets.token_bytes(LEASE_SIZE)
    holder = {"program": program or Path(sys.argv[0] or "python").name, "pid": os.getpid(), "user": user(), "host": socket.gethostname()}
    opened = ask(status, "lease_open", lease=id, gpus=gpus, memory=memory or 0, holder=holder)
    return NamedLease(status, id, str(opened["number"]), tuple(opened["devices"]), float(opened["expiry"]))


def stands(status: PoolStatus, id: bytes) -> bool:
    """Whether there is this lease, for this token.

    Raises:
        ControlError: no answer.
    """
    from gpuvirt.transport.control import RequestRefused

    try:
        ask(status, "lease_show", lease=id)
    except RequestRefused:
        return False
    return True
