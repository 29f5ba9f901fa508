"""The server's end of the control channel (gpuvirt/transport/control.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import zmq
import zmq.asyncio

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.descriptors import for_strangers
from gpuvirt.server.ports.control_proxy import EACH, PENDING_TOTAL
from gpuvirt.server.ports.curve_port import CurveKeys, CurvePort
from gpuvirt.server.tokens import LIFETIME_MOST, RIGHTS, TokenEntry, TokenStore
from gpuvirt.transport.control import MAX_MESSAGE, VERSION
from gpuvirt.transport.packing import pack, unpack

log = logging.getLogger("gpuvirt.server")

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
MAX_REQUESTS = 64  # being answered at the same time; further ones are dropped
HEARTBEAT = 10_000  # ms between signs of life of a connection; one that is silent for twice that is closed


class ControlServer:
    """Answers requests of token holders.

    Args:
        handlers: by operation; each takes the request and returns the answer's fields, or raises `GpuvirtError` with the text for the client.
    """

    def __init__(self, tokens: TokenStore, handlers: dict[str, Handler]) -> None:
        self._tokens = tokens
        self._handlers: dict[str, Handler] = {**token_requests(tokens), **handlers}
        keys = CurveKeys(tokens.server_public, tokens.server_secret)
        self._port = CurvePort("control", keys, lambda key: key in tokens.control_keys(), MAX_MESSAGE)
        self._task: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def start(self, host: str, preferred: int, limit: int) -> int:
        """Listens on the port `preferred`, or on any free port if it is taken; returns the port.

        Args:
            limit: the daemon's limit of open files.

        Raises:
            GpuvirtError: the host's address cannot be listened on, or no folder can hold the unix socket behind the port.
        """
        sock = self._port.open(host, preferred, for_strangers(limit, PENDING_TOTAL, EACH), heartbeat=HEARTBEAT)
        self._task = asyncio.create_task(self._serve(sock))
        return self._port.port

    async def close(self) -> None:
        for task in [*self._answering, *([self._task] if self._task else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._port.close()

    async def _serve(self, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart(copy=False)
            if len(frames) != 3 or len(self._answering) >= MAX_REQUESTS:
                continue
            task = asyncio.create_task(self._answer(sock, frames))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, sock: zmq.asyncio.Socket, frames: list[zmq.Frame]) -> None:
        route, _, body = frames
        try:
            answer = {"ok": True, **await self._handle(body)}
        except GpuvirtError as error:
            answer = {"ok": False, "error": str(error)}
        except Exception:
            log.exception("a control request failed")
            answer = {"ok": False, "error": "the server failed at this request; its log says why"}
        await sock.send_multipart([route.bytes, b"", pack(answer)])

    async def _handle(self, body: zmq.Frame) -> dict[str, Any]:
        try:
            message = unpack(body.bytes)
        except ValueError:
            message = {}
        if message.get("v") != VERSION:
            raise GpuvirtError(f"this server speaks control version {VERSION}; install the same gpuvirt on both")
        handler = self._handlers.get(str(message.get("op")))
        if handler is None:
            raise GpuvirtError(f"this server does not know the request {str(message.get('op'))[:40]!r}; install the same gpuvirt on both")
        user = body.get("User-Id")
        key = user.encode() if isinstance(user, str) else user
        message["from"] = self._tokens.control_keys().get(key) if isinstance(key, bytes) else None
        if message["from"] is None:
            raise GpuvirtError("this token has been revoked")
        if expired := message["from"].expired:
            raise GpuvirtError(expired)
        return await handler(message)


def token_requests(tokens: TokenStore) -> dict[str, Handler]:
    """What an admin asks of the tokens, by operation; each request says in ``from`` whose it is."""

    def admin(message: dict[str, Any]) -> None:
        sender: TokenEntry = message["from"]
        if not sender.admin:
            raise GpuvirtError(f"the token {sender.name!r} may use GPUs but not manage tokens; ask the server's owner")

    async def listed(message: dict[str, Any]) -> dict[str, Any]:
        admin(message)
        return {"tokens": [entry.public() for entry in tokens.entries()]}

    async def create(message: dict[str, Any]) -> dict[str, Any]:
        admin(message)
        name = str(message.get("name", ""))
        lifetime = message.get("lifetime")
        if lifetime is not None and (type(lifetime) not in (int, float) or not 0 < lifetime <= LIFETIME_MOST):
            raise GpuvirtError(f"a token is valid for a number of seconds up to {LIFETIME_MOST:.0f}")
        rights = {right: message[right] for right in RIGHTS if right in message}
        token = tokens.create(name, message.get("admin") is True, lifetime=lifetime, **rights)
        log.info("token %r made", name)
        return {"token": token.text()}

    async def revoke(message: dict[str, Any]) -> dict[str, Any]:
        admin(message)
        entry = tokens.revoke(str(message.get("which", "")))
        log.info("token %r revoked", entry.name)
        return {"revoked": entry.public()}

    return {"token_list": listed, "token_create": create, "token_revoke": revoke}
