"""Finds pools that announce themselves in this network (`serve --announce`): `gpuvirt pools`, and the pool `find`."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import queue
import time
from collections.abc import Iterator

from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.announcement import SERVICE, Announcement, parse, pool_digest
from gpuvirt.transport.pool import PoolAddress, check_pool, greet
from gpuvirt.transport.token import parse_token

LOOK, FIND_LIMIT = 2.0, 5.0  # seconds for servers to answer: for all that there are, and until one of this client's pool does
DETAILS = 1000  # ms for one of them to say its address
REACHED = 2.0  # seconds for a server to answer at its address
NONE_FOUND = "no gpuvirt server announces itself in this network (`gpuvirt serve --announce`); name the pool with --pool tcp://HOST:PORT"


def own_digest(token: str | None) -> str | None:
    """Of the pool whose token this is, or GPUVIRT_TOKEN; None: there is none.

    Raises:
        GpuvirtError: it is malformed.
    """
    text = token or os.environ.get("GPUVIRT_TOKEN")
    return pool_digest(parse_token(text).server_key) if text else None


def announced(seconds: float = LOOK) -> Iterator[Announcement]:
    """Servers as they answer, each once.

    Raises:
        GpuvirtError: what finding needs is not installed, or there is no network.
    """
    try:
        from zeroconf import IPVersion, ServiceBrowser, ServiceStateChange, Zeroconf
    except ImportError:
        raise GpuvirtError("finding pools needs the Python package zeroconf; pip install 'gpuvirt[discovery]', or name the pool") from None
    names: queue.SimpleQueue[str] = queue.SimpleQueue()

    def heard(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Added:
            names.put(name)

    try:
        zeroconf = Zeroconf(ip_version=IPVersion.V4Only)
    except OSError as error:
        raise GpuvirtError(f"no pool can be found without a network ({error}); name it with --pool tcp://HOST:PORT") from None
    with zeroconf:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[heard])
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    name = names.get(timeout=left)
                except queue.Empty:
                    break
                info = zeroconf.get_service_info(SERVICE, name, DETAILS)
                if info is None or not info.port:
                    continue
                addresses = tuple(PoolAddress(text, info.port) for text in info.parsed_addresses())
                found = parse(name, tuple(sorted(addresses, key=lambda each: ipaddress.ip_address(each.host).version)), info.properties)
                if found is not None:
                    yield found
        finally:
            browser.cancel()


@functools.cache
def find_pool(token: str | None) -> tuple[str, PoolAddress]:
    """The first server that announces itself and accepts this client: its name, and where it is.

    Args:
        token: None: GPUVIRT_TOKEN, or what this user's servers on this host left.

    Raises:
        GpuvirtError: there is none; the text says what there is instead.
    """
    own, others, why = own_digest(token), dict[str, str](), ""
    for found in announced(FIND_LIMIT):
        if own is not None and found.pool != own:
            others[found.name] = found.addresses[0].url
            continue
        for address in found.addresses:
            try:
                with contextlib.closing(greet(address, REACHED).sock):
                    pass
                check_pool(address, token)
                return found.name, address
            except GpuvirtError as error:
                why = str(error)
    if why:
        raise GpuvirtError(f"no pool that announces itself in this network can be used: {why}")
    if others:
        known = ", ".join(f"{name} at {url}" for name, url in sorted(others.items()))
        raise GpuvirtError(f"the pools that announce themselves in this network are not those of this token: {known}; name yours with --pool")
    raise GpuvirtError(NONE_FOUND)
