"""The client's view of a pool: its URL, its greeting, and whether the server accepts this client."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport import handshake as hs
from gpuvirt.transport import table
from gpuvirt.transport.token import Token, parse_token

TIMEOUT = 10.0
REPORT_LIMIT = 3.0  # seconds for the report of a program's end; a server that does not answer must not delay the launcher's exit
PAUSES = (0.02, 0.05, 0.1)  # seconds before an interrupted handshake is tried again
_URL = re.compile(r"tcp://(?:\[([^\]]+)\]|([^:/\[\]]+)):(\d{1,5})/?")


class NoServer(GpuvirtError):
    """Nobody answers at the address of a pool."""


class HandshakeCut(GpuvirtError):
    """The connection ended during the handshake."""


@dataclass(frozen=True)
class PoolAddress:
    """Host and TCP port of a pool's server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


FIND = PoolAddress("find", 0)  # whichever of this client's pools announces itself in the network (gpuvirt.transport.discovery)


def parse_choice(text: str) -> PoolAddress:
    """Parses what a user says of a pool: ``tcp://HOST:PORT``, or ``find``.

    Raises:
        GpuvirtError: the text is neither.
    """
    return FIND if text.strip() == "find" else parse_pool(text)


def parse_pool(text: str) -> PoolAddress:
    """Parses ``tcp://HOST:PORT``.

    Raises:
        GpuvirtError: the text is not one such URL.
    """
    text = text.strip()
    if "," in text:
        raise GpuvirtError("several servers in one pool (URL,URL) are not in this version; name one")
    match = _URL.fullmatch(text)
    if not match or not 0 < int(match[3]) < 65536:
        raise GpuvirtError(f"{text!r} is not a pool; write tcp://HOST:PORT, or find for one that announces itself in this network")
    return PoolAddress(match[1] or match[2], int(match[3]))


@dataclass(frozen=True)
class PoolStatus:
    """A server that accepted this client. peer: the numeric address at which it answered, which is also that of its control channel."""

    address: PoolAddress
    peer: str
    greeting: hs.Greeting
    token: Token

    @property
    def same_host(self) -> bool:
        return bool(self.greeting.boot_id) and self.greeting.boot_id == own_boot_id()

    @property
    def software(self) -> bool:
        """Whether its devices are software GPUs."""
        return bool(self.greeting.flags & hs.GREETING_SOFTWARE)

    def provides(self) -> tuple[int, str]:
        """What a connection to this server can provide (NEEDS_*), and the reason in words."""
        if not self.same_host:
            return hs.NEEDS_NETWORK, "the server is on another host"
        near = hs.NEEDS_NETWORK | hs.NEEDS_SAME_HOST
        if not self.greeting.unix_path:
            return near, "the server offers nothing on a unix socket"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(TIMEOUT)
                sock.connect(self.greeting.unix_path)
        except OSError as error:
            return near, f"the server's unix socket {self.greeting.unix_path} cannot be reached: {error.strerror}"
        return near | hs.NEEDS_DESCRIPTORS, "client and server are on the same host"

    def links(self) -> tuple[list[str], str]:
        """Names of the transports that reach this server, the one that `auto` takes first; and the reason in words."""
        provides, why = self.provides()
        return [row.name for row in table.usable(provides) if not row.missing()], why


def own_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def find_token(address: PoolAddress, same_host: bool, text: str | None = None) -> Token:
    """The token for a server: the one given, GPUVIRT_TOKEN, or what this user's server on this host left.

    Raises:
        GpuvirtError: there is none, or it is malformed.
    """
    text = text or os.environ.get("GPUVIRT_TOKEN")
    if not text and same_host:
        text = paths.find_local_token(address.port)
    if not text:
        raise GpuvirtError(f"{address.url} asks for a token; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server")
    return parse_token(text)


@dataclass(frozen=True)
class Greeted:
    """A connection to a server that has greeted."""

    sock: socket.socket
    peer: str  # its address, which a connection that is cut does not tell any more
    greeting: hs.Greeting
    transcript: hs.Transcript


def greet(address: PoolAddress, timeout: float = TIMEOUT) -> Greeted:
    """Connects and reads the greeting. The caller closes the socket.

    Raises:
        GpuvirtError: nothing listens there, the peer is not a gpuvirt server, or it speaks another wire version.
    """
    url = address.url
    try:
        sock = socket.create_connection((address.host, address.port), timeout=timeout)
    except TimeoutError:
        raise NoServer(f"no answer from {url} within {timeout:.0f} s; is the address right and the port open?") from None
    except OSError as error:
        raise NoServer(f"no GPU server at {url}: {error.strerror or error}; start one there with `gpuvirt serve`") from None
    try:
        peer = sock.getpeername()[0]
        raw = _receive(sock, hs.HEAD_SIZE)
        raw += _receive(sock, hs.greeting_size(raw) - hs.HEAD_SIZE)
        greeting = hs.Greeting.unpack(raw)
    except hs.OtherVersion as error:
        sock.close()
        raise GpuvirtError(other_version(url, error)) from None
    except (OSError, EOFError, hs.HandshakeError) as error:
        sock.close()
        kind = GpuvirtError if isinstance(error, (TimeoutError, hs.HandshakeError)) else HandshakeCut
        raise kind(f"what listens at {url} is not a gpuvirt server; check the port") from None
    return Greeted(sock, peer, greeting, hs.Transcript(raw))


