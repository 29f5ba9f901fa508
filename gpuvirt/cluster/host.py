"""A daemon's part in a pool of many hosts: the head has the scheduler, the others a connection to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import zmq

from gpuvirt.cluster import credentials
from gpuvirt.cluster.addresses import is_near
from gpuvirt.cluster.credentials import Credentials
from gpuvirt.cluster.link import Link
from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import ALIVE_EVERY, HostEntry, Message, Tokens
from gpuvirt.cluster.migration.destination import Destination
from gpuvirt.cluster.migration.drain import Drain
from gpuvirt.cluster.migration.relocations import Relocations
from gpuvirt.cluster.migration.requests import MigrationRequests
from gpuvirt.cluster.migration.source import Keys, Source
from gpuvirt.cluster.rendezvous import Found, Rendezvous
from gpuvirt.cluster.service import SchedulerService, next_epoch
from gpuvirt.cluster.whole_pool import WholePool
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.ports.curve_port import CurveKeys
from gpuvirt.server.sessions import Sessions
from gpuvirt.server.tokens import TokenEntry, TokenStore

log = logging.getLogger("gpuvirt.server")

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
FORWARDED = ("token_list", "token_create", "token_revoke")


class PoolHost:
    """One host of a pool.

    Args:
        name: told from all others of the pool.
        url: where clients of other hosts reach it.
        tokens: the pool's.
        joined: what was told of the pool; None: this is the head, or nobody has answered yet.
        rendezvous: by which the scheduler is found, None: this is the head.
        rack: its name, "": none.
        rebalance: of the head: how many leases may move to a host that joins.
    """

    def __init__(
        self,
        name: str,
        url: str,
        tokens: TokenStore,
        joined: Found | None = None,
        rendezvous: Rendezvous | None = None,
        rack: str = "",
        rebalance: int = 0,
    ) -> None:
        self.name, self._url, self._tokens = name, url, tokens
        self._joined, self._rendezvous = joined, rendezvous
        self._rack, self._rebalance = rack, rebalance
        self.member: Member | None = None
        self._service: SchedulerService | None = None
        self._link: Link | None = None
        self._alive: asyncio.Task[None] | None = None
        self._destination: Destination | None = None
        self._source: Source | None = None
        self._drain: Drain | None = None
        self._relocations: Relocations | None = None
        self._whole = WholePool(name, tokens, lambda: self.member.hosts if self.member else ())
        self._migration = MigrationRequests(name, rack, self._whole)
        self._apply: Callable[[Message], None] = lambda message: None

    def policy(self, local: PolicyMachine) -> Member:
        """That of this host's leases."""
        entry = HostEntry(self.name, self._url, tuple(local.room.total), most=local.most(0), rack=self._rack)
        where = self._joined[0].head if self._joined else self._rendezvous.where if self._rendezvous else self._url
        self.member = Member(local, entry, self._send, where)
        return self.member

    def _send(self, message: Message) -> None:
        if self._service is not None:
            self._service.receive(message)
        elif self._link is not None:
            self._link.send(message)

    def serve(self, sessions: Sessions) -> None:
        """What is asked of these sessions is asked of the pool from now on, and waits until it is joined. Before anybody is served."""
        member = self.member
        assert member is not None
        member.lease, member.leases = sessions.lease, lambda: sessions.leases
        member.place_here, member.finish = sessions.place_here, sessions.finish
        member.launch_ended = sessions.launch_ended_elsewhere
        sessions.launch_over = member.tell_ended

    async def start(self, sessions: Sessions, control_port: int, host: str, port: int, limit: int) -> None:
        """Joins the pool, or begins it; after `serve`.

        Args:
            control_port: of this daemon's control channel.
            host, port: where the scheduler listens, if it is here, and the port that it takes if it can.
            limit: the daemon's limit of open files.
        """
        member = self.member
        assert member is not None

        def handle(message: Message) -> None:
            if isinstance(message, Tokens):
                credentials.keep_tokens(self._tokens.folder, message.text)
            else:
                sessions.carry_out(member.receive(message, time.monotonic()))

        destination = self._open_migration(sessions, member)
        migration_port = destination.start(host, port + 1 if port else 0, limit)
        member.entry = replace(member.entry, control_port=control_port, migration_port=migration_port)
        if self._rendezvous is None:
            epoch = next_epoch(self._tokens.folder)
            service = SchedulerService(self._tokens, self._url, epoch, self.name, handle, self._rebalance)
            service.start(host, port, limit)
            self._service = service
            service.receive(member.join())
            log.info("to add a host, run there: GPUVIRT_TOKEN=TOKEN gpuvirt serve --join %s --listen 0.0.0.0:7070", self._url)
            log.info("TOKEN is what `gpuvirt token show` prints here%s", "; only this machine reaches that address" if is_near(self._url) else "")
            self._alive = asyncio.create_task(self._say_alive())
        else:
            self._link = Link(member, self._rendezvous, self._joined, handle, self._learned)
            self._link.start()

    def _member_secret(self) -> bytes:
        """Of all hosts; another one when the head has been started anew."""
        if self._service is not None:
            return self._service.credentials().member.encode()
        return self._joined[0].member.encode() if self._joined is not None else b""

    def _is_host(self, key: bytes) -> bool:
        secret = self._member_secret()
        return bool(secret) and key == zmq.curve_public(secret)

    def _open_migration(self, sessions: Sessions, member: Member) -> Destination:
        tokens = self._tokens
        keys = CurveKeys(tokens.server_public, tokens.server_secret)
        self._destination = Destination(sessions, member, keys, self._is_host)
        self._source = Source(sessions, member, lambda: Keys(self._member_secret(), tokens.server_public))
        self._drain = Drain(sessions, member, self._source)
        self._relocations = Relocations(sessions, member, self._source)
        self._migration.open(sessions, self._source, self._drain)
        return self._destination

    async def _say_alive(self) -> None:
        """The head's own member."""
        assert self.member is not None
        while True:
            await asyncio.sleep(ALIVE_EVERY)
            self.member.alive()

    def _learned(self, told: Credentials, peer: str) -> None:
        self._joined = told, peer
        credentials.keep_tokens(self._tokens.folder, told.tokens)

    async def close(self) -> None:
        if self._alive is not None:
            self._alive.cancel()
        if self._drain is not None:
            await self._drain.close()
        if self._relocations is not None:
            await self._relocations.close()
        if self._destination is not None:
            await self._destination.close()
        if self._source is not None:
            self._source.close()
        if self._link is not None:
            await self._link.close()
        if self._service is not None:
            service, self._service = self._service, None
            await service.close()

    # ---- requests of the control channel --------------------------------------------------------------------------------

    def requests(self, own: dict[str, Handler]) -> dict[str, Handler]:
        """This host's own, as the pool has them.

        ``cluster_join`` tells an admin what a host needs to join. On other hosts than the head, requests about tokens are the head's.
        """
        forwarded = {} if self._rendezvous is None else {op: self._forward(op) for op in FORWARDED}
        every = {**self._whole.over(self._migration.over(own)), "cluster_join": self._cluster_join, "drain": self._migration.drain, **forwarded}
        return {op: self._whole.meant(handler) for op, handler in every.items()}

    async def _cluster_join(self, message: dict[str, Any]) -> dict[str, Any]:
        sender: TokenEntry = message["from"]
        if not sender.admin:
            raise GpuvirtError(f"the token {sender.name!r} may use GPUs but not add hosts; ask the pool's owner")
        if self._service is not None:
            return self._service.credentials().told()
        if self._joined is None:
            raise GpuvirtError("the host has not joined its pool yet; try again, or ask another")
        told, peer = self._joined
        return {**told.told(), "host": told.host or peer, "tokens": self._tokens.text()}

    def _forward(self, op: str) -> Handler:
        async def forwarded(message: dict[str, Any]) -> dict[str, Any]:
            sender: TokenEntry = message["from"]
            assert self._rendezvous is not None
            said = {name: value for name, value in message.items() if name not in ("v", "op", "from")}
            return await asyncio.to_thread(self._rendezvous.forward, sender, op, said)

        return forwarded
