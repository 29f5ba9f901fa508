"""The facts about a server at one moment: devices, leases, sessions, sums. No I/O, no clock: everything comes in as an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuvirt.server.devices import Device
from gpuvirt.server.lease import Lease
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.session import Session, holder

QUEUED, IDLE, ATTACHED, PARKED, SUSPENDED = LEASE_STATES = ("queued", "idle", "attached", "parked", "suspended")
WITHOUT_GPUS = (QUEUED, SUSPENDED)
WAITS, MOVES = "waits for memory", "moves"
SESSION_STATES = (ATTACHED, PARKED, WAITS, MOVES)
FIGURES = ("commands", "launches", "bytes_in", "bytes_out")  # of a session, which only grow; bytes as the worker sees them
NETWORK = ("answers", "cut_ns", "rtt_ns")  # what its present worker knows of the network


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU. memory_used: bytes, None where only the driver knows; given_back: bytes of parked sessions, which are in files; sessions: on it."""

    ordinal: int
    name: str
    memory: int
    memory_used: int | None
    given_back: int
    sessions: int


@dataclass(frozen=True)
class SessionFacts:
    """One session.

    Attributes:
        owner: its token's id.
        account: as whom it is counted.
        holder: program, pid, user, host, peer, as its client says.
        state: one of `SESSION_STATES`.
        given_back: bytes that are in its file, None: it is not parked.
        waits_for: bytes of device memory that it waits for, its own or an allocation's; place, waiting: its place among those that do, from 1.
        memory_used: bytes on all its devices, None where only the driver knows and the worker has not said.
        turns: seconds of turns that it has had, by the daemon's clock; None: there are none on its devices.
        figures: what its worker counts (`FIGURES`, `NETWORK`), as far as it is known.
    """

    id: int
    lease: int
    owner: bytes
    account: str
    holder: Mapping[str, Any]
    state: str
    link: str
    cipher: str | None
    devices: tuple[int, ...]
    worker_pid: int
    started: float
    given_back: int | None
    waits_for: int
    place: int
    waiting: int
    memory_used: int | None
    turns: float | None
    figures: Mapping[str, int]


@dataclass(frozen=True)
class LeaseFacts:
    """One lease. state: one of `LEASE_STATES`; parked: something runs under it, and nothing that does has memory; suspended: its devices are others'
    for a while. queue: place, queued, why, of one that waits for its GPUs; of one that gives way why. compute: the part of each GPU that it has
    reserved, 0: none."""

    number: int
    owner: bytes
    account: str
    holder: Mapping[str, Any]
    state: str
    gpus: int
    named: bool
    devices: tuple[int, ...]
    sessions: tuple[int, ...]
    started: float
    compute: float = 0.0
    queue: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """All of one server at one moment. at: seconds since the epoch. devices by ordinal; leases and sessions oldest first."""

    at: float
    server: str
    backend: str
    devices: tuple[DeviceFacts, ...]
    leases: tuple[LeaseFacts, ...]
    sessions: tuple[SessionFacts, ...]


@dataclass(frozen=True)
class Source:
    """Where the facts come from.

    Attributes:
        memory: the table of memory usage, None: only the driver knows.
        queue: place, queued and why of a lease that waits for GPUs; {} of others.
        room: place and number of those that wait for memory; zeros of a session that does not.
        turns: seconds of turns that a session has had, None: there are none on its devices.
        account: of a token's id.
    """

    server: str
    backend: str
    devices: Sequence[Device]
    memory: MemoryUsage | None
    queue: Callable[[Lease], Mapping[str, Any]]
    room: Callable[[Session], tuple[int, int]]
    turns: Callable[[Session], float | None]
    account: Callable[[bytes], str]


def lease_state(lease: Lease, parked: set[int]) -> str:
    """parked: the sessions that are, all leases' together."""
    if lease.waits:
        return QUEUED
    if lease.suspended:
        return SUSPENDED
    if not lease.sessions:
        return IDLE
    return PARKED if lease.sessions <= parked else ATTACHED


def collect(source: Source, leases: Iterable[Lease], sessions: Iterable[Session], figures: Mapping[int, Mapping[str, int]], at: float) -> Facts:
    """The facts.

    Args:
        figures: by session, what its worker has answered; a session without is one whose worker did not.
        at: seconds since the epoch.
    """
    running = sorted(sessions, key=lambda s: s.started)
    known = {session.id for session in running}
    parked = {session.id for session in running if session.parking.parked is not None}
    return Facts(
        at,
        source.server,
        source.backend,
        tuple(_device(source, ordinal, device, running) for ordinal, device in enumerate(source.devices)),
        tuple(_lease(source, lease, parked, known) for lease in leases),
        tuple(_session(source, session, figures.get(session.id, {})) for session in running),
    )


def _device(source: Source, ordinal: int, device: Device, sessions: Sequence[Session]) -> DeviceFacts:
    here = [session for session in sessions if ordinal in session.membership.devices]
    given_back = sum(session.parking.parked[ordinal] for session in here if session.parking.parked is not None)
    used = source.memory.used(ordinal) if source.memory is not None else None
    return DeviceFacts(ordinal, device.name, device.memory, used, given_back, len(here))


def _lease(source: Source, lease: Lease, parked: set[int], known: set[int]) -> LeaseFacts:
    return LeaseFacts(
        lease.number,
        lease.owner,
        source.account(lease.owner),
        lease.holder,
        lease_state(lease, parked),
        lease.wanted,
        lease.named,
        tuple(lease.devices),
        tuple(sorted(lease.sessions)),
        lease.started,
        lease.compute / COMPUTE,
        source.queue(lease),
    )


def _session(source: Source, session: Session, figures: Mapping[str, int]) -> SessionFacts:
    parking = session.parking
    place, waiting = source.room(session)
    used = figures.get("memory_used") if source.memory is None else sum(source.memory.row(session.slot))
    waits_for = sum(parking.need(device) for device in range(len(source.devices))) if place else 0
    state = MOVES if session.moves else WAITS if place else PARKED if parking.parked is not None else ATTACHED
    return SessionFacts(
        session.id,
        session.membership.lease.number,
        session.hello.token_id,
        source.account(session.hello.token_id),
        holder(session.hello, session.peer),
        state,
        session.transport.name,
        session.cipher,
        session.membership.devices,
        session.worker.pid,
        session.started,
        None if parking.parked is None else sum(parking.parked),
        waits_for,
        place,
        waiting,
        used,
        source.turns(session),
        {name: figures[name] for name in (*FIGURES, *NETWORK) if name in figures},
    )
