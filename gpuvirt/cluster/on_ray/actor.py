"""The scheduler of a pool as a detached actor of a Ray cluster, which Ray starts anew, on another node if it must.

It is the same service as in the daemon of a head, and members reach it in the same way; Ray's part is that there is one, and where. A host that asks
for it is one of the cluster's nodes, whose users may run what they like on all of them: so it is told all that a member must know.

It keeps the pool's tokens in a folder of its node. On a node that has no such folder, or an older one, it begins with those of the first host of the
pool that asks: each has them, and of two the one that was changed last counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import zmq

from gpuvirt import paths
from gpuvirt.cluster.credentials import keep_key, keep_tokens, kept
from gpuvirt.cluster.messages import VERSION
from gpuvirt.cluster.service import SchedulerService
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.control import token_requests
from gpuvirt.server.descriptors import raise_limit
from gpuvirt.server.tokens import TokenStore, parse_tokens

log = logging.getLogger("gpuvirt.server")

ALONE = 60.0  # seconds without any host after which the actor ends
LOOK_EVERY = 1.0  # seconds
NAMESPACE, NAME = "gpuvirt", "scheduler"  # of the actor in its Ray cluster

Answer = dict[str, Any]


def node_address() -> str:
    """Of the node where this process runs, as Ray knows it."""
    import ray

    return str(ray.util.get_node_ip_address())


def end_actor() -> None:
    """Ends the actor that calls it, which Ray does not start again."""
    import ray

    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE))


class Unknown(GpuvirtError):
    """The actor does not know its pool yet."""


class SchedulerActor:
    """The actor. Its methods answer ``{"answer": …}``, or ``{"error": text}``, with ``"later": True`` when it may soon be another answer: an
    exception of another version could not be read.

    Args:
        key: the public key of the pool's tokens, z85, by which it is known which hosts are of the pool.
        rebalance: as `PolicyMachine` has it.
        alone: seconds without any host after which it ends.
        address: tells where it is.
        end: ends it.
    """

    def __init__(
        self, key: str, rebalance: int = 0, alone: float = ALONE, address: Callable[[], str] = node_address, end: Callable[[], None] = end_actor
    ) -> None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s gpuvirt %(levelname)s %(message)s")
        self._key, self._address, self._rebalance = key, address(), rebalance
        self._alone, self._end = alone, end
        self._folder = paths.state_dir() / f"ray-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self._tokens: TokenStore | None = None
        self._service: SchedulerService | None = None
        self._watch: asyncio.Task[None] | None = None

    async def key(self) -> str:
        return self._key

    async def join(self, known: dict[str, Any]) -> Answer:
        """What a host needs to be a member, as `Credentials.told`.

        Args:
            known: what the host knows: `version` of the hosts' messages; `epoch` and `hosts` as in `Rendezvous.ask`; `secret` and `tokens` of the
                pool, "" if it is not of this one.
        """
        return await self._answered(self._join(known))

    async def ask(self, sender: str, op: str, said: dict[str, Any]) -> Answer:
        """A request about tokens: its answer as `said`, and `tokens` as they are then. sender: the id of the token in whose name it is made."""
        return await self._answered(self._ask(sender, op, said))

    @staticmethod
    async def _answered(answer: Awaitable[Answer]) -> Answer:
        try:
            return {"answer": await answer}
        except GpuvirtError as error:
            return {"error": str(error), "later": isinstance(error, Unknown)}

    async def _join(self, known: dict[str, Any]) -> Answer:
        if known["version"] != VERSION:
            raise GpuvirtError(
                f"the pool's scheduler, an actor of Ray, speaks version {VERSION} of the hosts' messages; install the same gpuvirt on all hosts."
                f" It ends {self._alone:.0f} s after the last host, and the next one begins another"
            )
        tokens = self._learn(known["secret"], known["tokens"])
        service = self._service or self._begin(tokens, known["epoch"], known["hosts"])
        service.succeed(known["epoch"])
        return replace(service.credentials(), host=self._address).told()

    async def _ask(self, sender: str, op: str, said: dict[str, Any]) -> Answer:
        if self._tokens is None:
            raise GpuvirtError("the pool's scheduler has just begun; try again")
        entry = self._tokens.find(bytes.fromhex(sender))
        if entry is None or entry.expired:
            raise GpuvirtError("this token has been revoked")
        answer = await token_requests(self._tokens)[op]({**said, "from": entry})
        return {"said": answer, "tokens": self._tokens.text()}

    def _learn(self, secret: str, tokens: str) -> TokenStore:
        """The pool's tokens: those that are known here, or those of a host of the pool, if they have been changed later."""
        known = self._tokens or kept(self._folder)
        if secret and zmq.curve_public(secret.encode()).decode() != self._key:
            raise GpuvirtError("the host's key is not the one of this pool")
        if secret and (known is None or parse_tokens(tokens)[0] > parse_tokens(known.text())[0]):
            keep_key(self._folder, secret)
            keep_tokens(self._folder, tokens)
            known = kept(self._folder)
        if known is None:
            raise Unknown("the pool's scheduler is where it knows nothing of its pool: first a host has to join that has been of it")
        self._tokens = known
        return known

    def _begin(self, tokens: TokenStore, seen: int, hosts: list[str]) -> SchedulerService:
        now = time.time_ns() // 1_000_000  # later than any scheduler that there was, unless a node's clock is wrong
        service = SchedulerService(tokens, f"Ray's node {self._address}", max(now, seen + 1), rebalance=self._rebalance, expected=hosts)
        service.start(self._address, 0, raise_limit())
        log.info("scheduling, epoch %d", service.scheduler.epoch)
        self._service = service
        self._watch = asyncio.create_task(self._end_alone(service))
        return service

    async def _end_alone(self, service: SchedulerService) -> None:
        """Nobody is left with a process of a pool that is no more, or of a version that no host speaks."""
        last = time.monotonic()
        while time.monotonic() - last < self._alone:
            await asyncio.sleep(LOOK_EVERY)
            if service.scheduler.hosts:
                last = time.monotonic()
        log.info("no host is left; ending")
        self._end()
