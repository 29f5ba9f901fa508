"""Tenants: who shares what workers keep on disk. Sessions of one token are one tenant; all private local pools of a user are one, too.

Each tenant has a folder of its own for compiled kernels, images of modules and the driver's cache, and a key that its entries carry. Names and keys
come from a secret beside the folders, which workers cannot read: who knows only what is public can neither find another tenant's folder nor write an
entry that another tenant's worker takes for its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.box.choice import FIRST_USER, USERS

log = logging.getLogger("gpuvirt.server")

SECRET_SIZE = 32
PRIVATE = b"private local pools"  # as which they are a tenant: their tokens do not outlive them
UNUSED_LIMIT = 90 * 86400  # seconds after which the folder of a tenant that did not come again is removed
PARTS = ("images", "kernels", "driver")


@dataclass(frozen=True)
class Tenant:
    """Attributes:
    name: of its folder.
    key: 32 bytes, for the entries of its caches.
    folder: a descriptor (O_PATH) of its folder, -1: it has none, and nothing is kept.
    user: the user and group that its workers become, and that its folder belongs to; 0: the server's own.
    """

    name: str
    key: bytes = field(repr=False)
    folder: int = -1
    user: int = 0


class Tenants:
    """The tenants' folders below `root` (by default `paths.cache_root`), opened when they are first asked for.

    A root that cannot be used is no error: nothing is kept then, as with any cache here.

    Args:
        users: whether tenants get users of their own; this process must be root's.
    """

    def __init__(self, root: Path | None = None, users: bool = False) -> None:
        self._users = users
        self._known: dict[bytes, Tenant] = {}
        self._root: Path | None = None
        self._secret = secrets.token_bytes(SECRET_SIZE)
        try:
            folder = paths.private_dir((root or paths.cache_root()) / "tenants")
            self._secret = _secret(folder / "secret")
        except (GpuvirtError, OSError, RuntimeError) as error:
            log.warning("kernels and images are not kept: %s", error)
            return
        self._root = folder
        _remove_unused(folder)

    def of(self, identity: bytes) -> Tenant:
        """The tenant of a token, by the token's id."""
        found = self._known.get(identity)
        if found is None:
            # Two servers of one root may differ in whether tenants have users: neither takes the other's folders.
            whose = b"folder of a user;" if self._users else b"folder;"
            name, key = (hmac.digest(self._secret, what + identity, "sha256") for what in (whose, b"key;"))
            found = self._known[identity] = Tenant(name.hex()[:32], key, *self._open(name.hex()[:32]))
        return found

    def _open(self, name: str) -> tuple[int, int]:
        """The folder's descriptor, and the tenant's user."""
        user = 0
        if self._root is None:
            return -1, self._free_user() if self._users else 0
        try:
            with _locked(self._root):  # two daemons give two tenants two users
                folder = self._root / name
                user = self._user_of(folder)
                made = [folder, *(folder / part for part in PARTS)]
                for part in made:
                    part.mkdir(mode=0o700, exist_ok=True)
                if user and folder.lstat().st_uid != user:
                    for part in reversed(made):  # the folder last: its owner is the record
                        os.chown(part, user, user, follow_symlinks=False)
                os.utime(folder)
            return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), user
        except OSError as error:
            log.warning("kernels and images of a tenant are not kept: %s", error)
            return -1, user

    def _user_of(self, folder: Path) -> int:
        """The folder's owner is the record of whose user is whose."""
        if not self._users:
            return 0
        with contextlib.suppress(FileNotFoundError):
            owner = folder.lstat().st_uid
            if FIRST_USER <= owner < FIRST_USER + USERS:
                return owner
        return self._free_user()

    def _free_user(self) -> int:
        taken = {tenant.user for tenant in self._known.values()}
        if self._root is not None:
            taken |= {entry.stat(follow_symlinks=False).st_uid for entry in os.scandir(self._root)}
        return next(user for user in range(FIRST_USER, FIRST_USER + USERS) if user not in taken)

    def close(self) -> None:
        for tenant in self._known.values():
            if tenant.folder >= 0:
                os.close(tenant.folder)
        self._known = {}


def _secret(file: Path) -> bytes:
    """Reads the secret, or makes it; of several daemons that make it at the same time one wins."""
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as opened:
                found, status = opened.read(SECRET_SIZE + 1), os.fstat(fd)
            if len(found) == SECRET_SIZE and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return found
            raise GpuvirtError(f"{file} is not a secret of yours; remove it (kernels are then compiled anew)")
        fresh = file.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as made:
            made.write(secrets.token_bytes(SECRET_SIZE))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, file)
        os.unlink(fresh)
    raise GpuvirtError(f"{file} cannot be made")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _remove_unused(root: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < time.time() - UNUSED_LIMIT:
                shutil.rmtree(entry.path, ignore_errors=True)
