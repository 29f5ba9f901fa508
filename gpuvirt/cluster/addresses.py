"""Under which addresses the hosts of a pool reach each other."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import socket
import struct
from pathlib import Path

from gpuvirt.transport.pool import PoolAddress, parse_pool

log = logging.getLogger("gpuvirt.server")

SIOCGIFADDR = 0x8915  # linux/sockios.h
IFREQ = "16s24x"  # struct ifreq: the interface's name, and the kernel's answer
ADDRESS_AT = 20  # where in it the IPv4 address is
EVERYWHERE = "192.0.2.1"  # an address that is nobody's (RFC 5737): whatever leads there leads to most others


def reachable(host: str, port: int, towards: str = EVERYWHERE) -> str:
    """The URL under which a server that listens there is reached by others.

    Args:
        host: of the listening socket; of all interfaces it is the one that leads to `towards`, an address. If none does, the first that leads to any
            other machine.
    """
    if host in ("0.0.0.0", "::"):
        family = socket.AF_INET6 if ":" in towards else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((towards, 9))  # nothing is sent
                host = str(sock.getsockname()[0])
        except OSError:
            host = _first_own([*_ipv4(), *(_ipv6() if host == "::" else [])])
    return PoolAddress(host, port).url


def _first_own(found: list[str]) -> str:
    """One of these addresses of this machine; without any the machine's name."""
    if not found:
        return socket.gethostname()
    if len(found) > 1:
        log.warning("others are told to reach this host at %s; it has %s, too: give --listen the one that is meant", found[0], ", ".join(found[1:]))
    return found[0]


def _ipv4() -> list[str]:
    found = list[str]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack(IFREQ, name.encode()))
                found.append(socket.inet_ntoa(answer[ADDRESS_AT : ADDRESS_AT + 4]))
    return [text for text in found if not ipaddress.ip_address(text).is_loopback]


def _ipv6() -> list[str]:
    """Of /proc/net/if_inet6, whose lines begin with the address."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    every = [ipaddress.IPv6Address(bytes.fromhex(line.split()[0])) for line in lines]
    return [str(address) for address in every if not address.is_loopback and not address.is_link_local]


def is_near(url: str) -> bool:
    """Whether an address is only good on this machine."""
    host = parse_pool(url).host
    return host in ("localhost", "::1") or host.startswith("127.")
