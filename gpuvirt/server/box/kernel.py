"""The kernel's calls that Python does not have, by number (x86-64)."""

from __future__ import annotations

import ctypes
import os
import platform

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_GET_SECCOMP = 21
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

NR_CAPSET = 126
NR_SECCOMP = 317
NR_LANDLOCK_CREATE_RULESET = 444
NR_LANDLOCK_ADD_RULE = 445
NR_LANDLOCK_RESTRICT_SELF = 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def known_machine() -> bool:
    """Whether the numbers here are this machine's."""
    return platform.machine() == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """One system call; integers are passed as unsigned 64-bit words.

    Raises:
        OSError: it failed.
    """
    given = [ctypes.c_ulong(a & 0xFFFFFFFFFFFFFFFF) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, *arguments: int) -> int:
    """prctl(2), absent arguments zero.

    Raises:
        OSError: it failed.
    """
    words = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    result = int(_libc.prctl(ctypes.c_int(option), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def drop_capabilities() -> None:
    """Gives up all capabilities, those too that a program might get back by exec."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except PermissionError:  # without CAP_SETPCAP the bounding set stays; no_new_privs makes it meaningless
            break
        except OSError:  # the last one has passed
            break
    header = ctypes.create_string_buffer(b"\x22\x05\x08\x20" + bytes(4), 8)  # _LINUX_CAPABILITY_VERSION_3, this thread
    syscall(NR_CAPSET, header, ctypes.create_string_buffer(24))


def threads() -> int:
    """Threads of this process. Landlock and seccomp hold for the thread that asks and those that it starts."""
    return len(os.listdir("/proc/self/task"))
