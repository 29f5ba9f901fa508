"""A server's key pair and tokens, in its state folder. All daemons of one user share them; `gpuvirt token` edits them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.token import ID_SIZE, SECRET_SIZE, Token, control_secret

DEFAULT_NAME = "default"


@dataclass(frozen=True)
class TokenEntry:
    """A token as the server stores it. admin: may list, create and revoke tokens over the control channel. memory: the most that a session with it
    may have on each GPU, bytes, 0: no limit of its own."""

    id: str
    secret: str = field(repr=False)
    name: str
    admin: bool
    created: float
    memory: int = 0

    def public(self) -> dict[str, Any]:
        """The fields without the secret."""
        return {"id": self.id, "name": self.name, "admin": self.admin, "created": self.created, "memory": self.memory}


class TokenStore:
    """The tokens and the server's key pair in `folder` (mode 0700; files have mode 0600, are replaced atomically and changed under a lock)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = paths.private_dir(folder or paths.state_dir())
        self._file = self.folder / "tokens.json"
        self._stamp: tuple[int, int, int] | None = None
        self._entries: list[TokenEntry] = []
        self._control_keys: dict[bytes, TokenEntry] = {}
        with self._locked():
            self.server_secret, self.server_public = self._server_key()
            if not self._load():
                self._save([self._make(DEFAULT_NAME, admin=True)])

    # ---- reading ------------------------------------------------------------------------------------------------------

    def entries(self) -> list[TokenEntry]:
        """All tokens, oldest first, as they are on disk now."""
        self._load()
        return list(self._entries)

    def secret(self, token_id: bytes) -> bytes | None:
        """The secret of a token; None when there is no such token or it was revoked."""
        self._load()
        for entry in self._entries:
            if entry.id == token_id.hex():
                return bytes.fromhex(entry.secret)
        return None

    def memory(self, token_id: bytes) -> int:
        """The most that a session with this token may have on each GPU, bytes, 0: no limit of its own."""
        self._load()
        return next((entry.memory for entry in self._entries if entry.id == token_id.hex()), 0)

    def control_keys(self) -> dict[bytes, TokenEntry]:
        """The z85 public keys that the control channel accepts, each with its token."""
        self._load()
        return self._control_keys

    def default(self) -> Token:
        """The token that was created at the first start, or a new one if that was revoked: revoking replaces a leaked default token."""
        with self._locked():
            self._load()
            found = next((entry for entry in self._entries if entry.name == DEFAULT_NAME), None)
            if found is None:
                found = self._make(DEFAULT_NAME, admin=True)
                self._save([*self._entries, found])
        return self.token(found)

    def token(self, entry: TokenEntry) -> Token:
        return Token(bytes.fromhex(entry.id), bytes.fromhex(entry.secret), z85.decode(self.server_public))

    # ---- changing -----------------------------------------------------------------------------------------------------

    def create(self, name: str, admin: bool = False, memory: int = 0) -> Token:
        """Creates a token and stores it. memory: as in TokenEntry.

        Raises:
            GpuvirtError: the name is in use, or is not 1 to 64 printable characters.
        """
        if not name or len(name) > 64 or not name.isprintable():
            raise GpuvirtError("a token needs a name of 1 to 64 printable characters")
        with self._locked():
            self._load()
            if any(entry.name == name for entry in self._entries):
                raise GpuvirtError(f"there is a token {name!r} already; choose another name or revoke that one")
            entry = self._make(name, admin, memory)
            self._save([*self._entries, entry])
        return self.token(entry)

    def revoke(self, which: str) -> TokenEntry:
        """Removes a token, named by its name or by at least the first 8 digits of its id. Connected sessions continue.

        Raises:
            GpuvirtError: no token matches, or several do.
        """
        with self._locked():
            self._load()
            found = [e for e in self._entries if e.name == which] or [e for e in self._entries if len(which) >= 8 and e.id.startswith(which.lower())]
            if len(found) != 1:
                raise GpuvirtError(f"{'several tokens are' if found else 'no token is'} called {which!r}; see `gpuvirt token list`")
            self._save([entry for entry in self._entries if entry != found[0]])
        return found[0]

    # ---- files --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _make(name: str, admin: bool, memory: int = 0) -> TokenEntry:
        return TokenEntry(secrets.token_hex(ID_SIZE), secrets.token_hex(SECRET_SIZE), name, admin, time.time(), memory)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _server_key(self) -> tuple[bytes, bytes]:
        file = self.folder / "server.key"
        try:
            secret = file.read_text().strip().encode()
            return secret, zmq.curve_public(secret)
        except FileNotFoundError:
            public, secret = zmq.curve_keypair()
            paths.write_private(file, secret.decode() + "\n")
            return secret, public
        except (OSError, ValueError) as error:
            raise GpuvirtError(f"the server's key {file} cannot be read ({error}); remove it to make a new one (all tokens then change)") from None

    def _load(self) -> bool:
        """Reads the file again if it has changed. False when there is no file yet."""
        try:
            found = self._file.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return True
            entries = [TokenEntry(**entry) for entry in json.loads(self._file.read_text())]
        except FileNotFoundError:
            self._entries, self._control_keys, self._stamp = [], {}, None
            return False
        except (OSError, ValueError, TypeError) as error:
            raise GpuvirtError(f"the tokens in {self._file} cannot be read ({error}); repair the file or remove it to start anew") from None
        self._use(entries, stamp)
        return True

    def _save(self, entries: list[TokenEntry]) -> None:
        paths.write_private(self._file, json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")
        found = self._file.stat()
        self._use(entries, (found.st_ino, found.st_mtime_ns, found.st_size))

    def _use(self, entries: list[TokenEntry], stamp: tuple[int, int, int]) -> None:
        self._entries, self._stamp = entries, stamp
        self._control_keys = {zmq.curve_public(z85.encode(control_secret(bytes.fromhex(e.secret)))): e for e in entries}
