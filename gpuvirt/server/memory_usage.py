"""Memory used on each GPU, in a memfd that every worker maps (native/backend/memory_usage.h).

A worker reads all of it and writes its own row. The daemon makes the file, gives rows to sessions, reads them, and clears what a session that has
ended left in its row. What a row says counts for no more than its session's limit.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct

MAGIC = 0x52474C56
VERSION = 2
DEVICES = 16
SLOTS = 1024
PAGE = 4096
BESIDE = 2 << 30  # bytes of a device that the driver may take for a session's context
_HEADER = struct.Struct("<II")
_TOTAL = _HEADER.size
_LIMIT = _TOTAL + 8 * DEVICES
ROWS = (_LIMIT + 8 * SLOTS + PAGE - 1) // PAGE * PAGE
SIZE = ROWS + PAGE * SLOTS
_MAP_FIXED = 0x10


def describes(fd: int, total: list[int]) -> bool:
    """Whether a table is of these devices. total: bytes of each."""
    raw = os.pread(fd, _LIMIT, 0)
    devices = struct.unpack_from(f"<{DEVICES}Q", raw, _TOTAL)
    return raw[:_TOTAL] == _HEADER.pack(MAGIC, VERSION) and [*devices] == total + [0] * (DEVICES - len(total))


class MemoryUsage:
    """The table of memory usage, as the daemon sees it.

    Args:
        total: bytes of each device.
        fd: of the table of an earlier daemon with the same devices, this one's from now on; None: there is none.
        beside: bytes that a row may say beyond its session's limit: what the driver of a real GPU takes for a session (contexts).

    Attributes:
        fd: of the table, open for reading and writing.
        read_fd: open for reading only.
    """

    def __init__(self, total: list[int], fd: int | None = None, beside: int = 0) -> None:
        self._total, self._beside = total, beside
        if fd is None:
            self.fd = os.memfd_create("gpuvirt-memory-usage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, SIZE)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        else:
            self.fd = fd
        self.read_fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.fchmod(self.fd, 0o400)  # who has it for reading cannot open it once more for writing
        self._map = mmap.mmap(self.fd, SIZE)
        _HEADER.pack_into(self._map, 0, MAGIC, VERSION)
        for device, size in enumerate(total):
            struct.pack_into("<Q", self._map, _TOTAL + 8 * device, size)
        self._limits: dict[int, int] = {}

    def claim(self, slot: int, limit: int) -> None:
        """Gives a session its row.

        Args:
            limit: bytes of each device that it may use, 0: all.
        """
        self._clear(slot)
        self.resume(slot, limit)
        struct.pack_into("<Q", self._map, _LIMIT + 8 * slot, self._limits[slot])

    def resume(self, slot: int, limit: int) -> None:
        """A session has this row already. limit: as for `claim`."""
        self._limits[slot] = (limit or max(self._total)) + self._beside

    def clear_free_slots(self) -> None:
        """Clears what sessions of an earlier daemon left that have ended."""
        for slot in range(SLOTS):
            if slot not in self._limits and any(struct.unpack_from(f"<{DEVICES}Q", self._map, ROWS + PAGE * slot)):
                self.free_slot(slot)

    def used(self, device: int) -> int:
        """Bytes in use on one device, all sessions together."""
        return sum(self.row(slot)[device] for slot in self._limits)

    def slot_used(self, slot: int) -> int:
        """Bytes one session uses, all devices together."""
        return sum(self.row(slot))

    def row(self, slot: int) -> list[int]:
        """Bytes that one session uses of each device."""
        limit = self._limits.get(slot, 0)
        return [min(value, limit) for value in struct.unpack_from(f"<{DEVICES}Q", self._map, ROWS + PAGE * slot)]

    def free_slot(self, slot: int) -> None:
        """Takes a row back. Its worker must have ended."""
        self._limits.pop(slot, None)
        struct.pack_into("<Q", self._map, _LIMIT + 8 * slot, 0)
        self._clear(slot)

    def _clear(self, slot: int) -> None:
        self._map[ROWS + PAGE * slot : ROWS + PAGE * (slot + 1)] = bytes(PAGE)

    def close(self) -> None:
        self._map.close()
        os.close(self.read_fd)
        os.close(self.fd)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def _mmap(address: int | None, rights: int, flags: int, fd: int, offset: int) -> int:
    got = _libc.mmap(address, PAGE, rights, flags, fd, offset)
    if got is None or got == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"mapping the table of memory usage: {os.strerror(code)}")
    return int(got)


def reserve_row() -> int:
    """Sets the address aside at which a worker will have its row: its box names the address, and is made before the row is known."""
    return _mmap(None, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def map_row(fd: int, slot: int, address: int) -> None:
    """Maps one row, writable, at an address that `reserve_row` gave; keeps no descriptor (mmap.mmap does, and with it the whole table).

    Raises:
        OSError: it cannot be mapped.
    """
    _mmap(address, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, ROWS + PAGE * slot)
