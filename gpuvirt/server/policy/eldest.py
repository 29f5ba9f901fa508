"""Who holds devices by its age, so that nobody waits without bound.

Priority, weights and users who come anew can keep a lease from ever being the first in the order. So of the users' first leases the one that has been
that for the longest holds before all others, once that is longer than `PATIENCE`. Such leases have a `LANE`th of the pool's time: one at a time, and
after one that had N of G GPUs for a time T (from when it began to hold) the next has to wait for LANE * N / G * T from then on. What they use counts
in the fair order like everything else, so shares stay what they are. Nobody else begins to hold while it cannot because of others that do.

**Bound.** If no lease lasts longer than L, a user's first lease is granted within `bound(users, L)`, where so many users have leases that wait,
whatever comes in meanwhile. After L at most the user's quota has room, for no lease of its own may take what its first one waits for. Then one user
after the other is the eldest, at most LANE * 2 L after the one before (L until that is granted, L until it is over), L for the next event, and L
until a lease that holds already is granted. A lease that is the k-th of its user waits at most k times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.shares import Account

PATIENCE = 4 * 3600.0  # s; half a working day: what the fair order takes, unless the pool is hopelessly overbooked
LANE = 8  # an eighth: the eldest of all users together get no more, so that age does not bend the shares


def bound(users: int, longest: float) -> float:
    """The longest that the first lease of a user waits, seconds.

    Args:
        users: that have leases which wait, itself included.
        longest: no lease lasts longer, seconds.
    """
    return max(PATIENCE, longest) + (users * (2 * LANE + 2) + 1) * longest


class Lane:
    """What the eldest have: one at a time has its devices by its age, and then none for as long as the others' part of the time takes.

    Attributes:
        next: there is an eldest that holds as soon as others do no more; so nobody else begins to.
    """

    def __init__(self, room: Hosts) -> None:
        self._room = room
        self._user: tuple[Lease, float] | None = None  # has its devices by its age, and since when they were held for it
        self._opens = 0.0
        self.next = False

    def granted(self, lease: Lease, since: float) -> None:
        """A lease, or a gang, has the devices that were held for it by its age from `since` on."""
        self._user = lease, since

    def released(self, lease: Lease, at: float) -> None:
        """A lease is over, which may be the one, or the last of the gang, that had the lane."""
        if self._user is None:
            return
        user, since = self._user
        if user is lease or (user.gang and user.gang is lease.gang and not lease.gang.parts):
            self._opens = since + LANE * user.shape.gpus / max(self._room.count, 1) * (at - since)
            self._user = None

    def eldest(self, waiting: Iterable[Account], leases: Mapping[int, Lease], at: float) -> Lease | None:
        """Whose turn it is; None: the lane is not free, or nobody has waited for long enough whose quota has room."""
        if self._user is not None or at < self._opens:
            return None
        oldest: Lease | None = None
        for account in waiting:
            if at - account.first_since < PATIENCE:
                continue
            lease = leases[account.queue[0][2]]
            blocked = account.quota and account.gpus + lease.shape.gpus > account.quota
            if not blocked and (oldest is None or (account.first_since, lease.entry[1]) < (oldest.account.first_since, oldest.entry[1])):
                oldest = lease
        return oldest
