"""The sockets that clients connect to, and the server's side of the handshake.

No peer can hold up another: every handshake is a task with a time limit, and when too many are under way the oldest one goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
import stat
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.sessions import LINKS, MAIN, Refused, Sessions
from gpuvirt.server.tokens import TokenStore
from gpuvirt.transport import handshake as hs

log = logging.getLogger("gpuvirt.server")

HANDSHAKE_LIMIT = 10.0  # seconds from connect to a whole hello
MAX_PENDING = 128  # connections that have not proved anything yet
BACKLOG = 256


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        GpuvirtError: the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise GpuvirtError(f"cannot listen on {host}: {error.strerror}") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise GpuvirtError(f"port {port} is taken on {host}; choose another with --listen {host}:PORT (port 0 takes a free one)") from None
        raise GpuvirtError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def listen_unix(port: int) -> tuple[socket.socket, Path]:
    """A listening unix socket in the first runtime folder that can be used, and its path. One that a dead server left is replaced.

    Raises:
        GpuvirtError: there is no place for it.
    """
    problem: Exception | None = None
    for folder in paths.runtime_dirs():
        path = folder / f"{port}.sock"
        if len(str(path).encode()) > 107:
            problem = GpuvirtError(f"{path} is too long for a unix socket")
            continue
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            paths.private_dir(folder)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()  # we hold the TCP port that names it, so its owner is gone
            sock.bind(str(path))
            sock.listen(BACKLOG)
        except (OSError, GpuvirtError) as error:
            problem = error
            sock.close()
            continue
        sock.setblocking(False)
        return sock, path
    raise GpuvirtError(f"no place for the unix socket: {problem}")


def boot_id() -> str:
    """What tells this host from all others, until it is booted again."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class Listener:
    """Accepts connections and shakes hands.

    Args:
        greeting: what every client is told; called with the nonce of one connection.
        links: which links are offered, of "tcp", "shm".
    """

    def __init__(self, tokens: TokenStore, sessions: Sessions, greeting: Callable[[bytes], hs.Greeting], links: tuple[str, ...]) -> None:
        self._tokens, self._sessions, self._greeting = tokens, sessions, greeting
        self._links = {LINKS[name] for name in links}
        self._pending: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._accepting: list[asyncio.Task[None]] = []
        self._attaching: set[asyncio.Task[None]] = set()

    def serve(self, sock: socket.socket) -> None:
        """Accepts on this listening socket from now on; owns it."""
        self._accepting.append(asyncio.create_task(self._accept(sock)))

    async def close(self) -> None:
        tasks = [*self._accepting, *self._pending, *self._attaching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    client, address = await loop.sock_accept(listening)
                except OSError as error:
                    # Out of descriptors, most likely. Whoever hangs in a handshake gives his back.
                    log.warning("a connection could not be accepted: %s", error.strerror)
                    self._drop_oldest()
                    await asyncio.sleep(0.1)
                    continue
                client.setblocking(False)
                if len(self._pending) >= MAX_PENDING:
                    self._drop_oldest()
                peer = f"{address[0]}:{address[1]}" if client.family != socket.AF_UNIX else "this host"
                task = asyncio.create_task(self._client(client, peer))
                self._pending[task] = None
                task.add_done_callback(self._forget)

    def _drop_oldest(self) -> None:
        if self._pending:
            self._pending.popitem(last=False)[0].cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._attaching.discard(task)

    async def _client(self, client: socket.socket, peer: str) -> None:
        with client:
            try:
                nonce = secrets.token_bytes(hs.NONCE_SIZE)
                async with asyncio.timeout(HANDSHAKE_LIMIT):
                    if client.family != socket.AF_UNIX:
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    loop = asyncio.get_running_loop()
                    await loop.sock_sendall(client, self._greeting(nonce).pack())
                    raw = await _receive(client, hs.HELLO_SIZE)
                    hello = hs.Hello.unpack(raw)
                await self._answer(client, peer, hello, raw, nonce)
            except Refused as refused:
                log.info("refused %s: %s", peer, refused.text)
                with contextlib.suppress(OSError):
                    client.setblocking(False)
                    client.send(hs.Welcome(status=refused.status, text=refused.text).pack())
            except TimeoutError:
                log.info("%s did not finish its handshake within %.0f s", peer, HANDSHAKE_LIMIT)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                pass  # a look at the greeting, or a port scan
            except (OSError, hs.HandshakeError) as error:
                log.info("%s: %s", peer, error)
            except GpuvirtError as error:
                log.error("%s: %s", peer, error)

    async def _answer(self, client: socket.socket, peer: str, hello: hs.Hello, raw: bytes, nonce: bytes) -> None:
        if hello.version != hs.WIRE_VERSION:
            text = f"this server speaks wire version {hs.WIRE_VERSION} and the client {hello.version}; install the same gpuvirt on both"
            raise Refused(hs.WELCOME_VERSION, text)
        if hello.kind in (hs.HELLO_CHANNEL, hs.HELLO_RESUME):
            self._further(client, hello, raw, nonce)
            return
        if hello.kind not in (hs.HELLO_SESSION, hs.HELLO_CHECK, hs.HELLO_ENDED):
            raise hs.HandshakeError(f"a hello of unknown kind {hello.kind}")
        secret = self._tokens.secret(hello.token_id)
        # An unknown token is checked against a secret too, so that the answer's time does not tell the two apart.
        if not hs.hello_proved(raw, secret or bytes(32), nonce) or secret is None:
            raise Refused(hs.WELCOME_DENIED, "the token was not accepted")
        if hello.kind == hs.HELLO_CHECK:
            never = self._sessions.impossible(hello.gpus, hello.memory) if hello.gpus else None
            if never is not None:
                raise Refused(hs.WELCOME_BUSY, never)
            client.send(hs.Welcome().pack(secret, hello.nonce, nonce))
            return
        if hello.kind == hs.HELLO_ENDED:
            self._sessions.launch_ended(hello.launch, hello.token_id)
            client.send(hs.Welcome().pack(secret, hello.nonce, nonce))
            return
        self._check_link(client, hello)
        task = asyncio.current_task()
        assert task is not None
        self._pending.pop(task, None)  # proved: no longer one that may be dropped for a newer one
        self._attaching.add(task)
        await self._sessions.attach(client, hello, secret, nonce, peer)

    def _check_link(self, client: socket.socket, hello: hs.Hello) -> None:
        if hello.link not in self._links:
            offered = ", ".join(name for name, link in LINKS.items() if link in self._links)
            asked = hs.LINK_NAMES.get(hello.link, str(hello.link))
            raise Refused(hs.WELCOME_FAILED, f"this server does not offer the link {asked}; it offers {offered}: choose with --link")
        if hello.link == hs.LINK_SHM and client.family != socket.AF_UNIX:
            raise Refused(hs.WELCOME_FAILED, "shared memory needs a connection over the server's unix socket; use --link tcp from another host")

    def _further(self, client: socket.socket, hello: hs.Hello, raw: bytes, nonce: bytes) -> None:
        """A further connection of a session: a bulk channel, or one in the place of a connection that was cut."""
        session = self._sessions.get(hello.session)
        if session is None:
            raise Refused(hs.WELCOME_UNKNOWN, "this server has no such session (any more)")
        if not hs.hello_proved(raw, session.key, nonce):
            raise Refused(hs.WELCOME_DENIED, "the connection does not belong to the session")
        which = MAIN if hello.kind == hs.HELLO_RESUME else hello.channel
        self._sessions.check_further(session, which, hello.epoch)
        # The welcome goes out before the worker has the socket, and so before its first byte.
        client.send(hs.Welcome(session=session.id).pack(session.key, hello.nonce, nonce))
        self._sessions.add_connection(session, which, client, hello.epoch)


async def _receive(client: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, never one more: what follows is the worker's.

    Raises:
        EOFError: the peer closed.
    """
    loop = asyncio.get_running_loop()
    raw = b""
    while len(raw) < size:
        part = await loop.sock_recv(client, size - len(raw))
        if not part:
            raise EOFError
        raw += part
    return raw


def leave_token(port: int, text: str) -> list[Path]:
    """Writes ``PORT.token`` for this user's clients into every runtime folder that can be used; returns the files."""
    files = []
    for folder in paths.runtime_dirs():
        try:
            file = paths.private_dir(folder) / f"{port}.token"
            paths.write_private(file, text + "\n")
        except (OSError, GpuvirtError) as error:
            log.debug("no token file in %s: %s", folder, error)
            continue
        files.append(file)
    return files


def remove_files(files: list[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
