"""Who waits for GPUs, in the order in which they are served.

Higher priority first; among equals the user that has used the least for its weight (shares.py); then who came first. A user's own leases keep their
order where its quota is what they wait for.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.room import Shape
from gpuvirt.server.policy.shares import Account, Clock, Entry

# It bounds the time of a decision what one pass looks at in vain: so many leases of a user; and in how many kinds it sorts those of all users.
LOOK_USER, KINDS = 8, 128


class Waiting:
    """The leases, and the gangs as a whole, that wait; not those of a gang that assembles.

    Args:
        leases: all of the pool, by their numbers.
        holdings: what is held, for some of those that wait and for others.
    """

    def __init__(self, leases: Mapping[int, Lease], holdings: Holdings, clock: Clock) -> None:
        self._leases, self._holdings, self._clock = leases, holdings, clock
        self._accounts: dict[str, Account] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def accounts(self) -> Collection[Account]:
        """The users that have any."""
        return self._accounts.values()

    def add(self, lease: Lease, at: float) -> None:
        account = lease.account
        account.queue_up(at, lease.entry, lease.shape)
        self._accounts[account.name] = account
        self._count += 1

    def remove(self, lease: Lease, at: float) -> None:
        """It waits no more, and nothing is held for it."""
        if self._holdings.of(lease.id):
            self._holdings.let_go(lease.id)
        account = lease.account
        account.leave(at, lease.entry, lease.shape)
        if not account.queue:
            del self._accounts[account.name]
        self._count -= 1

    def rank(self, lease: Lease) -> tuple[int, float, int]:
        """The less, the sooner it is served."""
        return lease.entry[0], lease.account.key(self._clock.ahead), lease.entry[1]

    def place(self, lease: Lease) -> int:
        """Its place, from 1: those that hold devices are in front of all others."""
        rank = self.rank(lease)
        holders = [self.rank(holder) for holder in self.holders()]
        if self._holdings.of(lease.id):
            return 1 + sum(other < rank for other in holders)
        past = sum(other > rank for other in holders)  # those that its rank is ahead of, and that come first all the same
        return 1 + past + sum(account.ahead_of(rank, self._clock.ahead) for account in self.accounts)

    def in_order(self) -> list[Lease]:
        waiting = [self._leases[number] for account in self.accounts for _, _, number in account.queue]
        return sorted(waiting, key=lambda lease: (self._holdings.of(lease.id) is None, self.rank(lease)))

    def holders(self) -> list[Lease]:
        """Those for which devices are held."""
        return [lease for holding in self._holdings if not (lease := self._leases[holding.lease]).devices]

    def kept(self) -> Counter[str]:
        """The GPUs of each user's quota that its leases which hold will need."""
        kept = Counter[str]()
        for holder in self.holders():
            kept[holder.account.name] += holder.shape.gpus
        return kept

    def walks(self) -> list[Walk]:
        """One over the leases of each user; all of them are one pass."""
        kinds = Budget(KINDS)
        holders: dict[str, list[Lease]] = {}
        for holder in self.holders():
            holders.setdefault(holder.account.name, []).append(holder)
        return [Walk(account, holders.get(account.name, ()), kinds) for account in self.accounts]

    def has_turn(self, lease: Lease) -> bool:
        """Whether the quota has room for the lease and for those of its user that are ahead of it."""
        account = lease.account
        if not account.quota:
            return True
        room = account.quota - account.gpus - lease.shape.gpus - self.kept()[account.name]
        for entry in account.queue:
            if room < 0 or entry == lease.entry:
                break
            if not self._holdings.of(entry[2]):
                room -= self._leases[entry[2]].shape.gpus
        return room >= 0


@dataclass
class Budget:
    """What a pass may still do."""

    left: int


class Walk:
    """A pass over the waiting leases of one user, in its order: which is to be looked at, and after that which.

    Whoever has no quota is not kept from what else it waits for by leases that want at least what nobody can have at the moment: they are passed
    over, however many they are, as long as the pass may sort what waits. With a quota each of them is looked at, for what is ahead of a lease counts
    for the quota, too.

    Args:
        holders: its leases for which devices are held. Those of gangs are looked at whatever there is for others.
        kinds: which the walks of one pass may look at.

    Attributes:
        entry: of the lease that is to be looked at, None: of no more.
        spoken: GPUs of its quota that are for leases that come before that.
    """

    def __init__(self, account: Account, holders: Sequence[Lease], kinds: Budget) -> None:
        self.account, self._budget = account, kinds
        self._sorts = not account.quota
        self.spoken = sum(holder.shape.gpus for holder in holders)
        self.entry: Entry | None = account.queue[0]
        self._holders = {lease.entry for lease in holders if lease.gang}
        self._shape: Shape | None = None  # the kind of what is looked at, None: of the first of all, or of a holder
        self._vain = 0
        self._next: list[tuple[Entry, Shape | None]] | None = None  # a heap: the first of each kind, and holders

    def granted(self, unfit: Sequence[Shape]) -> None:
        """What was looked at waits no more. unfit: what nobody can have at the moment."""
        if self._next is not None and self._shape is not None:
            self._push(self._shape)
        self._go_on(unfit)

    def in_vain(self, unfit: Sequence[Shape]) -> None:
        """It waits on, and all of its kind."""
        self._vain += 1
        self._go_on(unfit)

    def _go_on(self, unfit: Sequence[Shape]) -> None:
        queue, last = self.account.queue, self.entry
        self.entry = None
        if self._vain == LOOK_USER:
            return
        if self._next is None and self._sorts:
            self._sorts = len(self.account.kinds) <= self._budget.left
        if not self._sorts:
            self.entry = queue[self._vain] if self._vain < len(queue) else None
            return
        if self._next is None:
            self._budget.left -= len(self.account.kinds)
            self._next = [(entry, None) for entry in self._holders if entry != last]
            for shape in self.account.kinds:
                if not any(shape.wants_at_least(other) for other in unfit):
                    self._push(shape)
        while self._next:
            entry, self._shape = heapq.heappop(self._next)
            if self._shape is None or not any(self._shape.wants_at_least(other) for other in unfit):
                self.entry = entry
                return

    def _push(self, shape: Shape) -> None:
        """The first of a kind for which nothing is held is to be looked at."""
        assert self._next is not None
        for entry in self.account.kinds.get(shape, ()):
            if entry not in self._holders:
                heapq.heappush(self._next, (entry, shape))
                return
