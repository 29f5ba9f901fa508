"""Rebalancing: a host that has come takes leases from GPUs that more leases share, a bounded number of them, one after another.

Only what gains by it moves: a lease of which every GPU has at least two leases more than the one that it would get. Which ones may is looked up when
the host comes, the most crowded first and of those the youngest; whether one gains is seen in its turn, for meanwhile others have moved, come or
ended. One that is asked to move and stays counts as one that has moved. Leases that are to be packed are not asked, and neither are those of gangs,
which are near each other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.instructions import Instruction, Relocate
from gpuvirt.server.policy.lease import Lease

LOOK = 4  # leases for each that may move, at which it is looked
LIMIT = 120.0  # seconds after which a move of which nothing has been heard keeps the others waiting no more


@dataclass
class _Plan:
    """What a host that has come may take: so many of these leases."""

    moves: int
    leases: deque[int]


class Rebalancing:
    """Args:
    leases: by number, the caller's.
    moves: the most that a host which comes may bring about.
    """

    def __init__(self, room: Hosts, leases: Mapping[int, Lease], moves: int) -> None:
        self._room, self._leases, self._moves = room, leases, moves
        self._plans: dict[int, _Plan] = {}  # by host, in the order in which they came
        self._moving: tuple[int, float] | None = None  # lease, and since when

    def host_came(self, host: int) -> None:
        """Looks up what it may take, once it is its turn."""
        self.host_left(host)
        if not self._moves or self._room.cordoned(host):
            return
        gone = Counter[int]()
        able = list[tuple[int, int]]()
        for number in sorted((lease for lease in self._leases if self._may_move(self._leases[lease], host)), key=self._age):
            devices = self._leases[number].devices
            crowd = min(self._room.leases(device) - gone[device] for device in devices)
            if crowd > 1:  # the others of its GPUs have not gone before it
                able.append((crowd, number))
                gone.update(devices)
        able.sort(key=lambda each: -each[0])
        self._plans[host] = _Plan(self._moves, deque(number for _, number in able[: LOOK * self._moves]))

    def host_left(self, host: int) -> None:
        """It is not there any more, or takes nothing."""
        self._plans.pop(host, None)

    def ended(self, number: int) -> None:
        """A lease is over, has moved, or does not move."""
        if self._moving is not None and self._moving[0] == number:
            self._moving = None

    def serve(self, at: float, out: list[Instruction]) -> None:
        """Has the next lease move, if none does and it gains by it still."""
        if self._moving is not None and at >= self._moving[1] + LIMIT:
            self._moving = None
        while self._plans and self._moving is None:
            host, plan = next(iter(self._plans.items()))
            if not plan.leases or not plan.moves:
                del self._plans[host]
                continue
            lease = self._leases.get(plan.leases.popleft())
            if lease is not None and self._may_move(lease, host) and self._gains(lease, host):
                plan.moves -= 1
                self._moving = lease.id, at
                out.append(Relocate(lease.id, host, "a host has come whose GPUs fewer share"))

    def _age(self, number: int) -> int:
        """Ascending from the youngest."""
        return -self._leases[number].entry[1]

    def _crowd(self, lease: Lease) -> int:
        """How many leases share the GPU of its that has the fewest."""
        return min(map(self._room.leases, lease.devices))

    def _may_move(self, lease: Lease, host: int) -> bool:
        stays = lease.shape.packed or lease.gang or lease.destination or lease.preempted or lease.suspended is not None
        return bool(lease.devices) and not stays and self._crowd(lease) > 1 and self._room.host(lease.devices[0]) != host

    def _gains(self, lease: Lease, host: int) -> bool:
        devices = [] if self._room.cordoned(host) else self._room.find(lease.shape, host=host)
        return len(devices) == lease.shape.gpus and self._crowd(lease) >= max(map(self._room.leases, devices)) + 2
