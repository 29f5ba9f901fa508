"""From settings to a server that lets us in: the pool that is set, or a private local one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuvirt.client.local_pool import LocalPool
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.pool import PoolAddress, PoolStatus, check_pool


@dataclass(frozen=True)
class Connected:
    """A server that was asked and said yes. private: it is ours and ends with us. settings: as they are for a program on it."""

    status: PoolStatus
    settings: Settings
    private: bool


@contextlib.contextmanager
def connected(settings: Settings, verbose: bool = False) -> Iterator[Connected]:
    """The server that these settings mean, for as long as the context lasts.

    Raises:
        GpuvirtError: it cannot be had, and why, in one line.
    """
    if settings.pool is not None:
        yield Connected(check_pool(settings.pool, settings.token, settings.gpus, settings.memory or 0), settings, private=False)
        return
    with LocalPool(settings.gpus, settings.memory, verbose) as pool:
        # Its own token, whatever GPUVIRT_TOKEN says: that one is for another server.
        token = pool.token()
        yield Connected(check_pool(pool.address, token), replace(settings, token=token), private=True)


def named_pool(settings: Settings) -> PoolAddress:
    """The pool, for verbs that do not start one.

    Raises:
        GpuvirtError: none is set.
    """
    if settings.pool is None:
        raise GpuvirtError("no pool is set; name one with --pool tcp://HOST:PORT or GPUVIRT_POOL, or start one with `gpuvirt serve`")
    return settings.pool
