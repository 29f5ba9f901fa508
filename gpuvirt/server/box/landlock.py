"""Landlock: which files, ports, sockets and processes are within reach (Linux 5.13 and later; docs.kernel.org/userspace-api/landlock.html)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from gpuvirt.server.box import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(13)
)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # rights that a rule for a file, not a folder, may name
KEEP = READ | WRITE_FILE | TRUNCATE | REMOVE_FILE | MAKE_REG | MAKE_DIR | REMOVE_DIR  # what a cache's folder needs
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
REWRITE = WRITE_FILE | TRUNCATE

_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # rights that each ABI version knows
_NET = 3  # bind and connect of TCP, since 4
_SCOPES = 3  # abstract unix sockets and signals, since 6
_RULE_PATH = 1
_GET_VERSION = 1


def abi() -> int:
    """The version of the kernel's interface; 0: it has none, or it is switched off."""
    if not kernel.known_machine():
        return 0
    try:
        return kernel.syscall(kernel.NR_LANDLOCK_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


class Ruleset:
    """What stays allowed; everything else of what `version` can deny is denied once `restrict` was called.

    Args:
        version: of the interface, at least 1.
        network: whether TCP connections and listening stay as they are.
        scopes: whether signals and abstract unix sockets stay within the process.
    """

    def __init__(self, version: int, network: bool = False, scopes: bool = True, files: bool = True) -> None:
        self._rights = _FILES[max(v for v in _FILES if v <= version)] if files else 0
        net = _NET if version >= 4 and not network else 0
        scoped = _SCOPES if version >= 6 and scopes else 0
        attributes = struct.pack("<3Q", self._rights, net, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
        self._fd = -1
        if self._rights or net or scoped:
            self._fd = kernel.syscall(kernel.NR_LANDLOCK_CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)

    def allow(self, path: Path | int, rights: int) -> None:
        """Allows `rights` for a file, or for all below a folder. What is not there needs no rule."""
        if not self._rights:
            return
        fd = path if isinstance(path, int) else -1
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if isinstance(path, Path):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= OF_FILES
            rule = struct.pack("<Qi", rights & self._rights, fd)
            kernel.syscall(kernel.NR_LANDLOCK_ADD_RULE, self._fd, _RULE_PATH, ctypes.create_string_buffer(rule, len(rule)), 0)
        if isinstance(path, Path) and fd >= 0:
            os.close(fd)

    def allow_all(self, paths: Iterable[Path], rights: int) -> None:
        for path in paths:
            self.allow(path, rights)

    def restrict(self) -> None:
        """Puts this thread, and all that it starts, under the rules. There is no way back."""
        if self._fd >= 0:
            kernel.syscall(kernel.NR_LANDLOCK_RESTRICT_SELF, self._fd, 0)
            os.close(self._fd)
            self._fd = -1
