"""How a host finds the scheduler of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gpuvirt.cluster import credentials
from gpuvirt.cluster.credentials import Credentials
from gpuvirt.server.tokens import TokenEntry
from gpuvirt.transport.control import request
from gpuvirt.transport.pool import PoolAddress
from gpuvirt.transport.token import Token

Found = tuple[Credentials, str]  # what a host must know, and the address at which whoever told it was reached


class Rendezvous(Protocol):
    """Attributes:
    where: whom it asks, for people.
    """

    @property
    def where(self) -> str: ...

    def ask(self, epoch: int, hosts: Sequence[str]) -> Found:
        """Where the scheduler is, and what a member needs. It may take seconds.

        Args:
            epoch: the highest of a scheduler that this host has seen, 0: of none.
            hosts: the names of those of which it knows.

        Raises:
            GpuvirtError: nobody tells.
        """

    def forward(self, sender: TokenEntry, op: str, said: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request about tokens, which whoever keeps them answers. It may take seconds.

        Raises:
            GpuvirtError: they do not answer, or refuse.
        """


class ByHost:
    """Asks another host of the pool, with an admin's token, for the scheduler that is in the daemon of the head."""

    def __init__(self, address: PoolAddress, token: str | None) -> None:
        self._address, self._token = address, token

    @property
    def where(self) -> str:
        return self._address.url

    def ask(self, epoch: int, hosts: Sequence[str]) -> Found:
        told, status = credentials.ask(self._address, self._token)
        return told, status.peer

    def forward(self, sender: TokenEntry, op: str, said: dict[str, Any]) -> dict[str, Any]:
        _, status = credentials.ask(self._address, self._token)
        token = Token(bytes.fromhex(sender.id), sender.key, status.token.server_key)
        return request(status.peer, status.greeting.control_port, token, op, **said)
