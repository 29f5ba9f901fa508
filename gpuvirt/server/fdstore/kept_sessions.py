"""Sessions outlive their daemon: what it keeps of each in the descriptor store, and what the next daemon makes of that.

A worker goes on by itself when its daemon is gone. What it needs of a daemon then is the socket between the two, and what only the daemon knew: whose
session it is, the key of its further connections, what its transport opened, where its memory is counted. All of that lies in the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuvirt.server.devices import Inventory
from gpuvirt.server.fdstore.store import DescriptorStore, Entry
from gpuvirt.server.lease import Lease
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.session import Session
from gpuvirt.server.workers.worker_process import Process, WorkerProcess
from gpuvirt.transport import table
from gpuvirt.transport.handshake import Hello
from gpuvirt.transport.packing import pack, unpack
from gpuvirt.transport.transport import ServerEnd, Transport

log = logging.getLogger("gpuvirt.server")

VERSION = 3  # of a record; those of version 1 say nothing of compute, those of 2 nothing of priority
END_LIMIT = 10.0  # seconds that a killed worker has to end
MEMORY_USAGE, HEIR = "memory usage", "heir of "  # names of entries that are no sessions


def pool_of(inventory: Inventory) -> list[Any]:
    """What a session needs to find again: the backend and each GPU's memory, bytes."""
    return [inventory.backend, *(device.memory for device in inventory.devices)]


@dataclass
class Kept:
    """A session of an earlier daemon. Its descriptors are the owner's, who ends it by `end_process` or goes on with it.

    Attributes:
        id, hello, transport, peer, key, seal, started, end, epochs: as in `Session`.
        pool: of the server that it began on (`pool_of`).
        slot, memory: as in `Membership`.
        lease: under which it works, without its sessions.
        host_memory: bytes of the host's memory that its worker may take, 0: no bound.
        cgroup: the folder of the one that its worker is in, "": none.
        parked, used, parking_file: as `Parking.adopt` takes them.
    """

    id: int
    hello: Hello
    transport: Transport
    peer: str
    key: bytes = field(repr=False)
    seal: bytes = field(repr=False)
    started: float
    end: ServerEnd
    epochs: dict[int, int]
    pool: list[Any]
    slot: int
    memory: int
    lease: Lease
    process: Process
    host_memory: int
    cgroup: str
    parked: list[int] | None
    used: list[int]
    parking_file: int

    def end_process(self) -> None:
        """Kills its worker, waits for that, and closes everything."""
        kill(self.process.pidfd)
        self.process.socket.close()
        for fd in (self.process.pidfd, *([self.parking_file] if self.parking_file >= 0 else [])):
            os.close(fd)
        self.end.close()


