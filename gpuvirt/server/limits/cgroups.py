"""Cgroups (version 2) for workers: what one may take of the host's memory, and how many threads, whatever the code in it does.

The kernel lets a process make cgroups where it may write, and systemd promises to keep out of those that it has delegated (`Delegate=`). A cgroup
whose controllers are given on to those below it may have no processes of its own: so the daemon moves into one beside its workers'. It does that only
where nobody else is: other processes of a login or of a container are not the daemon's to move.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuvirt.errors import GpuvirtError

MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
DAEMON = "gpuvirt-daemon"
WORKER = "gpuvirt-worker-"
ENDING = 5.0  # seconds that the last processes may take to end: workers' compilers, and the one that keeps sessions
THREADS = 8192  # of a worker: WORKER_MAX_STREAMS of native/worker/session_limits.h, its processors' and the link's


@dataclass(frozen=True)
class Place:
    """A cgroup below which this process may make others.

    Attributes:
        folder: of the cgroup that this process is in.
        root: whether it is the kernel's first one, which may have processes beside others.
    """

    folder: Path
    root: bool


def find(mounts: Path = MOUNTS, own: Path = OWN) -> Place | str:
    """Where this process may make cgroups that bound memory; else why it may not, for people."""
    mounted = _mount(mounts)
    inside = _own(own)
    if mounted is None or inside is None:
        return "no cgroups of version 2 are mounted"
    if inside.startswith("/.."):
        return "this process's cgroup lies outside of what is mounted"
    folder = mounted / inside.lstrip("/")
    try:
        if "memory" not in (folder / "cgroup.controllers").read_text().split():
            return f"the cgroup {folder} has no controller of memory"
        needed = (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control")
        if closed := [path for path in needed if not os.access(path, os.W_OK)]:
            return f"{closed[0]} cannot be written: the cgroup is not delegated to this user"
        root = not (folder / "cgroup.type").exists()
        others = [] if root else [pid for pid in _processes(folder) if pid != os.getpid()]
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if others:
        return f"other processes (such as {others[0]}) are in the cgroup {folder}"
    return Place(folder, root)


def _mount(mounts: Path) -> Path | None:
    """Where cgroups of version 2 are mounted. A line: id, parent, device, root, mount point, options, ..., "-", type, ..."""
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            before, _, after = line.partition(" - ")
            if after.split(" ", 1)[0] == "cgroup2":
                return Path(before.split(" ")[4].replace("\\040", " "))
    return None


def _own(own: Path) -> str | None:
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return None


def _processes(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


class WorkerCgroup:
    """A cgroup for one worker, and for the compiler that it forks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Raises:
        OSError: the kernel refuses.
        """
        self.folder.mkdir()
        for name, value in (("memory.swap.max", "0"), ("pids.max", str(THREADS))):
            with contextlib.suppress(OSError):  # not on every kernel
                (self.folder / name).write_text(value)

    def open_entrance(self) -> int:
        """A descriptor: who writes 0 there is in the cgroup from then on, with all that it forks."""
        return os.open(self.folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def bound(self, size: int) -> None:
        """Sets the most that it may take, in bytes; what the kernel keeps for it counts as well.

        Raises:
            OSError: the kernel refuses.
        """
        (self.folder / "memory.max").write_text(str(size))

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process in it for want of memory."""
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def remove(self) -> bool:
        """Ends what is left in it and removes it; False: something has not ended yet."""
        return _remove(self.folder, kill=True)


def _remove(folder: Path, kill: bool = False) -> bool:
    if kill:
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _until(done: Callable[[], bool]) -> None:
    """Tries until it is done, or has taken `ENDING`."""
    last = time.monotonic() + ENDING
    while not done() and time.monotonic() < last:
        time.sleep(0.01)


class Cgroups:
    """The cgroups of one daemon, which it makes below its own place until `close`.

    Raises:
        GpuvirtError: the kernel refuses what `find` has found possible.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._numbers = place, itertools.count(1)
        self._left: set[WorkerCgroup] = set()
        self._daemon = place.folder / DAEMON
        try:
            if not place.root:
                self._daemon.mkdir(exist_ok=True)
                (self._daemon / "cgroup.procs").write_text(str(os.getpid()))
            self._give_on("+memory")
        except OSError as error:
            self._move_back()
            raise GpuvirtError(f"workers get no cgroups below {place.folder}: {error.strerror}") from None
        with contextlib.suppress(OSError):
            self._give_on("+pids")
        self._remove_stale()

    def _give_on(self, what: str) -> None:
        (self._place.folder / "cgroup.subtree_control").write_text(what)

    def _move_back(self) -> None:
        if not self._place.root:
            with contextlib.suppress(OSError):
                (self._place.folder / "cgroup.procs").write_text(str(os.getpid()))
            _until(lambda: _remove(self._daemon))

    def _remove_stale(self) -> None:
        """Those of daemons that were killed, once their workers have ended. A worker that carries on keeps its own."""
        for folder in self._place.folder.glob(f"{WORKER}*"):
            daemon = folder.name.removeprefix(WORKER).partition("-")[0]
            if daemon == str(os.getpid()) or not Path("/proc", daemon).exists():
                _remove(folder)

    def make(self) -> WorkerCgroup:
        """A cgroup for a worker that is about to start.

        Raises:
            OSError: the kernel refuses.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                made = WorkerCgroup(self._place.folder / f"{WORKER}{os.getpid()}-{next(self._numbers)}")
                made.make()
                self._left.add(made)
                return made

    def adopt(self, folder: Path) -> WorkerCgroup:
        """That of a worker that an earlier daemon has started."""
        self._left.add(found := WorkerCgroup(folder))
        return found

    def remove(self, worker: WorkerCgroup) -> bool:
        """Removes a worker's cgroup after its end; False: try again, something in it has not ended yet."""
        if worker.remove():
            self._left.discard(worker)
            return True
        return False

    def close(self) -> None:
        """Removes what is left, as far as it can be."""
        _until(lambda: all([self.remove(worker) for worker in list(self._left)]))
        if not self._left and not self._place.root:
            for what in ("-memory", "-pids"):
                with contextlib.suppress(OSError):
                    self._give_on(what)
            self._move_back()
