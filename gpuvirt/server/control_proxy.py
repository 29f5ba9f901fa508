"""The TCP port of the control channel: carries the bytes between clients and the ZeroMQ socket behind it.

ZeroMQ accepts whoever comes, with no bound by address. So it listens on a unix socket that only this user can reach, and this proxy on the network:
connections that have proved nothing have a share by address and a few seconds, those that have proved a token a share of their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from gpuvirt.server.acceptor import Acceptor
from gpuvirt.server.admission import Admission, Place
from gpuvirt.server.rate_limited_log import RateLimitedLog

log = logging.getLogger("gpuvirt.server")

EACH = 3  # descriptors of one connection: the client's, ours towards ZeroMQ, ZeroMQ's
PROOF_LIMIT = 3.0  # seconds from connecting to the end of the CURVE handshake
PENDING_SHARE, PENDING_TOTAL = 16, 64
PROVED_SHARE, PROVED_TOTAL = 64, 256
RATE, BURST = 20, 64  # connections of one address that are taken up in a second, and at once
PIECE = 65536
# ZeroMQ's greeting and CURVE's WELCOME, which anybody is sent. What follows is READY, for holders of a token only, or an ERROR, and then it closes.
BEFORE_PROOF = 64 + 2 + 168


class ControlProxy:
    """Carries bytes from now on, until `close`.

    Args:
        listening: the port; owned from now on.
        behind: path of ZeroMQ's unix socket.
        total: the most connections without a proof, by the descriptors there are.
    """

    def __init__(self, listening: socket.socket, behind: str, total: int = PENDING_TOTAL) -> None:
        self._behind = behind
        self._loop = asyncio.get_running_loop()
        self._strangers = RateLimitedLog(log)
        self._pending = Admission(min(PENDING_SHARE, total), min(PENDING_TOTAL, total), RATE, BURST)
        self._proved = Admission(PROVED_SHARE, PROVED_TOTAL)
        self._acceptor = Acceptor(listening, self._pending, self._carry, self._strangers)

    async def close(self) -> None:
        await self._acceptor.close()
        self._strangers.close()

    async def _carry(self, client: socket.socket, peer: str, place: Place) -> None:
        task = asyncio.current_task()
        assert task is not None
        proved: Place | None = None
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inner:
            inner.setblocking(False)
            requests: asyncio.Task[None] | None = None
            try:
                async with asyncio.timeout(PROOF_LIMIT):
                    await self._loop.sock_connect(inner, self._behind)
                    requests = asyncio.create_task(self._copy(client, inner))
                    await self._copy(inner, client, BEFORE_PROOF)
                self._pending.leave(place)
                proved = self._proved.enter(place.address, self._loop.time(), task.cancel)
                answers = asyncio.create_task(self._copy(inner, client))
                try:
                    await asyncio.wait([requests, answers], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
            except TimeoutError:
                self._strangers.info("%s did not prove a token on the control port in time", peer)
            except OSError:
                pass  # it closed
            finally:
                if proved is not None:
                    self._proved.leave(proved)
                if requests is not None:
                    requests.cancel()
                    await asyncio.gather(requests, return_exceptions=True)

    async def _copy(self, source: socket.socket, target: socket.socket, until: int = 0) -> None:
        """Carries bytes one way until more than `until` have passed, if that is given, else to the end.

        Raises:
            OSError: an end closed.
        """
        passed = 0
        while piece := await self._loop.sock_recv(source, PIECE):
            await self._loop.sock_sendall(target, piece)
            passed += len(piece)
            if until and passed > until:
                return
        raise ConnectionResetError
