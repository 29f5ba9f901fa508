"""The devices of a pool, by the hosts that have them, and which host a lease goes to: all its devices are on one.

Devices have numbers of the pool; those of one host follow each other, and are free for another host when it has left. A pool of one host is that
host's `Room`. In a pool of several it is kept, for each kind of lease that was looked for, how many devices of each host have room for it; what
has changed since is counted again when it is looked for the next time. So that costs a pass over an array with a number for each host, and a look at
the hosts that have changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpuvirt.server.policy.events import PACK
from gpuvirt.server.policy.racks import Racks
from gpuvirt.server.policy.room import Room, Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Near = Callable[[], Collection[str]]
ONE = 0  # the host of a pool that has no other
KINDS = 512  # of leases, whose numbers are kept
FEW = 24  # changes that cost less to count one by one than all hosts at once
CHANGES = 100_000  # that are kept
TIE = 1e-6  # less than two hosts' loads, or what is free on them, ever differ by


@dataclass(eq=False)
class _Host:
    """A host, or the numbers that one had which has left.

    Attributes:
        row: counted from 0, in the order of the devices.
        number: of the host, None: it has left.
        cordoned: its devices are granted to nobody.
        rack: its name, "": none.
    """

    row: int
    devices: range
    number: int | None
    room: Room
    cordoned: bool = False
    rack: str = ""

    @property
    def first(self) -> int:
        return self.devices.start


class _Counts:
    """How many devices of each host have room for a kind of lease.

    Args:
        rows: the hosts, in the order of their devices; the caller's list, which grows (`add`).

    Attributes:
        load: leases of a device, on average, by host.
        racks: of the hosts.
    """

    def __init__(self, rows: Sequence[_Host]) -> None:
        import numpy

        self._np, self._rows, self.racks = numpy, rows, Racks()
        empty = numpy.zeros(0, numpy.int64)
        # Of a device that is held, or whose host is not there, nothing is free, and its size is -1.
        self._memory, self._compute, self._size, self._first = empty, empty, empty, empty
        self.load = numpy.zeros(0)
        self._kinds: OrderedDict[tuple[int, int], tuple[Array, int]] = OrderedDict()  # the counts, and how many changes they know of
        self._changes: list[int] = []  # rows
        self._looked = 0  # how many changes there were at the last look
        for row in rows:
            self.add(row)

    def add(self, row: _Host) -> None:
        """The last row is new."""
        more = self._np.full(len(row.devices), -1, self._np.int64)
        self._memory, self._compute, self._size = (self._np.append(each, more) for each in (self._memory, self._compute, self._size))
        self._first = self._np.append(self._first, row.first)
        self.load = self._np.append(self.load, 0.0)
        self._kinds.clear()
        self.host_changed(row)

    def host_changed(self, row: _Host) -> None:
        """A host has come, or has left."""
        self._size[row.first : row.devices.stop] = -1 if row.number is None else row.room.total
        self.racks.set(row.row, row.rack)
        for local in range(len(row.devices)):
            self.note(row, local)

    def note(self, row: _Host, local: int) -> None:
        """A device is free to another degree than before."""
        free = (-1, -1) if row.number is None or row.cordoned or row.room.held(local) else row.room.free(local)
        self._memory[row.first + local], self._compute[row.first + local] = free
        self.load[row.row] = row.room.load
        if len(self._changes) == self._looked or self._changes[-1] != row.row:
            self._changes.append(row.row)

    def _count(self, fitting: Array) -> Array:
        counts: Array = self._np.add.reduceat(fitting, self._first, dtype=self._np.int64)
        return counts

    def fitting(self, shape: Shape) -> Array:
        """By host: the devices with room for it."""
        if len(self._changes) > CHANGES:
            self._changes.clear()
            self._kinds.clear()
            self._looked = 0
        kind = memory, compute = max(shape.memory, 1), max(shape.compute, 1)
        counts, known = self._kinds.pop(kind, (None, 0))
        if counts is None or len(self._changes) - known > FEW:
            counts = self._count((self._memory >= memory) & (self._compute >= compute))
        else:
            for row in set(self._changes[known:]):
                devices = slice(self._rows[row].first, self._rows[row].devices.stop)
                counts[row] = self._np.count_nonzero((self._memory[devices] >= memory) & (self._compute[devices] >= compute))
        self._looked = len(self._changes)
        self._kinds[kind] = counts, self._looked
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)
        return counts

    def large_enough(self, memory: int) -> Array:
        """By host: the devices of that size, free or not."""
        return self._count(self._size >= memory)

    def best(self, able: Array, rank: Array) -> _Host | None:
        """The host of the lowest rank, of equals the first, among those that are able."""
        return self._rows[int(self._np.where(able, rank, self._np.inf).argmin())] if able.any() else None


class Hosts:
    """The hosts of a pool.

    Args:
        memory: bytes of each device of host `ONE`; without any there is no host yet.

    Attributes:
        total: bytes by device, 0: its host is not there.
        count: how many devices there are.
    """

    def __init__(self, memory: Sequence[int] = ()) -> None:
        self.total: list[int] = []
        self.count = 0
        self._hosts: dict[int, _Host] = {}
        self._cordoned: set[int] = set()  # rows
        self._rows: list[_Host] = []
        self._of: list[_Host] = []  # the host of each device
        self._counts: _Counts | None = None
        self._changed_rows: dict[int, bool] = {}  # since they were last asked for, and whether something has become free there
        if memory:
            self.join(ONE, memory)

    # ---- hosts --------------------------------------------------------------------------------------------------------

    def join(self, host: int, memory: Sequence[int], rack: str = "") -> None:
        """A host is there, with these devices, all of them free, in a rack of that name ("": none).

        Raises:
            ValueError: it is there already, or has no devices.
        """
        if host in self._hosts or not memory:
            raise ValueError(f"host {host} is there already, or has no devices")
        unused = (row for row in self._rows if row.number is None and len(row.devices) == len(memory))
        joined = next(unused, None)
        new = joined is None
        if joined is None:
            first = len(self.total)
            joined = _Host(len(self._rows), range(first, first + len(memory)), None, Room(memory))
            self._rows.append(joined)
            self._of += [joined] * len(memory)
            self.total += memory
        joined.number, joined.room, joined.cordoned, joined.rack = host, Room(memory), False, rack
        self._cordoned.discard(joined.row)
        self.total[joined.first : joined.devices.stop] = memory
        self._hosts[host] = joined
        self._changed_rows[joined.row] = True
        if self._counts is None and len(self._rows) > 1:
            self._counts = _Counts(self._rows)
        elif self._counts is not None:
            (self._counts.add if new else self._counts.host_changed)(joined)
        self._changed()

    def leave(self, host: int) -> None:
        """It is not there any more, and no lease has its devices."""
        gone = self._hosts.pop(host)
        self._cordoned.discard(gone.row)
        gone.number = None
        self._changed_rows[gone.row] = True
        self.total[gone.first : gone.devices.stop] = [0] * len(gone.devices)
        if self._counts is not None:
            self._counts.host_changed(gone)
        self._changed()

    def cordon(self, host: int, cordoned: bool) -> None:
        """Whether `find` leaves out all of a host's devices from now on."""
        found = self._hosts[host]
        found.cordoned = cordoned
        self._changed_rows[found.row] = True
        (self._cordoned.add if cordoned else self._cordoned.discard)(found.row)
        if self._counts is not None:
            self._counts.host_changed(found)

    def rack(self, device: int) -> str:
        """The name of the rack of a device's host, "": it has none."""
        return self._of[device].rack

    def cordoned(self, host: int) -> bool:
        return self._hosts[host].cordoned

    @property
    def cordoned_rows(self) -> Collection[int]:
        """Of the hosts whose devices `find` leaves out."""
        return self._cordoned

    def row(self, host: int) -> int:
        """The place of a host in what is counted by row; another's, when it has left."""
        return self._hosts[host].row

    def devices_at(self, row: int) -> range:
        """The numbers of the devices of the host at a row."""
        return self._rows[row].devices

    @property
    def hosts(self) -> int:
        """How many there are."""
        return len(self._hosts)

    def has(self, host: int) -> bool:
        return host in self._hosts

    def devices(self, host: int) -> range:
        """The numbers of a host's devices."""
        return self._hosts[host].devices

    def host(self, device: int) -> int | None:
        """Which host has a device, None: it has left."""
        return self._of[device].number

    def __iter__(self) -> Iterator[int]:
        """The hosts that are there, in the order in which they came."""
        return iter(self._hosts)

    def _changed(self) -> None:
        self.__dict__.pop("_sizes", None)
        self.count = sum(len(host.devices) for host in self._hosts.values())

    # ---- what can ever be had -----------------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> Counter[tuple[int, ...]]:
        """How many hosts there are of each kind, which is the sizes of their devices, ascending."""
        return Counter(tuple(sorted(host.room.total)) for host in self._hosts.values())

    @property
    def most(self) -> int:
        """The devices of the host that has most of them."""
        return max(map(len, self._sizes), default=0)

    def most_of_size(self, memory: int, part: int = 0) -> int:
        """The most devices that have so many bytes, free or not: of one host; with `part`, of all hosts, so many together on each."""
        counts = [(len(sizes) - bisect_left(sizes, memory), hosts) for sizes, hosts in self._sizes.items()]
        return sum(count // part * part * hosts for count, hosts in counts) if part else max((count for count, _ in counts), default=0)

    # ---- reading ------------------------------------------------------------------------------------------------------

    def _at(self, device: int) -> tuple[_Host, int]:
        host = self._of[device]
        return host, device - host.first

    def leases(self, device: int) -> int:
        """How many leases have the device."""
        host, local = self._at(device)
        return host.room.leases(local)

    def free(self, device: int) -> tuple[int, int]:
        """Bytes and parts of compute that nobody has reserved."""
        host, local = self._at(device)
        return host.room.free(local)

    def fits(self, device: int, shape: Shape) -> bool:
        """Whether there is room on this device, held or not, and its host is there."""
        host, local = self._at(device)
        return host.number is not None and host.room.fits(local, shape)

    def held(self, device: int) -> bool:
        """Whether `find` leaves it out for somebody else's sake."""
        host, local = self._at(device)
        return host.room.held(local)

    def together(self, devices: Sequence[int]) -> bool:
        """Whether these are devices of one host, each of them once."""
        known = all(0 <= device < len(self._of) for device in devices)
        return bool(devices) and known and len(set(devices)) == len(devices) and len({self._of[device].row for device in devices}) == 1

    def load(self, host: int) -> float:
        """How many leases a device of a host has, on average."""
        return self._hosts[host].room.load

    def find_with(self, held: Collection[int], shape: Shape, near: Near | None = None) -> list[int]:
        """As `find`, which looks at these devices, too, though they are held."""
        changed = self._changed_rows.copy()
        for device in held:
            self.hold(device, False)
        found = self.find(shape, near=near)
        for device in held:
            self.hold(device, True)
        self._changed_rows = changed
        return found

    def find(self, shape: Shape, most: int | None = None, host: int | None = None, near: Near | None = None) -> list[int]:
        """Devices of one host with room for a lease, the best first: as many as it wants (`most` if given). Where no host has so many, none; with
        `host`, or where there is but one, those that it has.

        A lease that is packed (`Shape.packed`) gets, of the hosts that have enough devices, the one with the fewest, which keeps many of one host for
        those who want many. Any other goes to the host with the fewest leases. A gang that has room on one host is on that; else on as few as
        possible, in as few racks as possible.

        Args:
            host: looks there only, for devices of one lease.
            near: tells racks. Of hosts that are equally good one of these is taken; for a user whose leases are to be packed, one of these in any
                case.
        """
        found = self._choose(shape, near) if host is None else self._hosts[host]
        if found is None and shape.part and self._counts is not None:
            return [device for row, gpus in self._shared_out(shape, self._counts.fitting(shape)) for device in self._find_at(row, shape, gpus)]
        return [] if found is None or found.cordoned else self._find_at(found, shape, most)

    def _find_at(self, host: _Host, shape: Shape, most: int | None) -> list[int]:
        return [host.first + local for local in host.room.find(shape, most)]

    def _shared_out(self, shape: Shape, fitting: Array) -> list[tuple[_Host, int]]:
        """Hosts that have room for a gang together, each with the devices that it has there; none when they have not.

        Args:
            fitting: by host: the devices that count.
        """
        parts, left = fitting // shape.part, shape.gpus // shape.part
        if int(parts.sum()) < left:
            return []
        shares = list[tuple[_Host, int]]()
        assert self._counts is not None
        for row in self._counts.racks.in_order(parts, left):
            share = min(left, int(parts[row]))
            left -= share
            shares.append((self._rows[int(row)], share * shape.part))
            if not left:
                break
        return shares

    def _choose(self, shape: Shape, near: Near | None = None) -> _Host | None:
        counts = self._counts
        if counts is None:
            return next(iter(self._hosts.values()), None)
        fitting = counts.fitting(shape)
        able = fitting >= shape.gpus
        if not able.any():
            return None
        rank = fitting - counts.load / (1 + counts.load) if shape.packed else counts.load
        if near is not None and counts.racks.matter and (names := near()):
            rank = rank - counts.racks.near(names) * (len(self.total) if shape.placement == PACK else TIE)
        return counts.best(able, rank)

    def changed(self) -> list[tuple[int, Room | None, bool]]:
        """By row, the hosts whose devices are free to another degree than at the last call, None: it lends none; and whether something has become
        free there."""
        changed, self._changed_rows = self._changed_rows, {}
        rows = [(self._rows[row], gained) for row, gained in changed.items()]
        return [(row.row, None if row.number is None or row.cordoned else row.room, gained) for row, gained in rows]

    def most_free(self, shape: Shape) -> int:
        """The most devices with room for the lease that one host has, for a gang those of all hosts; at most as many as it wants."""
        if self._counts is None:
            return len(self.find(shape))
        if shape.part:
            return min(shape.gpus, int((self._counts.fitting(shape) // shape.part).sum()) * shape.part)
        return min(shape.gpus, int(self._counts.fitting(shape).max()))

    @property
    def alone(self) -> bool:
        """Whether there is one row, and has never been another."""
        return self._counts is None

    def fitting(self, shape: Shape) -> Array:
        """How many devices have room for it, by row; of several."""
        assert self._counts is not None
        return self._counts.fitting(shape)

    def to_hold(self, shape: Shape, but: Collection[int]) -> dict[int, int]:
        """The host whose devices are presumably the first to be free for a lease, of those that are large enough: where most of them are. For a gang
        that needs several, those. Each with how many devices it is to have there; none when they are not large enough.

        Args:
            but: hosts that are none to hold devices of.
        """
        counts = self._counts
        if counts is None:
            return {number: shape.gpus for number, host in self._hosts.items() if number not in but and not host.cordoned}
        large = counts.large_enough(max(shape.memory, 1))
        large[[*(self._hosts[number].row for number in but), *self._cordoned]] = 0
        best = counts.best(large >= shape.gpus, counts.load / (1 + counts.load) - counts.fitting(shape))
        shares = [(best, shape.gpus)] if best is not None else self._shared_out(shape, large) if shape.part else []
        return {host.number: gpus for host, gpus in shares if host.number is not None}

    def emptiest(self, shape: Shape, host: int) -> list[int]:
        """As many devices of a host as the lease wants that are large enough, those with the fewest leases first; fewer when too many are held."""
        found = self._hosts[host]
        return [found.first + local for local in found.room.emptiest(shape)]

    # ---- changing -----------------------------------------------------------------------------------------------------

    def take(self, device: int, shape: Shape) -> None:
        """A lease gets the device."""
        host, local = self._at(device)
        host.room.take(local, shape)
        self._changed_rows.setdefault(host.row, False)
        if self._counts is not None:
            self._counts.note(host, local)

    def give_back(self, device: int, shape: Shape) -> None:
        """A lease does not have the device any more."""
        host, local = self._at(device)
        host.room.give_back(local, shape)
        self._changed_rows[host.row] = True
        if self._counts is not None:
            self._counts.note(host, local)

    def hold(self, device: int, held: bool) -> None:
        """Whether `find` leaves the device out from now on."""
        host, local = self._at(device)
        host.room.hold(local, held)
        self._changed_rows[host.row] = not held or self._changed_rows.get(host.row, False)
        if self._counts is not None:
            self._counts.note(host, local)
