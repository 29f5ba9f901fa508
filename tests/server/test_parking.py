"""What the daemon asks before it has a session parked, and what it notes then."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import parking as parking_module
from gpuvirt.server.memory_usage import PAGE, ROWS, MemoryUsage
from gpuvirt.server.parking import Parking, ParkingState

MIB, SLOT = 1 << 20, 3


def park(folder: Path, monkeypatch: pytest.MonkeyPatch, used: int, free: int, stays: int = 0) -> ParkingState:
    """Of a session that uses so many bytes, and still has some when it is parked, where so many are free on the disk."""
    usage, state = MemoryUsage([1 << 30]), ParkingState()

    def has(size: int) -> None:
        os.pwrite(usage.fd, struct.pack("<Q", size), ROWS + PAGE * SLOT)

    async def parks(fd: int, finish: float, parked: Any, wants: Any, back: Any) -> str:
        has(stays)
        parked()
        return ""

    session: Any = SimpleNamespace(id=7, label="one", slot=SLOT, moves=False, worker=SimpleNamespace(park=parks), parking=state)
    monkeypatch.setattr(parking_module.os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))

    async def story() -> None:
        usage.claim(SLOT, 0)
        has(used)
        parking = Parking([session], usage, [1 << 30], 0, folder / "parked")
        try:
            assert await parking.park(session) == used - stays
        finally:
            parking.ended(session)
            await parking.close()
            usage.close()

    asyncio.run(story())
    return state


def test_a_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert park(tmp_path, monkeypatch, 64 * MIB, 128 * MIB).bytes == 64 * MIB
    with pytest.raises(GpuvirtError, match=r"more than half of what is free in .*parked \(64.0 MiB and 127.0 MiB\); GPUVIRT_CACHE names"):
        park(tmp_path, monkeypatch, 64 * MIB, 127 * MIB)


def test_what_a_driver_keeps_is_not_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert park(tmp_path, monkeypatch, 64 * MIB, 1 << 30, stays=10 * MIB).bytes == 54 * MIB


def test_one_that_takes_its_memory_back_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """Its row has the memory before the daemon hears of it; then it could be parked again for the one that asks."""
    usage, answers = MemoryUsage([256 * MIB]), []
    worker: Any = SimpleNamespace(answer_room=answers.append, asks_room=None)
    back: Any = SimpleNamespace(id=1, label="back", slot=1, moves=False, worker=worker, parking=ParkingState(parked=[150 * MIB] + [0] * 15))
    asks: Any = SimpleNamespace(id=2, label="asks", slot=2, moves=False, worker=worker, parking=ParkingState())

    async def story() -> None:
        for slot in (1, 2):
            usage.claim(slot, 0)
        os.pwrite(usage.fd, struct.pack("<Q", 150 * MIB), ROWS + PAGE * 1)
        parking = Parking([back, asks], usage, [256 * MIB], 0, tmp_path)
        parking.serve(asks)
        worker.asks_room(0, 150 * MIB)
        await asyncio.sleep(0.3)
        assert answers == []
        os.pwrite(usage.fd, bytes(8), ROWS + PAGE * 1)
        await asyncio.sleep(0.3)
        assert answers == [True]
        await parking.close()
        usage.close()

    asyncio.run(story())
