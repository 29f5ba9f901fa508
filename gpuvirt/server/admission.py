"""Shares out the connections of a port among the addresses that they come from. No I/O; the clock is the caller's.

A connection that has proved nothing costs the server a descriptor, and a handshake costs it processor time. Both are shared by address: an address
over its share loses the oldest of its own, and one that connects faster than its rate has its handshakes started later.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

FORGET_AT = 4096  # addresses whose rates are remembered, until those that have recovered are forgotten


def address_group(host: str) -> str:
    """What counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that name its network (a host may have all of the others)."""
    if ":" not in host:
        return host
    number = ipaddress.IPv6Address(host.partition("%")[0])
    if number.ipv4_mapped is not None:
        return str(number.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(number) >> 64 << 64))


class Place:
    """One connection's place. start_at: the time at which its handshake may begin."""

    __slots__ = ("_drop", "address", "start_at")

    def __init__(self, address: str, start_at: float, drop: Callable[[], object]) -> None:
        self.address, self.start_at, self._drop = address, start_at, drop

    def drop(self) -> None:
        self._drop()


class Admission:
    """The places of one port.

    Args:
        share: places for one address.
        total: places for all together.
        rate: handshakes that one address may begin in a second.
        burst: how many it may begin at once after a rest.
    """

    def __init__(self, share: int, total: int, rate: float = float("inf"), burst: int = 0) -> None:
        self._share, self._total = share, total
        self._interval, self._burst = 1 / rate, burst
        self._places: dict[str, OrderedDict[Place, None]] = {}
        self._all: OrderedDict[Place, None] = OrderedDict()
        self._rested: dict[str, float] = {}  # by address, the time from which it may begin a whole burst again

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, address: str, now: float, drop: Callable[[], object]) -> Place:
        """A connection has come. Where there is no room, another one goes.

        Args:
            drop: called at most once, when the connection is to be closed; it has left by then.
        """
        mine = self._places.get(address)
        if mine is not None and len(mine) >= self._share:
            self._evict(next(iter(mine)), now)
        elif len(self._all) >= self._total:
            self.shed(now)
        rested = max(self._rested.get(address, now), now)
        place = Place(address, max(now, rested - self._burst * self._interval), drop)
        if self._interval:
            if len(self._rested) >= FORGET_AT:
                self._rested = {who: when for who, when in self._rested.items() if when > now}
            self._rested[address] = rested + self._interval
        self._places.setdefault(address, OrderedDict())[place] = None
        self._all[place] = None
        return place

    def leave(self, place: Place) -> None:
        """The connection has proved itself, or has ended. It may have left before."""
        if self._all.pop(place, self) is self:
            return
        mine = self._places[place.address]
        del mine[place]
        if not mine:
            del self._places[place.address]

    def shed(self, now: float) -> None:
        """Drops one connection: the oldest one of the address that has most; the only one of an address goes only when no address has two."""
        if not self._all:
            return
        most = max(self._places.values(), key=len)
        self._evict(next(iter(most)) if len(most) > 1 else next(iter(self._all)), now)

    def _evict(self, place: Place, now: float) -> None:
        if place.start_at > now and place.address in self._rested:
            self._rested[place.address] -= self._interval  # its handshake never began
        self.leave(place)
        place.drop()
