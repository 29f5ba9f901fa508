"""The TCP port of the control channel: carries the bytes between clients and the ZeroMQ socket behind it.

ZeroMQ accepts whoever comes, with no bound by address. So it listens on a unix socket that only this user can reach, and this proxy on the network:
connections that have proved nothing have a share by address and a few seconds, those that have proved a token a share of their own. It connects to
ZeroMQ when the client has said something (as ZeroMQ's clients do at once), so that silence costs nothing behind it.
"""

from __future__ import annotations

import logging
import os
import socket

from gpuvirt.server.acceptor import Acceptor, limits
from gpuvirt.server.rate_limited_log import RateLimitedLog
from gpuvirt.server.server_library import AcceptorConfig

log = logging.getLogger("gpuvirt.server")

EACH = 3  # descriptors of one connection: the client's, ours towards ZeroMQ, ZeroMQ's
PROOF_LIMIT = 3.0  # seconds from connecting to the end of the CURVE handshake
PENDING_SHARE, PENDING_TOTAL = 16, 64
PROVED_SHARE, PROVED_TOTAL = 64, 256
RATE, BURST = 20, 64  # connections of one address that are taken up in a second, and at once
# ZeroMQ's greeting and CURVE's WELCOME, which anybody is sent. What follows is READY, for holders of a token only, or an ERROR, and then it closes.
BEFORE_PROOF = 64 + 2 + 168


class ControlProxy:
    """Carries bytes from now on, until `close`.

    Args:
        listening: the port; owned from now on.
        behind: path of ZeroMQ's unix socket.
        total: the most connections without a proof, by the descriptors there are.
        proved: the most with one.

    Raises:
        GpuvirtError: the system has no thread or descriptor for it.
    """

    def __init__(self, listening: socket.socket, behind: str, total: int = PENDING_TOTAL, proved: int = PROVED_TOTAL) -> None:
        self._strangers = RateLimitedLog(log)
        config = AcceptorConfig(
            pending=limits(PENDING_SHARE, min(PENDING_TOTAL, total), RATE, BURST),
            head_ms=int(PROOF_LIMIT * 1000),
            behind=os.fsencode(behind),
            proved=limits(PROVED_SHARE, proved),
            unproved_bytes=BEFORE_PROOF,
        )
        self._acceptor = Acceptor(listening, config, self._strangers, "%s did not prove a token on the control port in time")

    def close(self) -> None:
        self._acceptor.close()
        self._strangers.close()
