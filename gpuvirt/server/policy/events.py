"""What the policy machine is told. `at`: seconds on the caller's clock, which never goes back."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = 1000  # parts of one GPU's compute
PRIORITIES = 100  # the highest priority; the lowest is its negative
PACK, SPREAD = "pack", "spread"  # leases go where most is taken, or where the fewest leases are
PLACEMENTS = ("", PACK, SPREAD)  # "": those that reserve compute are packed, others spread


@dataclass(frozen=True)
class UserSet:
    """A user is new, or is treated otherwise from now on. Leases that it has, or waits for, stay.

    Attributes:
        weight: of its share over time, greater than 0; twice the weight is twice the GPU-seconds while both want more than there is.
        gpus: the quota, the most GPUs that its leases may have at a time, 0: no limit. A part of a GPU counts as one.
        priority: the highest priority that it may ask for.
        memory: the most that it may have on each GPU, bytes, 0: no limit.
        placement: one of `PLACEMENTS`, for what it asks for from now on.
    """

    at: float
    user: str
    weight: float = 1.0
    gpus: int = 0
    priority: int = 0
    memory: int = 0
    placement: str = ""


@dataclass(frozen=True)
class UserRevoked:
    """A user has no rights any more: what waits is refused, what it has is to be ended. A later `UserSet` gives it rights again."""

    at: float
    user: str


@dataclass(frozen=True)
class Asked:
    """A user asks for a lease.

    Attributes:
        lease: its name, not in use.
        gpus: how many, granted at once.
        memory: bytes that are reserved on each of them, 0: none, the lease shares what is not reserved.
        compute: parts of `COMPUTE` that are reserved on each of them, 0: none.
        priority: from -`PRIORITIES` to `PRIORITIES`; higher ones are served first.
        no_wait: refuse what cannot be granted at once.
        wait: seconds for which it waits at most, 0: no limit.
        gang: it is one of the user's gang of this number, and is granted with all others of it or not at all (gangs.py); 0: it is of none.
        gang_size: how many leases that has. They ask for the same.
        preemptible: it gives way when it is asked to (`Preempt`), for one of a higher priority: it is given back, or suspended.
    """

    at: float
    lease: int
    user: str
    gpus: int
    memory: int = 0
    compute: int = 0
    priority: int = 0
    no_wait: bool = False
    wait: float = 0.0
    gang: int = 0
    gang_size: int = 1
    preemptible: bool = False


@dataclass(frozen=True)
class Restored:
    """A lease that was granted before this machine began: it has these devices whatever its user may have now, or nothing if they have no room.

    Attributes:
        lease: its name, not in use.
        memory, compute: what is reserved on each device, as for `Asked`; priority, preemptible: likewise.
        gang, gang_size: as for `Asked`, where that is still known: those of a gang give way together.
        suspended: it had given way, and waits for these devices.
        kept: the lease as which its devices have been kept until now (`Kept`), 0: none.
    """

    at: float
    lease: int
    user: str
    devices: tuple[int, ...]
    memory: int = 0
    compute: int = 0
    priority: int = 0
    preemptible: bool = False
    suspended: bool = False
    gang: int = 0
    gang_size: int = 1
    kept: int = 0


@dataclass(frozen=True)
class Released:
    """A lease is over, or its client does not wait any more. Of a lease that is not known nothing follows."""

    at: float
    lease: int


@dataclass(frozen=True)
class Suspended:
    """What works under a lease that was asked to give way has been put away: its devices are others' until `Resume`. Of a lease that has none, or is
    not known, nothing follows."""

    at: float
    lease: int


@dataclass(frozen=True)
class Moved:
    """A lease has other devices now, as many and of the same sizes; `PolicyMachine.has_room` has said that it may."""

    at: float
    lease: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class HostJoined:
    """A host is there, with its devices, which are free but for what leases have had before.

    Attributes:
        host: its number, not that of another that is there.
        memory: bytes of each device, one at least. Which numbers they have says `Hosts.devices`.
        leases: what is restored before anything is granted; their devices are counted from the host's first.
        cordoned: as `HostCordoned` says.
        rack: the name of its rack, "": none. Hosts of one rack are near each other.
    """

    at: float
    host: int
    memory: tuple[int, ...]
    leases: tuple[Restored, ...] = ()
    cordoned: bool = False
    rack: str = ""


@dataclass(frozen=True)
class HostLeft:
    """A host is not there any more, and neither is what leases had of it. Of a host that is not known nothing follows."""

    at: float
    host: int


@dataclass(frozen=True)
class HostCordoned:
    """From now on a host's devices are granted to nobody, or again to anybody. What leases have of it they keep."""

    at: float
    host: int
    cordoned: bool


@dataclass(frozen=True)
class Migrate:
    """A lease is to have devices of another host, as many and of the same sizes. The answer is `Destination` or `NoDestination`, and until `Migrated`
    it has both.

    Attributes:
        host: of the devices, None: any that has room.
        wait: until there is room, before all that waits for GPUs.
    """

    at: float
    lease: int
    host: int | None = None
    wait: bool = False


@dataclass(frozen=True)
class Migrated:
    """A lease has its destination's devices only, or (not done) those that it had before. It waits for none any more."""

    at: float
    lease: int
    done: bool


@dataclass(frozen=True)
class Kept:
    """What a lease has at its destination is that of another lease from now on, until that is released: it migrates no more as far as is known, but
    its destination may know better. Of a lease that has no destination nothing follows.

    Attributes:
        as_lease: a number not in use.
    """

    at: float
    lease: int
    as_lease: int


@dataclass(frozen=True)
class Stays:
    """A lease that was to be relocated (`instructions.Relocate`) has not asked for a destination, or has got none."""

    at: float
    lease: int


@dataclass(frozen=True)
class Passed:
    """Nothing has happened but that time has passed; wanted at `PolicyMachine.wake`."""

    at: float


_OfLeases = Asked | Restored | Released | Suspended | Moved | Migrate | Migrated | Kept | Stays
Event = UserSet | UserRevoked | HostJoined | HostLeft | HostCordoned | _OfLeases | Passed
