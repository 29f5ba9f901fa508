"""What a tenant's sessions may keep on the server's disk, and what holds them to it.

Their own code keeps below its bounds (compiled kernels, images of modules), but a hostile kernel writes to its tenant's folder what it likes. So the
daemon looks at the folders of tenants that have sessions; where one holds more than it may, the tenant's sessions end and the folder is emptied. It
is a cache: what was in it is compiled and sent again.

A folder is counted when the disk's free space has fallen since the last time, or a minute after it. Between two looks it can hold more; and a file
whose name was removed while it is open has no name that could be counted: its bytes come back when its session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from gpuvirt.server.tenants import PARTS, Tenant
from gpuvirt.sizes import format_size

log = logging.getLogger("gpuvirt.server")

LOOK = 1.0  # seconds between two looks at the free space
FELL = 64 << 20  # bytes by which it has to have fallen
COUNT_ANYWAY = 60.0  # seconds after which a folder is counted whatever the free space did: others may have freed as much as it took
REST, REST_MOST = 20, 5.0  # times as long as a folder's count took it is not counted again, seconds at most: who makes it slow must not gain by that
ENTRY = 4096  # bytes that a name counts at least: names and inodes are scarce, too
DEEPEST = 8  # folders within one another; our own are one deep


class Worker(Protocol):
    """A worker, for the watch."""

    gone: asyncio.Future[None]

    def end(self, text: str) -> None:
        """It is to end, for this reason."""


class Running(Protocol):
    """A session, for the watch."""

    @property
    def tenant(self) -> Tenant: ...

    @property
    def worker(self) -> Worker: ...


def reason(limit: int) -> str:
    """Why a session was ended, for its client and the log; short, as `host_memory.reason`."""
    return f"this token's sessions kept more than {format_size(limit)} on the server's disk (serve --disk-per-token)"


def _opened(folder: int, name: str = ".") -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _sizes(folder: int, depth: int = 0) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield max(ENTRY, entry.stat(follow_symlinks=False).st_blocks * 512)
                if entry.is_dir(follow_symlinks=False):
                    if depth == DEEPEST:
                        raise RecursionError
                    inner = _opened(folder, entry.name)
                    try:
                        yield from _sizes(inner, depth + 1)
                    finally:
                        os.close(inner)


def holds_more(folder: int, most: int) -> bool:
    """Whether what lies in a folder (a descriptor, O_PATH suffices) takes more than `most` bytes of disk.

    What cannot be counted is more, too: folders that are nested too deep, or that may not be read.
    """
    total = 0
    try:
        opened = _opened(folder)
        try:
            for size in _sizes(opened):
                total += size
                if total > most:
                    return True
        finally:
            os.close(opened)
    except (RecursionError, PermissionError):
        return True
    except OSError:  # no folder, nothing in it
        return False
    return False


async def empty(folder: int) -> None:
    """Removes all that lies in a tenant's folder but the folders that it begins with.

    By chmod and find, for which no depth and no number is too much.

    Raises:
        OSError: there is no such program.
    """
    kept = [word for part in PARTS for word in ("!", "-path", f"./{part}")]
    for command in (("chmod", "-R", "u+rwX", "."), ("find", ".", "-xdev", "-mindepth", "1", *kept, "-delete")):
        process = await asyncio.create_subprocess_exec(*command, cwd=f"/proc/self/fd/{folder}", stdin=DEVNULL, stderr=DEVNULL)
        await process.wait()


class Watch:
    """Looks at the folders of tenants that have sessions, until `close`.

    Args:
        limit: bytes that a tenant's folder may hold.
        sessions: those that there are now.
    """

    def __init__(self, limit: int, sessions: Callable[[], Iterable[Running]]) -> None:
        self._limit, self._sessions = limit, sessions
        self._counted: dict[int, tuple[float, int]] = {}  # by folder: when, and the free space then
        self._rests: dict[int, float] = {}  # by folder: until when
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for tenant in {session.tenant for session in self._sessions() if session.tenant.folder >= 0}:
                try:
                    await self._look(tenant)
                except OSError as error:
                    log.warning("what a tenant keeps on disk is not known: %s", error)

    async def _look(self, tenant: Tenant) -> None:
        free, began = _free(tenant.folder), time.monotonic()
        when, before = self._counted.get(tenant.folder, (-COUNT_ANYWAY, 0))
        if began < self._rests.get(tenant.folder, 0.0) or (free > before - min(FELL, self._limit // 8) and began - when < COUNT_ANYWAY):
            return
        self._counted[tenant.folder] = began, free
        if await asyncio.to_thread(holds_more, tenant.folder, self._limit):
            await self._end(tenant)
        now = time.monotonic()
        self._rests[tenant.folder] = now + min((now - began) * REST, REST_MOST)

    async def _end(self, tenant: Tenant) -> None:
        log.warning("a tenant's folder holds more than %s: its sessions end, and it is emptied", format_size(self._limit))
        workers = [session.worker for session in self._sessions() if session.tenant == tenant]
        for worker in workers:
            worker.end(reason(self._limit))
        await asyncio.gather(*(asyncio.shield(worker.gone) for worker in workers))
        await empty(tenant.folder)

    def close(self) -> None:
        self._task.cancel()


def _free(folder: int) -> int:
    status = os.fstatvfs(folder)
    return status.f_bfree * status.f_frsize
