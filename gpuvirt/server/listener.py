"""The sockets that clients connect to, and the server's side of the handshake.

No peer can hold up another: a thread of the server library accepts, greets and reads hellos, with a time limit for each step and places by address
(native/server/acceptor.h). Here a whole hello is judged, without waiting for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.acceptor import Acceptor, limits
from gpuvirt.server.migration.departed import Departed
from gpuvirt.server.rate_limited_log import RateLimitedLog
from gpuvirt.server.refusals import Moved, Refused
from gpuvirt.server.server_library import AcceptorConfig
from gpuvirt.server.session import MAIN, Session
from gpuvirt.server.sessions import Sessions
from gpuvirt.server.tokens import TokenEntry, TokenStore
from gpuvirt.transport import handshake as hs
from gpuvirt.transport import table
from gpuvirt.transport.transport import Transport

log = logging.getLogger("gpuvirt.server")

HELLO_LIMIT = 5.0  # seconds from the greeting to a hello's head
REST_LIMIT = 2.0  # seconds from there to its last byte
PENDING_SHARE = 128  # connections of one address that have not proved anything yet
PENDING_TOTAL = 1024
RATE, BURST = 100, 256  # handshakes that one address may begin in a second, and at once
MOVE_PATIENCE = 4.0  # seconds that a connection of a session waits while the session moves; the client waits 5


def boot_id() -> str:
    """What tells this host from all others, until it is booted again."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class Listener:
    """Shakes hands with the clients of the data port.

    Args:
        greeting: what every client is told, each with a fresh nonce in the place of this one's.
        transports: which are offered.
        total: connections of a socket that may be open without a proof.
    """

    def __init__(
        self,
        tokens: TokenStore,
        sessions: Sessions,
        greeting: hs.Greeting,
        transports: Sequence[Transport],
        total: int = PENDING_TOTAL,
    ) -> None:
        self._tokens, self._sessions, self._transports = tokens, sessions, transports
        self._greeting = greeting.pack()
        self._nonce_at = self._greeting.index(greeting.nonce)
        self._strangers = RateLimitedLog(log)
        self._acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._total = total

    def serve(self, sock: socket.socket) -> None:
        """Accepts on this listening socket from now on; owns it."""
        if sock.family == socket.AF_UNIX:  # in a folder that only this user can enter
            pending = limits(self._total, self._total)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the connections inherit it
            pending = limits(PENDING_SHARE, self._total, RATE, BURST)
        config = AcceptorConfig(
            pending=pending,
            head_ms=int(HELLO_LIMIT * 1000),
            rest_ms=int(REST_LIMIT * 1000),
        )
        late = "%s did not finish its handshake in time"
        self._acceptors.append(Acceptor(sock, config, self._strangers, late, self._greeting, self._nonce_at, self._client))

    async def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._strangers.close()

    def _client(self, client: socket.socket, peer: str, greeting: bytes, raw: bytes) -> None:
        """A hello has come. Who is refused, or asks for no session, is answered at once; a session takes its time, in a task."""
        transcript = hs.Transcript(greeting)
        try:
            hs.message_size(raw)
            hello = hs.Hello.unpack(raw)
            attaching = self._answer(client, peer, hello, raw, transcript)
        except Exception as error:
            self._failed(client, peer, error)
            client.close()
            return
        if attaching is None:
            client.close()
            return
        task = asyncio.create_task(self._attach(client, peer, attaching))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attach(self, client: socket.socket, peer: str, attaching: Coroutine[Any, Any, None]) -> None:
        with client:
            try:
                await attaching
            except Exception as error:
                self._failed(client, peer, error)
            except asyncio.CancelledError:
                self._refuse(client, peer, Refused(hs.WELCOME_FAILED, "the server is stopping; try again when it is back"))
                raise

    def _failed(self, client: socket.socket, peer: str, error: Exception) -> None:
        match error:
            case Refused():
                self._refuse(client, peer, error)
            case hs.OtherVersion():
                older, newer = ("client", "server") if error.older else ("server", "client")
                text = f"the {older} is older than the {newer}: the client speaks wire version {error.version} and this server {hs.WIRE_VERSION}"
                self._refuse(client, peer, Refused(hs.WELCOME_VERSION, f"{text}; install the same gpuvirt on both"))
            case BrokenPipeError() | ConnectionResetError():
                pass  # it closed
            case OSError() | hs.HandshakeError():
                self._strangers.info("%s: %s", peer, error)
            case GpuvirtError():
                log.error("%s: %s", peer, error)
            case _:
                log.error("%s: the handshake failed", peer, exc_info=error)

    def _refuse(self, client: socket.socket, peer: str, refused: Refused) -> None:
        self._strangers.info("refused %s: %s", peer, refused.text)
        with contextlib.suppress(OSError):
            client.setblocking(False)
            client.send(hs.Welcome(status=refused.status, text=refused.text).pack())

    def _answer(self, client: socket.socket, peer: str, hello: hs.Hello, raw: bytes, transcript: hs.Transcript) -> Coroutine[Any, Any, None] | None:
        """Answers a hello; what is left to do if a session is to be attached."""
        if hello.purpose in (hs.HELLO_CHANNEL, hs.HELLO_RESUME):
            return self._further(client, hello, raw, transcript)
        if hello.purpose not in (hs.HELLO_SESSION, hs.HELLO_CHECK, hs.HELLO_ENDED):
            raise hs.HandshakeError(f"a hello of unknown purpose {hello.purpose}")
        entry = self._tokens.find(hello.token_id)
        # An unknown token is checked against a secret too, so that the answer's time does not tell the two apart.
        secret = entry.key if entry else bytes(32)
        if not transcript.hello_proved(raw, secret) or entry is None:
            raise Refused(hs.WELCOME_DENIED, "the token was not accepted")
        if expired := entry.expired:  # only its holder is told
            raise Refused(hs.WELCOME_DENIED, expired)
        if hello.purpose == hs.HELLO_CHECK:
            try:
                self._sessions.check(hello, entry.rights)
                client.send(transcript.prove_welcome(hs.Welcome(), secret))
            except Moved as moved:
                self._tell_moved(client, peer, moved, transcript, secret)
            return None
        if hello.purpose == hs.HELLO_ENDED:
            self._sessions.launch_ended(hello.launch, hello.token_id)
            client.send(transcript.prove_welcome(hs.Welcome(), secret))
            return None
        provides = _provides(client)
        try:
            transport = table.choose(hello.transports, self._transports, provides)
        except table.NoTransport as error:
            raise Refused(hs.WELCOME_FAILED, str(error)) from None
        return self._session(client, peer, hello, entry, transcript, transport)

    async def _session(
        self, client: socket.socket, peer: str, hello: hs.Hello, token: TokenEntry, transcript: hs.Transcript, transport: Transport
    ) -> None:
        try:
            await self._sessions.attach(client, hello, token.key, transcript, transport, peer, token.rights)
        except Moved as moved:
            self._tell_moved(client, peer, moved, transcript, token.key)

    def _tell_moved(self, client: socket.socket, peer: str, moved: Moved, transcript: hs.Transcript, key: bytes) -> None:
        log.info("%s is to go to %s", peer, moved.address)
        client.setblocking(False)
        client.send(transcript.prove_welcome(hs.Welcome(status=hs.WELCOME_MOVED, address=moved.address), key))

    def _further(self, client: socket.socket, hello: hs.Hello, raw: bytes, transcript: hs.Transcript) -> Coroutine[Any, Any, None] | None:
        """A further connection of a session: a bulk channel, or one in the place of a connection that was cut. Returns what is left to do."""
        session = self._sessions.get(hello.session)
        if session is None and (gone := self._sessions.departures.get(hello.session)) is not None:
            if not transcript.hello_proved(raw, gone.key):
                raise Refused(hs.WELCOME_DENIED, "the connection does not belong to the session")
            return self._send_on(gone, client, transcript)
        if session is None and hello.session in self._sessions.arriving:
            raise Refused(hs.WELCOME_BUSY, "the session is on its way here")
        if session is None:
            former = self._sessions.ended(hello.session)
            known = former is not None and transcript.hello_proved(raw, former.key)
            raise Refused(hs.WELCOME_UNKNOWN, former.worker.ending if former and known else "this server has no such session (any more)")
        if not transcript.hello_proved(raw, session.key):
            raise Refused(hs.WELCOME_DENIED, "the connection does not belong to the session")
        if session.moving is not None:
            return self._place_later(session, session.moving, client, hello, transcript)
        self._place(session, client, hello, transcript)
        return None

    async def _send_on(self, gone: Departed, client: socket.socket, transcript: hs.Transcript) -> None:
        """The session has gone to another server, once it works there."""
        if gone.settled is not None and not gone.settled.done():
            await asyncio.wait([gone.settled], timeout=MOVE_PATIENCE)
            if not gone.settled.done():
                raise Refused(hs.WELCOME_BUSY, "the session moves")
        self._sessions.departures.tell(gone)
        self._tell_moved(client, gone.label, Moved(gone.url), transcript, gone.key)

    async def _place_later(
        self, session: Session, moving: asyncio.Future[None], client: socket.socket, hello: hs.Hello, transcript: hs.Transcript
    ) -> None:
        """The connection is for the worker that has the session afterwards."""
        await asyncio.wait([moving], timeout=MOVE_PATIENCE)
        if not moving.done():
            raise Refused(hs.WELCOME_BUSY, "the session moves")
        self._place(session, client, hello, transcript)

    def _place(self, session: Session, client: socket.socket, hello: hs.Hello, transcript: hs.Transcript) -> None:
        which = MAIN if hello.purpose == hs.HELLO_RESUME else hello.channel
        try:
            self._sessions.check_further(session, which, hello.epoch, _provides(client))
        except Moved as moved:
            self._tell_moved(client, session.label, moved, transcript, session.key)
            return
        # The welcome goes out before the worker has the socket, and so before its first byte.
        client.send(transcript.prove_welcome(hs.Welcome(session=session.id), session.key))
        self._sessions.add_connection(session, which, client, hello.epoch)


def _provides(client: socket.socket) -> int:
    """NEEDS_* that this connection meets."""
    return hs.NEEDS_SAME_HOST | hs.NEEDS_DESCRIPTORS if client.family == socket.AF_UNIX else hs.NEEDS_NETWORK


class LocalTokens:
    """``PORT.token`` for this user's clients, in every runtime folder that can be used: there until `remove`.

    A server holds a lock on its files. One that lives keeps them, whoever comes later with the same port on another address.

    Attributes:
        missing: a folder holds another token for this port, or none could be written.
    """

    def __init__(self, port: int, text: str) -> None:
        self._files: list[tuple[Path, int]] = []
        self.missing = False
        for folder in paths.runtime_dirs():
            try:
                self._leave(paths.private_dir(folder) / f"{port}.token", text)
            except (OSError, GpuvirtError) as error:
                log.debug("no token file in %s: %s", folder, error)
        self.missing = self.missing or not self._files

    def _leave(self, file: Path, text: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.missing = True
                return
            finally:
                os.close(found)
        paths.write_private(file, text + "\n")
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._files.append((file, fd))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Removes the files that are still this server's."""
        for file, fd in self._files:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), file.lstat()):
                    os.unlink(file)
            os.close(fd)
        self._files = []
