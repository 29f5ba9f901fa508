"""The table of transports, the preferred first (native/transport/transports.c has the same rows), and the choice of one, by pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.shm import SHM
from gpuvirt.transport.tcp import TCP
from gpuvirt.transport.transport import Transport
from gpuvirt.transport.verbs import VERBS

TRANSPORTS: tuple[Transport, ...] = (SHM, VERBS, TCP)
NAMES = tuple(row.name for row in TRANSPORTS)


class NoTransport(Exception):
    """None of the requested transports is available; the text is one line with the reason."""


def named(name: str, among: Iterable[Transport] = TRANSPORTS) -> Transport | None:
    return next((row for row in among if row.name == name), None)


def usable(provides: int, among: Iterable[Transport] = TRANSPORTS) -> list[Transport]:
    """The rows whose needs are met.

    Args:
        provides: NEEDS_* that a connection provides.
    """
    return [row for row in among if not row.needs & ~provides]


def choose(asked: Sequence[hs.Offer], offered: Sequence[Transport], provides: int) -> Transport:
    """The server's choice: the first that the client asks for, this server offers and the connection allows.

    Raises:
        NoTransport: there is none.
    """
    known = [row for offer in asked if (row := named(offer.name, offered)) is not None]
    for row in usable(provides, known):
        return row
    if known:
        where = "the server's unix socket" if known[0].over_unix else "the network"
        raise NoTransport(f"the link {known[0].name} needs a connection over {where}; choose another with --link")
    names = " or ".join(offer.name for offer in asked) or "that the client speaks"
    raise NoTransport(f"this server does not offer the link {names}; it offers {', '.join(row.name for row in offered)}: choose with --link")
