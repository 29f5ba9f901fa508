"""The Python mirrors of C structures, and the table of memory usage."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
from pathlib import Path

import pytest

from gpuvirt.server import memory_usage, worker_library
from gpuvirt.server.memory_usage import MemoryUsage

ROOT = Path(__file__).parent.parent.parent

PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include "native/worker/worker.h"
#include "native/backend/memory_usage.h"
#include "native/transport/transport.h"
#include "native/transport/shm/shm_layout.h"
#include "native/wire/device_info.h"
#define FIELD(s, f) printf(#s " " #f " %%zu %%zu\n", offsetof(struct s, f), sizeof(((struct s *)0)->f))
int main(void) {
%s
    printf("worker_config size %%zu 0\n", sizeof(struct worker_config));
    printf("worker_figures size %%zu 0\n", sizeof(struct worker_figures));
    printf("gv_memory_usage size %%zu 0\n", sizeof(struct gv_memory_usage));
    FIELD(gv_memory_usage, total); FIELD(gv_memory_usage, limit); FIELD(gv_memory_usage, rows);
    printf("constants magic %%u %%u\n", GV_MEMORY_USAGE_MAGIC, GV_MAX_DEVICES);
    printf("constants shm %%u %%u\n", GV_SHM_HEADER, GV_SHM_RING_MIN);
    printf("constants rings %%u %%u\n", GV_COMMAND_RING, GV_BULK_RING);
    return 0;
}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, int]]:
    folder = tmp_path_factory.mktemp("c")
    fields = [("worker_config", name) for name, *_ in worker_library.WorkerConfig._fields_]
    fields += [("worker_figures", name) for name, *_ in worker_library.WorkerFigures._fields_]
    (folder / "print.c").write_text(PROGRAM % "".join(f"    FIELD({struct}, {name});\n" for struct, name in fields))
    subprocess.run(["gcc", "-std=gnu11", "-Werror", f"-I{ROOT}", "print.c", "-o", "print"], cwd=folder, check=True)
    lines = subprocess.run([str(folder / "print")], capture_output=True, text=True, check=True).stdout.splitlines()
    return {(a, b): (int(c), int(d)) for a, b, c, d in (line.split() for line in lines)}


@pytest.mark.parametrize("mirror", [worker_library.WorkerConfig, worker_library.WorkerFigures])
def test_structures(layout: dict[tuple[str, str], tuple[int, int]], mirror: type[ctypes.Structure]) -> None:
    name = {"WorkerConfig": "worker_config", "WorkerFigures": "worker_figures"}[mirror.__name__]
    assert ctypes.sizeof(mirror) == layout[name, "size"][0]
    for field, *_ in mirror._fields_:
        found = getattr(mirror, field)
        assert (found.offset, found.size) == layout[name, field], field


def test_memory_usage_layout(layout: dict[tuple[str, str], tuple[int, int]]) -> None:
    assert layout["gv_memory_usage", "size"][0] == memory_usage.SIZE
    assert layout["constants", "magic"] == (memory_usage.MAGIC, memory_usage.DEVICES)
    offsets = [layout["gv_memory_usage", field][0] for field in ("total", "limit", "rows")]
    assert offsets == [8, 8 + 128, memory_usage.ROWS]


def test_ring_sizes(layout: dict[tuple[str, str], tuple[int, int]]) -> None:
    from gpuvirt.transport import shm

    assert layout["constants", "rings"] == (shm.COMMAND_RING, shm.BULK_RING)
    assert layout["constants", "shm"][0] == shm.HEADER and layout["constants", "shm"][1] <= shm.COMMAND_RING


def test_rows_of_the_memory_usage_table() -> None:
    table = MemoryUsage([1 << 30, 2 << 30])

    def say(slot: int, *used: int) -> None:
        os.pwrite(table.fd, struct.pack(f"<{len(used)}Q", *used), memory_usage.ROWS + memory_usage.PAGE * slot)

    try:
        table.claim(3, 500)
        table.claim(4, 0)
        say(3, 200, 50)
        say(4, 500)
        assert (table.used(0), table.used(1), table.slot_used(3), table.slot_used(4)) == (700, 50, 250, 500)
        say(3, 2**64 - 1)  # nonsense counts as what the session was granted
        assert (table.used(0), table.slot_used(3)) == (1000, 550)
        say(7, 10**9)  # a row that no session has
        assert table.used(0) == 1000 and table.slot_used(7) == 0
        table.free_slot(3)
        table.free_slot(3)
        assert (table.used(0), table.used(1), table.slot_used(3)) == (500, 0, 0)
        table.claim(3, 0)
        assert table.slot_used(3) == 0
    finally:
        table.close()


def test_a_worker_maps_its_row_and_can_write_no_other() -> None:
    table = MemoryUsage([1 << 30])
    try:
        address = memory_usage.reserve_row()
        memory_usage.map_row(table.fd, 5, address)
        ctypes.memmove(address, struct.pack("<Q", 77), 8)
        table.claim(5, 0)
        assert table.slot_used(5) == 0, "a row is empty when a session gets it"
        ctypes.memmove(address, struct.pack("<Q", 77), 8)
        assert table.slot_used(5) == 77
        with pytest.raises(PermissionError):
            mmap.mmap(table.read_fd, memory_usage.SIZE)
        with pytest.raises(OSError, match="mapping"):
            memory_usage.map_row(table.read_fd, 5, address)
    finally:
        table.close()
