"""A lease and who works under it, what is asked for, and why it is not granted (leases.py has all of a server's)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gpuvirt.server.policy import events
from gpuvirt.server.policy.rights import Rights
from gpuvirt.transport.handshake import LAUNCH_SIZE, LEASE_SIZE

NO_ID = bytes(LEASE_SIZE)
NO_LAUNCH = bytes(LAUNCH_SIZE)
NO_PROCESS = b""
NO_RIGHTS = Rights()


class NotGranted(Exception):
    """No lease, or no place under it. Its text is one line for the user.

    Attributes:
        unknown: there is no such lease (any more).
    """

    def __init__(self, text: str, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown


class ElsewhereError(NotGranted):
    """The lease is at another server of the pool, `url`."""

    def __init__(self, url: str) -> None:
        super().__init__(f"the lease is at {url}", unknown=True)
        self.url = url


@dataclass(frozen=True)
class Asked:
    """What a session, or whoever opens a lease, asks for.

    Attributes:
        owner: its token.
        gpus: how many; 0: as many as the lease has.
        memory: bytes on each device, 0: what the lease says.
        rights: what the token allows.
        lease: the id of the lease to join, zeros: none is named.
        launch: which launch of a program it belongs to, zeros: none.
        process: which program of which process it is, empty: that is not known.
        compute, priority, no_wait, wait, gang, gang_size, preemptible: as in `policy.events.Asked`.
    """

    owner: bytes
    gpus: int
    memory: int = 0
    rights: Rights = NO_RIGHTS
    lease: bytes = NO_ID
    launch: bytes = NO_LAUNCH
    compute: int = 0
    priority: int = 0
    no_wait: bool = False
    wait: float = 0.0
    process: bytes = NO_PROCESS
    gang: int = 0
    gang_size: int = 1
    preemptible: bool = False

    def __post_init__(self) -> None:
        if abs(self.priority) > events.PRIORITIES:
            raise NotGranted(f"priority {self.priority} was asked for and there are -{events.PRIORITIES} to {events.PRIORITIES}")


@dataclass(eq=False)
class Lease:
    """GPUs of one user.

    Attributes:
        number: by which people and the policy know it.
        wanted: how many GPUs it has, or waits for.
        devices: pool ordinals, ascending; () while it waits.
        refused: why it got none after it had waited, "": it was not refused.
        elsewhere: the server that it is at, "": this one.
        seeks: it was opened at another host of the pool, which is not known here yet.
        arrives: it has its devices, and is another host's until what works there has come here.
        comes: the host that has it has begun to send it.
        leaving: done when it has gone to another host, or stays; None: it does not leave.
        away: done when it has its GPUs again after it has given way; None: nobody waits for that.
        id: by which programs join it, zeros: it has no name. Whoever knows it still needs the token.
        memory: bytes on each device for sessions that ask for none, 0: all that they may have.
        compute: thousandths of each device's compute that are reserved for its sessions together, 0: none.
        priority, preemptible: as it was asked for.
        preempted: why its keeper is to give it back, "": it is not.
        suspends: why it is put away, or has been, "": it is not. suspended: it has been, and its devices are others'.
        suspensions: how often it has been since this daemon began.
        holder: who opened it, for people: program, pid, user, host, peer.
        sessions: that work under it.
        expires: when it ends unless it is renewed or has sessions; None: with its last session.
    """

    number: int
    owner: bytes
    wanted: int
    memory: int
    started: float
    holder: dict[str, Any]
    devices: tuple[int, ...] = ()
    compute: int = 0
    priority: int = 0
    preemptible: bool = False
    preempted: str = ""
    suspends: str = ""
    suspended: bool = False
    suspensions: int = 0
    refused: str = ""
    elsewhere: str = ""
    id: bytes = field(default=NO_ID, repr=False)
    launch: bytes = NO_LAUNCH
    process: bytes = NO_PROCESS
    seeks: bool = False
    arrives: bool = False
    comes: bool = False
    leaving: asyncio.Future[None] | None = None
    away: asyncio.Future[None] | None = None
    sessions: set[int] = field(default_factory=set)
    expires: float | None = None

    @property
    def named(self) -> bool:
        return self.id != NO_ID

    @property
    def gpus(self) -> str:
        """For people: how many."""
        return "1 GPU" if self.wanted == 1 else f"{self.wanted} GPUs"

    @property
    def has_gpus(self) -> bool:
        """Whether its devices are its own now."""
        return bool(self.devices) and not self.suspended

    @property
    def waits(self) -> bool:
        return not self.devices and not self.refused and not self.elsewhere


@dataclass(frozen=True)
class Membership:
    """What one session has: its lease, its slot of the memory usage table, at most `memory` bytes on each device, 0: all."""

    lease: Lease
    slot: int
    memory: int

    @property
    def devices(self) -> tuple[int, ...]:
        """Pool ordinals, ascending."""
        return self.lease.devices
