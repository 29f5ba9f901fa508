"""Whether programs may use userfaultfd for managed memory, as the client library needs it (native/shim/objects/managed/pager_userfault.c)."""

from __future__ import annotations

import ctypes
import os
import platform

_NUMBERS = {"x86_64": 323, "aarch64": 282}  # of the system call, by machine: asm/unistd.h
_SINCE = (6, 4)  # Linux: pages can be mapped write-protected at once


def may_watch_pages() -> bool:
    """True where a program has userfaultfd for the accesses of its system calls, too.

    That is root, anybody where vm.unprivileged_userfaultfd is 1, and who may open /dev/userfaultfd. GPUVIRT_PAGER=signal says no.
    """
    if os.environ.get("GPUVIRT_PAGER") == "signal":
        return False
    release = platform.release().split("-")[0].split(".")
    number = _NUMBERS.get(platform.machine())
    if number is None or tuple(int(part) for part in release[:2] if part.isdigit()) < _SINCE:
        return False
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
        return True
    return os.access("/dev/userfaultfd", os.R_OK | os.W_OK)