def kill(pidfd: int) -> None:
    """Kills a process and waits until it has ended. One that has is no error."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not select.select([pidfd], [], [], END_LIMIT)[0]:
        log.error("a worker of an earlier server does not end although it was killed")


def _unpack(raw: bytes) -> dict[str, Any]:
    """Raises:
    ValueError: it is of another version, or none.
    """
    record = unpack(raw)
    if record.get("version") not in (1, 2, VERSION):
        raise ValueError(f"it was kept by a server of another version ({record.get('version')!r})")
    return record


def read(entry: Entry) -> Kept:
    """Reads what `SessionStore.keep` has put. A worker that has had the session before is dead when this returns.

    Raises:
        ValueError: this version cannot.
    """
    record = _unpack(entry.record)
    transport = table.named(record["transport"])
    if transport is None:
        raise ValueError(f"there is no transport {record['transport']!r}")
    fds = [*entry.descriptors]
    pidfd, sock = fds.pop(0), socket.socket(fileno=fds.pop(0))
    if record["former"]:
        former = fds.pop(0)
        kill(former)
        os.close(former)
    file = fds.pop() if record["file"] else -1
    lease = Lease(**{**record["lease"], "devices": tuple(record["lease"]["devices"])})
    return Kept(
        id=record["id"],
        hello=Hello.unpack(record["hello"]),
        transport=transport,
        peer=record["peer"],
        key=record["key"],
        seal=record["seal"],
        started=record["started"],
        end=ServerEnd(tuple(fds), record["blob"]),
        epochs=dict(record["epochs"]),
        pool=record["pool"],
        slot=record["slot"],
        memory=record["memory"],
        lease=lease,
        process=Process(record["pid"], pidfd, sock, None),
        host_memory=record["host_memory"],
        cgroup=record["cgroup"],
        parked=record["parked"],
        used=record["used"],
        parking_file=file,
    )


class SessionStore:
    """What a daemon keeps in its descriptor store, and what it finds there.

    Attributes:
        left: the sessions of an earlier daemon.
        memory_usage: a descriptor of its table of memory usage, None: there is none.
    """

    def __init__(self, store: DescriptorStore) -> None:
        self._store = store
        self.left: list[Kept] = []
        self.memory_usage: int | None = None
        heirs: list[Entry] = []
        for entry in store.take():
            if entry.name == MEMORY_USAGE:
                (self.memory_usage,) = entry.descriptors
            elif entry.name.startswith(HEIR):
                heirs.append(entry)
            else:
                self._take(entry)
        owners = {one.process.pid for one in self.left}
        for entry in heirs:
            if _unpack(entry.record)["pid"] not in owners:  # its session did not come to it
                kill(entry.descriptors[0])
            entry.close()
            store.drop(entry.name)

    def _take(self, entry: Entry) -> None:
        try:
            self.left.append(read(entry))
        except (ValueError, KeyError, TypeError) as error:
            log.error("session %s of an earlier server is ended: %s", entry.name, error)
            kill(entry.descriptors[0])
            entry.close()

    def keep_memory_usage(self, usage: MemoryUsage) -> None:
        self._store.put(MEMORY_USAGE, b"", [usage.fd], watched=False)

    def lost(self, keep_all: Callable[[], None]) -> None:
        """What is to be called when everything is to be kept once more."""
        self._store.lost = keep_all

    def keep(self, session: Session, pool: list[Any], used: list[int], host_memory: int, former: WorkerProcess | None = None) -> None:
        """Keeps a session as it is now.

        Args:
            pool: `pool_of` this server.
            used: bytes that it has of each device; while it is parked, what it has kept.
            host_memory: bytes of the host's memory that its worker may take, 0: no bound.
            former: its worker until now, which must be dead before the present one begins.
        """
        worker, lease, parking = session.worker, session.membership.lease, session.parking
        if worker.gone.done():
            return
        record = {
            "version": VERSION,
            "id": session.id,
            "hello": session.hello.pack(),
            "transport": session.transport.name,
            "peer": session.peer,
            "key": session.key,
            "seal": session.seal,
            "started": session.started,
            "blob": session.end.blob,
            "epochs": [*session.epochs.items()],
            "pool": pool,
            "slot": session.slot,
            "memory": session.membership.memory,
            "lease": {
                "number": lease.number,
                "owner": lease.owner,
                "wanted": lease.wanted,
                "memory": lease.memory,
                "compute": lease.compute,
                "priority": lease.priority,
                "preemptible": lease.preemptible,
                "suspended": lease.suspended,
                "started": lease.started,
                "holder": lease.holder,
                "devices": lease.devices,
                "id": lease.id,
                "launch": lease.launch,
            },
            "pid": worker.pid,
            "host_memory": host_memory,
            "cgroup": str(worker.cgroup.folder) if worker.cgroup else "",
            "parked": parking.parked,
            "used": [there + away for there, away in zip(used, parking.parked or [0] * len(used), strict=True)],
            "former": former is not None,
            "file": parking.file >= 0,
        }
        fds = [*worker.descriptors, *([former.descriptors[0]] if former else []), *session.end.descriptors]
        fds += [parking.file] if parking.file >= 0 else []
        self._store.put(f"{session.id:016x}", pack(record), fds, farewell={"op": "alone"})

    def keep_heir(self, session: Session, worker: WorkerProcess) -> None:
        """A worker that is to have a session, and is no more use if this daemon ends before."""
        self._store.put(f"{HEIR}{session.id:016x}", pack({"version": VERSION, "pid": worker.pid}), worker.descriptors[:1])

    def drop_heir(self, session: Session) -> None:
        """It has the session, or does not get it."""
        self._store.drop(f"{HEIR}{session.id:016x}")
