"""The fabric of the software libibverbs from Python: faults are made and counters read while programs run on it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import re
import secrets
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HEADER = Path(__file__).with_name("fabric.h")
FUTEX_WAKE = 1
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}


@cache
def numbers() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^#define (SV_\w+) (\d+)$", HEADER.read_text(), re.MULTILINE)}


@cache
def words() -> dict[str, int]:
    """The rail's words, with their places in its page."""
    (body,) = re.findall(r"^struct sv_rail \{(.*?)^\};", HEADER.read_text(), re.DOTALL | re.MULTILINE)
    return {name: 8 * i for i, name in enumerate(re.findall(r"^ +_Atomic uint64_t (\w+);", body, re.MULTILINE))}


class Rail:
    """A device's words: each is an attribute, faults are `set`."""

    def __init__(self, fabric: Fabric, index: int) -> None:
        self._fabric = fabric
        self._at = numbers()["SV_RAILS_AT"] + index * numbers()["SV_RAIL_BYTES"]

    def __getattr__(self, name: str) -> int:
        if name.startswith("_") or name not in words():
            raise AttributeError(name)
        return ctypes.c_uint64.from_buffer(self._fabric.memory, self._at + words()[name]).value

    def set(self, **values: int) -> None:
        """Sets words, and has every progress thread look. Raises KeyError for one that there is not."""
        for name, value in values.items():
            ctypes.c_uint64.from_buffer(self._fabric.memory, self._at + words()[name]).value = value
        self._fabric.ring()

    def counters(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in words()}


class Fabric:
    """A fabric file, made if it is not there. `rail(0).set(drop=1)` makes a fault, `rail(0).doorbells` is a counter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("a+b") as file:
            if path.stat().st_size < numbers()["SV_FABRIC_BYTES"]:
                file.truncate(numbers()["SV_FABRIC_BYTES"])
            self.memory = mmap.mmap(file.fileno(), numbers()["SV_RINGS_AT"])

    @classmethod
    @contextlib.contextmanager
    def in_memory(cls) -> Iterator[Fabric]:
        """One in /dev/shm, where nothing is written to a disk; gone afterwards, for those that have it mapped not before they end."""
        path = Path("/dev/shm") / f"softverbs-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            yield cls(path)
        finally:
            path.unlink(missing_ok=True)

    def environment(self, devices: int = 1) -> dict[str, str]:
        return {"SOFTVERBS_FABRIC": str(self.path), "SOFTVERBS_DEVICES": str(devices)}

    def rail(self, index: int) -> Rail:
        return Rail(self, index)

    def ring(self) -> None:
        """Changes each station's bell and wakes who sleeps on it. Not an addition: a thread compares for being the same only."""
        libc = ctypes.CDLL(None)
        for i in range(numbers()["SV_STATIONS"]):
            bell = ctypes.c_uint32.from_buffer(self.memory, numbers()["SV_STATIONS_AT"] + i * numbers()["SV_STATION_BYTES"])
            bell.value = secrets.randbits(32)
            libc.syscall(SYS_FUTEX[platform.machine()], ctypes.byref(bell), FUTEX_WAKE, 1, None, None, 0)
