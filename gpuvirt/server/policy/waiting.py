"""Who waits for GPUs, in the order in which they are served.

Higher priority first; among equals the user that has used the least for its weight (shares.py); then who came first. A user's own leases keep their
order where its quota is what they wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.kinds import Kinds
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.shares import Account, Clock, Entry


class Waiting:
    """The leases, and the gangs as a whole, that wait; not those of a gang that assembles.

    Args:
        leases: all of the pool, by their numbers.
        holdings: what is held, for some of those that wait and for others.

    Attributes:
        kinds: of what waits.
    """

    def __init__(self, leases: Mapping[int, Lease], holdings: Holdings, clock: Clock, kinds: Kinds) -> None:
        self._leases, self._holdings, self._clock, self.kinds = leases, holdings, clock, kinds
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
        lease.kind = self.kinds.add(lease.shape, account.name)
        account.queue_up(at, lease.entry, lease.kind)
        self._accounts[account.name] = account
        self._count += 1

    def remove(self, lease: Lease, at: float) -> None:
        """It waits no more, and nothing is held for it."""
        if self._holdings.of(lease.id):
            self._holdings.let_go(lease.id)
        account, kind = lease.account, lease.kind
        assert kind is not None
        lease.kind = None
        account.leave(at, lease.entry, kind)
        if kind not in account.kinds:
            self.kinds.remove(kind, account.name)
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

    def highest(self, default: int) -> int:
        """The highest priority of any of them."""
        return max((-account.queue[0][0] for account in self.accounts), default=default)

    def lease(self, entry: Entry) -> Lease:
        """What an entry of a user's queue is of."""
        return self._leases[entry[2]]

    @property
    def ahead(self) -> float:
        """The clock's: what is compared by `Account.key`."""
        return self._clock.ahead

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
