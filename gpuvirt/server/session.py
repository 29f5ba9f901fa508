"""One session, as the daemon knows it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from gpuvirt.server.attaching.sealing import CIPHERS
from gpuvirt.server.lease import NO_PROCESS, Asked, Membership
from gpuvirt.server.parking import ParkingState
from gpuvirt.server.policy.rights import Rights
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.workers.worker_process import WorkerProcess
from gpuvirt.sizes import whole_units
from gpuvirt.transport.handshake import HELLO_NO_WAIT, Hello
from gpuvirt.transport.transport import ServerEnd, Transport

MAIN = -1  # the number of a session's main connection, among its channels'


def holder(hello: Hello, peer: str) -> dict[str, Any]:
    """Whose a session is, for those who may know."""
    return {"program": hello.program, "pid": hello.pid, "user": hello.user, "host": hello.host, "peer": peer}


def asked(hello: Hello, rights: Rights) -> Asked:
    """What a hello asks for. rights: what its token allows."""
    no_wait, wait = bool(hello.flags & HELLO_NO_WAIT), hello.wait_ms / 1000
    wanted = hello.gpus, whole_units(hello.memory), rights, hello.lease, hello.launch
    process = hello.process + hello.exec_id if any(hello.process) else NO_PROCESS
    return Asked(hello.token_id, *wanted, hello.compute, hello.priority, no_wait=no_wait, wait=wait, process=process)


@dataclass
class Session:
    """One client at work.

    Attributes:
        key: of its further connections, once it has been welcomed.
        seal: of its link, the secret and one byte for the cipher; empty before the welcome, and where the link is plain.
        end: what its transport opened for it.
        moving: done when it has moved, or stayed.
        adopted: it began under an earlier daemon, or at another server.
        url: of the server that it is at, "": this one.
    """

    id: int
    membership: Membership
    transport: Transport
    hello: Hello
    peer: str
    worker: WorkerProcess
    tenant: Tenant
    key: bytes = field(default=b"", repr=False)
    seal: bytes = field(default=b"", repr=False)
    started: float = field(default_factory=time.time)
    end: ServerEnd = field(default_factory=ServerEnd)
    moving: asyncio.Future[None] | None = None
    moves: bool = False  # or comes to rest for that
    parking: ParkingState = field(default_factory=ParkingState)
    adopted: bool = False
    url: str = ""
    epochs: dict[int, int] = field(default_factory=lambda: {MAIN: 0})  # of each connection (MAIN, channels), that of the last one

    @property
    def slot(self) -> int:
        return self.membership.slot

    @property
    def label(self) -> str:
        """For the log."""
        who = f"{self.hello.user or '?'}@{self.hello.host or '?'}"
        return f"session {self.id:016x} ({self.hello.program or '?'} pid {self.hello.pid}, {who})"

    @property
    def cipher(self) -> str | None:
        """By which the link is sealed, None: it is not."""
        return CIPHERS[self.seal[-1]] if self.seal else None

    @property
    def link(self) -> str:
        """For people: the transport, and how it is sealed where it could be."""
        return f"{self.transport.name} ({self.cipher or 'plain'})" if self.transport.seals else self.transport.name
