"""A lease, or a gang of leases that waits, as the policy machine knows it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuvirt.server.policy.events import Asked
from gpuvirt.server.policy.gangs import Gang
from gpuvirt.server.policy.kinds import Kind
from gpuvirt.server.policy.room import Shape
from gpuvirt.server.policy.shares import Account


@dataclass(eq=False)
class Lease:
    """What the machine knows of a lease, or of a gang that waits.

    Attributes:
        id: the lease's number; of a gang one that no lease has, less than 0.
        devices: () while it waits.
        destination: those of another host that it has beside them until it has migrated.
        rate: GPUs for which it counts in its user's share.
        gang: which it is of, or is.
        kind: while it waits for GPUs.
        until: when it is refused, None: it may wait.
        preempted: it was asked to give way.
        suspended: it has given way and kept all but its devices, which are others'; since when it waits for them, seconds. None: it has them.
    """

    id: int
    account: Account
    shape: Shape
    asked: Asked
    entry: tuple[int, int, int]
    devices: tuple[int, ...] = ()
    destination: tuple[int, ...] = ()
    rate: float = 0.0
    gang: Gang | None = None
    kind: Kind | None = None
    until: float | None = None
    preempted: bool = False
    suspended: float | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """That of a lease; of a gang those of its leases, and of one of those, too."""
        return tuple(self.gang.parts) if self.gang else (self.id,)
