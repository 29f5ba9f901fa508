"""Runs a command where other users can open the folders of Python and gpuvirt: python in_open_folders.py COMMAND...

In a mount namespace of its own, each folder on the way that is closed to others (often a home) is covered by an empty one that is not, and what is
needed of it is mounted there again. Nothing outside changes. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from gpuvirt.server.box import files

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        raise OSError(ctypes.get_errno(), f"mounting {source} on {target}")


def closed_above(path: Path) -> Path | None:
    """The outermost folder above that others cannot pass."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def main() -> None:
    if _libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a mount namespace")
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    needed: dict[Path, set[Path]] = {}
    for path in {folder.resolve() for folder in (*files.code(), Path(sys.prefix), Path(sys.base_prefix), Path.cwd()) if folder.is_dir()}:
        if closed := closed_above(path):
            needed.setdefault(closed, set()).add(path)
    for closed, paths in needed.items():
        outermost = sorted(path for path in paths if not any(path != other and path.is_relative_to(other) for other in paths))
        opened = [(path, os.open(path, os.O_PATH)) for path in outermost]
        mount("none", str(closed), "tmpfs", 0, "mode=755")
        for path, fd in opened:
            path.mkdir(parents=True)
            mount(f"/proc/self/fd/{fd}", str(path), "none", MS_BIND)
            os.close(fd)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
