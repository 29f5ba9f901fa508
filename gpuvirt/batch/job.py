"""A job: what was asked for, what has become of it, and the folder in which that lies.

A job's folder has ``job.json``, ``runner.log``, a folder of the ranks' output for each attempt (``attempt-1/rank-0.log``), and ``lock``, which its
runner holds for as long as it lives. ``cancel`` is there when somebody wants the job to end. Times are seconds since 1970.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError

KEPT = 30 * 86400.0  # seconds for which a job that has ended is kept
ID_BYTES = 4


class State(StrEnum):
    """What a job is."""

    STARTING = "starting"  # its runner has not said anything yet
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"  # it gives way: its ranks are parked, and go on when they have their GPUs again
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LATE = "late"  # its deadline has passed
    LOST = "lost"  # its runner has ended without a word

    @property
    def over(self) -> bool:
        return self not in (State.STARTING, State.QUEUED, State.RUNNING, State.SUSPENDED)


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        options: settings as they were given (`gpuvirt.client.settings.resolve`).
        ranks, gpus: how many, and how many GPUs each of them has.
        nodes: among how many leases, each on one host, the ranks are shared out evenly, 0: as few as the hosts allow.
        retries: how often it is begun anew when a rank has failed.
        deadline: when it is ended, 0: never.
        preemptible: it gives way when one of a higher priority needs its GPUs.
        attempt: which one runs or has run, from 1; 0: none yet. lost, preempted: those of them that ended with the host of their GPUs, or because
            it had to give them back, which are no retries. suspended: how often one of its leases has been.
        why: what it waits for, or why it has ended as it has.
        places: of each lease that it has, the URL of the server and the ordinals of its GPUs there.
        exit_code: of the rank that failed first, or 0; None: it is not over.
    """

    id: str
    name: str
    command: tuple[str, ...]
    folder: str
    ranks: int
    gpus: int
    options: dict[str, Any]
    retries: int = 0
    deadline: float = 0.0
    submitted: float = field(default_factory=time.time)
    state: State = State.STARTING
    attempt: int = 0
    lost: int = 0
    why: str = ""
    places: tuple[tuple[str, tuple[int, ...]], ...] = ()
    nodes: int = 0
    preemptible: bool = False
    preempted: int = 0
    suspended: int = 0
    started: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None


def new_id() -> str:
    return secrets.token_hex(ID_BYTES)


class JobFolder:
    """The folder of a job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    def read(self) -> Job:
        """The job, as it is now.

        Raises:
            GpuvirtError: it cannot be read.
        """
        try:
            said = json.loads((self.path / "job.json").read_text())
            known = {each.name for each in fields(Job)}
            found = {name: value for name, value in said.items() if name in known}
            places = tuple((str(url), tuple(devices)) for url, devices in said.get("places", ()))
            job = Job(**{**found, "command": tuple(said["command"]), "places": places, "state": State(said["state"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise GpuvirtError(f"the job in {self.path} cannot be read: {error}") from None
        if not job.state.over and not self.runs():
            late = self._read_again(job)
            return late if late.state.over else replace(late, state=State.LOST, why=self._last_words())
        return job

    def _read_again(self, before: Job) -> Job:
        """It may have ended between the two looks."""
        said = json.loads((self.path / "job.json").read_text())
        return replace(before, state=State(said["state"]), why=said["why"], ended=said["ended"], exit_code=said["exit_code"])

    def _last_words(self) -> str:
        """Why a runner is not there, as far as its log says."""
        try:
            lines = (self.path / "runner.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "its runner was killed, or the machine was started anew"

    def write(self, job: Job) -> None:
        paths.write_private(self.path / "job.json", json.dumps(asdict(job), indent=1) + "\n")

    def hold(self) -> int:
        """Says that the runner lives, until the descriptor that this returns is closed.

        Raises:
            GpuvirtError: another one does.
        """
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise GpuvirtError(f"the job {self.id} has a runner") from None
        return fd

    def runs(self) -> bool:
        """Whether its runner lives."""
        try:
            os.close(self.hold())
        except GpuvirtError:
            return True
        except OSError:
            return False
        return False

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants it to end."""
        return (self.path / "cancel").exists()

    def cancel(self) -> None:
        (self.path / "cancel").touch()

    def log(self, attempt: int, rank: int) -> Path:
        """The file with the output of a rank."""
        return self.path / f"attempt-{attempt}" / f"rank-{rank}.log"


def folder() -> Path:
    """In which all jobs of this user are.

    Raises:
        GpuvirtError: it cannot be made.
    """
    paths.private_dir(paths.state_dir())
    return paths.private_dir(paths.state_dir() / "batch")


def make(job: Job) -> JobFolder:
    """The folder of a new job; jobs that have ended long ago are removed.

    Raises:
        GpuvirtError: it cannot be made.
    """
    for old in jobs():
        try:
            former = old.read()
        except GpuvirtError:
            continue
        if former.state.over and 0 < former.ended < time.time() - KEPT:
            shutil.rmtree(old.path, ignore_errors=True)
    made = JobFolder(paths.private_dir(folder() / job.id))
    try:
        made.write(job)
    except OSError as error:
        raise GpuvirtError(f"{made.path} cannot be written: {error.strerror}") from None
    return made


def jobs() -> Iterator[JobFolder]:
    """All jobs of this user."""
    yield from (JobFolder(entry) for entry in sorted(folder().iterdir()) if (entry / "job.json").exists())


def find(name: str) -> JobFolder:
    """A job by its id, by the beginning of that, or by its name: then the last one.

    Raises:
        GpuvirtError: there is none, or there are several.
    """
    every = [*jobs()]
    found = [job for job in every if job.id.startswith(name)] if name else []
    if len(found) == 1:
        return found[0]
    if found:
        raise GpuvirtError(f"{name!r} is the beginning of several jobs: {', '.join(job.id for job in found)}")
    named = [(job.read().submitted, job) for job in every if job.read().name == name]
    if not named:
        raise GpuvirtError(f"there is no job {name!r}; `gpuvirt batch list` shows them")
    return max(named, key=lambda pair: pair[0])[1]