def other_version(url: str, error: hs.OtherVersion) -> str:
    """A line for the user: which side is older, and the remedy."""
    if error.older:
        return (
            f"the server at {url} is older than this gpuvirt: it speaks wire version {error.version} and this one version {hs.WIRE_VERSION}; "
            "install this gpuvirt on the server"
        )
    return (
        f"this gpuvirt is older than the server at {url}: it speaks wire version {hs.WIRE_VERSION} and the server version {error.version}; "
        "install the server's gpuvirt here"
    )


def check_pool(
    address: PoolAddress,
    token_text: str | None = None,
    gpus: int = 0,
    memory: int = 0,
    lease: bytes | None = None,
    priority: int = 0,
    compute: int = 0,
) -> PoolStatus:
    """Asks a server whether it accepts this client.

    Args:
        token_text: the token, None: see `find_token`.
        gpus: the server also checks that it has this number of GPUs with `memory` bytes each; 0: not checked.
        lease: and that this lease stands and has them.
        priority: and that the token may ask for it.
        compute: and that a lease may reserve so many thousandths of each GPU's compute.

    Raises:
        GpuvirtError: it does not; the text is one line with the server and the reason.
    """
    for _ in range(hs.MOVES_MAX + 1):
        wanted = {"gpus": gpus, "memory": memory, "lease": lease or bytes(hs.LEASE_SIZE), "priority": priority, "compute": compute}
        status, welcome = _check_once(address, token_text, wanted)
        if welcome.status != hs.WELCOME_MOVED:
            return status
        address = parse_pool(welcome.address)
    raise GpuvirtError(f"the pool moved more than {hs.MOVES_MAX} times in a row, at last to {address.url}")


def _check_once(address: PoolAddress, token_text: str | None, wanted: dict[str, Any]) -> tuple[PoolStatus, hs.Welcome]:
    for pause in (*PAUSES, None):
        try:
            greeted = greet(address)
            greeting = greeted.greeting
            with greeted.sock:
                token = find_token(address, bool(greeting.boot_id) and greeting.boot_id == own_boot_id(), token_text)
                welcome = _say(greeted, address, token, hs.HELLO_CHECK, **wanted)
            break
        except HandshakeCut:
            # The connection may have been cut during the handshake. A peer that is not a gpuvirt server closes every attempt.
            if pause is None:
                raise
            time.sleep(pause)
    return PoolStatus(address, greeted.peer, greeting, token), welcome


def control_port_of(status: PoolStatus, timeout: float) -> int | None:
    """The control port that a server says it has now, which proves nothing until it answers there; None: none answers within `timeout` seconds."""
    try:
        greeted = greet(PoolAddress(status.peer, status.address.port), timeout)
    except GpuvirtError:
        return None
    greeted.sock.close()
    return greeted.greeting.control_port


def report_ended(status: PoolStatus, launch: bytes) -> None:
    """Tells the server that the program of a launch has ended: sessions of it that are not connected need not be kept.

    Raises:
        GpuvirtError: the server could not be told, or not within `REPORT_LIMIT`.
    """
    deadline = time.monotonic() + REPORT_LIMIT
    # The numeric address: resolving the host's name again could take longer than REPORT_LIMIT.
    greeted = greet(PoolAddress(status.peer, status.address.port), REPORT_LIMIT)
    with greeted.sock as sock:
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        _say(greeted, status.address, status.token, hs.HELLO_ENDED, launch=launch)


def _say(greeted: Greeted, address: PoolAddress, token: Token, purpose: int, gpus: int = 0, **wanted: Any) -> hs.Welcome:
    """A handshake that opens no session: sends a hello and returns the welcome, both proved. Its status is OK or MOVED.

    Raises:
        GpuvirtError: the server refused (the text gives its reason), or does not hold the token's secret.
    """
    hello = hs.Hello(
        secrets.token_bytes(hs.NONCE_SIZE),
        purpose=purpose,
        token_id=token.id,
        pid=os.getpid(),
        gpus=gpus,
        program="gpuvirt",
        user=user(),
        host=socket.gethostname(),
        **wanted,
    )
    try:
        greeted.sock.sendall(greeted.transcript.prove_hello(hello, token.secret))
        raw = _receive(greeted.sock, hs.HEAD_SIZE)
        raw += _receive(greeted.sock, hs.message_size(raw) - hs.HEAD_SIZE)
        welcome = hs.Welcome.unpack(raw)
    except (OSError, EOFError, hs.HandshakeError) as error:
        failed = GpuvirtError if isinstance(error, (TimeoutError, hs.HandshakeError)) else HandshakeCut
        raise failed(f"{address.url} broke off the handshake; its log may say why") from None
    if welcome.status not in (hs.WELCOME_OK, hs.WELCOME_MOVED):
        remedy = "; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server" if welcome.status == hs.WELCOME_DENIED else ""
        raise GpuvirtError(f"{address.url} refused: {welcome.text}{remedy}")
    if not greeted.transcript.welcome_proved(raw, token.secret):
        raise GpuvirtError(
            f"the server at {address.url} does not hold the token's secret itself, or the handshake was altered on its way; "
            "it is not the one the token came from"
        )
    return welcome


def user() -> str:
    """The name of this process's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _receive(sock: socket.socket, size: int) -> bytes:
    raw = b""
    while len(raw) < size:
        part = sock.recv(size - len(raw))
        if not part:
            raise EOFError
        raw += part
    return raw
