"""`python -m gpuvirt.batch.runner FOLDER`: takes a job from its begin to its end. A process of its own, which outlives whoever has submitted the job.

It opens a lease of the GPUs of all ranks together, or where no host has so many a gang of leases among which the ranks are shared out, so that they
have all of them or none; keeps them, and runs the ranks under them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from gpuvirt.batch.job import JobFolder, State
from gpuvirt.batch.ranks import LOOK, Gang, free_port, nodes_for, rank_variables
from gpuvirt.client.connect import ask, at_lease, connect
from gpuvirt.client.devices import devices_of
from gpuvirt.client.environment import apply, variables
from gpuvirt.client.named_lease import GangBroken, NamedLease, open_gang, stands
from gpuvirt.client.settings import MAX_GPUS, resolve
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import ControlError, RequestRefused
from gpuvirt.transport.pool import HandshakeCut, NoServer, PoolStatus

LOST_MOST = 20  # attempts that may end with the host of their GPUs
SILENCE = 10.0  # seconds that a host may be silent after a rank has failed, before it is taken for lost
PREEMPTED_EVERY = 2.0  # seconds between two questions of a preemptible job whether it is to give way, or does
AGAIN_AFTER = 2.0  # seconds between two attempts
IMPOSSIBLE_EVERY = 5.0  # seconds between two questions for what the pool has become too small for


class Ending(Enum):
    """How an attempt has ended."""

    RIGHT = "right"
    FAILED = "failed"
    LOST = "lost"  # with the host of its GPUs
    PREEMPTED = "preempted"  # it gave its GPUs back


class Stopped(GpuvirtError):
    """The job is to end: somebody has cancelled it, or its deadline has passed."""

    def __init__(self, state: State, text: str) -> None:
        super().__init__(text)
        self.state = state


class Runner:
    """One job."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._job = folder.read()
        self._reached = False  # its pool has answered
        self._admitted = False  # it has had its GPUs, or whoever has submitted it has been told that it waits for them
        self._patient = True  # its settings do not say how long it waits

    def run(self) -> None:
        """Returns when the job is over, and has written how it has ended."""
        try:
            self._attempts()
        except Stopped as stopped:
            self._end(stopped.state, str(stopped), 130 if stopped.state is State.CANCELLED else 124)
        except GpuvirtError as error:
            self._end(State.FAILED, str(error), 125)

    def _say(self, **news: Any) -> None:
        self._job = replace(self._job, **news)
        self._folder.write(self._job)

    def _end(self, state: State, why: str, code: int) -> None:
        self._say(state=state, why=why, exit_code=code, ended=time.time(), places=())

    def _check(self) -> None:
        """Raises:
        Stopped: the job is to end.
        """
        if self._folder.cancelled:
            raise Stopped(State.CANCELLED, "it was cancelled")
        if self._job.deadline and time.time() > self._job.deadline:
            raise Stopped(State.LATE, "its deadline has passed")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check()
            time.sleep(min(LOOK, max(0.0, until - time.monotonic())))

    def _attempts(self) -> None:
        failures = 0
        while True:
            self._say(state=State.QUEUED, why="it asks for its GPUs")
            try:
                ending, why, code = self._attempt()
            except RequestRefused as error:
                # A pool may have become too small for it for a while: hosts that are lost come back.
                if not (self._admitted and self._patient):
                    raise
                self._say(state=State.QUEUED, why=f"{error}; it waits until it can have them", places=())
                self._pause(IMPOSSIBLE_EVERY)
                continue
            except (NoServer, HandshakeCut, ControlError) as error:
                # A server is not there for a while, the pool's or that of its GPUs: nothing of the job has been lost, and it waits. A pool that has
                # never answered may have another address.
                if not self._reached:
                    raise
                self._admitted = True
                self._say(state=State.QUEUED, why=f"{error}; trying again")
                self._pause(AGAIN_AFTER)
                continue
            if ending is Ending.RIGHT:
                self._end(State.DONE, "", 0)
                return
            if ending is Ending.LOST:
                self._say(lost=self._job.lost + 1)
            elif ending is Ending.PREEMPTED:
                self._say(preempted=self._job.preempted + 1)
            else:
                failures += 1
            if failures > self._job.retries or self._job.lost > LOST_MOST:
                self._end(State.FAILED, why, code)
                return
            self._say(state=State.QUEUED, why=f"attempt {self._job.attempt}: {why}", places=())
            self._pause(AGAIN_AFTER)

    def _attempt(self) -> tuple[Ending, str, int]:
        """How it has ended, why, and the exit code of who failed first.

        Raises:
            Stopped: the job is to end.
            GpuvirtError: its GPUs can never be had.
        """
        job = self._job
        found = connect(resolve(job.options))
        self._reached, self._patient = True, not (found.settings.wait or found.settings.no_wait)
        nodes = job.nodes or nodes_for(job.ranks, job.gpus, _sizes(found.status))
        each = replace(found.settings, gpus=job.ranks // nodes * job.gpus)
        try:
            leases = open_gang(found.status, each, nodes, job.preemptible, f"batch {job.name}", self._queued, self._pause)
            self._admitted = True
        except GangBroken as error:
            return Ending.LOST, str(error), 1
        gang: Gang | None = None
        try:
            port, attempt = free_port(), job.attempt + 1
            under = [at_lease(replace(found, settings=each), lease.status) for lease in leases]
            chosen = [(replace(at.settings, lease=lease.id), at.status) for at, lease in zip(under, leases, strict=True)]
            variables_of = [apply(variables(settings, status, job.command)) for settings, status in chosen]
            places = tuple((lease.status.address.url, lease.devices) for lease in leases)
            self._say(state=State.RUNNING, why="", attempt=attempt, started=time.time(), places=places)
            environments = [
                variables_of[rank * nodes // job.ranks] | rank_variables(rank, job.ranks, job.gpus, port, job.id, nodes) for rank in range(job.ranks)
            ]
            gang = Gang(job.command, environments, [self._folder.log(attempt, rank) for rank in range(job.ranks)])
            return self._watch(gang, leases)
        finally:
            if gang is not None:
                gang.end()
            for lease in leases:
                with contextlib.suppress(ControlError):  # then it ends because nobody renews it
                    lease.release()

    def _queued(self, line: str) -> None:
        """It has a place among those that wait."""
        self._admitted = True
        self._say(why=line)

    def _watch(self, gang: Gang, leases: list[NamedLease]) -> tuple[Ending, str, int]:
        renewed = time.monotonic()
        while not gang.look():
            self._pause(LOOK)
            if time.monotonic() - renewed > min(PREEMPTED_EVERY if self._job.preemptible else lease.period for lease in leases):
                renewed = time.monotonic()
                for lease in leases:
                    try:
                        self._renew(lease, leases)
                        if lease.preempted:
                            return Ending.PREEMPTED, f"it gave way: {lease.preempted}", 1
                    except RequestRefused as error:
                        return Ending.LOST, str(error), 1
                    except ControlError:
                        continue  # its host may come back; until then its sessions last as long as they say
        if gang.failed is None:
            for lease in leases if self._job.preemptible else []:  # it may have been suspended since
                with contextlib.suppress(ControlError):
                    self._renew(lease, leases)
            return Ending.RIGHT, "", 0
        rank, code = gang.failed
        why = f"rank {rank} ended with exit code {code}"
        if self._is_lost(leases):
            return Ending.LOST, f"{why}, as the host of its GPUs was lost", code
        return Ending.FAILED, why, code

    def _renew(self, lease: NamedLease, leases: list[NamedLease]) -> None:
        """Renews one of the leases, and notes whether any is suspended, and how often this one has been since it was renewed last.

        Raises:
            ControlError: no answer; RequestRefused: it has ended.
        """
        before = lease.suspensions
        lease.renew()
        more = max(0, lease.suspensions - before)
        why = next((lease.suspended for lease in leases if lease.suspended), "")
        state = State.SUSPENDED if why else State.RUNNING
        if state is not self._job.state or more:
            self._say(state=state, why=f"it gives way: {why}" if why else "", suspended=self._job.suspended + more)

    def _is_lost(self, leases: list[NamedLease]) -> bool:
        """Whether one of the leases is not there any more, with its host or by itself."""
        until, left = time.monotonic() + SILENCE, [*leases]
        while time.monotonic() < until and left:
            try:
                if not stands(left[-1].status, left[-1].id):
                    return True
                left.pop()
            except GpuvirtError:
                self._pause(1.0)
        return bool(left)


def _sizes(status: PoolStatus) -> list[int]:
    """How many GPUs each host has of those that are not drained; as many as a lease may have if there is none.

    Raises:
        ControlError: no answer.
    """
    counts = Counter(device.server for device in devices_of(ask(status, "devices")) if not device.drained)
    return [min(count, MAX_GPUS) for count in counts.values()] or [MAX_GPUS]


def main() -> None:
    folder = JobFolder(Path(sys.argv[1]))
    lock = folder.hold()
    os.environ.pop("GPUVIRT_LEASE", None)  # of the shell from which the job was submitted
    try:
        Runner(folder).run()
    finally:
        os.close(lock)


if __name__ == "__main__":
    main()
