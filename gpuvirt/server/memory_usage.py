"""Memory used on each software GPU, in a memfd that every worker maps (native/backend/soft/memory_usage.h).

Workers add and subtract what they use. The daemon makes the file, passes it to workers, reads it, and subtracts what a session that has ended left in
its slot.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable

MAGIC = 0x52474C56
VERSION = 1
DEVICES = 16
SLOTS = 1024
_HEADER = struct.Struct("<II")
_TOTAL = _HEADER.size
_USED = _TOTAL + 8 * DEVICES
_SLOT_USED = _USED + 8 * DEVICES
SIZE = _SLOT_USED + 8 * DEVICES * SLOTS

# Takes the memfd and a slot; must subtract the slot's numbers from `used` atomically, because workers change it at the same time.
Release = Callable[[int, int], None]


class MemoryUsage:
    """The table of memory usage, as the daemon sees it.

    Args:
        total: bytes of each device.
        release: frees a slot atomically (`worker_library.memory_usage_release`).
    """

    def __init__(self, total: list[int], release: Release) -> None:
        self._release = release
        self.fd = os.memfd_create("gpuvirt-memory-usage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, SIZE)
        _HEADER.pack_into(self._map, 0, MAGIC, VERSION)
        for device, size in enumerate(total):
            struct.pack_into("<Q", self._map, _TOTAL + 8 * device, size)

    def used(self, device: int) -> int:
        """Bytes in use on one device, all sessions together."""
        return int(struct.unpack_from("<Q", self._map, _USED + 8 * device)[0])

    def slot_used(self, slot: int) -> int:
        """Bytes one session uses, all devices together."""
        return sum(struct.unpack_from(f"<{DEVICES}Q", self._map, _SLOT_USED + 8 * DEVICES * slot))

    def free_slot(self, slot: int) -> None:
        """Subtracts what a session used. Its worker must have ended."""
        if self.slot_used(slot):
            self._release(self.fd, slot)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
