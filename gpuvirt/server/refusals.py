"""Why a client gets no session here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpuvirt.server.lease import ElsewhereError, NotGranted
from gpuvirt.transport.handshake import WELCOME_BUSY, WELCOME_UNKNOWN


class Refused(Exception):
    """No session; the client is told `status` (WELCOME_*) and `text`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Moved(Exception):
    """The session, or whoever wants one, is to dial another server: `address` (tcp://HOST:PORT)."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """What the leases do not grant is refused; of a lease that another host of the pool has it is said where it is."""
    try:
        yield
    except ElsewhereError as error:
        raise Moved(error.url) from None
    except NotGranted as error:
        raise Refused(WELCOME_UNKNOWN if error.unknown else WELCOME_BUSY, str(error)) from None
