"""The shm transport's row, and its rings as the daemon makes them (native/transport/shm/shm_layout.h)."""

from __future__ import annotations

import fcntl
import os
import struct

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.transport import ServerEnd, Transport

# transport.h: GV_COMMAND_RING, GV_REPLY_RING, GV_BULK_RING
COMMAND_RING = 1 << 20
REPLY_RING = 1 << 20
BULK_RING = 1 << 21
HEADER = 4096


def memory_size(command: int, reply: int, bulk_out: int, bulk_in: int) -> int:
    """Bytes of the memfd that holds rings of these sizes."""
    return HEADER + command + reply + bulk_out + bulk_in


def open_rings() -> ServerEnd:
    """A memfd of zeros, the initial state of the rings. The blob has the rings' sizes.

    Its size is sealed: a peer that shrinks it would kill the other side with SIGBUS.
    """
    rings = (COMMAND_RING, REPLY_RING, BULK_RING, BULK_RING)
    fd = os.memfd_create("gpuvirt-rings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, memory_size(*rings))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return ServerEnd((fd,), struct.pack("<4Q", *rings))


SHM = Transport("shm", needs=hs.NEEDS_SAME_HOST | hs.NEEDS_DESCRIPTORS, connections=0, seals=False, resumes=True, one_way_target=0.5, open=open_rings)
