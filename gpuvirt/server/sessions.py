"""Sessions: granted, handed to a worker, watched, and cleaned up after, however they end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.devices import Inventory
from gpuvirt.server.memory_usage import SLOTS, MemoryUsage
from gpuvirt.server.policy import Ended, Grant, Policy, Refuse, Wanted
from gpuvirt.server.sealing import CIPHERS, Exchange, NotSealed, Sealing
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.worker_library import RunEnding, SessionConfig
from gpuvirt.server.workers import WorkerPool, WorkerProcess
from gpuvirt.transport.handshake import WELCOME_BUSY, WELCOME_FAILED, Hello, Transcript, Welcome
from gpuvirt.transport.transport import ServerEnd, Transport

log = logging.getLogger("gpuvirt.server")

# Below the 10 s that a client waits for its welcome, so that it hears why.
WORKER_LIMIT = 8.0
FORMER_LIMIT = 1.0  # seconds that the session of a program that was replaced has for its own end
OVER_LIMIT_MOST = 256  # sessions that are remembered
ENDED_LAUNCHES = 4096  # how many are remembered
MAIN = -1  # the number of a session's main connection, among its channels'


class Refused(Exception):
    """No session; the client is told `status` (WELCOME_*) and `text`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Moved(Exception):
    """The session, or whoever wants one, is to dial another server: `address` (tcp://HOST:PORT)."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


def _client(session: Session) -> dict[str, Any]:
    hello = session.hello
    return {"program": hello.program, "pid": hello.pid, "user": hello.user, "host": hello.host, "peer": session.peer}


@dataclass
class Session:
    """One client at work. key: of its further connections, once it has been welcomed; seal: of its link, empty where that is plain."""

    id: int
    grant: Grant
    transport: Transport
    hello: Hello
    peer: str
    worker: WorkerProcess
    tenant: Tenant
    exchange: Exchange | None = field(default=None, repr=False)
    key: bytes = field(default=b"", repr=False)
    seal: bytes = field(default=b"", repr=False)
    started: float = field(default_factory=time.time)
    epochs: dict[int, int] = field(default_factory=lambda: {MAIN: 0})  # of each connection (MAIN, channels), that of the last one

    @property
    def label(self) -> str:
        """For the log."""
        who = f"{self.hello.user or '?'}@{self.hello.host or '?'}"
        return f"session {self.id:016x} ({self.hello.program or '?'} pid {self.hello.pid}, {who})"

    @property
    def cipher(self) -> str | None:
        """By which the link is sealed, None: it is not."""
        return CIPHERS[self.exchange.cipher] if self.exchange else None

    @property
    def link(self) -> str:
        """For people: the transport, and how it is sealed where it could be."""
        return f"{self.transport.name} ({self.cipher or 'plain'})" if self.transport.seals else self.transport.name


class Sessions:
    """All sessions of one daemon."""

    def __init__(
        self,
        inventory: Inventory,
        workers: WorkerPool,
        memory_usage: MemoryUsage | None,
        server_name: str,
        grace: int = 0,
        per_token: int | None = None,
        memory: int = 0,
        *,
        sealing: Sealing | None = None,
        host_memory: int = 0,
        tenant_of: Callable[[bytes], Tenant],
    ) -> None:
        self._host_memory = host_memory
        self._over_limit: OrderedDict[int, Session] = OrderedDict()  # whose workers took more memory than they may: their clients ask
        self._inventory, self._workers, self._memory_usage = inventory, workers, memory_usage
        self._server_name, self._grace, self._tenant_of = server_name, grace, tenant_of
        self._sealing = sealing or Sealing()
        self._policy = Policy([device.memory for device in inventory.devices], SLOTS, per_token, memory)
        self._sessions: dict[int, Session] = {}
        self._ended_launches: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()  # each with the token that said so

    def get(self, session: int) -> Session | None:
        return self._sessions.get(session)

    def ended_over_limit(self, session: int) -> Session | None:
        """A session that has ended because its worker took more of the host's memory than it may, if that was not long ago."""
        return self._over_limit.get(session)

    def impossible(self, gpus: int, memory: int, most: int = 0) -> str | None:
        """Why this server can never grant that, None when it can. most: the token's limit, 0: none."""
        return self._policy.impossible(gpus, memory, most)

    async def attach(
        self, client: socket.socket, hello: Hello, secret: bytes, transcript: Transcript, transport: Transport, peer: str, most: int = 0
    ) -> Session:
        """Grants devices, welcomes the client and hands its connection to a worker.

        Args:
            client: stays the caller's to close: the worker has its own descriptor by then.
            transcript: of the connection's handshake, the hello included.
            transport: what the session runs over.
            most: the token's limit, bytes on each device, 0: none.

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
        number = secrets.randbits(63) | 1
        decision = self._policy.handle(Wanted(number, hello.gpus, hello.memory, hello.token_id, most))
        if isinstance(decision, Refuse):
            raise Refused(WELCOME_BUSY, decision.text)
        assert decision is not None
        worker: WorkerProcess | None = None
        end = ServerEnd()
        try:
            tenant = self._tenant_of(hello.token_id)
            self._workers.expect(tenant)
            worker = await self._workers.take(WORKER_LIMIT)
            end = transport.open()
            session = Session(number, decision, transport, hello, peer, worker, tenant, exchange)
            self._sessions[number] = session
            self._welcome(client, session, secret, transcript, end)
            self._hand_over(client, session, end)
            if (hello.launch, hello.token_id) in self._ended_launches:
                worker.client_gone()  # it ended while this was under way, so that its report found no session
        except BaseException as error:
            self._sessions.pop(number, None)
            if worker is not None:
                worker.kill()
                await asyncio.shield(worker.gone)
            if self._memory_usage:
                self._memory_usage.free_slot(decision.slot)
            self._policy.handle(Ended(number))
            if isinstance(error, GpuvirtError):
                log.error("no worker for a session: %s", error)
                raise Refused(WELCOME_FAILED, str(error)) from None
            raise
        finally:
            end.close()
        worker.gone.add_done_callback(lambda _: self._ended(session))
        gpus = ",".join(map(str, decision.devices))
        log.info("%s from %s over %s: GPU %s, worker %d", session.label, peer, session.link, gpus, worker.pid)
        return session

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

    def _grace_of(self, session: Session) -> int:
        return self._grace if session.transport.resumes else 0

    def _welcome(self, client: socket.socket, session: Session, secret: bytes, transcript: Transcript, end: ServerEnd) -> None:
        transport = session.transport
        welcome = Welcome(
            session=session.id,
            transport=transport.offer,
            descriptors=len(end.descriptors),
            connections=transport.connections,
            blob=end.blob,
            grace_s=self._grace_of(session),
            key_exchange=session.exchange.said if session.exchange else b"",
        )
        raw = transcript.prove_welcome(welcome, secret)
        if session.exchange:
            session.key, link_secret = transcript.sealed_session_keys(secret, session.exchange.shared)
            session.seal = link_secret + bytes([session.exchange.cipher])
        else:
            session.key = transcript.session_key(secret)
        # A fresh socket's buffer takes a whole welcome; one that does not is no client to wait for.
        sent = socket.send_fds(client, [raw], list(end.descriptors)) if end.descriptors else client.send(raw)
        if sent != len(raw):
            raise OSError("the client takes nothing")

    def _hand_over(self, client: socket.socket, session: Session, end: ServerEnd) -> None:
        inventory, tenant = self._inventory, session.tenant
        passed = {"cache": tenant.folder} if tenant.folder >= 0 else {}
        if self._memory_usage:
            self._memory_usage.claim(session.grant.slot, session.grant.memory)
            passed |= {"memory_usage": self._memory_usage.read_fd, "memory_row": self._memory_usage.fd}
        config = SessionConfig(
            session=session.id,
            backend=inventory.backend,
            driver=str(inventory.driver) if inventory.driver else None,
            devices=list(session.grant.devices),
            memory=session.grant.memory,
            device_memory=inventory.devices[0].memory if inventory.backend == "soft" else 0,
            capability=inventory.capability,
            strict=inventory.strict,
            slot=session.grant.slot,
            transport=session.transport.name,
            descriptors=len(end.descriptors),
            blob=end.blob,
            server_name=self._server_name,
            grace=self._grace_of(session),
            driver_is_client=inventory.driver_is_client,
            user=tenant.user,
            tenant=tenant.name,
            cache_key=tenant.key,
            passed=[*passed],
            host_memory=self._host_memory_of(session.grant),
            seal=session.seal,
        )
        client.setblocking(True)
        session.worker.give(config, (client.fileno(), *end.descriptors, *passed.values()))

    def _host_memory_of(self, grant: Grant) -> int:
        """Bytes that the worker may take; the memory of software GPUs is the host's."""
        if not self._host_memory:
            return 0
        return self._host_memory + sum(grant.memory or self._inventory.devices[device].memory for device in grant.devices)

    def check_further(self, session: Session, which: int, epoch: int, provides: int) -> None:
        """Whether a further connection of a session may come: a channel's first (epoch 0), or one that takes the place of an older one.

        Args:
            provides: NEEDS_* that the connection meets.

        Raises:
            Refused: a number or an epoch that cannot be; what comes of an earlier attempt must not push aside the present connection.
        """
        if not (session.transport.resumes if which == MAIN else 0 <= which < session.transport.connections):
            raise Refused(WELCOME_FAILED, "this session has no such connection")
        if session.transport.needs & ~provides:
            raise Refused(WELCOME_FAILED, f"a connection of this session comes over what {session.transport.name} needs")
        last = session.epochs.get(which)
        if last is not None and (epoch <= last or not self._grace):
            what = "the connection" if which == MAIN else f"bulk channel {which}"
            raise Refused(WELCOME_FAILED, f"{what} of this session has been made already")

    def add_connection(self, session: Session, which: int, client: socket.socket, epoch: int) -> None:
        """Hands a further connection of a session to its worker, which has its own descriptor then.

        Raises:
            OSError: the worker is gone.
        """
        again = which in session.epochs
        session.epochs[which] = epoch
        client.setblocking(True)
        session.worker.add_connection(which, client.fileno(), epoch)
        if again:
            log.info("%s: %s is made again", session.label, "its connection" if which == MAIN else f"its bulk channel {which}")

    def launch_ended(self, launch: bytes, owner: bytes) -> int:
        """A launcher says that its program has ended: sessions of that launch whose client is not connected are over, now or once they are cut.

        Args:
            owner: the token that says so; sessions of others are not concerned.

        Returns:
            How many sessions that launch still has.
        """
        if any(launch):
            self._ended_launches[launch, owner] = None
            if len(self._ended_launches) > ENDED_LAUNCHES:
                self._ended_launches.popitem(last=False)
        concerned = [s for s in self._sessions.values() if s.hello.launch == launch and s.hello.token_id == owner and any(launch)]
        for session in concerned:
            session.worker.client_gone()
        return len(concerned)

    def _ended(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        if self._memory_usage:
            self._memory_usage.free_slot(session.grant.slot)
        self._policy.handle(Ended(session.id))
        if session.worker.over_limit:
            self._over_limit[session.id] = session
            if len(self._over_limit) > OVER_LIMIT_MOST:
                self._over_limit.popitem(last=False)
        clean = session.worker.run_ending is RunEnding.GOODBYE
        (log.info if clean else log.warning)("%s ended: %s", session.label, session.worker.ending)

    # ---- what people see ------------------------------------------------------------------------------------------------

    def devices(self) -> list[dict[str, Any]]:
        """One map a device: ordinal, name, memory, memory_used (None where only the driver knows), sessions."""
        return [
            {
                "ordinal": ordinal,
                "name": device.name,
                "memory": device.memory,
                "memory_used": self._memory_usage.used(ordinal) if self._memory_usage else None,
                "sessions": self._policy.load(ordinal),
            }
            for ordinal, device in enumerate(self._inventory.devices)
        ]

    async def list(self, viewer: bytes | None = None) -> list[dict[str, Any]]:
        """One map a session, oldest first, with its worker's figures.

        Args:
            viewer: the token that asks; of other tokens' sessions it is not told whose they are and what runs in them. None: of all.
        """
        sessions = sorted(self._sessions.values(), key=lambda s: s.started)
        figures = await asyncio.gather(*(s.worker.figures() for s in sessions))
        return [
            {
                "session": f"{s.id:016x}",
                **(_client(s) if viewer in (None, s.hello.token_id) else {"program": None, "pid": None, "user": None, "host": None, "peer": None}),
                "link": s.transport.name,
                "cipher": s.cipher,
                "devices": [*s.grant.devices],
                "worker_pid": s.worker.pid,
                "started": s.started,
                **found,
                **({"memory_used": self._memory_usage.slot_used(s.grant.slot)} if self._memory_usage else {}),
            }
            for s, found in zip(sessions, figures, strict=True)
        ]
