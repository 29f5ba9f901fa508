"""What the scheduler knows of a member, and of a lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuvirt.cluster.messages import Held, HostEntry, Wanted
from gpuvirt.server.policy.events import Restored

Key = tuple[str, bytes, bytes]


@dataclass(eq=False)
class MemberEntry:
    """A host of the pool. heard: when something came of it last."""

    number: int
    entry: HostEntry
    heard: float


@dataclass(eq=False)
class LeaseEntry:
    """A lease that waits, is being placed, or has GPUs.

    Attributes:
        askers: members whose clients wait for it, each with the number by which it knows it.
        host: the member whose GPUs it has, "": none's.
        placed: that member has agreed.
        destination: the member to which it migrates, "": to none.
        tries: hosts that did not take it.
        told: what was said of its place last.
    """

    wanted: Wanted
    askers: dict[str, int] = field(default_factory=dict)
    host: str = ""
    placed: bool = False
    destination: str = ""
    tries: int = 0
    told: tuple[int, int, str] = (0, 0, "")


def keys(wanted: Wanted) -> Iterator[Key]:
    """By what programs find a lease."""
    if any(wanted.id):
        yield "id", wanted.owner, wanted.id
    elif any(wanted.launch):
        yield "launch", wanted.owner, wanted.launch
    elif any(wanted.process):
        yield "process", wanted.owner, wanted.process


def restored_event(held: Held, now: float) -> Restored:
    """For the policy: a host has this. Its devices are counted as `held` counts them."""
    w = held.wanted
    has = held.devices, w.memory, w.compute, w.priority, w.preemptible, held.suspended
    return Restored(now, w.lease, w.user, *has, w.gang, w.gang_size)
