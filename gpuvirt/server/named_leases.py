"""Named leases as the control channel asks for them: opened, renewed, found, given back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from gpuvirt.server.lease import Asked, Lease, NotGranted
from gpuvirt.server.leases import Leases
from gpuvirt.server.ledger.store import LeaseRow, Ledger
from gpuvirt.server.policy.rights import Rights

log = logging.getLogger("gpuvirt.server")

GIVEN_BACK = "the GPUs were given back (gpuvirt detach, or the end of the shell or block that had them)"  # for who has lost them


class NamedLeases:
    """The named leases of one daemon.

    Args:
        end: ends a session, by its number, for a reason that its client is told.
        changed: is called when a lease may end at another time than before.
    """

    def __init__(self, leases: Leases, end: Callable[[int, str], None], changed: Callable[[], None]) -> None:
        self._leases, self._end, self._changed = leases, end, changed

    def keep(self, ledger: Ledger, rights: Callable[[bytes], Rights | None]) -> None:
        """Brings back what the ledger has, and writes there from now on what a later server must know.

        Args:
            rights: of a token, None: it is worth nothing any more.
        """

        def changed(lease: Lease) -> None:
            expires = time.time() + (0.0 if lease.expires is None else lease.expires - time.monotonic())
            has = lease.devices, lease.memory, lease.holder, lease.started, expires, lease.compute, lease.priority, lease.preemptible
            ledger.write(LeaseRow(lease.number, lease.id, lease.owner, *has, suspended=lease.suspended))

        self._leases.changed, self._leases.ended = changed, lambda lease: ledger.erase(lease.number)

        now, wall = time.monotonic(), time.time()
        for row in ledger.leases():
            known = self._leases.get(row.number)
            if known is not None:  # it has sessions, with which it has come back already
                known.expires = now + self._leases.expiry if row.expires > wall else now
                continue
            has = row.devices, row.compute, row.priority, row.preemptible
            lease = Lease(row.number, row.owner, len(row.devices), row.memory, row.started, row.holder, *has, id=row.id, suspended=row.suspended)
            allowed = rights(row.owner)
            try:
                if allowed is None:
                    raise NotGranted("its token was revoked, or has expired")
                if row.expires <= wall:
                    raise NotGranted("nobody has renewed it in time")
                self._leases.restore(lease, allowed, now)
                log.info("lease %016x goes on: GPU %s", lease.number, ",".join(map(str, lease.devices)))
            except NotGranted as error:
                log.info("lease %016x of an earlier server has ended: %s", lease.number, error)
                ledger.erase(lease.number)
        self._changed()

    def open(self, id: bytes, wanted: Asked, holder: dict[str, Any]) -> Lease:
        """Grants GPUs that programs can work on by the lease's id, or lets it wait for them.

        Raises:
            NotGranted: they cannot be had, or not at once where that is wanted.
        """
        lease = self._leases.open(id, wanted, holder, time.monotonic(), time.time())
        has = f"waits for {lease.gpus}: {self._leases.why(lease)}" if lease.waits else f"GPU {','.join(map(str, lease.devices))}"
        log.info("lease %016x of %s@%s: %s", lease.number, holder["user"] or "?", holder["host"] or "?", has)
        self._changed()
        return lease

    def check_not_refused(self, id: bytes, owner: bytes) -> None:
        """Raises:
        NotGranted: a lease of this id waited here, and was refused.
        """
        self._leases.check_not_refused(id, owner)

    def renew(self, id: bytes, owner: bytes) -> Lease:
        """Its agent lives.

        Raises:
            NotGranted: there is no such lease.
        """
        lease = self._leases.renew(id, owner, time.monotonic())
        self._changed()
        return lease

    def release(self, id: bytes, owner: bytes) -> int:
        """Takes a lease's GPUs back; what runs on them is ended and told why. Returns how many sessions that were.

        Raises:
            NotGranted: there is no such lease.
        """
        lease = self._leases.find(id, owner)
        sessions = self._leases.release(id, owner, time.monotonic())
        log.info("lease %016x was given back", lease.number)
        for number in sessions:
            self._end(number, GIVEN_BACK)
        return len(sessions)

    def let_go(self, id: bytes, owner: bytes) -> None:
        """The lease ends when nothing runs under it, at once if nothing does.

        Raises:
            NotGranted: there is no such lease.
        """
        self._leases.let_go(id, owner, time.monotonic())
        self._changed()

    def find(self, id: bytes, owner: bytes) -> Lease:
        """Raises:
        NotGranted: there is no such lease.
        """
        return self._leases.find(id, owner)

    def waiting(self, lease: Lease) -> dict[str, Any]:
        """What is said of a lease that waits: place, queued, why; of one that gives way why, as ``preempted`` if it is to be
        given back, else as ``suspended``; how often it has been suspended (``suspensions``); of another nothing."""
        if not lease.waits:
            said = {"preempted": lease.preempted, "suspended": lease.suspends, "suspensions": lease.suspensions}
            return {name: value for name, value in said.items() if value}
        place, queued = self._leases.place(lease)
        return {"place": place, "queued": queued, "why": self._leases.why(lease)}

    @property
    def expiry(self) -> float:
        """Seconds within which a named lease is to be renewed."""
        return self._leases.expiry
