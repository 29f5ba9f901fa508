"""Compiled kernels on disk, shared by all workers of a tenant (gpuvirt.server.tenants), or by whoever uses the compiler by itself.

An entry is one file, written beside its place and moved there, so that whoever reads it finds all of it or none of it. It names its own key and
carries a digest: what is damaged, cut short or in the wrong place counts as absent and is written anew. Nothing that goes wrong here is an error: a
disk that is full or read-only, a missing home, a folder in the way only mean that kernels are compiled again. What an entry holds is run as it is:
so names and digests are made with the tenant's key, and who does not have it can write nothing that is taken for an entry.

The size is bounded: entries lie in 256 folders by the first byte of their key, a hash, and each folder keeps to its share. Who adds an entry removes
the ones in its folder that have not been used for longest.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
import struct
import tempfile
import time
from pathlib import Path

LIMIT = 2 << 30  # bytes, all folders together
FOLDERS = 256
_MAGIC = b"GVK3"
_HEAD = struct.Struct("<4s32s32sI")  # magic, digest of what follows it, key, length of the description
_STALE = 3600  # seconds after which an unfinished file is removed
_FRESH = 86400  # seconds for which a use is not recorded again

_folder: Path | None = None  # a tenant's
_key = b""


def use(folder: Path | None, key: bytes) -> None:
    """Keeps kernels in a tenant's folder, under its key. None: keeps none."""
    global _folder, _key
    _folder, _key = folder or Path(os.devnull), key


def name(identity: str) -> str:
    """The key of the entry for what `identity` names."""
    return hmac.digest(_key, identity.encode(), "sha256").hex()


def directory() -> Path | None:
    """Where compiled kernels are kept: a tenant's folder, else ``GPUVIRT_CACHE/kernels``, by default ``~/.cache/gpuvirt/kernels``.

    None without a home.
    """
    if _folder is not None:
        return _folder
    base = os.environ.get("GPUVIRT_CACHE")
    if base:
        return Path(base) / "kernels"
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuvirt" / "kernels"
    except RuntimeError:
        return None


def _digest(key: bytes, size: int, body: bytes) -> bytes:
    return hmac.digest(_key, key + struct.pack("<I", size) + body, "sha256")


def read(key: str) -> tuple[bytes, bytes] | None:
    """(description, code) of the entry `key` (64 hexadecimal digits), or None when there is no valid one."""
    folder = directory()
    if folder is None:
        return None
    path = folder / key[:2] / key
    try:
        with open(path, "rb") as file:
            data = file.read()
            used = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, digest, own, size = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or own != bytes.fromhex(key) or size > len(body) or digest != _digest(own, size, body):
        return None
    if time.time() - used > _FRESH:
        with contextlib.suppress(OSError):
            os.utime(path)
    return body[:size], body[size:]


def write(key: str, description: bytes, code: bytes) -> bool:
    """Adds an entry. False when it could not be written."""
    folder = directory()
    if folder is None:
        return False
    own = bytes.fromhex(key)
    body = description + code
    data = _HEAD.pack(_MAGIC, _digest(own, len(description), body), own, len(description)) + body
    folder = folder / key[:2]
    temporary = ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="new.", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, folder / key)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    _evict(folder, key)
    return True


def remove(key: str) -> None:
    """Takes an entry out."""
    folder = directory()
    if folder is not None:
        with contextlib.suppress(OSError):
            os.unlink(folder / key[:2] / key)


def _evict(folder: Path, keep: str) -> None:
    """Removes the least recently used entries of one folder until it keeps to its share; other processes may do so at the same time."""
    now = time.time()
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            if entry.name.startswith("new."):
                if now - status.st_mtime > _STALE:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                continue
            found.append((status.st_mtime, max(status.st_blocks * 512, status.st_size), entry.name))
    total = sum(size for _, size, _ in found)
    for _, size, name in sorted(found):
        if total <= LIMIT // FOLDERS:
            return
        if name != keep:
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
            total -= size
