"""A port of ZeroMQ with CURVE: a ROUTER socket behind a proxy (control_proxy.py), which lets in the holders of certain keys only."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.ports.control_proxy import PROOF_LIMIT, PROVED_TOTAL, ControlProxy
from gpuvirt.server.sockets import listen_tcp, remove_files, socket_paths

MAX_SOCKETS = 16  # of ZeroMQ's own


@dataclass(frozen=True)
class CurveKeys:
    """A pair of keys, z85."""

    public: bytes
    secret: bytes


class CurvePort:
    """Listens from `open` to `close`.

    Args:
        name: of the unix socket behind the port, and of ZeroMQ's domain; no other port of this process has it.
        keys: by which clients know this server.
        allowed: whether the holder of a public key may connect.
        max_message: bytes.
    """

    def __init__(self, name: str, keys: CurveKeys, allowed: Callable[[bytes], bool], max_message: int) -> None:
        self._name, self._allowed = name, allowed
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = MAX_SOCKETS
        self._authenticator = AsyncioAuthenticator(self._context, log=logging.getLogger("gpuvirt.server.zap"))
        self._proxy: ControlProxy | None = None
        self._undo = contextlib.ExitStack()
        self._keys, self._max_message = keys, max_message
        self._socket: zmq.asyncio.Socket | None = None
        self.port = 0

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator."""
        return self._allowed(key)

    def open(self, host: str, preferred: int, pending: int, proved: int = PROVED_TOTAL, heartbeat: int = 0) -> zmq.asyncio.Socket:
        """Listens on the port `preferred`, or on any free port if it is taken.

        Args:
            pending, proved: connections without a proof, and with one, at the same time.
            heartbeat: ms between signs of life of a connection, of which one that is silent for twice that is closed; 0: none.

        Raises:
            GpuvirtError: the host's address cannot be listened on, or no folder can hold the unix socket behind the port.
        """
        path = socket_paths(f"{self._name}.{os.getpid()}")[0]
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=self._domain, credentials_provider=self)
        sock = self._socket = self._context.socket(zmq.ROUTER)
        sock.linger = 0
        sock.maxmsgsize = self._max_message
        sock.zap_domain = self._domain.encode()
        sock.curve_server = True
        sock.curve_secretkey, sock.curve_publickey = self._keys.secret, self._keys.public
        sock.handshake_ivl = int(PROOF_LIMIT * 1000)
        if heartbeat:
            sock.heartbeat_ivl, sock.heartbeat_timeout = heartbeat, 2 * heartbeat
        self._undo.callback(remove_files, [path])
        try:
            sock.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            raise GpuvirtError(f"the {self._name} port cannot use {path}: {error}") from None
        try:
            listening = listen_tcp(host, preferred)
        except GpuvirtError:
            listening = listen_tcp(host, 0)
        self.port = int(listening.getsockname()[1])
        self._proxy = ControlProxy(listening, str(path), pending, proved)
        return sock

    @property
    def _domain(self) -> str:
        return f"gpuvirt-{self._name}"

    def close(self) -> None:
        """Nobody reads from the socket any more."""
        if self._proxy:
            self._proxy.close()
        self._authenticator.stop()
        if self._socket:
            self._socket.close()
        self._context.term()
        self._undo.close()
