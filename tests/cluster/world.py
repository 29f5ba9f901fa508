"""A pool of many hosts in simulated time: a scheduler, members with their leases, clients, and a network that is slow, is cut and comes back. Seeded.

Whatever happens, books of its own are kept of which program has which device of which host, and it is asserted that no device has more than it holds.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import ALIVE_EVERY, HostEntry, Join, Message, parse
from gpuvirt.cluster.scheduler import PLACES_EVERY, Scheduler
from gpuvirt.server.lease import Asked, Lease, NotGranted
from gpuvirt.server.leases import Leases
from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.policy.instructions import Preempt, Resume
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights

GIB = 1 << 30
GRACE = 60.0  # seconds that a named lease lasts without being renewed
IMPORTANT = 100  # users from this number on may ask for a priority
REFUSED_BY_HOST = "the host that was to give its GPUs did not"
HOPS = 6  # as often a client lets itself be sent elsewhere


@dataclass(eq=False)
class Host:
    """A host that lives.

    Attributes:
        link: its connection to a scheduler, which messages belong to; another number after each cut.
        stalls: until when nothing passes over it, which both ends notice by the other's silence.
    """

    name: str
    memory: tuple[int, ...]
    leases: Leases
    member: Member
    link: int = 0
    reaches: Scheduler | None = None
    alive: bool = True
    stalls: float = 0.0


@dataclass(eq=False)
class Client:
    """A program. at: the host where it asks, or works. priority: of users from `IMPORTANT` on, who may ask for one."""

    name: bytes
    user: int
    gpus: int
    compute: int
    lasts: float
    at: str
    session: int = 0
    hops: int = 0
    began: float = 0.0
    outcome: str = ""
    priority: int = 0
    preemptible: bool = False


@dataclass
class World:
    """Args: seed. hosts: the GPUs of each. rebalance: how many leases may move to a host that joins."""

    seed: int
    hosts_have: tuple[int, ...]
    rebalance: int = 0
    now: float = 0.0
    delay: float = 0.005
    hosts: dict[str, Host] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    migrations: Counter[str] = field(default_factory=Counter)
    passes: float = 1.0  # what part of what migrates comes through
    carrying: tuple[float, float] = (0.01, 8.0)  # seconds that it takes, at least and at most
    moving: set[int] = field(default_factory=set)  # leases that are to migrate
    suspends: bool = False  # what gives way is suspended; else its keeper is asked to give it back
    suspensions: Counter[str] = field(default_factory=Counter)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._arrives: dict[tuple[str, int, bool], float] = {}
        self.scheduler: Scheduler | None = None
        self.retired: list[Scheduler] = []
        self.start_scheduler()
        for index, gpus in enumerate(self.hosts_have):
            self.add_host(f"h{index}", gpus)

    # ---- time and network -----------------------------------------------------------------------------------------------

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (max(when, self.now), self._number, do))

    def every(self, seconds: float, do: Callable[[], bool]) -> None:
        """Until it says that it is over."""

        def again() -> None:
            if do():
                self.at(self.now + seconds, again)

        self.at(self.now + self.chance.uniform(0, seconds), again)

    def run(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        self.now = until

    def carry(self, host: Host, up: bool, message: Message, deliver: Callable[[Message], None]) -> None:
        """In order, as long as the connection is the same. What is carried is bytes."""
        link, raw = host.link, message.packed()
        self.messages[type(message).__name__] += 1
        before = self._arrives.get((host.name, link, up), 0.0)
        when = self._arrives[host.name, link, up] = max(before, host.stalls, self.now + self.delay * self.chance.uniform(0.5, 2.0))

        def arrives() -> None:
            if host.link == link and host.alive:
                deliver(parse(raw))

        self.at(when, arrives)

    # ---- the scheduler --------------------------------------------------------------------------------------------------

    def start_scheduler(self) -> None:
        self.epoch += 1
        scheduler = self.scheduler = Scheduler(self.epoch, self.now, [*self.hosts], self.rebalance)

        def look() -> bool:
            self.say(scheduler, scheduler.passed(self.now))
            return scheduler is self.scheduler or scheduler in self.retired

        self.every(PLACES_EVERY, look)

    def replace_scheduler(self, dead: bool) -> None:
        """Another takes its place. dead: it is gone; else it goes on, cut off, with those that reach it."""
        if self.scheduler is not None and not dead:
            self.retired.append(self.scheduler)
        gone = self.scheduler
        self.start_scheduler()
        for host in self.hosts.values():
            if host.reaches is gone and (dead or self.chance.random() < 0.5):
                self.cut(host)

    def say(self, scheduler: Scheduler, out: list[tuple[str, Message]]) -> None:
        for name, message in out:
            host = self.hosts.get(name)
            if host is not None and host.alive and host.reaches is scheduler:
                self.carry(host, False, message, lambda m, host=host: self.hears(host, m))  # type: ignore[misc]

    # ---- hosts ----------------------------------------------------------------------------------------------------------

    def add_host(self, name: str, gpus: int) -> Host:
        memory = (4 * GIB,) * gpus
        local = PolicyMachine(memory)
        member = Member(local, HostEntry(name, f"tcp://{name}:1", memory), lambda message: self.tell(host, message))
        leases = Leases(member, 1 << 16, None, GRACE, pooled=True)
        host = self.hosts[name] = Host(name, memory, leases, member)
        member.lease, member.leases = leases.get, lambda: leases
        member.place_here = lambda lease, rights, migrates: leases.place_here(lease, rights, self.now, migrates)
        member.destination = lambda number, answer: self.migrates(host, number, answer)
        member.relocate = lambda number, to: self.relocates(host, number, to)
        member.finish = lambda number, text: self.finish(host, number)
        leases.decided = lambda lease: self.decided(host, lease)
        leases.gives_way = lambda lease, said: self.gives_way(host, lease, said)

        def look() -> bool:
            if not host.alive:
                return False
            self.keep_up(host)
            due = leases.next_expiry()
            if due is not None and due <= self.now:
                leases.expire(self.now)
            return True

        self.connect(host)
        self.every(ALIVE_EVERY, look)
        return host

    def connect(self, host: Host) -> None:
        host.link += 1
        host.reaches = self.scheduler
        self.tell(host, host.member.join())

    def keep_up(self, host: Host) -> None:
        if host.member.silent(self.now):
            host.member.lost("it has not been heard of")
            self.cut(host)
        if host.reaches is None:
            if self.chance.random() < 0.7:
                self.connect(host)
            return
        if not host.member.up:
            self.connect(host)
        host.member.alive()

    def cut(self, host: Host) -> None:
        host.link += 1
        host.reaches = None
        host.member.lost("the connection was cut")

    def tell(self, host: Host, message: Message) -> None:
        scheduler = host.reaches
        if scheduler is None:
            return
        if isinstance(message, Join) and scheduler is not self.scheduler and scheduler not in self.retired:
            return

        def arrives(m: Message) -> None:
            if scheduler is self.scheduler or scheduler in self.retired:
                self.say(scheduler, scheduler.receive(host.name, m, self.now))

        self.carry(host, True, message, arrives)

    def hears(self, host: Host, message: Message) -> None:
        host.leases.carry_out(host.member.receive(message, self.now))
        self.check(host)

    def kill(self, name: str) -> None:
        """With all that works there."""
        host = self.hosts.pop(name)
        host.alive = False
        host.link += 1
        for client in [client for client in self.clients if client.at == name and not client.outcome]:
            self.over(client, "lost with its host")

    def finish(self, host: Host, number: int) -> None:
        """A lease is to end: of its programs, those that work are told."""
        lease = host.leases.get(number)
        for client in [c for c in self.clients if c.at == host.name and lease is not None and c.session in lease.sessions and not c.outcome]:
            host.leases.leave(client.session, self.now)
            self.over(client, "ended by the scheduler")
        if lease is not None and host.leases.lasts(lease):
            host.leases.end(lease, self.now)

    def cordon(self, name: str, cordoned: bool) -> None:
        self.hosts[name].member.cordon(cordoned)

    def migrate(self, name: str, number: int, to: str = "", wait: bool = False) -> None:
        """A lease of a host that has GPUs is to go to another."""
        self.migrations["asked for"] += 1
        self.moving.add(number)
        self.hosts[name].member.migrate(number, to, wait)

    def relocates(self, host: Host, number: int, to: str) -> None:
        """The scheduler would have a lease at another host; now and then it cannot go."""
        lease = host.leases.get(number)
        able = lease is not None and lease.has_gpus and not lease.suspends and not lease.arrives and number not in self.moving
        if able and self.chance.random() < 0.8:
            self.migrations["relocated"] += 1
            self.migrate(host.name, number, to)
        else:
            host.member.stays(number)

    def migrates(self, source: Host, number: int, answer: HostEntry | str) -> None:
        """There is a destination, or not. What works there takes its time to go, and whether it may begin the source decides."""
        if isinstance(answer, str):
            self.migrations["stayed"] += 1
            self.moving.discard(number)
            source.member.migrated(number, False)
            return
        self.migrations["begun"] += 1
        destination, lease = self.hosts.get(answer.name), source.leases.get(number)

        coming = destination.leases.get(number) if destination is not None else None
        if coming is not None and coming.arrives:
            coming.comes = True

        def stays(why: str) -> None:
            self.migrations[why] += 1
            self.moving.discard(number)
            if source.alive:
                source.member.migrated(number, False)
            there = destination.leases.get(number) if destination is not None and destination.alive else None
            if there is not None and there.arrives:
                assert destination is not None
                destination.leases.end(there, self.now)

        def carried() -> None:
            if lease is not None and lease.suspends:
                stays("gives way")
                return
            there = destination.leases.get(number) if destination is not None and destination.alive else None
            if not source.alive or lease is None or not source.leases.lasts(lease) or there is None or not there.arrives or destination is None:
                stays("ended meanwhile")
                return
            if self.chance.random() > self.passes:
                stays("did not pass")
                return
            moved = [client for client in self.clients if client.at == source.name and client.session in lease.sessions and not client.outcome]
            source.member.migrated(number, True)
            source.leases.departed(lease, destination.member.entry.url, self.now)
            for client in moved:
                client.at = destination.name
                destination.leases.arrive(client.session, there, 0)
            destination.leases.arrived(there, self.now)
            destination.member.arrived(there)
            self.migrations["done"] += 1
            self.moving.discard(number)
            self.check(source)
            self.check(destination)

        self.at(self.now + self.chance.uniform(*self.carrying), carried)

    # ---- who gives way --------------------------------------------------------------------------------------------------

    def gives_way(self, host: Host, lease: Lease, said: Preempt | Resume) -> None:
        """A lease takes its time until all that works under it has been put away; one that migrates does so first."""
        if isinstance(said, Resume):
            assert lease.suspended, "a lease is resumed that has its GPUs"
            lease.suspends, lease.suspended = "", False
            self.suspensions["resumed"] += 1
            self.check(host)
            return
        if not self.suspends:
            lease.preempted = said.text
            return
        lease.suspends = said.text

        def put_away() -> None:
            if not host.alive or not host.leases.lasts(lease):
                return
            if lease.number in self.moving:
                self.at(self.now + 1.0, put_away)
                return
            self.suspensions["suspended"] += 1
            host.leases.suspended(lease, self.now)

        self.at(self.now + self.chance.uniform(0.01, 3.0), put_away)

    # ---- clients --------------------------------------------------------------------------------------------------------

    def comes(self, client: Client) -> None:
        """A program asks at a host for its GPUs."""
        host = self.hosts.get(client.at)
        if host is None:
            self.over(client, "no host there")
            return
        if client not in self.clients:
            client.began = self.now
            self.clients.append(client)
        self._number += 1
        client.session = self._number
        rights = Rights(priority=5) if client.user >= IMPORTANT else Rights()
        owner, how = bytes([client.user]) * 16, {"priority": client.priority, "preemptible": client.preemptible}
        asked = Asked(owner, client.gpus, 0, rights, launch=client.name, compute=client.compute, **how)  # type: ignore[arg-type]
        try:
            membership = host.leases.join(client.session, asked, {}, 0.0, self.now)
        except NotGranted as error:
            self.over(client, f"refused: {error}")
            return
        if not membership.lease.waits:
            self.works(host, client, membership.lease)

    def decided(self, host: Host, lease: Lease) -> None:
        for client in [c for c in self.clients if c.at == host.name and c.session in lease.sessions and not c.outcome]:
            if lease.elsewhere:
                host.leases.leave(client.session, self.now)
                client.at, client.hops = lease.elsewhere[6:-2], client.hops + 1
                assert client.hops <= HOPS, "it is sent from host to host"
                self.at(self.now + 2 * self.delay, lambda client=client: self.comes(client))  # type: ignore[misc]
            elif lease.refused:
                host.leases.leave(client.session, self.now)
                self.over(client, f"refused: {lease.refused}")
            else:
                self.works(host, client, lease)

    def works(self, host: Host, client: Client, lease: Lease) -> None:
        assert len(lease.devices) == client.gpus, "a gang is granted partially"
        self.waits.append(self.now - client.began)
        self.check(host)

        def ends() -> None:
            if client.outcome:
                return
            host = self.hosts[client.at]  # it may have migrated
            if any(client.session in lease.sessions and lease.suspended for lease in host.leases):
                self.at(self.now + 1.0, ends)
                return
            if host.alive:
                host.leases.leave(client.session, self.now)
                host.leases.launch_ended(client.name, bytes([client.user]) * 16, self.now)
                self.over(client, "right")

        self.at(self.now + client.lasts, ends)

    def over(self, client: Client, outcome: str) -> None:
        client.outcome = outcome
        self.outcomes["refused by a host" if REFUSED_BY_HOST in outcome else outcome.split(":")[0]] += 1
        if client in self.clients:
            self.clients.remove(client)

    # ---- what must always hold ------------------------------------------------------------------------------------------

    def check(self, host: Host) -> None:
        """By books of its own: no device of the host has more than it holds."""
        free = [COMPUTE] * len(host.memory)
        for lease in host.leases:
            for device in lease.devices if lease.has_gpus else ():
                free[device] -= lease.compute
        assert min(free) >= 0, f"a device of {host.name} is granted twice"

    def at_rest(self) -> None:
        """When everybody has ended and all hosts are members: nothing is left anywhere."""
        assert self.scheduler is not None
        for host in self.hosts.values():
            assert host.member.up, f"{host.name} is no member"
            assert not [*host.leases], f"{host.name} has leases that nobody uses: {[*host.leases]}"
            assert all(host.member.room.free(d) == (size, COMPUTE) for d, size in enumerate(host.memory)), "a device is not free"
        assert not self.scheduler.machine.leases and not self.scheduler.machine.waiting, "the scheduler keeps leases"
        assert not self.scheduler.leases, "the scheduler remembers leases"
        assert {entry.name for entry in self.scheduler.hosts} == set(self.hosts), "the scheduler knows other hosts"


def program(world: World, gpus: int = 1, at: str | None = None, lasts: float = 10.0, user: int = 1, compute: int = COMPUTE) -> Client:
    name = world.chance.randbytes(16)
    return Client(name, user, gpus, compute, lasts, at or world.chance.choice([*world.hosts]))
