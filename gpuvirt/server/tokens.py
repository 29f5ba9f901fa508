"""A server's key pair and tokens, in its state folder. All daemons of one user share them; `gpuvirt token` edits them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.policy.rights import Rights
from gpuvirt.sizes import whole_units
from gpuvirt.transport.token import ID_SIZE, SECRET_SIZE, Token, control_secret

DEFAULT_NAME = "default"
LIFETIME_MOST = 100 * 365 * 86400.0  # seconds
RIGHTS = tuple(field.name for field in fields(Rights))


@dataclass(frozen=True)
class TokenEntry:
    """A token as the server stores it.

    Attributes:
        admin: may list, create and revoke tokens over the control channel.
        memory, user, weight, gpus, priority, placement: its `Rights`.
        expires: when it is worth nothing any more, seconds since the epoch, 0: never.
    """

    id: str
    secret: str = field(repr=False)
    name: str
    admin: bool
    created: float
    memory: int = 0
    user: str = ""
    weight: float = 1.0
    gpus: int = 0
    priority: int = 0
    expires: float = 0.0
    placement: str = ""

    @property
    def key(self) -> bytes:
        """The secret."""
        return bytes.fromhex(self.secret)

    @property
    def rights(self) -> Rights:
        """What it may have, device memory in whole units."""
        found = Rights(self.user, self.memory, self.weight, self.gpus, self.priority, self.placement)
        return replace(found, memory=whole_units(found.memory))

    @property
    def account(self) -> str:
        """As whom what it has is counted, for people."""
        return self.user or f"token {self.name}"

    @property
    def expired(self) -> str | None:
        """Why it is worth nothing any more, for its holder; None: it has not expired."""
        if not self.expires or time.time() < self.expires:
            return None
        return f"this token has expired, at {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(self.expires))}; ask the server's owner for another"

    def public(self) -> dict[str, Any]:
        """The fields without the secret."""
        return {name: value for name, value in asdict(self).items() if name != "secret"}


def _entry(raw: Any) -> TokenEntry:
    """A token of the file.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(raw, dict):
        raise ValueError("it lists what is no token")
    known = {field.name: field.default is MISSING for field in fields(TokenEntry)}
    if unknown := raw.keys() - known.keys():
        raise ValueError(f"{sorted(map(str, unknown))[0]!r} of a token is not known to this version")
    if missing := [name for name, needed in known.items() if needed and name not in raw]:
        raise ValueError(f"a token has no {missing[0]}")
    texts = all(isinstance(text, str) for text in (raw["id"], raw["secret"], raw["name"]))
    times = all(type(at) in (int, float) and at >= 0 for at in (raw["created"], raw.get("expires", 0)))
    if not texts or not times or type(raw["admin"]) is not bool:
        raise ValueError("a field of a token is of another kind")
    entry = TokenEntry(**raw)
    if len(bytes.fromhex(entry.id)) != ID_SIZE or len(entry.key) != SECRET_SIZE:
        raise ValueError("a token's id or secret is of another size")
    assert entry.rights  # in their ranges
    return entry


def parse_tokens(text: str) -> tuple[int, list[TokenEntry]]:
    """What a tokens' file says: its revision, a number that each change of it raises (0: of a version that kept none), and the tokens.

    Raises:
        ValueError: it is no such file.
    """
    told = json.loads(text)
    revision, listed = (told.get("revision"), told.get("tokens")) if isinstance(told, dict) else (0, told)
    if not isinstance(listed, list):
        raise ValueError("it is no list")
    if type(revision) is not int or revision < 0:
        raise ValueError("its revision is no number")
    return revision, [_entry(raw) for raw in listed]


