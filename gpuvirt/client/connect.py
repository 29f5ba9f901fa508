"""Finds the server that settings name, or starts a private local pool, and checks that it accepts this client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuvirt.client.local_pool import LocalPool
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import TIMEOUT, ControlError, RequestRefused, request
from gpuvirt.transport.pool import PoolAddress, PoolStatus, check_pool, control_port_of


@dataclass(frozen=True)
class Connected:
    """A server that accepted this client.

    Attributes:
        settings: the settings for a program on this server; with a private pool, its token.
        private: the private local pool, which the caller of `connect` closes; None for a pool that was set.
    """

    status: PoolStatus
    settings: Settings
    private: LocalPool | None = None


def connect(settings: Settings, verbose: bool = False) -> Connected:
    """Connects to the server that the settings name.

    Raises:
        GpuvirtError: the server does not answer, refuses, or (a private local pool) does not start.
    """
    if settings.pool is not None:
        wanted = settings.gpus, settings.memory or 0, settings.lease, settings.priority, settings.compute or 0
        return Connected(check_pool(settings.pool, settings.token, *wanted), settings)
    pool = LocalPool(settings.gpus, settings.memory, verbose)
    try:
        # The private pool's own token: GPUVIRT_TOKEN is for another server.
        token = pool.token()
        return Connected(check_pool(pool.address, token), replace(settings, token=token), pool)
    except BaseException:
        pool.close()
        raise


def at_lease(found: Connected, status: PoolStatus) -> Connected:
    """The same pool, seen from the host that has a lease: `status`, of that lease."""
    if status.address == found.status.address:
        return found
    return replace(found, status=status, settings=replace(found.settings, pool=status.address, token=status.token.text()))


@contextlib.contextmanager
def connected(settings: Settings, verbose: bool = False) -> Iterator[Connected]:
    """`connect` as a context manager: a private pool is closed at the end."""
    found = connect(settings, verbose)
    try:
        yield found
    finally:
        if found.private is not None:
            found.private.close()


def named_pool(settings: Settings) -> PoolAddress:
    """The pool of the settings, for verbs that do not start a private one.

    Raises:
        GpuvirtError: no pool is set.
    """
    if settings.pool is None:
        raise GpuvirtError("no pool is set; name one with --pool tcp://HOST:PORT or GPUVIRT_POOL, or start one with `gpuvirt serve`")
    return settings.pool


def ask(status: PoolStatus, op: str, **arguments: Any) -> dict[str, Any]:
    """Sends one request to a server that accepted this client, over its control channel.

    Returns:
        The answer's fields.

    Raises:
        ControlError: no answer in time, or the server refused.
    """
    return request(status.peer, status.greeting.control_port, status.token, op, **arguments)


def ask_restarted(status: PoolStatus, op: str, *, limit: float = TIMEOUT, **arguments: Any) -> tuple[dict[str, Any], PoolStatus]:
    """As `ask`, of a server that may have been started anew since `status`, perhaps with another control port.

    Args:
        limit: seconds for an answer at one port.

    Returns:
        The answer, and where the server was found.

    Raises:
        RequestRefused: the server refused.
        ControlError: no answer.
    """
    try:
        return ask(status, op, limit=limit, **arguments), status
    except RequestRefused:
        raise
    except ControlError:
        port = control_port_of(status, limit)
        if port in (None, status.greeting.control_port):
            raise
    status = replace(status, greeting=replace(status.greeting, control_port=port))
    return ask(status, op, limit=limit, **arguments), status


def ask_pool(settings: Settings, op: str, **arguments: Any) -> dict[str, Any]:
    """Sends one request to the pool of the settings.

    Raises:
        GpuvirtError: no pool is set, it does not answer, or it refuses the token or the request.
    """
    return ask(check_pool(named_pool(settings), settings.token), op, **arguments)
