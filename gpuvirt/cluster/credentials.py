"""What a host must know to be one of a pool: the scheduler's address and keys, and the pool's tokens, which all hosts share.

A host that joins asks another of the pool for it, over its control channel and with an admin's token: whoever has that can do as much anyway.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import zmq

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.tokens import TokenStore, parse_tokens
from gpuvirt.transport.control import ControlError, RequestRefused, request
from gpuvirt.transport.pool import NoServer, PoolAddress, PoolStatus, check_pool
from gpuvirt.transport.token import Token

log = logging.getLogger("gpuvirt.server")


@dataclass(frozen=True)
class Credentials:
    """Attributes:
    host, port: where the scheduler listens; host "": where whoever tells of it was reached.
    key: its public key, z85.
    member: the secret key by which it knows members, z85.
    server: the secret key of the control channels of all hosts, z85: a token names its public half.
    tokens: as in a tokens' file.
    head: where the scheduler is, for people: the pool's URL of its host.
    """

    host: str
    port: int
    key: str
    member: str = field(repr=False)
    server: str = field(repr=False)
    tokens: str = field(repr=False)
    head: str

    def told(self) -> dict[str, Any]:
        """As the answer to ``cluster_join``."""
        return asdict(self)


def ask(address: PoolAddress, token: str | None) -> tuple[Credentials, PoolStatus]:
    """Asks a host of the pool.

    Raises:
        GpuvirtError: it does not answer, has no pool of many hosts, or the token is no admin's.
    """
    status = check_pool(address, token)
    return checked(request(status.peer, status.greeting.control_port, status.token, "cluster_join"), address.url), status


def checked(answer: dict[str, Any], asked: str) -> Credentials:
    """What was told as `Credentials.told`.

    Args:
        asked: who told it.

    Raises:
        GpuvirtError: it makes no sense.
    """
    try:
        found = Credentials(**answer)
        parse_tokens(found.tokens), zmq.curve_public(found.member.encode()), zmq.curve_public(found.server.encode())
    except (TypeError, ValueError, AttributeError, zmq.ZMQError) as error:
        raise GpuvirtError(f"{asked} says what makes no sense of its pool ({error}); install the same gpuvirt on all hosts") from None
    return found


def keep(folder: Path, credentials: Credentials) -> TokenStore:
    """Writes the pool's key and tokens where this host's are, and reads them from there."""
    keep_key(folder, credentials.server)
    keep_tokens(folder, credentials.tokens)
    return TokenStore(folder)


def keep_key(folder: Path, secret: str) -> None:
    """Writes the key of the pool's control channels."""
    paths.write_private(paths.private_dir(folder) / "server.key", secret + "\n")


def learn(
    ask: Callable[[], tuple[Credentials, str]], known: Callable[[], TokenStore | None], folder: Path
) -> tuple[TokenStore, tuple[Credentials, str] | None]:
    """What a host that begins must know. One that has been of this pool goes on with what it has while nobody answers: its head may begin later, or
    it may be cut off, and its sessions need nobody else.

    Args:
        ask: asks for it, and says where the answer came from.
        known: what this host has of that pool, None: nothing.
        folder: where the host keeps the pool's key and tokens.

    Returns:
        The pool's tokens; what `ask` said, None: nobody answered.

    Raises:
        GpuvirtError: nobody answers, and nothing is known of this pool; or it refuses.
    """
    try:
        told = ask()
    except (NoServer, ControlError) as error:
        store = None if isinstance(error, RequestRefused) else known()
        if store is None:
            raise
        log.warning("%s; this host has been of that pool, and goes on with what it has until it answers", error)
        return store, None
    return keep(folder, told[0]), told


def kept(folder: Path, token: Token | None = None) -> TokenStore | None:
    """What `keep` wrote there (of the pool whose token this is), None: nothing."""
    if not all((folder / name).exists() for name in ("server.key", "tokens.json")):
        return None
    store = TokenStore(folder)
    return store if token is None or store.public_key == token.server_key else None


def keep_tokens(folder: Path, text: str) -> None:
    """Writes the pool's tokens; a daemon that reads them looks again."""
    file = folder / "tokens.json"
    with contextlib.suppress(FileNotFoundError):
        if file.read_text() == text:
            return
    paths.write_private(file, text)
