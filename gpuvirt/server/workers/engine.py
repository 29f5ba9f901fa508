"""What the scheduler (sessions, leases, the policy behind them) asks of whatever has the GPUs: which there are, and workers for sessions.

One host has the embedded engine, which is this daemon's own inventory and worker pool. Where many hosts are to be one pool another engine takes its
place; tests/server/test_engine.py holds each to the same contract.
"""

from __future__ import annotations

from typing import Protocol

from gpuvirt.server.devices import Inventory
from gpuvirt.server.tenants import Tenant
from gpuvirt.server.workers.pool import WorkerPool
from gpuvirt.server.workers.worker_process import Process, WorkerProcess


class Engine(Protocol):
    """Attributes:
    inventory: the GPUs that leases are granted of; it does not change.
    """

    @property
    def inventory(self) -> Inventory: ...

    def expect(self, tenant: Tenant) -> None:
        """The next worker is probably for this tenant: a hint, by which that worker may prepare itself."""

    async def take(self, limit: float) -> WorkerProcess:
        """A worker that is ready and has had no session. `WorkerProcess.kill` ends it.

        Raises:
            GpuvirtError: none could be started within `limit` seconds, and why.
        """

    def adopt(self, process: Process, memory_limit: int, cgroup: str) -> WorkerProcess:
        """The worker of a session that an earlier daemon had.

        Args:
            memory_limit: bytes of host memory.
            cgroup: the folder of the one that it is in, "": it has none.
        """


class EmbeddedEngine:
    """The GPUs of this host, and the workers of this daemon."""

    def __init__(self, inventory: Inventory, workers: WorkerPool) -> None:
        self.inventory = inventory
        self._workers = workers

    def expect(self, tenant: Tenant) -> None:
        self._workers.expect(tenant)

    async def take(self, limit: float) -> WorkerProcess:
        return await self._workers.take(limit)

    def adopt(self, process: Process, memory_limit: int, cgroup: str) -> WorkerProcess:
        return self._workers.adopt(process, memory_limit, cgroup)
