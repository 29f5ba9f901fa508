"""The shared-memory link's rings, as the daemon makes them (native/transport/shm_layout.h)."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

# transport.h: GV_COMMAND_RING, GV_REPLY_RING, GV_BULK_RING
COMMAND_RING = 1 << 20
REPLY_RING = 1 << 20
BULK_RING = 1 << 21
HEADER = 4096


def memory_size(command: int, reply: int, bulk_out: int, bulk_in: int) -> int:
    """Bytes of the memfd that holds rings of these sizes."""
    return HEADER + command + reply + bulk_out + bulk_in


@dataclass(frozen=True)
class Rings:
    """A memfd of zeros, which is the rings' valid start, sealed against a change of size: a peer that shrinks it would kill the other with SIGBUS."""

    fd: int
    command: int = COMMAND_RING
    reply: int = REPLY_RING
    bulk_out: int = BULK_RING
    bulk_in: int = BULK_RING

    @classmethod
    def create(cls) -> Rings:
        fd = os.memfd_create("gpuvirt-rings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, memory_size(COMMAND_RING, REPLY_RING, BULK_RING, BULK_RING))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)
