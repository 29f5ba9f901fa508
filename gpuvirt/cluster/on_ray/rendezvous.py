"""How a host finds the scheduler of its pool by the Ray cluster of which its machine is a node."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuvirt.cluster.credentials import checked, keep_tokens, kept
from gpuvirt.cluster.messages import VERSION
from gpuvirt.cluster.rendezvous import Found
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.tokens import TokenEntry, TokenStore, parse_tokens
from gpuvirt.transport.packing import pack, unpack
from gpuvirt.transport.pool import NoServer

log = logging.getLogger("gpuvirt.server")

QUERY = [sys.executable, "-P", "-m", "gpuvirt.cluster.on_ray.query"]
PATIENCE = 60.0  # seconds
LIMIT = 90.0  # seconds for all that such a process does: Ray takes a second or two, on a busy machine ten times that


class NoScheduler(NoServer):
    """The Ray cluster or the actor in it cannot be reached."""


class NotYet(NoScheduler):
    """The actor does not know its pool yet."""


def query(asked: dict[str, Any]) -> dict[str, Any]:
    """The actor's answer, by a process of its own. asked: as in `query.answer`.

    Raises:
        NotYet: it does not know its pool yet.
        NoScheduler: it cannot be reached.
        GpuvirtError: it refuses, or Ray is not installed.
    """
    try:
        done = subprocess.run(QUERY, input=pack(asked), capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise NoScheduler(f"the Ray cluster ({asked['address']}) does not answer within {LIMIT:.0f} s") from None
    try:
        answer = unpack(done.stdout)
    except ValueError:
        said = [f"exit code {done.returncode}", *done.stderr.decode(errors="replace").strip().splitlines()]
        raise NoScheduler(f"the Ray cluster ({asked['address']}) cannot be asked: {said[-1][:300]}") from None
    if "answer" not in answer:
        raise (NotYet if answer.get("later") else NoScheduler if answer.get("absent") else GpuvirtError)(str(answer.get("error")))
    found: dict[str, Any] = answer["answer"]
    return found


class ByRay:
    """Asks the actor, which the first host that asks brings into being.

    Args:
        address: of the Ray cluster, "auto": the one of which this machine is a node.
        folder: where this host keeps the pool's key and tokens.
        rebalance: of a pool that begins.
        call: asks the actor.
    """

    def __init__(self, address: str, folder: Path, rebalance: int = 0, call: Callable[[dict[str, Any]], dict[str, Any]] = query) -> None:
        self._address, self._folder, self._rebalance, self._call = address, folder, rebalance, call

    @property
    def where(self) -> str:
        return f"the Ray cluster ({self._address})"

    def ask(self, epoch: int, hosts: Sequence[str]) -> Found:
        """As `Rendezvous.ask`.

        Raises:
            NoScheduler: it cannot be reached.
            GpuvirtError: it refuses, or its pool is another than the one of which this host has been.
        """
        of_pool = kept(self._folder)
        own = of_pool or TokenStore()  # the tokens of a pool that begins are those of this user's servers here
        said = {"version": VERSION, "epoch": epoch, "hosts": [*hosts], "secret": "", "tokens": ""}
        begins = {"key": own.server_public.decode(), "secret": own.server_secret.decode(), "tokens": own.text(), "rebalance": self._rebalance}
        found = checked(self._call({"address": self._address, "method": "join", "said": [said], **begins}), self.where)
        if of_pool is not None and found.server.encode() != of_pool.server_secret:
            raise GpuvirtError(
                f"{self.where} has another pool than the one of which this host has been;"
                f" for this host to be of that one, end its server and remove {self._folder}"
            )
        return found, found.host

    def first(self) -> Found:
        """As `ask`, of a host that begins. One that has never been of the pool has nothing to go on with: it asks again for a while, in which a host
        of the pool that begins at the same moment may come first."""
        end, said = time.monotonic() + PATIENCE, False
        while True:
            try:
                return self.ask(0, ())
            except NotYet as error:
                if time.monotonic() > end or kept(self._folder) is not None:
                    raise
                if not said:
                    log.warning("%s; trying again for %.0f s", error, PATIENCE)
                said = True
            time.sleep(1.0)

    def forward(self, sender: TokenEntry, op: str, said: dict[str, Any]) -> dict[str, Any]:
        """As `Rendezvous.forward`. This host knows the tokens then as they are now; others are told within a second."""
        told = self._call({"address": self._address, "method": "ask", "said": [sender.id, op, said]})
        of_pool = kept(self._folder)
        if of_pool is None or parse_tokens(told["tokens"])[0] > parse_tokens(of_pool.text())[0]:
            keep_tokens(self._folder, told["tokens"])
        answer: dict[str, Any] = told["said"]
        return answer
