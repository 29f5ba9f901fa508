"""How a daemon becomes a host of a pool of many: the head's, one that another host names, or that of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path

from gpuvirt import paths
from gpuvirt.cluster import addresses, credentials
from gpuvirt.cluster.host import PoolHost
from gpuvirt.cluster.on_ray.rendezvous import ByRay
from gpuvirt.cluster.rendezvous import ByHost
from gpuvirt.server.options import ServeOptions
from gpuvirt.server.tokens import TokenStore
from gpuvirt.transport.pool import FIND, PoolAddress, find_token

log = logging.getLogger("gpuvirt.server")


async def join_pool(options: ServeOptions, port: int) -> tuple[TokenStore, PoolHost]:
    """The pool's tokens, and this daemon's part in the pool.

    Args:
        port: on which the daemon listens.

    Raises:
        GpuvirtError: it cannot join.
    """
    if options.head:
        own = TokenStore()
        return own, PoolHost(options.name, addresses.reachable(options.host, port), own, rack=options.rack, rebalance=options.rebalance)
    return await (_by_host(options, port, options.join) if options.join is not None else _by_ray(options, port))


async def _by_host(options: ServeOptions, port: int, asked: PoolAddress) -> tuple[TokenStore, PoolHost]:
    token = os.environ.get("GPUVIRT_TOKEN")
    if asked == FIND:
        from gpuvirt.transport.discovery import find_pool

        found, asked = await asyncio.to_thread(find_pool, token)
        log.info("found the pool of %s at %s", found, asked.url)
    folder = state_folder(options, port, "joined")
    by_host = ByHost(asked, token)

    tokens, told = await asyncio.to_thread(
        credentials.learn, partial(by_host.ask, 0, ()), lambda: credentials.kept(folder, find_token(asked, False, token)), folder
    )
    url = addresses.reachable(options.host, port, told[1] if told else asked.host)
    return tokens, PoolHost(options.name, url, tokens, told, by_host, options.rack)


async def _by_ray(options: ServeOptions, port: int) -> tuple[TokenStore, PoolHost]:
    folder = state_folder(options, port, "ray")
    by_ray = ByRay(options.ray, folder, options.rebalance)
    tokens, told = await asyncio.to_thread(credentials.learn, by_ray.first, partial(credentials.kept, folder), folder)
    url = addresses.reachable(options.host, port, told[1] if told else addresses.EVERYWHERE)
    return tokens, PoolHost(options.name, url, tokens, told, by_ray, options.rack)


def state_folder(options: ServeOptions, port: int, how: str) -> Path:
    """Of a host that has joined a pool: the pool's tokens are not those of this user's other servers. how: it has found it."""
    return paths.state_dir() / f"{how}-{options.host.replace('/', '_')}-{port}"
