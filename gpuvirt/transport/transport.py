"""A row of the table of transports (`table`): what the daemon knows of a transport.

The bytes are moved by its row in native/transport/transports.c.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from gpuvirt.transport import handshake as hs


@dataclass(frozen=True)
class ServerEnd:
    """What a transport opened for one session. descriptors: sent to both ends, closed by the opener; blob: bytes for the client's end."""

    descriptors: tuple[int, ...] = ()
    blob: bytes = b""

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)


@dataclass(frozen=True)
class Transport:
    """One transport.

    Attributes:
        name: as users write it for --link.
        needs: what it needs of the handshake's connection (NEEDS_*); decides on which of the daemon's sockets it is offered.
        connections: further connections (bulk channels) that a client may make, 0: none.
        seals: whether what passes is sealed, unless both ends say plain.
        resumes: whether a session outlives a cut of its connection.
        one_way_target: microseconds that a one-way call may take in the caller (docs/PERFORMANCE.md).
        open: opens what one session over it needs.
        missing: why this host cannot speak it, in words; "": it can.
        travels: whether a session that was cut may go on at another host.
    """

    name: str
    needs: int
    connections: int
    seals: bool
    resumes: bool
    one_way_target: float
    open: Callable[[], ServerEnd]
    missing: Callable[[], str] = lambda: ""
    travels: bool = False

    @property
    def offer(self) -> hs.Offer:
        return hs.Offer(self.name, self.needs)

    @property
    def over_unix(self) -> bool:
        """Whether it is offered on the daemon's unix socket, and not on the network."""
        return bool(self.needs & hs.NEEDS_DESCRIPTORS)
