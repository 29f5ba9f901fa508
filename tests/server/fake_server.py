"""`gpuvirt serve` with the stand-in worker: python fake_server.py '{"gpus": 2, ...}'."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.daemon import serve
from gpuvirt.server.options import ServeOptions


def release(fd: int, slot: int) -> None:
    """What worker_ledger_release does, without its atomicity, which nothing here needs."""
    import os

    slot_at = 8 + 128 + 128 + 128 * slot
    left = struct.unpack("<16Q", os.pread(fd, 128, slot_at))
    used = struct.unpack("<16Q", os.pread(fd, 128, 8 + 128))
    os.pwrite(fd, struct.pack("<16Q", *(u - v for u, v in zip(used, left, strict=True))), 8 + 128)
    os.pwrite(fd, bytes(128), slot_at)


def main() -> int:
    options = json.loads(sys.argv[1])
    worker = options.pop("worker", [sys.executable, str(Path(__file__).with_name("fake_worker.py")), *options.pop("worker_options", [])])
    options["ready_file"] = Path(options["ready_file"])
    options["links"] = tuple(options.get("links", ("tcp", "shm")))
    try:
        serve(ServeOptions(**{"port": 0, "backend": "soft", **options}), worker, release)
    except GpuvirtError as error:
        print(error, file=sys.stderr)
        return 125
    return 0


if __name__ == "__main__":
    sys.exit(main())
