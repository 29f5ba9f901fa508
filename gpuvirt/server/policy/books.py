"""The books of a pool's policy: its devices, users and leases, what may be asked of them, and the entries that change who has which devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from gpuvirt.server.policy import reasons, story
from gpuvirt.server.policy.eldest import Lane
from gpuvirt.server.policy.events import COMPUTE, Event
from gpuvirt.server.policy.gangs import Gang
from gpuvirt.server.policy.holding import HOLD_AFTER, Holdings
from gpuvirt.server.policy.hosts import ONE, Hosts
from gpuvirt.server.policy.instructions import Instruction
from gpuvirt.server.policy.kinds import Kinds
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.migrations import Migrations
from gpuvirt.server.policy.preemption import Preemption
from gpuvirt.server.policy.rebalancing import Rebalancing
from gpuvirt.server.policy.room import Shape
from gpuvirt.server.policy.shares import Account, Clock
from gpuvirt.server.policy.suspension import Suspension
from gpuvirt.server.policy.waiting import Waiting

HISTORY = 10_000  # events
NEAR_LOOK = 32  # leases of a user of which is asked where they are


class Books:
    """The devices, users and leases of a pool: who has what, who waits, and what may be asked of that.

    Args:
        memory: bytes of each device of host `hosts.ONE`; without any, hosts come as events.
        most: the most that any lease may have on each device, bytes, 0: all of it.
        history: events that are kept for `story`.
        rebalance: how many leases may move to a host that comes, from GPUs that more leases share.
    """

    def __init__(self, memory: Sequence[int] = (), most: int = 0, history: int = HISTORY, rebalance: int = 0) -> None:
        self.room = Hosts(memory)
        self.leases: dict[int, Lease] = {}
        self._most = most
        self._clock = Clock()
        self._at = 0.0
        self._accounts: dict[str, Account] = {}
        self.holdings = Holdings(self.room)
        self.waiting = Waiting(self.leases, self.holdings, self._clock, Kinds(self.room))
        self._lane = Lane(self.room)
        self._time_outs: list[tuple[float, int]] = []
        self._looks: list[float] = []  # when somebody may have waited for long enough that others give way
        self.preemption = Preemption(self.room, self.holdings)
        self.suspension = Suspension(self.room, self.holdings, self.leases, HOLD_AFTER, self._take)
        self._in_vain = (0, 0, 0.0)  # for which lease, of what priority, and when others could not make enough room by giving way
        self.gangs: dict[tuple[str, int], Gang] = {}
        self.migrations = Migrations(self.room, self.leases, self._give_back)
        self.rebalancing = Rebalancing(self.room, self.leases, rebalance)
        self._arrivals = 0
        self._history: deque[tuple[Event, list[Instruction]]] = deque(maxlen=history)

    # ---- what may be asked ---------------------------------------------------------------------------------------------

    def impossible(self, user: str, gpus: int, memory: int = 0, compute: int = 0, priority: int = 0, part: int = 0) -> str | None:
        """The reason why the user can never get that, even if nobody else had anything; None when it can.

        Args:
            part: of a gang: how many of the GPUs are on one host together.
        """
        account = self._accounts.get(user) or Account(user)
        return reasons.impossible(self.room, account, self.most(account.memory), Shape(gpus, memory, compute, part), priority)

    def limit(self, most: int) -> None:
        """From now on no lease may have more on each device, bytes, 0: all of it. What is granted, or waits, stays."""
        self._most = most

    def most(self, user: int) -> int:
        """The most that a lease may have on each device, by the pool's limit and its user's; bytes, 0: all of it."""
        return min((limit for limit in (self._most, user) if limit), default=0)

    def place(self, lease: int) -> tuple[int, int] | None:
        """The place of a lease among those that wait, from 1, and how many they are; None when it does not wait. A gang has one place, and behind all
        others as long as it assembles."""
        found = self._entry(lease)
        if found is None:
            return None
        if found.gang and found.gang.assembles:
            return len(self.waiting) + 1, len(self.waiting) + 1
        return self.waiting.place(found), len(self.waiting)

    def order(self) -> list[int]:
        """All leases that wait, by their places."""
        assembling = [number for gang in self.gangs.values() if gang.assembles for number in gang.parts]
        return [number for lease in self.waiting.in_order() for number in lease.numbers] + assembling

    def _near(self, lease: Lease) -> set[str]:
        """The racks in which its user has GPUs, by some of its leases."""
        some = (self.leases[number].devices[0] for number in islice(lease.account.leases, NEAR_LOOK))
        return {rack for rack in map(self.room.rack, some) if rack}

    def _entry(self, lease: int) -> Lease | None:
        """A lease that waits, or the gang that does, of which it is; None: it does not wait."""
        found = self.leases.get(lease)
        if found is None or found.devices:
            return None
        return self.leases[found.gang.whole] if found.gang and found.gang.whole else found

    def why(self, lease: int) -> str:
        """Why a lease waits, for people; empty when it does not."""
        found = self._entry(lease)
        if found is None:
            return ""
        if found.gang and found.gang.assembles:
            return found.gang.missing()
        return reasons.waits(self.room, self.holdings, found)

    def use(self, user: str) -> float:
        """A user's GPU-seconds, of which half are forgotten after every `shares.HALF_LIFE`."""
        account = self._accounts.get(user)
        return account.use(self._clock) if account else 0.0

    def gpus(self, user: str) -> int:
        """The GPUs that a user's leases have."""
        account = self._accounts.get(user)
        return account.gpus if account else 0

    def story(self, lease: int) -> list[str]:
        """What became of a lease, in words, as far back as events are kept."""
        return story.tell(self._history, lease)

    def has_room(self, number: int, devices: Sequence[int]) -> bool:
        """Whether a lease that is granted could move to these devices."""
        lease = self.leases[number]
        new = set(devices) - set(lease.devices)
        if lease.suspended is not None or not self.room.together([*devices, *(set(lease.devices) - set(devices))]):
            return False
        holding = self.holdings.on(self.room.host(devices[0]) or ONE)
        return not (holding and new & holding.devices) and all(self.room.fits(device, lease.shape) for device in new)

    # ---- entries ------------------------------------------------------------------------------------------------------

    def _account(self, user: str) -> Account:
        return self._accounts.setdefault(user, Account(user))

    def _book(self, lease: Lease, devices: Sequence[int]) -> None:
        """These are its devices, whether it has them now or not."""
        shape = lease.shape
        lease.devices = tuple(sorted(devices))
        # It counts for what others cannot have while it is there; what nobody has reserved is shared, and counts for nobody.
        lease.rate = sum(max(shape.compute / COMPUTE, shape.memory / self.room.total[d]) for d in lease.devices) if shape.reserves else 0.0
        lease.account.leases.add(lease.id)
        lease.account.gpus += shape.gpus

    def _take(self, lease: Lease) -> None:
        """It has its devices from now on."""
        for device in lease.devices:
            self.room.take(device, lease.shape)
        lease.account.begin(self._clock, lease.rate)
        self.preemption.add(lease)

    def _take_back(self, lease: Lease) -> None:
        """A lease that has its devices has them no more."""
        self.preemption.forget(lease)
        lease.account.end(self._clock, lease.rate)
        self._give_back(lease.devices, lease.shape)

    def _give_back(self, devices: Iterable[int], shape: Shape) -> None:
        for device in devices:
            self.room.give_back(device, shape)
            self.holdings.freed(device)
