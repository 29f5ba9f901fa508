"""The workers of a daemon, of which one is always ready for the next session."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.limits.cgroups import Cgroups, WorkerCgroup
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.workers.template import WORKER_COMMAND, Template, TemplateEnded
from gpuvirt.server.workers.worker_process import Process, WorkerProcess

log = logging.getLogger("gpuvirt.server")

STARTS = max(2, os.cpu_count() or 1)  # workers that are starting at the same time
START_LIMIT = 60.0  # seconds until a worker must be ready
TEMPLATES = 3  # that are asked for one worker, where they are killed
RETRY_PAUSE = 5.0  # after a worker that could not even start
REMOVE_PAUSE = 0.1  # until a cgroup is tried again whose processes have not ended yet
REMOVE_ATTEMPTS = 100


class WorkerPool:
    """Keeps one worker ready for the next session.

    Args:
        command: what starts the template that workers are forked from; tests pass their own.
        options: of the command.
        client: whether the workers' driver is gpuvirt's own client library.
        cgroups: where each worker gets one of its own, None: they have none.
    """

    def __init__(
        self,
        backend: str,
        command: Sequence[str] = WORKER_COMMAND,
        options: Sequence[str] = (),
        client: bool = False,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._cgroups = cgroups
        self._backend, self._command, self._client = backend, [*command, *options], client
        self._template: Template | None = None
        self._all: set[WorkerProcess] = set()
        self._idle: asyncio.Task[WorkerProcess] | None = None  # done when that worker is ready
        self._starts: set[asyncio.Task[WorkerProcess]] = set()
        self._started = asyncio.Event()
        self._taking = asyncio.Lock()  # who came first takes first
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._last_failure = ""
        self._expected: Tenant | None = None

    @property
    def running(self) -> set[WorkerProcess]:
        """All workers, the one that waits for a session among them."""
        return self._all

    def _idle_worker(self) -> WorkerProcess | None:
        """The one that is ready."""
        start = self._idle
        if start is None or not start.done() or start.cancelled() or start.exception():
            return None
        return start.result()

    def expect(self, tenant: Tenant) -> None:
        """The next session is probably this tenant's: the worker that waits for it prepares for that."""
        if tenant is self._expected:
            return
        self._expected = tenant
        if worker := self._idle_worker():
            worker.expect(tenant)

    def prestart(self) -> None:
        """Starts the worker for the next session, unless there is one, or as many are starting as may."""
        if self._idle is None and not self._closed and len(self._starts) < STARTS:
            self._idle = self._begin()

    async def wait_ready(self) -> None:
        """Waits until the prestarted worker can take a session.

        Raises:
            GpuvirtError: the worker cannot be started.
        """
        if self._idle is not None:
            async with asyncio.timeout(START_LIMIT):
                await asyncio.shield(self._idle)
        elif self._last_failure:
            raise GpuvirtError(self._last_failure)

    async def take(self, limit: float) -> WorkerProcess:
        """Returns a worker for one session and starts the next one in the background.

        Raises:
            GpuvirtError: no worker could be started within `limit` seconds.
        """
        start: asyncio.Task[WorkerProcess] | None = None
        try:
            async with asyncio.timeout(limit):
                first = True
                while True:
                    async with self._taking:
                        while self._idle is None and len(self._starts) >= STARTS:
                            self._started.clear()
                            await self._started.wait()
                        earlier = first and self._idle is not None
                        start, self._idle = self._idle or self._begin(), None
                    asyncio.get_running_loop().call_soon(self.prestart)
                    try:
                        return await asyncio.shield(start)
                    except GpuvirtError:
                        if not earlier:
                            raise
                        first = False  # it began to start before anybody asked: what kept it from that may be over
        except TimeoutError:
            if start is None:
                raise GpuvirtError(f"no worker could be started within {limit:.0f} s, so many others start; try again later") from None
            self._give_up(start)
            raise GpuvirtError(f"the worker did not start within {limit:.0f} s; is the server overloaded?") from None
        except asyncio.CancelledError:
            if start is not None:
                self._give_up(start)
            raise

    @staticmethod
    def _give_up(start: asyncio.Task[WorkerProcess]) -> None:
        if not start.cancel() and not start.cancelled() and not start.exception():
            start.result().kill()

    def _begin(self) -> asyncio.Task[WorkerProcess]:
        start = asyncio.get_running_loop().create_task(self._start())
        self._starts.add(start)
        start.add_done_callback(self._has_started)
        return start

    async def _fork(self, cgroup: WorkerCgroup | None, tries: int = TEMPLATES) -> Process:
        """Raises:
        GpuvirtError: there is no process to be had.
        """
        if self._template is None or self._template.ended:
            self._template = Template(self._command, self._backend, self._client)
        try:
            return await self._template.fork(cgroup)
        except TemplateEnded:
            if tries == 1:
                raise
        return await self._fork(cgroup, tries - 1)

    async def _start(self) -> WorkerProcess:
        """A worker that is ready.

        Raises:
            GpuvirtError: it could not be started.
        """
        cgroup = self._cgroups.make() if self._cgroups else None
        try:
            process = await self._fork(cgroup)
        except BaseException:
            self._remove_cgroup(cgroup)
            raise
        worker, told = WorkerProcess(process, self._gone, cgroup), self._expected
        self._all.add(worker)
        try:
            if told is not None:
                worker.expect(told)
            await asyncio.shield(worker.ready)
        except asyncio.CancelledError:
            worker.kill()
            raise
        if self._expected is not None and self._expected is not told:
            worker.expect(self._expected)
        return worker

    def _has_started(self, start: asyncio.Task[WorkerProcess]) -> None:
        self._starts.discard(start)
        self._started.set()
        error = None if start.cancelled() else start.exception()
        if start is self._idle and (error or start.cancelled()):
            self._lost_idle(str(error))
        elif not error:  # else whoever wanted it is told; whoever comes next tries again
            self.prestart()

    def adopt(self, process: Process, memory_limit: int, cgroup: str) -> WorkerProcess:
        """A worker of an earlier daemon, with its session.

        Args:
            cgroup: the folder of the one that it is in, "": it has none.
        """
        worker = WorkerProcess(process, self._gone, self._cgroups.adopt(Path(cgroup)) if self._cgroups and cgroup else None)
        self._all.add(worker)
        worker.adopt(memory_limit)
        return worker

    def _gone(self, worker: WorkerProcess) -> None:
        self._all.discard(worker)
        self._remove_cgroup(worker.cgroup)
        if worker is self._idle_worker():
            self._lost_idle(worker.ending)

    def _lost_idle(self, why: str) -> None:
        self._idle, self._last_failure = None, why
        if not self._closed:
            log.error("the idle worker ended: %s; trying again in %.0f s", why, RETRY_PAUSE)
            self._retry = asyncio.get_running_loop().call_later(RETRY_PAUSE, self.prestart)

    def _remove_cgroup(self, cgroup: WorkerCgroup | None, attempts: int = REMOVE_ATTEMPTS) -> None:
        """Its worker has ended; the compiler that the worker has forked ends with it, but not at once."""
        if self._cgroups is None or cgroup is None or self._cgroups.remove(cgroup) or attempts == 0:
            return
        asyncio.get_running_loop().call_later(REMOVE_PAUSE, self._remove_cgroup, cgroup, attempts - 1)

    async def close(self, limit: float = 2.0) -> None:
        """Ends all workers: SIGTERM, and SIGKILL after `limit` seconds."""
        self._closed = True
        if self._retry:
            self._retry.cancel()
        starts = [*self._starts]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        if self._all:
            gone = [worker.gone for worker in self._all]
            for worker in self._all:
                worker.kill(signal.SIGTERM)
            _, late = await asyncio.wait(gone, timeout=limit)
            if late:
                for worker in list(self._all):
                    worker.kill()
                await asyncio.wait(gone)
        if self._template is not None:
            self._template.close()
