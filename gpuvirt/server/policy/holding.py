"""Devices that are held for leases that wait: they take no other lease until theirs is granted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpuvirt.server.policy.hosts import ONE, Hosts, Near
from gpuvirt.server.policy.room import Shape

HOLD_AFTER = 60.0  # s; a minute for small leases to fill gaps, before GPUs stand idle for a large one
PART = 8  # of so many hosts, and of fewer, one has devices that are held; so that few GPUs stand idle for those who wait


@dataclass(eq=False)
class Holding:
    """What is held for one lease.

    Attributes:
        lease, shape: its number, what it wants.
        hosts: of the devices, one, or several for a gang. Nothing else is held there.
        missing: those of the devices that have no room yet.
        elder: it came by its age.
        since: when it began, seconds.
        worth: of a gang: something has become free since it was last looked for in vain, so another look may find enough.
    """

    lease: int
    shape: Shape
    hosts: tuple[int, ...]
    elder: bool
    since: float
    devices: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    worth: bool = True


class Holdings:
    """All that is held in a pool.

    Attributes:
        elder: the one that came by its age, None: there is none.
    """

    def __init__(self, room: Hosts) -> None:
        self._room = room
        self._leases: dict[int, Holding] = {}
        self._hosts: dict[int, Holding] = {}
        self._stirred: set[int] = set()  # hosts on which there is more room than at the last look
        self.elder: Holding | None = None

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._leases.values())

    def __len__(self) -> int:
        return len(self._leases)

    def of(self, lease: int) -> Holding | None:
        return self._leases.get(lease)

    def on(self, host: int) -> Holding | None:
        return self._hosts.get(host)

    @property
    def full(self) -> bool:
        """Whether no other lease may hold at the moment."""
        return len(self._hosts) >= max(1, self._room.hosts // PART)

    @property
    def devices(self) -> int:
        """How many are held."""
        return sum(len(holding.devices) for holding in self._leases.values())

    def begin_on(self, lease: int, shape: Shape, devices: Sequence[int], at: float) -> None:
        """Holds these devices for a lease that has none, or for a gang on several hosts. Nothing else is held on any of the hosts."""
        hosts = tuple(dict.fromkeys(host for device in devices if (host := self._room.host(device)) is not None))
        assert not any(host in self._hosts for host in hosts)
        holding = Holding(lease, shape, hosts, False, at, set(devices), {device for device in devices if not self._room.fits(device, shape)})
        self._leases[lease] = holding
        for host in hosts:
            self._hosts[host] = holding
        self._stirred.update(hosts)
        for device in devices:
            self._room.hold(device, True)

    def begin(self, lease: int, shape: Shape, elder: bool, at: float) -> Holding | None:
        """Holds devices for a lease that has none, where they are presumably the first to be free; None: no host is large enough
        (for a gang: they are not together)."""
        shares = self._room.to_hold(shape, self._hosts)
        if not shares:
            return None
        holding = Holding(lease, shape, tuple(shares), False, at)
        for host, gpus in shares.items():
            share = replace(shape, gpus=gpus)
            found = set(self._room.find(share, host=host))
            missing = [device for device in self._room.emptiest(share, host) if device not in found][: gpus - len(found)]
            holding.devices |= found | set(missing)
            holding.missing |= set(missing)
            self._hosts[host] = holding
            self._stirred.add(host)
        self._leases[lease] = holding
        if elder:
            self.by_age(holding)
        for device in holding.devices:
            self._room.hold(device, True)
        return holding

    def find(self, lease: int, shape: Shape, near: Near | None = None) -> list[int]:
        """As `Hosts.find`, for a lease or a gang that waits. Of what is held for a gang it looks at what is free, too: together with others that may
        be enough; for a lease `swap` does that, as all of its devices are on one host."""
        holding = self._leases.get(lease)
        own = holding.devices - holding.missing if holding is not None and shape.part else set[int]()
        return self._room.find_with(own, shape, near) if own else self._room.find(shape, near=near)

    def by_age(self, holding: Holding) -> None:
        """It is that of the eldest."""
        holding.elder, self.elder = True, holding

    def let_go(self, lease: int) -> None:
        """Nothing is held for it any more."""
        holding = self._leases.pop(lease)
        for host in holding.hosts:
            del self._hosts[host]
        if self.elder is holding:
            self.elder = None
        for device in holding.devices:
            self._room.hold(device, False)

    def freed(self, device: int) -> None:
        """There is more room on a device than there was."""
        host = self._room.host(device) or ONE
        holding = self._hosts.get(host)
        if holding is not None:
            self._stirred.add(host)
            if device in holding.missing and self._room.fits(device, holding.shape):
                holding.missing.discard(device)
                holding.worth = True

    def stirred(self) -> list[Holding]:
        """Those on whose hosts there is more room than at the last call."""
        hosts, self._stirred = sorted(self._stirred), set()
        return [*dict.fromkeys(self._hosts[host] for host in hosts if host in self._hosts)]

    def swap(self, holding: Holding) -> bool:
        """Other devices of a host that have room take the places of those of it that have none. Whether there were any."""
        swapped = False
        for host in holding.hosts if holding.missing else ():
            missing = {device for device in holding.missing if self._room.host(device) == host}
            for device in self._room.find(holding.shape, len(missing), host) if missing else ():
                left = max(missing, key=lambda d: (self._room.leases(d), d))
                missing.discard(left)
                holding.missing.discard(left)
                holding.devices.discard(left)
                holding.devices.add(device)
                self._room.hold(left, False)
                self._room.hold(device, True)
                swapped = holding.worth = True
        return swapped
