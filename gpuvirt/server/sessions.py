"""Sessions: granted, handed to a worker, watched, and cleaned up after, however they end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.attaching.sealing import NotSealed, Sealing
from gpuvirt.server.attaching.waiting_clients import WaitingClients, send_welcome, tell_while
from gpuvirt.server.fdstore.kept_sessions import Kept, SessionStore, pool_of
from gpuvirt.server.handover import Handovers
from gpuvirt.server.lease import NO_RIGHTS, Lease, Membership, NotGranted
from gpuvirt.server.leases import Leases, Policy
from gpuvirt.server.memory_usage import SLOTS, MemoryUsage
from gpuvirt.server.migration.carry import WORKER_LIMIT
from gpuvirt.server.migration.departed import Departed, DepartedSessions
from gpuvirt.server.migration.local import move
from gpuvirt.server.named_leases import GIVEN_BACK, NamedLeases
from gpuvirt.server.parking import Parkable, Parking
from gpuvirt.server.policy.instructions import Instruction
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights
from gpuvirt.server.recent import Recent
from gpuvirt.server.refusals import Moved, Refused, refused
from gpuvirt.server.session import MAIN, Session, asked, holder
from gpuvirt.server.suspending import Suspending
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.turns import Turns
from gpuvirt.server.worker_library import RunEnding
from gpuvirt.server.workers.engine import Engine
from gpuvirt.server.workers.exports import Exports
from gpuvirt.server.workers.worker_process import WorkerProcess
from gpuvirt.sizes import whole_units
from gpuvirt.transport.handshake import WELCOME_FAILED, WELCOME_UNKNOWN, Hello, State, Transcript
from gpuvirt.transport.transport import Transport

log = logging.getLogger("gpuvirt.server")

WORKER_PATIENCE = 4.0  # seconds without a worker, after which the client is told that it waits; it gives up when it has heard nothing for 10
FORMER_LIMIT = 1.0  # seconds that the session of a program that was replaced has for its own end
TOLD_MOST = 256  # ended sessions that are remembered, because their clients are to hear why


NO_SHARES = "no part of a GPU's compute can be reserved on this server (--strict); leave --compute away"


class Sessions:
    """All sessions of one daemon.

    Attributes:
        named: its named leases.
        reconnections: connections that were made again, by the name of the transport.
        waiting: its clients that wait for GPUs.
        changed: is called when a lease or a session is new, has ended, or is parked or back.
        launch_over: tells the pool that a launcher has said so, None: this host is its own pool.
        on_end: is called with a session that has ended, before it is forgotten.
    """

    def __init__(
        self,
        engine: Engine,
        memory_usage: MemoryUsage | None,
        server_name: str,
        grace: int = 0,
        per_token: int | None = None,
        memory: int = 0,
        *,
        sealing: Sealing | None = None,
        host_memory: int = 0,
        idle: int = 0,
        overrun: float = 60.0,
        tenant_of: Callable[[bytes], Tenant],
        pool: Callable[[PolicyMachine], Policy] | None = None,
        departed: Path | None = None,
    ) -> None:
        """Args:
        pool: makes the policy of a host in a pool of many, from the books of its own devices.
        departed: the file of the sessions that have gone from there to others.
        """
        self._told = Recent[int, Session](TOLD_MOST)  # that have ended for a reason that their clients are told when they ask
        self.departures = DepartedSessions(departed)
        self.arriving: set[int] = set()  # sessions that come from another server, and do not work here yet
        inventory = engine.inventory
        self.engine, self.inventory, self.memory_usage = engine, inventory, memory_usage
        self.tenant_of, self.handovers = tenant_of, Handovers(inventory, memory_usage, server_name, grace, host_memory)
        self._sealing = sealing or Sealing()
        own = PolicyMachine([device.memory for device in inventory.devices], whole_units(memory))
        self.table = Leases(pool(own) if pool is not None else own, SLOTS, per_token, grace, pool is not None)
        self.table.decided = self._decided
        if inventory.strict:
            self.table.no_shares = NO_SHARES
        self.named = NamedLeases(self.table, self._end, self._watch_expiry)
        self.waiting = WaitingClients(self.table, pool is not None, self._watch_expiry)
        self._expiry: asyncio.TimerHandle | None = None
        self.reconnections: Counter[str] = Counter()
        self.launch_over: Callable[[bytes, bytes], None] | None = None
        self.changed: Callable[[], None] = lambda: None
        self.on_end: Callable[[Session], None] = lambda session: None
        self._sessions: dict[int, Session] = {}
        self._exports = Exports(self._sessions.get, self._export_bytes)
        self.turns = Turns() if inventory.backend == "soft" else Turns(self._end, overrun)
        self._parking: Parking | None = None
        self.kept: SessionStore | None = None
        if memory_usage is not None and not inventory.strict:
            total = [device.memory for device in inventory.devices]
            self._parking = Parking(self._sessions.values(), memory_usage, total, idle, paths.cache_root() / "parked")
            self._parking.changed = self._parking_changed
        self._suspending = Suspending(self.table, self._sessions.values(), self._parking, self._suspension_changed)

    def _parking_changed(self, session: Parkable) -> None:
        if (known := self._sessions.get(session.id)) is not None:
            self.keep(known)
        self.changed()

    def _suspension_changed(self, session: Session | None) -> None:
        if session is not None:
            self.keep(session)
        else:
            self._watch_expiry()

    async def close(self) -> None:
        self.turns.close()
        await self._suspending.close()
        if self._parking is not None:
            await self._parking.close()

    def get(self, session: int) -> Session | None:
        return self._sessions.get(session)

    def ended(self, session: int) -> Session | None:
        """A session that the server has ended for a reason that its client is to hear, if that was not long ago."""
        return self._told.get(session)

    def following(self, limit: float) -> int:
        """How many sessions have gone to other servers in so many seconds, and named leases, whose clients do not know where they are yet."""
        return self.departures.following(limit) + self.table.following(time.monotonic())

    def check(self, hello: Hello, rights: Rights = NO_RIGHTS) -> None:
        """Whether what a hello asks for could ever be had. rights: what its token allows.

        Raises:
            Refused: it could not.
            Moved: the lease that it names is at another host of the pool.
        """
        with refused():
            self.table.check(asked(hello, rights))

    async def attach(
        self, client: socket.socket, hello: Hello, secret: bytes, transcript: Transcript, transport: Transport, peer: str, rights: Rights = NO_RIGHTS
    ) -> Session:
        """Grants devices, welcomes the client and hands its connection to a worker.

        Args:
            client: stays the caller's to close: the worker has its own descriptor by then.
            transcript: of the connection's handshake, the hello included.
            transport: what the session runs over.
            rights: what the token allows.

        Raises:
            Refused: no devices, or no worker.
            Moved: the client is to ask another server.
            OSError: the client went away meanwhile.
        """
        try:
            exchange = self._sealing.exchange(transport, hello.key_exchange)
        except NotSealed as error:
            raise Refused(WELCOME_FAILED, str(error)) from None
        await self._end_former(hello)
        with refused():
            wanted = asked(hello, rights)
        while (away := self.table.away(wanted)) is not None:
            await tell_while(client, transcript, away[0], partial(State, text=away[1]))
        number = secrets.randbits(63) | 1
        with refused():
            membership = self.table.join(number, wanted, holder(hello, peer), time.time(), time.monotonic())
        worker: WorkerProcess | None = None
        session: Session | None = None
        try:
            if membership.lease.waits:
                await self.waiting.wait(client, hello, membership.lease, transcript)
            tenant = self.tenant_of(hello.token_id)
            self.engine.expect(tenant)
            starting = asyncio.ensure_future(self.engine.take(WORKER_LIMIT))
            try:
                await tell_while(client, transcript, starting, State, WORKER_PATIENCE)
            finally:
                if not starting.done():
                    starting.cancel()
            worker = await starting
            if not self.table.lasts(membership.lease):  # it was given back meanwhile, and this was no session yet that could be ended
                raise Refused(WELCOME_UNKNOWN, GIVEN_BACK)
            session = Session(number, membership, transport, hello, peer, worker, tenant)
            session.end = transport.open()
            self._sessions[number] = session
            self.changed()
            self._serve_room(session)
            send_welcome(client, session, secret, transcript, exchange, self.handovers.grace_of(session))
            self.keep(session)
            self._hand_over(client, session)
            self.turns.join(session)
            if self.table.launch_has_ended(hello.launch, hello.token_id):
                worker.client_gone()  # it ended while this was under way, so that its report found no session
        except BaseException as error:
            self._sessions.pop(number, None)
            self.turns.leave(number)
            if session is not None:
                session.end.close()
            if worker is not None:
                worker.kill()
                await asyncio.shield(worker.gone)
            self._leave(number, membership)
            if isinstance(error, GpuvirtError):
                log.error("no worker for a session: %s", error)
                raise Refused(WELCOME_FAILED, str(error)) from None
            raise
        attached = session
        worker.gone.add_done_callback(lambda _: self._worker_gone(attached, worker))
        gpus = ",".join(map(str, membership.devices))
        log.info("%s from %s over %s: GPU %s, worker %d", session.label, peer, session.link, gpus, worker.pid)
        return session

    def _decided(self, lease: Lease) -> None:
        self.changed()
        self.waiting.decided(lease)

    async def _end_former(self, hello: Hello) -> None:
        """Ends the sessions of the program that ran in this process before: it was replaced (exec), and nobody will come back for them.

        Their memory is free when this returns, for what has taken the program's place counts on it.
        """
        former = [
            s.worker
            for s in self._sessions.values()
            if any(hello.process) and s.hello.process == hello.process and s.hello.exec_id != hello.exec_id and s.hello.token_id == hello.token_id
        ]
        if not former:
            return
        for worker in former:
            worker.client_gone()
        _, late = await asyncio.wait([worker.gone for worker in former], timeout=FORMER_LIMIT)
        if late:
            for worker in former:
                worker.kill()
            await asyncio.wait(late)

    def _hand_over(self, client: socket.socket, session: Session) -> None:
        given = self.handovers.of(session, session.membership)
        client.setblocking(True)
        session.worker.give(given.config, (client.fileno(), *given.descriptors, *given.passed.values()))

    def check_further(self, session: Session, which: int, epoch: int, provides: int) -> None:
        """Whether a further connection of a session may come: a channel's first (epoch 0), or one that takes the place of an older one.

        Args:
            provides: NEEDS_* that the connection meets.

        Raises:
            Refused: a number or an epoch that cannot be; what comes of an earlier attempt must not push aside the present connection.
        """
        if session.url:
            if (gone := self.departures.get(session.id)) is not None:
                self.departures.tell(gone)
            raise Moved(session.url)
        if session.worker.told:  # it has been told to end, and its worker has not ended yet
            raise Refused(WELCOME_UNKNOWN, session.worker.ending)
        if not (session.transport.resumes if which == MAIN else 0 <= which < session.transport.connections):
            raise Refused(WELCOME_FAILED, "this session has no such connection")
        if session.transport.needs & ~provides:
            raise Refused(WELCOME_FAILED, f"a connection of this session comes over what {session.transport.name} needs")
        last = session.epochs.get(which)
        if last is not None and (epoch <= last or not self.handovers.grace_of(session)):
            what = "the connection" if which == MAIN else f"bulk channel {which}"
            raise Refused(WELCOME_FAILED, f"{what} of this session has been made already")

    def add_connection(self, session: Session, which: int, client: socket.socket, epoch: int) -> None:
        """Hands a further connection of a session to its worker, which has its own descriptor then.

        Raises:
            OSError: the worker is gone.
        """
        again = which in session.epochs
        session.epochs[which] = epoch
        self.keep(session)
        client.setblocking(True)
        session.worker.add_connection(which, client.fileno(), epoch)
        if again:
            self.reconnections[session.transport.name] += 1
            log.info("%s: %s is made again", session.label, "its connection" if which == MAIN else f"its bulk channel {which}")

    def launch_ended(self, launch: bytes, owner: bytes) -> int:
        """A launcher says that its program has ended: sessions of that launch whose client is not connected are over, now or once they are cut.

        Args:
            owner: the token that says so; sessions of others are not concerned.

        Returns:
            How many sessions that launch still has.
        """
        if self.launch_over is not None:
            self.launch_over(launch, owner)
        return self.launch_ended_elsewhere(launch, owner)

    def launch_ended_elsewhere(self, launch: bytes, owner: bytes) -> int:
        """As `launch_ended`, where the launcher has told another host of the pool."""
        self.table.launch_ended(launch, owner, time.monotonic())
        concerned = [s for s in self._sessions.values() if s.hello.launch == launch and s.hello.token_id == owner and any(launch)]
        for session in concerned:
            session.worker.client_gone()
        return len(concerned)

    # ---- an earlier daemon's, and a later one's -------------------------------------------------------------------------

    def adopt(self, kept: SessionStore, rights: Callable[[bytes], Rights | None]) -> None:
        """Goes on with the sessions of an earlier daemon, and keeps them, and those that come, for a later one. Before anybody is served.

        Args:
            rights: of a token, None: it is worth nothing any more, and what it has is ended when the tokens are looked at next.
        """
        self.kept = kept
        kept.lost(self._keep_all)
        for one in kept.left:
            try:
                self._adopt(one, rights(one.hello.token_id) or NO_RIGHTS)
            except (NotGranted, GpuvirtError) as error:
                log.warning("session %016x of an earlier server is ended: %s", one.id, error)
                one.end_process()
        if self.memory_usage:
            self.memory_usage.clear_free_slots()
        self.changed()

    def _adopt(self, one: Kept, rights: Rights) -> None:
        """Raises:
        NotGranted, GpuvirtError: it cannot go on here.
        """
        if one.pool != pool_of(self.inventory):
            raise GpuvirtError("the server's GPUs are others than it began with")
        membership = self.table.adopt(one.id, one.lease, one.slot, one.memory, rights, time.monotonic())
        if self.memory_usage:
            self.memory_usage.resume(one.slot, one.memory)
        worker = self.engine.adopt(one.process, one.host_memory, one.cgroup)
        session = Session(one.id, membership, one.transport, one.hello, one.peer, worker, self.tenant_of(one.hello.token_id), one.key, one.seal)
        session.started, session.end, session.epochs, session.adopted = one.started, one.end, one.epochs, True
        self._sessions[session.id] = session
        self._serve_room(session)
        self.turns.join(session, adopted=True)
        if self._parking is not None:
            self._parking.adopt(session, one.parked, one.used, one.parking_file)
        self._suspending.adopt(session)
        worker.gone.add_done_callback(lambda _: self._worker_gone(session, worker))
        self.keep(session)
        log.info("%s goes on: GPU %s, worker %d", session.label, ",".join(map(str, membership.devices)), worker.pid)

    def keep(self, session: Session, former: WorkerProcess | None = None) -> None:
        """For a later daemon. former: the worker that has had it until now, and must be dead before it goes on."""
        if self.kept is not None:
            used = self.memory_usage.row(session.slot) if self.memory_usage else []
            self.kept.keep(session, pool_of(self.inventory), used, self.handovers.host_memory_of(session.membership), former)

    def _keep_all(self) -> None:
        if self.kept is not None and self.memory_usage:
            self.kept.keep_memory_usage(self.memory_usage)
        for session in self._sessions.values():
            self.keep(session)

    def _worker_gone(self, session: Session, worker: WorkerProcess) -> None:
        if worker is session.worker and not session.url and session.id in self._sessions:
            self._ended(session)

    def goes_on(self, session: Session, worker: WorkerProcess) -> None:
        """A session that was another worker's goes on in this one, which has been given it."""
        self._sessions[session.id] = session
        self._serve_room(session)
        self.turns.join(session)
        worker.gone.add_done_callback(lambda _: self._worker_gone(session, worker))
        self.changed()

    def departed(self, session: Session, url: str) -> None:
        """A session is at another server of the pool: its client is sent there."""
        self._drop(session)
        if self.memory_usage:
            self.memory_usage.free_slot(session.slot)
        session.url = url
        self.departures.add(Departed(session.id, session.key, url, session.label, time.time(), settled=session.moving))

    def named_session(self, name: str, viewer: bytes | None) -> Session:
        """Raises:
        GpuvirtError: `viewer` (a token; None: an admin) has no session of this id.
        """
        session = next((s for s in self._sessions.values() if f"{s.id:016x}" == name and viewer in (None, s.hello.token_id)), None)
        if session is None:
            raise GpuvirtError(f"there is no session {name[:40]!r}; `gpuvirt ps` lists them")
        return session

    async def move(self, name: str, devices: tuple[int, ...], limit: float, viewer: bytes | None = None) -> dict[str, Any]:
        """Has a session and its lease go on on other devices, in another worker: its program waits meanwhile, and notices nothing.

        Args:
            name: the session's id, as `list` has it.
            limit: seconds that it has to come to rest.
            viewer: the token that asks; of other tokens there are no sessions. None: of all.

        Raises:
            GpuvirtError: it stays where it is.
        """
        return await move(self, self.named_session(name, viewer), devices, limit)

    async def park(self, name: str, viewer: bytes | None = None) -> dict[str, Any]:
        """Parks a session that is idle: its GPU's memory is others' until its program calls something.

        Args:
            name, viewer: as for `move`.

        Raises:
            GpuvirtError: it keeps its memory.
        """
        session = self.named_session(name, viewer)
        if self._parking is None:
            raise GpuvirtError("the session cannot be parked: only sessions on software GPUs can")
        try:
            given_back = await self._parking.park(session)
        except GpuvirtError as error:
            raise GpuvirtError(f"the session keeps its memory: {error}") from None
        return {"given_back": given_back}

    def park_when_quiet(self, lease: Lease, pid: int, host: str) -> int:
        """Parks what a process has under a lease as soon as it calls nothing. Returns how many sessions that concerns."""
        concerned = [s for s in self._sessions.values() if s.membership.lease is lease and (s.hello.pid, s.hello.host) == (pid, host)]
        if self._parking is None:
            return 0
        for session in concerned:
            self._parking.park_when_quiet(session)
        return len(concerned)

    def _export_bytes(self, membership: Membership) -> int:
        """All that a session has on its devices, twice, as for what is mapped more than once, and one file for events."""
        return (4 << 20) + 2 * sum(membership.memory or self.inventory.devices[device].memory for device in membership.devices)

    def _serve_room(self, session: Session) -> None:
        """From now on its worker can ask for memory that other sessions have, and for what they share."""
        self._exports.serve(session)
        if self._parking is not None:
            self._parking.serve(session)

    def _drop(self, session: Session) -> None:
        """It is not here any more."""
        self.on_end(session)
        session.end.close()
        if self._parking is not None:
            self._parking.ended(session)
        self._sessions.pop(session.id, None)
        self._exports.ended(session)
        self.turns.leave(session.id)

    def _ended(self, session: Session) -> None:
        self._drop(session)
        self._leave(session.id, session.membership)
        if session.worker.told:
            self._told[session.id] = session
        clean = session.worker.run_ending is RunEnding.GOODBYE
        (log.info if clean else log.warning)("%s ended: %s", session.label, session.worker.ending)

    def _leave(self, session: int, membership: Membership) -> None:
        if self.memory_usage:
            self.memory_usage.free_slot(membership.slot)
        self.table.leave(session, time.monotonic())
        self._watch_expiry()

    # ---- leases' ends ---------------------------------------------------------------------------------------------------

    def end_without_token(self, over: Callable[[bytes], str | None]) -> None:
        """Ends what tokens have, or wait for, that are worth nothing any more. over: why one is, None: it is valid."""
        for owner in {lease.owner for lease in self.table} | {session.hello.token_id for session in self._sessions.values()}:
            why = over(owner)
            if why is None:
                continue
            log.info("what the token %s has is ended: %s", owner.hex()[:8], why)
            self.table.revoke(owner, why, time.monotonic())
            for session in [s for s in self._sessions.values() if s.hello.token_id == owner]:
                self._end(session.id, why)
            self._watch_expiry()

    def _end(self, number: int, why: str) -> None:
        """Ends a session, if it runs; its client is told why."""
        session = self._sessions.get(number)
        if session is not None and not session.worker.told:
            session.worker.end(why)

    def _watch_expiry(self) -> None:
        self.changed()
        if self._expiry:
            self._expiry.cancel()
        due = self.table.next_expiry()
        self._expiry = None if due is None else asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._expire)

    def _expire(self) -> None:
        for lease in self.table.expire(time.monotonic()):
            if lease.named:
                log.info("lease %016x has ended: nobody keeps it any more", lease.number)
        self._watch_expiry()

    # ---- a pool of many hosts (gpuvirt.cluster) -------------------------------------------------------------------------

    def lease(self, number: int) -> Lease | None:
        return self.table.get(number)

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Does what the pool's policy says."""
        if instructions:
            self.table.carry_out(instructions)
            self._watch_expiry()

    def place_here(self, lease: Lease, rights: Rights, migrates: bool) -> str:
        """A lease of the pool is to have GPUs of this host. Returns why it cannot, "": it has them. migrates: another host has it until then."""
        why = self.table.place_here(lease, rights, time.monotonic(), migrates)
        self._watch_expiry()
        return why

    def arrived(self, lease: Lease) -> None:
        """A lease that came from another host is this one's. With no session under it, it ends soon."""
        self.table.arrived(lease, time.monotonic())
        self._watch_expiry()

    def finish(self, number: int, why: str) -> None:
        """A lease is over, with what works under it."""
        lease = self.table.get(number)
        if lease is None:
            return
        log.info("lease %016x is ended: %s", number, why)
        for session in list(lease.sessions):
            self._end(session, why)
        self.table.end(lease, time.monotonic())
        self._watch_expiry()

    # ---- what people see (gpuvirt.server.observe) -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Session]:
        """All that run."""
        return iter([*self._sessions.values()])

    @property
    def leases(self) -> list[Lease]:
        """All leases, oldest first."""
        return [*self.table]

    def turn_seconds(self, session: Session) -> float | None:
        """Seconds of turns that a session has had, None: there are no turns on its devices."""
        spent = self.turns.spent(session.id)
        return spent if spent or self.turns.shared(session.membership.devices) else None

    def room_place(self, session: Session) -> tuple[int, int]:
        """The place of a session among those that wait for memory, from 1, and how many they are; zeros when it does not wait."""
        return self._parking.place(session) if self._parking is not None else (0, 0)
