"""What a pass over the leases that wait looks at, and in which order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.kinds import Kind
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.shares import Account, Entry
from gpuvirt.server.policy.waiting import Waiting

LOOK_USER = 8  # leases of a user with a quota that one pass leaves waiting before it looks at no more: it bounds the time of a decision

_Walk = Iterator[Lease]
_BEGIN, _FIND, _HOLD = range(3)  # why something is looked at: the first of a user's; there may be room for it; devices may be held for it


class Pass:
    """A pass over what waits, in the order (waiting.py): those for which there may be room, and as long as devices may be held for somebody each
    user's first for which none are.

    Attributes:
        may_hold: devices may be held; whoever iterates sets it.
    """

    def __init__(self, waiting: Waiting, holdings: Holdings, may_hold: bool) -> None:
        self._waiting, self._holdings, self._kinds, self.may_hold = waiting, holdings, waiting.kinds, may_hold
        self._holders: dict[str, list[Lease]] | None = None
        self._gangs: dict[str, set[Entry]] = {}  # by user: for which devices are held that may be enough together with others
        self._kinds.look()
        for lease in waiting.holders():
            if lease.gang and self._worth(lease):
                self._gangs.setdefault(lease.account.name, set()).add(lease.entry)

    def __iter__(self) -> Iterator[tuple[Lease, bool]]:
        """What is looked at: a lease, and whether devices are to be held for it (else they are to be looked for). Before the next it is granted, or
        they are held for it, or `Kinds.in_vain` is told."""
        kinds = self._kinds
        if not (kinds.any_able or self.may_hold or self._gangs):
            return
        ahead = self._waiting.ahead
        heap: list[tuple[int, float, int, int, Account, Lease | None, _Walk | None]] = [
            (account.queue[0][0], account.key(ahead), account.queue[0][1], _BEGIN, account, None, None) for account in self._waiting.accounts
        ]
        heapq.heapify(heap)

        def look_at(lease: Lease | None, why: int, walk: _Walk | None) -> None:
            """After what is ahead of it."""
            if lease is not None:
                heapq.heappush(heap, (lease.entry[0], lease.account.key(ahead), lease.entry[1], why, lease.account, lease, walk))

        while heap and (kinds.any_able or self.may_hold or self._gangs):
            _, key, _, why, account, lease, walk = heapq.heappop(heap)
            if lease is None or walk is None:
                if lease is None and (kinds.any_of(account.name) or account.name in self._gangs):
                    walk = self._in_turn(account) if account.quota else self._by_kind(account)
                    look_at(next(walk, None), _FIND, walk)
                first = self._first(account) if self.may_hold else None
                if why == _HOLD and first is lease and account.key(ahead) == key:
                    assert lease is not None
                    yield lease, True
                    self._holders = None
                    first = self._first(account) if self.may_hold else None
                look_at(first, _HOLD, None)
                continue
            if self._worth(lease):
                yield lease, False
                self._holders = None
                self._gangs.get(account.name, set()).discard(lease.entry)
                if not self._gangs.get(account.name):
                    self._gangs.pop(account.name, None)
            look_at(next(walk, None), _FIND, walk)

    def _worth(self, lease: Lease) -> bool:
        """Whether devices are to be looked for."""
        assert lease.kind is not None
        holding = self._holdings.of(lease.id) if lease.gang else None
        if self._kinds.able(lease.kind):
            if holding is not None:
                holding.worth = True  # until it was looked for, which may be in another pass
            return True
        return holding is not None and holding.worth

    def _of(self, account: Account) -> Sequence[Lease]:
        """Those of a user for which devices are held."""
        if self._holders is None:
            self._holders = {}
            for lease in self._waiting.holders():
                self._holders.setdefault(lease.account.name, []).append(lease)
        return self._holders.get(account.name, ())

    def _first(self, account: Account) -> Lease | None:
        """The first of a user's for which no devices are held; None: there is none, or its quota has no room for it."""
        entry = next((entry for entry in account.queue if not self._holdings.of(entry[2])), None)
        if entry is None:
            return None
        lease = self._waiting.lease(entry)
        kept = sum(holder.shape.gpus for holder in self._of(account)) if account.quota else 0
        return None if account.quota and account.gpus + kept + lease.shape.gpus > account.quota else lease

    def _by_kind(self, account: Account) -> _Walk:
        """Of a user without a quota: of all kinds, and the gangs for which devices are held, whatever there is for others."""
        gangs = self._gangs.get(account.name, set()).copy()
        heap: list[tuple[Entry, Kind | None]] = [(entry, None) for entry in gangs]
        able = [kind for kind in account.kinds if self._kinds.able(kind)]
        while True:
            for each in able:
                first = next((entry for entry in account.kinds.get(each, ()) if entry not in gangs), None)
                if first is not None:
                    heapq.heappush(heap, (first, each))
            if not heap:
                return
            entry, kind = heapq.heappop(heap)
            if kind is None or self._kinds.able(kind):
                yield self._waiting.lease(entry)
            able = [kind] if kind is not None and self._kinds.able(kind) else []

    def _in_turn(self, account: Account) -> _Walk:
        """Of a user with one: what is ahead of a lease counts for the quota, too, so where that has no room none of those behind it is looked at."""
        queue, holders = account.queue, self._of(account)
        held, spoken = {lease.entry for lease in holders}, sum(lease.shape.gpus for lease in holders)  # spoken: GPUs for those that come before
        place = passed = 0
        while place < len(queue) and passed < LOOK_USER:
            entry = queue[place]
            lease, holds = self._waiting.lease(entry), entry in held
            if not holds and account.gpus + spoken + lease.shape.gpus > account.quota:
                return
            if self._worth(lease):
                yield lease
                if place >= len(queue) or queue[place] != entry:  # it was granted
                    spoken -= lease.shape.gpus if holds else 0
                    continue
            place += 1
            if not holds:
                passed += 1
                spoken += lease.shape.gpus
