"""GPUVIRT_SOFT_LOG: a line of JSON for each kernel that a worker makes ready to run."""

from __future__ import annotations

import contextlib
import json
import os

from gpuvirt.errors import GpuvirtError

_file = -1  # opened before it was needed


def check() -> None:
    """Whether GPUVIRT_SOFT_LOG, if it is set, names a file that can be written.

    Raises:
        GpuvirtError: it does not.
    """
    name = os.environ.get("GPUVIRT_SOFT_LOG")
    if name:
        try:
            os.close(_open(name))
        except OSError as error:
            raise GpuvirtError(f"GPUVIRT_SOFT_LOG={name}: this file cannot be written: {error.strerror}") from None


def open_file() -> None:
    """Opens the file now: a worker in a box cannot when the first kernel is ready."""
    global _file
    name = os.environ.get("GPUVIRT_SOFT_LOG")
    if name and _file < 0:
        with contextlib.suppress(OSError):
            _file = _open(name)


def _open(name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def ready(module: str, kernel: str, block: tuple[int, int, int], seconds: float) -> None:
    """Writes a line if GPUVIRT_SOFT_LOG is set. Workers may share the file: a line is one write.

    Args:
        module: SHA-256 of the module's PTX.
        seconds: until it was ready, compiled or found in the cache.
    """
    name = os.environ.get("GPUVIRT_SOFT_LOG")
    if not name:
        return
    line = json.dumps({"module": module, "kernel": kernel, "block": block, "seconds": round(seconds, 4), "worker": os.getpid()}) + "\n"
    with contextlib.suppress(OSError):
        file = _file if _file >= 0 else _open(name)
        try:
            os.write(file, line.encode())
        finally:
            if file != _file:
                os.close(file)