class TokenStore:
    """The tokens and the server's key pair in `folder` (mode 0700; files have mode 0600, are replaced atomically and changed under a lock)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = paths.private_dir(folder or paths.state_dir())
        self._file = self.folder / "tokens.json"
        self._stamp: tuple[int, int, int] | None = None
        self._revision = 0
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

    def find(self, token_id: bytes) -> TokenEntry | None:
        """A token, which may have expired; None when there is no such token or it was revoked."""
        self._load()
        return next((entry for entry in self._entries if entry.id == token_id.hex()), None)

    def account(self, token_id: bytes) -> str:
        """As whom what a token has is counted: its user, or the token itself. Not secret."""
        try:
            found = self.find(token_id)
        except GpuvirtError:
            found = None
        return found.account if found is not None else f"token {token_id.hex()[:8]}"

    def rights(self, token_id: bytes) -> Rights | None:
        """What a token allows, None: it is worth nothing any more."""
        entry = self.find(token_id)
        return None if entry is None or entry.expired else entry.rights

    def over(self, token_id: bytes) -> str | None:
        """Why a token that was valid is so no more, for whoever had something with it; None: it is.

        Raises:
            GpuvirtError: the file cannot be read, or is not there; that is no reason to end anything.
        """
        if not self._load():
            raise GpuvirtError(f"the tokens' file {self._file} is gone; what runs goes on, new connections are refused")
        entry = self.find(token_id)
        if entry is None:
            return "the token has been revoked; ask the server's owner for another"
        return entry.expired

    def text(self) -> str:
        """All tokens, as their file has them, for another host of the pool. Secret.

        Raises:
            GpuvirtError: the file cannot be read.
        """
        self._load()
        return self._written(self._entries)

    def control_keys(self) -> dict[bytes, TokenEntry]:
        """The z85 public keys that the control channel knows, each with its token, which may have expired."""
        self._load()
        return self._control_keys

    def default(self) -> Token:
        """The token that was created at the first start, or a new one if that is over: revoking it replaces a leaked default token."""
        with self._locked():
            self._load()
            found = next((entry for entry in self._entries if entry.name == DEFAULT_NAME and not entry.expired), None)
            if found is None:
                found = self._make(DEFAULT_NAME, admin=True)
                self._save([*(entry for entry in self._entries if entry.name != DEFAULT_NAME), found])
        return self.token(found)

    def an_admin(self) -> TokenEntry:
        """An admin's token that is valid, for what the server itself asks the other hosts of its pool. None is made for that.

        Raises:
            GpuvirtError: there is none.
        """
        found = next((entry for entry in self.entries() if entry.admin and not entry.expired), None)
        if found is None:
            raise GpuvirtError("there is no admin's token; `gpuvirt token create NAME --admin` on the server's machine makes one")
        return found

    @property
    def public_key(self) -> bytes:
        """The server's, 32 bytes, which its tokens name."""
        return bytes(z85.decode(self.server_public))

    def token(self, entry: TokenEntry) -> Token:
        return Token(bytes.fromhex(entry.id), entry.key, self.public_key)

    # ---- changing -----------------------------------------------------------------------------------------------------

    def create(self, name: str, admin: bool = False, user: str = "", lifetime: float | None = None, **rights: Any) -> Token:
        """Creates a token and stores it.

        Args:
            user: whose it is. All tokens of one user have the same rights: a further one has those of the others, and cannot be given other ones.
            lifetime: seconds for which it is valid, None: until it is revoked.
            rights: those of `Rights` that are not the default's, by name.

        Raises:
            GpuvirtError: the name is in use, or is not 1 to 64 printable characters; a right is out of its range, or not what the user has.
        """
        if not name or len(name) > 64 or not name.isprintable():
            raise GpuvirtError("a token needs a name of 1 to 64 printable characters")
        with self._locked():
            self._load()
            if any(entry.name == name for entry in self._entries):
                raise GpuvirtError(f"there is a token {name!r} already; choose another name or revoke that one")
            entry = self._make(name, admin, lifetime, self._rights(user, rights))
            self._save([*self._entries, entry])
        return self.token(entry)

    def _rights(self, user: str, wanted: dict[str, Any]) -> Rights:
        """What a new token of this user has."""
        others = [entry for entry in self._entries if user and entry.user == user]
        try:
            found = Rights(**{**(asdict(others[-1].rights) if others else {"user": user}), **wanted})
        except ValueError as error:
            raise GpuvirtError(str(error)) from None
        if others and found != others[-1].rights:
            name = next(name for name in wanted if getattr(found, name) != getattr(others[-1].rights, name))
            value = getattr(others[-1].rights, name)
            has = f"{name} {value:g}" if name != "placement" else f"{name} {value}" if value else f"no {name}"
            raise GpuvirtError(f"{user!r} has the token {others[-1].name!r} with {has}; leave --{name} out, or revoke that token before")
        return found

    def revoke(self, which: str) -> TokenEntry:
        """Removes a token, named by its name or by at least the first 8 digits of its id. Servers end what it has when they notice.

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
    def _make(name: str, admin: bool, lifetime: float | None = None, rights: Rights | None = None) -> TokenEntry:
        now = time.time()
        expires = now + lifetime if lifetime else 0.0
        return TokenEntry(secrets.token_hex(ID_SIZE), secrets.token_hex(SECRET_SIZE), name, admin, now, expires=expires, **asdict(rights or Rights()))

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
            revision, entries = parse_tokens(self._file.read_text())
        except FileNotFoundError:
            self._revision, self._entries, self._control_keys, self._stamp = 0, [], {}, None
            return False
        except (OSError, ValueError) as error:
            raise GpuvirtError(f"the tokens in {self._file} cannot be read ({error}); repair the file or remove it to start anew") from None
        self._revision = revision
        self._use(entries, stamp)
        return True

    def _save(self, entries: list[TokenEntry]) -> None:
        self._revision += 1
        paths.write_private(self._file, self._written(entries, 1) + "\n")
        found = self._file.stat()
        self._use(entries, (found.st_ino, found.st_mtime_ns, found.st_size))

    def _written(self, entries: list[TokenEntry], indent: int | None = None) -> str:
        return json.dumps({"revision": self._revision, "tokens": [asdict(entry) for entry in entries]}, indent=indent)

    def _use(self, entries: list[TokenEntry], stamp: tuple[int, int, int]) -> None:
        self._entries, self._stamp = entries, stamp
        self._control_keys = {zmq.curve_public(z85.encode(control_secret(e.key))): e for e in entries}
