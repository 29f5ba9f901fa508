"""What the scheduler of a pool and its members say to each other: msgpack maps with the message's name under ``t``.

A member's first word is `Join`; the scheduler answers with `Welcome`. After that each end says something at least once in `ALIVE_EVERY`, and takes
the other for gone when it has heard nothing for `SILENCE`. A member that has lost the scheduler, or a message of it, joins anew and says what it has:
what is true of a host's GPUs only the host knows.

What the scheduler decides carries its *epoch*, a number that grows with each scheduler of the pool. A member obeys none whose epoch is lower than
one that it has seen: a scheduler that was cut off, and does not know that another has taken its place, grants nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.policy.rights import Rights
from gpuvirt.transport.packing import pack, unpack

ALIVE_EVERY = 0.5  # seconds
SILENCE = 3.0  # seconds; a host is known to be lost within 5
VERSION = 7


class NotAMessage(GpuvirtError):
    """What came is no message of this version."""


@dataclass(frozen=True)
class Message:
    """One message."""

    NAMES: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.NAMES[cls.__name__] = cls

    def packed(self) -> bytes:
        return pack({"t": type(self).__name__, **vars(self)}, vars)


def parse(raw: bytes) -> Message:
    """A message from bytes.

    Raises:
        NotAMessage: they are none of this version.
    """
    try:
        said = unpack(raw)
        kind: Any = Message.NAMES[str(said.pop("t", ""))]
        message: Message = _maker(kind)(said)
    except (ValueError, TypeError, KeyError) as error:
        raise NotAMessage(f"this is no message of version {VERSION}: {error}") from None
    return message


@cache
def _maker(hint: Any) -> Callable[[Any], Any]:
    """What makes a value of the type that a field has. It raises ValueError, TypeError or KeyError where that cannot be."""
    if get_origin(hint) is tuple:
        return partial(_made_tuple, _maker(get_args(hint)[0]))
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return partial(_made_object, hint, {field.name: _maker(hints[field.name]) for field in fields(hint)})
    expected = get_origin(hint) or hint
    return partial(_checked, expected, (float, int) if expected is float else (expected,))


def _made_tuple(entry: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError("a list is something else")
    return tuple(map(entry, value))


def _made_object(kind: Callable[..., Any], makers: dict[str, Callable[[Any], Any]], value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"a {kind.__name__} is something else")
    return kind(**{name: makers[name](entry) for name, entry in value.items()})


def _checked(expected: type, kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{expected.__name__} was expected")
    return value


@dataclass(frozen=True)
class Wanted:
    """A lease that a client of a member wants.

    Attributes:
        lease: its number, by which all hosts know it.
        user: who asks, as the policy calls it. rights: what that user may have.
        owner, id, launch, process: by which programs find it: its token; the id of a named one, the launch, and the program that it is for, each
            zeros where there is none.
        gpus, memory, compute, priority, no_wait, wait, gang, gang_size, preemptible: as in `policy.events.Asked`.
        holder, started: as in `gpuvirt.server.leases.Lease`.
    """

    lease: int
    user: str
    rights: Rights
    owner: bytes
    id: bytes = field(repr=False)
    launch: bytes
    process: bytes
    gpus: int
    memory: int = 0
    compute: int = 0
    priority: int = 0
    no_wait: bool = False
    wait: float = 0.0
    holder: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    gang: int = 0
    gang_size: int = 1
    preemptible: bool = False


@dataclass(frozen=True)
class Held:
    """A lease that has GPUs of a member. devices: the host's ordinals; suspended: it has given way, and waits for them."""

    wanted: Wanted
    devices: tuple[int, ...]
    suspended: bool = False


@dataclass(frozen=True)
class HostEntry:
    """A host of the pool, as its members know it.

    Attributes:
        url: where its clients connect.
        memory: bytes of each of its devices.
        control_port, migration_port: of its control channel, and where sessions of other hosts come in.
        cordoned: no lease gets any of its devices.
        most: memory that a lease may have on each of its devices, bytes, 0: all of it. The lowest of all hosts holds for the pool.
        rack: the name of its rack, "": none.
    """

    name: str
    url: str
    memory: tuple[int, ...]
    control_port: int = 0
    most: int = 0
    migration_port: int = 0
    cordoned: bool = False
    rack: str = ""


def lowest_limit(hosts: Iterable[HostEntry]) -> int:
    """The most that a lease of the pool may have on each device, bytes, 0: all of it."""
    return min((host.most for host in hosts if host.most), default=0)


