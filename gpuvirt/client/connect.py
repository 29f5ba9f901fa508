"""From settings to a server that lets us in: the pool that is set, or a private local one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuvirt.client.local_pool import LocalPool
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import request
from gpuvirt.transport.pool import PoolAddress, PoolStatus, check_pool


@dataclass(frozen=True)
class Connected:
    """A server that was asked and said yes. private: ours, for whoever opened it to close; settings: as they are for a program on this server."""

    status: PoolStatus
    settings: Settings
    private: LocalPool | None = None


def connect(settings: Settings, verbose: bool = False) -> Connected:
    """The server that these settings mean, asked whether it lets us in.

    Raises:
        GpuvirtError: it cannot be had, and why, in one line.
    """
    if settings.pool is not None:
        return Connected(check_pool(settings.pool, settings.token, settings.gpus, settings.memory or 0), settings)
    pool = LocalPool(settings.gpus, settings.memory, verbose)
    try:
        # Its own token, whatever GPUVIRT_TOKEN says: that one is for another server.
        token = pool.token()
        return Connected(check_pool(pool.address, token), replace(settings, token=token), pool)
    except BaseException:
        pool.close()
        raise


@contextlib.contextmanager
def connected(settings: Settings, verbose: bool = False) -> Iterator[Connected]:
    """`connect`, and a private pool ends with the context."""
    found = connect(settings, verbose)
    try:
        yield found
    finally:
        if found.private is not None:
            found.private.close()


def named_pool(settings: Settings) -> PoolAddress:
    """The pool, for verbs that do not start one.

    Raises:
        GpuvirtError: none is set.
    """
    if settings.pool is None:
        raise GpuvirtError("no pool is set; name one with --pool tcp://HOST:PORT or GPUVIRT_POOL, or start one with `gpuvirt serve`")
    return settings.pool


def ask(status: PoolStatus, op: str, **arguments: Any) -> dict[str, Any]:
    """Asks one question of a server that has let us in, over its control channel.

    Returns:
        The answer's fields.

    Raises:
        ControlError: no answer in time, or the server refused.
    """
    return request(status.peer, status.greeting.control_port, status.token, op, **arguments)


def ask_pool(settings: Settings, op: str, **arguments: Any) -> dict[str, Any]:
    """Asks one question of the pool that is set.

    Raises:
        GpuvirtError: no pool is set, it does not answer, or it refuses the token or the question.
    """
    return ask(check_pool(named_pool(settings), settings.token), op, **arguments)
