"""What a worker may take of the host's memory, and what holds it to that.

Where the daemon may make cgroups, the kernel counts all that a worker takes and keeps it below its bound (gpuvirt.server.limits.cgroups). Elsewhere
the daemon looks at the kernel's figures of each worker twice a second and ends one that is above its bound; between two looks it is above. Inside the
worker's box lies a further limit, of addresses (RLIMIT_DATA, gpuvirt.server.box), which is wide because the stacks of thousands of threads must fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.limits import cgroups
from gpuvirt.server.limits.cgroups import Cgroups
from gpuvirt.sizes import format_size

log = logging.getLogger("gpuvirt.server")

LOOK = 0.5  # seconds
_COUNTED = re.compile(r"^(?:RssAnon|RssShmem|VmPTE):\s+(\d+) kB$", re.M)


class Watched(Protocol):
    """A worker, for the watch. memory_limit: bytes, 0: it has no session yet."""

    pid: int
    memory_limit: int

    def end(self, text: str) -> None:
        """It is to end, for this reason."""


def taken(pid: int) -> int:
    """Bytes of memory that a process has: its own pages, those of memory files that it has mapped, and the tables of both; 0 when it has ended."""
    with contextlib.suppress(OSError):
        return 1024 * sum(int(size) for size in _COUNTED.findall(Path(f"/proc/{pid}/status").read_text()))
    return 0


def reason(limit: int) -> str:
    """Why a worker was ended, for its client and the log. Short: a client puts it behind what it says itself, in some 250 characters."""
    return f"the session took more than its {format_size(limit)} of host memory (serve --host-memory-per-session)"


def describe() -> tuple[bool, str]:
    """Whether the kernel would bound the memory of a server's workers that starts here, and by what, or why not."""
    found = cgroups.find()
    if isinstance(found, str):
        return False, f"no cgroups, because {found}: twice a second the server ends workers that are above their bound; RLIMIT_DATA bounds addresses"
    return True, f"a cgroup for each worker, below {found.folder}"


def take_cgroups() -> Cgroups | None:
    """The cgroups of a daemon that starts, and says how its workers are bounded; None: by the watch."""
    found = cgroups.find()
    if not isinstance(found, str):
        try:
            made = Cgroups(found)
        except GpuvirtError as error:
            log.warning("%s; instead the server ends workers that are above their bound of memory when it sees it, twice a second", error)
            return None
        log.info("each worker's memory is bounded by a cgroup below %s", found.folder)
        return made
    log.warning(
        "the kernel bounds no worker's memory, because %s; the server ends workers that are above their bound when it sees it, twice a second; "
        "as a service: packaging/gpuvirt.service; by hand: systemd-run --user --scope -p Delegate=yes gpuvirt serve",
        found,
    )
    return None


class Watch:
    """Looks at workers until `close`.

    Args:
        workers: those that there are now.
    """

    def __init__(self, workers: Callable[[], Iterable[Watched]]) -> None:
        self._workers = workers
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for worker in list(self._workers()):
                if worker.memory_limit and taken(worker.pid) > worker.memory_limit:
                    worker.end(reason(worker.memory_limit))

    def close(self) -> None:
        self._task.cancel()
