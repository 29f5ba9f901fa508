"""What a server says of itself in its network, so that clients need not know its address: a service of DNS-SD, by multicast DNS (RFC 6763, 6762).

Anybody can say anything there. So an announcement only is a place to ask at; who answers there must hold the secret of the client's token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gpuvirt.transport.pool import PoolAddress

SERVICE = "_gpuvirt._tcp.local."
VERSION = "1"  # of the properties
NAME_MOST = 63  # bytes of a label
GPUS_MOST = 9999


@dataclass(frozen=True)
class Announcement:
    """What one server says.

    Attributes:
        name: its name.
        addresses: where it can be reached, each with its port.
        pool: which pool it is of (`pool_digest`).
        gpus: how many it has.
        backend: "soft" or "cuda".
    """

    name: str
    addresses: tuple[PoolAddress, ...]
    pool: str
    gpus: int
    backend: str

    def properties(self) -> dict[str, str]:
        """The service's TXT record."""
        return {"v": VERSION, "pool": self.pool, "gpus": str(self.gpus), "backend": self.backend}


def pool_digest(server_key: bytes) -> str:
    """By what the holder of a token knows its pool's announcements: 16 hexadecimal digits of the key that the token names."""
    return hashlib.sha256(server_key).hexdigest()[:16]


def parse(name: str, addresses: tuple[PoolAddress, ...], properties: Mapping[bytes, bytes | None]) -> Announcement | None:
    """A service that was found.

    Args:
        name: of the service, with its type.

    Returns:
        None: it says nothing that this version understands.
    """
    said = {key.decode("ascii", "replace"): (value or b"").decode("utf-8", "replace") for key, value in properties.items()}
    gpus = said.get("gpus", "")
    own = name.removesuffix("." + SERVICE)
    if said.get("v") != VERSION or not gpus.isdecimal() or int(gpus) > GPUS_MOST or said.get("backend") not in ("soft", "cuda") or not addresses:
        return None
    if not own.isprintable() or not said.get("pool", "").isalnum():
        return None
    return Announcement(own, addresses, said["pool"], int(gpus), said["backend"])
