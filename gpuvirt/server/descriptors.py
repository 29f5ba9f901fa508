"""The daemon's file descriptors: as many as the system allows, and most of them out of strangers' reach."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterable

STRANGERS = 4  # connections that have proved nothing get at most one in so many descriptors


def raise_limit() -> int:
    """Raises the limit of open files to the hard one; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the system has a lower bound of its own
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def discard(fds: Iterable[int]) -> None:
    """Closes descriptors that somebody else has sent, on a thread: whoever has sent them may have seen to it that closing waits (SO_LINGER, a
    device at work)."""

    def close(sent: list[int]) -> None:
        for fd in sent:
            os.close(fd)

    if sent := [*fds]:
        threading.Thread(target=close, args=(sent,), name="closing", daemon=True).start()


def take_from(sock: socket.socket, allowed: bool) -> None:
    """Whether the other end of this Unix socket may send descriptors from now on, where the kernel can see to it (Linux 6.16): a message that is
    received without them, or never, closes them too, and on the receiver's thread."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, int(allowed))


_SO_PASSRIGHTS = 83


def for_strangers(limit: int, wanted: int, each: int = 1) -> int:
    """How many connections without a proof may be open at the same time on one port.

    Args:
        limit: what `raise_limit` returned.
        wanted: how many would be good.
        each: descriptors that one takes.
    """
    return max(8, min(wanted, limit // STRANGERS // 2 // each))  # two ports
