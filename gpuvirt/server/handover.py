"""What a worker is given a session with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuvirt.server.devices import Inventory
from gpuvirt.server.lease import Membership
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.session import Session
from gpuvirt.server.worker_library import SessionConfig
from gpuvirt.transport.handshake import HELLO_NOTICES


@dataclass(frozen=True)
class Handover:
    """Attributes:
    descriptors: the transport's.
    passed: by the names in `SessionConfig.passed`.
    """

    config: SessionConfig
    descriptors: Sequence[int]
    passed: Mapping[str, int]


class Handovers:
    """Those of one daemon.

    Args:
        grace: seconds for which a session is kept after its connection was cut, 0: it ends at once.
        host_memory: bytes of the host's memory that a worker may take beside its session's memory on the devices, 0: no bound.
    """

    def __init__(self, inventory: Inventory, memory_usage: MemoryUsage | None, server_name: str, grace: int, host_memory: int) -> None:
        self._inventory, self._memory_usage, self._server_name = inventory, memory_usage, server_name
        self._grace, self._host_memory = grace, host_memory

    def grace_of(self, session: Session) -> int:
        """Seconds for which it is kept after a cut."""
        return self._grace if session.transport.resumes else 0

    def host_memory_of(self, membership: Membership) -> int:
        """Bytes that the worker may take; the memory of software GPUs is the host's."""
        if not self._host_memory:
            return 0
        return self._host_memory + sum(membership.memory or self._inventory.devices[device].memory for device in membership.devices)

    def of(self, session: Session, membership: Membership) -> Handover:
        """For a worker on the membership's devices, whose row of the table of memory usage is claimed."""
        inventory, tenant, end = self._inventory, session.tenant, session.end
        passed = {"cache": tenant.folder} if tenant.folder >= 0 else {}
        if self._memory_usage:
            self._memory_usage.claim(membership.slot, membership.memory)
            passed |= {"memory_usage": self._memory_usage.read_fd, "memory_row": self._memory_usage.fd}
        config = SessionConfig(
            session=session.id,
            backend=inventory.backend,
            driver=str(inventory.driver) if inventory.driver else None,
            devices=list(membership.devices),
            memory=membership.memory,
            device_memory=max(inventory.devices[device].memory for device in membership.devices),
            capability=inventory.capability,
            strict=inventory.strict,
            slot=membership.slot,
            transport=session.transport.name,
            descriptors=len(end.descriptors),
            blob=end.blob,
            server_name=self._server_name,
            grace=self.grace_of(session),
            driver_is_client=inventory.driver_is_client,
            user=tenant.user,
            tenant=tenant.name,
            cache_key=tenant.key,
            passed=[*passed],
            host_memory=self.host_memory_of(membership),
            seal=session.seal,
            notices=bool(session.hello.flags & HELLO_NOTICES),
        )
        return Handover(config, end.descriptors, passed)