# ---- a member's ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join(Message):
    """A host is there.

    Attributes:
        version: of these messages.
        host: what it is, and has.
        epoch: the highest that it has seen.
        held: leases that have its GPUs.
        wanted: leases that its clients wait for.
        coming: leases of other hosts whose images are on their way, for which it keeps GPUs: each is `Arrived` or `Over` later.
    """

    version: int
    host: HostEntry
    epoch: int = 0
    held: tuple[Held, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    coming: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Want(Message):
    """A client asks for a lease."""

    wanted: Wanted


@dataclass(frozen=True)
class Placed(Message):
    """The host has what `Place` said, or has not, and why."""

    lease: int
    why_not: str = ""


@dataclass(frozen=True)
class Over(Message):
    """A lease of this host is over, or nobody waits for it any more; or one that was to migrate here does not come."""

    lease: int


@dataclass(frozen=True)
class Suspended(Message):
    """A lease of this host has given way and keeps all but its GPUs, until `Resume`."""

    lease: int


@dataclass(frozen=True)
class Shifted(Message):
    """A lease has other devices of the host than before."""

    lease: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Cordon(Message):
    """From now on nobody gets this host's devices, or again anybody does."""

    cordoned: bool


@dataclass(frozen=True)
class Migrate(Message):
    """A lease of this host is to be another host's. The answer is `Destination` or `NoDestination`.

    Attributes:
        host: which, "": any that has room.
        wait: until there is room.
    """

    lease: int
    host: str = ""
    wait: bool = False


@dataclass(frozen=True)
class Migrated(Message):
    """A lease of this host is at its destination, or (not done) stays; in any case it waits for no destination any more."""

    lease: int
    done: bool


@dataclass(frozen=True)
class Stays(Message):
    """A lease of this host does not move as `Relocate` had said."""

    lease: int


@dataclass(frozen=True)
class Arrived(Message):
    """A lease of another host, with all that works under it, is here now."""

    held: Held


@dataclass(frozen=True)
class Ended(Message):
    """The program of a launch has ended, as its launcher says; also for the host that has its lease."""

    owner: bytes
    launch: bytes


@dataclass(frozen=True)
class Alive(Message):
    """Nothing has happened."""


@dataclass(frozen=True)
class Leave(Message):
    """The host goes, with all that it has."""


# ---- the scheduler's ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome(Message):
    """The host is a member. epoch: of the scheduler."""

    epoch: int


@dataclass(frozen=True)
class NotWelcome(Message):
    """The host is none, and why."""

    why: str


@dataclass(frozen=True)
class Hosts(Message):
    """All hosts of the pool, whenever they are others than before.

    Attributes:
        complete: none is missing that an earlier scheduler had and that may still join this one.
    """

    hosts: tuple[HostEntry, ...]
    complete: bool = True


@dataclass(frozen=True)
class Tokens(Message):
    """The pool's tokens, as a tokens' file has them, whenever they are others than before."""

    text: str = field(repr=False)


@dataclass(frozen=True)
class Place(Message):
    """The host is to keep these of its devices for the lease. It answers with `Placed`.

    Attributes:
        migrates: the lease is another host's, and comes from there (`Arrived`), or does not.
    """

    epoch: int
    wanted: Wanted
    devices: tuple[int, ...] = ()
    migrates: bool = False


@dataclass(frozen=True)
class Withdraw(Message):
    """A lease that was placed on the host to migrate there (`Place`) does not come, as far as the scheduler knows: its devices are free again. Once
    something of it is coming only its source, which may know better, decides whether it does."""

    lease: int
    text: str


@dataclass(frozen=True)
class Elsewhere(Message):
    """The lease that a client of this host asked for is another host's, at `url`."""

    lease: int
    url: str


@dataclass(frozen=True)
class Destination(Message):
    """A lease of this host that is to migrate has devices at another host, which expects it."""

    lease: int
    host: HostEntry


@dataclass(frozen=True)
class NoDestination(Message):
    """A lease of this host stays; `text` is one line for the user."""

    lease: int
    text: str


@dataclass(frozen=True)
class Relocate(Message):
    """A lease of this host would do better at another: it is to migrate there, if it can. If it does not, the answer is `Stays`."""

    lease: int
    host: str


@dataclass(frozen=True)
class Denied(Message):
    """The lease that a client of this host asked for is refused. late: it had waited as long as it wanted to."""

    lease: int
    text: str
    late: bool = False


@dataclass(frozen=True)
class Waits(Message):
    """What is new of a lease that waits: its place, from 1, of `queued`; why, for people."""

    lease: int
    place: int
    queued: int
    why: str


@dataclass(frozen=True)
class Preempt(Message):
    """A lease of this host is to give way: it is suspended, or given back by whoever keeps it; `text` is for the user."""

    lease: int
    text: str


@dataclass(frozen=True)
class Resume(Message):
    """A lease of this host that was suspended has its GPUs again. The answer, if they have no room, is `Suspended`."""

    epoch: int
    lease: int


@dataclass(frozen=True)
class Finish(Message):
    """A lease of this host is to end; `text` is for the user."""

    lease: int
    text: str
