"""What the policy machine wants done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grant:
    """The lease gets these GPUs (ordinals of the pool, ascending). memory: the most that it may have on each, bytes, 0: all."""

    lease: int
    devices: tuple[int, ...]
    memory: int = 0


@dataclass(frozen=True)
class Queue:
    """The lease waits. place: counted from 1, of `queued`, at this moment; `PolicyMachine.place` tells it later. why: for people."""

    lease: int
    place: int
    queued: int
    why: str


@dataclass(frozen=True)
class Refuse:
    """The lease gets nothing, now (it would have to wait) or never; `text` is one line for the user."""

    lease: int
    text: str


@dataclass(frozen=True)
class TimedOut:
    """The lease has waited as long as it wanted to; `text` is one line for the user."""

    lease: int
    text: str


@dataclass(frozen=True)
class Hold:
    """Nothing has to be done: these GPUs take no other lease until this one, which waits, is granted. A later one of the same lease replaces it."""

    lease: int
    devices: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class End:
    """The lease is to be ended; it has its GPUs until it is told that they are released."""

    lease: int
    text: str


@dataclass(frozen=True)
class Preempt:
    """The lease is to give way to one of a higher priority: it has its GPUs until it is told that they are released, or that it is suspended. Said
    once, and again when it has been resumed."""

    lease: int
    text: str


@dataclass(frozen=True)
class Resume:
    """A lease that was suspended has its GPUs again."""

    lease: int


@dataclass(frozen=True)
class Lost:
    """The lease is over: the host of its GPUs is not there any more."""

    lease: int
    text: str


@dataclass(frozen=True)
class Destination:
    """Until it has migrated, a lease has these devices of another host beside its own."""

    lease: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class NoDestination:
    """A lease cannot migrate; `text` says why, in one line."""

    lease: int
    text: str


@dataclass(frozen=True)
class Relocate:
    """The lease would do better at another host of the pool: it is to ask for a destination there (`events.Migrate`), or to stay (`events.Stays`).
    `text` says why, in one line."""

    lease: int
    host: int
    text: str


@dataclass(frozen=True)
class Elsewhere:
    """The lease is another host's, at `url`: whoever waits for it is to ask there. Said in a pool of many hosts (gpuvirt.cluster)."""

    lease: int
    url: str


Instruction = Grant | Queue | Refuse | TimedOut | Hold | End | Preempt | Resume | Lost | Destination | NoDestination | Relocate | Elsewhere
