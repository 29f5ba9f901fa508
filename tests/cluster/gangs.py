"""Who asks for a gang of leases in the simulated pool (world.py): opens them at one host, follows each to where it is, works when it has all."""

from __future__ import annotations

from cluster.world import World

from gpuvirt.server.lease import Asked, ElsewhereError, NotGranted
from gpuvirt.server.policy.events import COMPUTE

SILENT = 10  # looks at a lease whose host is not there, after which it is given up


class Gang:
    """Args: at: the host where it asks. size: how many leases. gpus: of each. lasts: seconds that it works."""

    def __init__(
        self, world: World, at: str, size: int, gpus: int, lasts: float = 10.0, user: int = 1, compute: int = COMPUTE, preemptible: bool = False
    ) -> None:
        self.world, self.gpus, self.lasts, self.owner = world, gpus, lasts, bytes([user]) * 16
        self.at = {world.chance.randbytes(16): at for _ in range(size)}  # where each is, by its id
        self.has: dict[bytes, tuple[int, ...]] = {}
        self.asked = Asked(self.owner, gpus, compute=compute, gang=world.chance.getrandbits(62) | 1, gang_size=size, preemptible=preemptible)
        self.began = world.now
        self.works_until = 0.0
        self.silent = dict.fromkeys(self.at, 0)  # looks in a row at which the host of a lease was not there
        self.preempted = ""
        self.outcome = ""

    def comes(self) -> None:
        try:
            for id, at in self.at.items():
                self.world.hosts[at].leases.open(id, self.asked, {}, self.world.now)
        except NotGranted as error:
            self.over(f"gang refused: {error}")
            return
        self.world.every(1.0, self.look)

    def look(self) -> bool:
        """Whether it is to look again, in a second."""
        if self.outcome:
            return False
        if self.works_until and self.world.now >= self.works_until:
            self.over("gang right")
            return False
        found = {id: self.look_at(id) for id in self.at}
        if self.preempted:
            self.over("gang gave way")
            return False
        if max(self.silent.values()) > SILENT or None in found.values():
            self.over("gang lost" if self.works_until else "gang broken")
        elif all(found.values()) and not self.works_until:
            self.works_until = self.world.now + self.lasts
            assert len({*self.at.values()}) > 1 or len(self.at) == 1 or self.gpus * len(self.at) <= 8, "more than a host has"
        return not self.outcome

    def look_at(self, id: bytes) -> tuple[int, ...] | None:
        """The devices that a lease has, (): it waits, or is not heard of; None: it has ended."""
        host = self.world.hosts.get(self.at[id])
        try:
            lease = None if host is None else host.leases.renew(id, self.owner, self.world.now)
        except ElsewhereError as error:
            self.at[id] = error.url[6:-2]
            return self.look_at(id) if self.at[id] in self.world.hosts else ()
        except NotGranted:
            return None
        self.silent[id] = self.silent[id] + 1 if lease is None else 0
        if lease is None:
            return ()
        self.preempted = self.preempted or lease.preempted
        return lease.devices

    def over(self, outcome: str) -> None:
        self.outcome = outcome
        self.world.outcomes[outcome.split(":")[0]] += 1
        for id, at in self.at.items():
            host = self.world.hosts.get(at)
            try:
                if host is not None:
                    host.leases.release(id, self.owner, self.world.now)
            except NotGranted:
                continue  # it has ended; or it has gone to another host just now, where it ends as nobody renews it
