"""What the policy machine never does, whatever comes in: hypothesis against the referee; and each deliberate fault, which the referee sees."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from server.policy.referee import Referee

from gpuvirt.server.policy.events import (
    COMPUTE,
    PRIORITIES,
    Asked,
    HostCordoned,
    HostJoined,
    HostLeft,
    Migrate,
    Migrated,
    Passed,
    Released,
    Suspended,
    UserRevoked,
    UserSet,
)
from gpuvirt.server.policy.holding import HOLD_AFTER, Holdings
from gpuvirt.server.policy.hosts import Hosts, Near
from gpuvirt.server.policy.instructions import Instruction, Lost
from gpuvirt.server.policy.kinds import Kind, Kinds
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.migrations import Migrations
from gpuvirt.server.policy.preemption import Choice, Preemption
from gpuvirt.server.policy.room import Room, Shape
from gpuvirt.server.policy.suspension import Suspension
from gpuvirt.server.policy.waiting import Waiting

GIB = 1 << 30
MEMORY = [4 * GIB, 4 * GIB, 4 * GIB, 8 * GIB, 8 * GIB]
USERS = ("ada", "ben", "cyd")
RACKS = ("", "r1", "r1", "r2", "r2")  # by host


class Whatever(RuleBasedStateMachine):
    """Any events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.referee = Referee(PolicyMachine(MEMORY), MEMORY)
        self.at, self.next = 0.0, 1

    def _later(self, seconds: float) -> float:
        self.at += seconds
        return self.at

    seconds = st.sampled_from([0.0, 0.5, 30.0, 100.0, 7200.0, 90000.0, 5e7])

    @rule(
        seconds=seconds,
        user=st.sampled_from(USERS),
        gpus=st.integers(0, 6),
        memory=st.sampled_from([0, 1, GIB, 3 * GIB, 4 * GIB, 8 * GIB]),
        compute=st.sampled_from([0, 0, 100, 500, 501, COMPUTE, COMPUTE + 1]),
        priority=st.integers(-1, 2),
        no_wait=st.booleans(),
        wait=st.sampled_from([0.0, 0.0, 10.0, 1000.0]),
        preemptible=st.booleans(),
    )
    def ask(
        self, seconds: float, user: str, gpus: int, memory: int, compute: int, priority: int, no_wait: bool, wait: float, preemptible: bool
    ) -> None:
        asked = Asked(self._later(seconds), self.next, user, gpus, memory, compute, priority, no_wait, wait, preemptible=preemptible)
        self.referee.handle(asked)
        self.next += 1

    @rule(
        seconds=seconds,
        user=st.sampled_from(USERS),
        gang=st.integers(1, 3),
        size=st.integers(1, 3),
        asked=st.integers(1, 4),
        gpus=st.integers(1, 2),
        compute=st.sampled_from([0, 500, COMPUTE]),
        priority=st.integers(-1, 2),
        wait=st.sampled_from([0.0, 10.0, 1000.0]),
        preemptible=st.integers(0, 4),
    )
    def ask_for_gang(
        self, seconds: float, user: str, gang: int, size: int, asked: int, gpus: int, compute: int, priority: int, wait: float, preemptible: int
    ) -> None:
        for i in range(asked):
            wants = user, gpus, 0, compute, priority, False, wait, gang, size
            self.referee.handle(Asked(self._later(seconds), self.next, *wants, preemptible=i < preemptible))
            self.next += 1

    @precondition(lambda self: self.referee.leases)
    @rule(seconds=seconds, which=st.integers(0, 1000))
    def release(self, seconds: float, which: int) -> None:
        lease = sorted(self.referee.leases)[which % len(self.referee.leases)]
        self.referee.handle(Released(self._later(seconds), lease))

    @rule(seconds=seconds, which=st.integers(0, 1000))
    def suspend(self, seconds: float, which: int) -> None:
        """One that was asked to give way; or any other, of which nothing is to follow but that it is resumed."""
        able = sorted(self.referee.leases)
        asked = [number for number in able if number in self.referee.preempted] or able
        if asked:
            self.referee.handle(Suspended(self._later(seconds), asked[which % len(asked)]))

    @rule(seconds=seconds)
    def passed(self, seconds: float) -> None:
        self.referee.handle(Passed(self._later(seconds)))

    @rule(seconds=seconds, host=st.integers(1, 4), memory=st.sampled_from([(4 * GIB,), (4 * GIB, 8 * GIB), (4 * GIB,) * 5, (8 * GIB,) * 6]))
    def host_comes_or_goes(self, seconds: float, host: int, memory: tuple[int, ...]) -> None:
        known = host in self.referee.hosts
        self.referee.handle(HostLeft(self._later(seconds), host) if known else HostJoined(self._later(seconds), host, memory))

    @rule(host=st.integers(0, 4), cordoned=st.booleans())
    def cordon(self, host: int, cordoned: bool) -> None:
        if host in self.referee.hosts:
            self.referee.handle(HostCordoned(self.at, host, cordoned))

    @rule(seconds=seconds, which=st.integers(0, 1000), host=st.sampled_from([None, None, 1, 2]), wait=st.booleans())
    def migrate(self, seconds: float, which: int, host: int | None, wait: bool) -> None:
        able = [number for number, known in self.referee.leases.items() if known.devices and not known.destination and not known.seeks]
        if able:
            self.referee.handle(Migrate(self._later(seconds), able[which % len(able)], host, wait))

    @rule(seconds=seconds, which=st.integers(0, 1000), done=st.booleans())
    def migrated(self, seconds: float, which: int, done: bool) -> None:
        able = [number for number, known in self.referee.leases.items() if known.destination or known.seeks]
        if able:
            number = able[which % len(able)]
            known = self.referee.leases[number]
            self.referee.handle(Migrated(self._later(seconds), number, done and known.suspended is None and bool(known.destination)))

    @rule(user=st.sampled_from(USERS), weight=st.sampled_from([0.5, 1.0, 3.0]), gpus=st.integers(0, 4), priority=st.integers(0, 2))
    def set_user(self, user: str, weight: float, gpus: int, priority: int) -> None:
        self.referee.handle(UserSet(self.at, user, weight, gpus, priority))

    @rule(user=st.sampled_from(USERS))
    def revoke(self, user: str) -> None:
        self.referee.handle(UserRevoked(self.at, user))

    @precondition(lambda self: self.referee.leases)
    @rule(which=st.integers(0, 1000))
    def story(self, which: int) -> None:
        lines = self.referee.machine.story(sorted(self.referee.leases)[which % len(self.referee.leases)])
        assert lines and "asks for" in lines[0]

    def teardown(self) -> None:
        """When all is over nothing is left."""
        for lease in list(self.referee.leases):
            self.referee.handle(Released(self.at, lease))
        room, devices = self.referee.machine.room, [d for numbers in self.referee.hosts.values() for d in numbers]
        assert [room.free(d) for d in devices] == [(self.referee.memory[d], COMPUTE) for d in devices]
        assert [room.leases(d) for d in devices] == [0] * len(devices) and not self.referee.machine.leases and not len(self.referee.machine.holdings)


TestWhatever = pytest.mark.slow(Whatever.TestCase)
TestWhatever.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def by_chance(machine: PolicyMachine, seed: int, events: int = 600) -> Referee:
    """Events by chance under the referee's eyes: gangs, parts of GPUs, priorities, quotas, time-outs."""
    chance = random.Random(seed)
    referee = Referee(machine, MEMORY)
    referee.handle(UserSet(0.0, "ada", 2.0, 3, 1))
    at = 0.0
    for number in range(1, events):
        at += chance.choice([0.0, 1.0, 20.0, 200.0])
        if chance.random() < 0.5 and len(referee.leases) < 14:
            wants = chance.randint(1, 5), chance.choice([0, GIB, 3 * GIB, 4 * GIB]), chance.choice([0, 250, 500, COMPUTE])
            user = chance.choice(USERS)
            if wants[0] > 3 and user == "ada":
                continue
            wait = chance.choice([0.0, 0.0, 500.0])
            referee.handle(Asked(at, number, user, *wants, chance.randint(-1, 1) if user == "ada" else 0, chance.random() < 0.1, wait))
        elif referee.leases:
            referee.handle(Released(at, chance.choice(sorted(referee.leases))))
    return referee


@pytest.mark.parametrize("seed", range(3))
def test_by_chance(seed: int) -> None:
    referee = by_chance(PolicyMachine(MEMORY), seed)
    assert referee.longest_wait > 100, "nobody had to wait"


def with_hosts(machine: PolicyMachine, seed: int, events: int = 600) -> Referee:
    """As `by_chance`, in a pool whose hosts come and go."""
    chance = random.Random(seed)
    referee = Referee(machine, ())
    for user in USERS:
        referee.handle(UserSet(0.0, user, priority=1))
    at = 0.0
    for number in range(1, events):
        at += chance.choice([0.0, 1.0, 20.0, 200.0])
        host = chance.randrange(5)
        if chance.random() < 0.1 and (host not in referee.hosts or len(referee.hosts) > 2):
            known = host in referee.hosts
            joins = HostJoined(at, host, (4 * GIB,) * chance.choice([1, 2, 5, 5]), cordoned=chance.random() < 0.1, rack=RACKS[host])
            referee.handle(HostLeft(at, host) if known else joins)
        elif chance.random() < 0.1 and host in referee.hosts:
            referee.handle(HostCordoned(at, host, len(referee.cordoned) < 2 and chance.random() < 0.5))
        elif chance.random() < 0.2:
            migrate(referee, at, chance)
        elif (asked := sorted(referee.preempted & referee.leases.keys())) and chance.random() < 0.6:
            for each in chance.sample(asked, chance.randint(1, len(asked))):
                if each in referee.leases:
                    referee.handle(Suspended(at, each))
        elif chance.random() < 0.15 and len(referee.leases) < 10:
            ask_for_gang(referee, at, number, chance)
        elif chance.random() < 0.5 and len(referee.leases) < 14:
            wants = chance.choice([1, 1, 2, 3, 5]), chance.choice([0, GIB, 4 * GIB]), chance.choice([0, 250, 500, COMPUTE])
            high = chance.random() < 0.2
            referee.handle(Asked(at, number, chance.choice(USERS), *wants, int(high), preemptible=not high and chance.random() < 0.6))
        elif referee.leases:
            referee.handle(Released(at, chance.choice(sorted(referee.leases))))
    return referee


def ask_for_gang(referee: Referee, at: float, number: int, chance: random.Random) -> None:
    """Mostly for all of its leases."""
    size, user = chance.choice([2, 2, 3, 4]), chance.choice(USERS)
    high = chance.random() < 0.3
    wants = chance.choice([1, 1, 2]), chance.choice([0, GIB]), chance.choice([250, 500, COMPUTE]), int(high)
    promised = 0 if high else chance.choice([0, 1, size, size, size, size])
    for part in range(size if chance.random() < 0.9 else size - 1):
        referee.handle(Asked(at, number * 1000 + part, user, *wants, gang=number, gang_size=size, preemptible=part < promised))


def migrate(referee: Referee, at: float, chance: random.Random) -> None:
    """Some lease begins to migrate, or one that does is there, or stays."""
    under_way = [number for number, known in referee.leases.items() if known.destination or (known.seeks and chance.random() < 0.1)]
    able = [number for number, known in referee.leases.items() if known.devices and not known.destination and not known.seeks]
    if under_way and chance.random() < 0.6:
        number = chance.choice(under_way)  # what is suspended meanwhile stays
        known = referee.leases[number]
        referee.handle(Migrated(at, number, known.suspended is None and bool(known.destination) and chance.random() < 0.8))
    elif able:
        referee.handle(Migrate(at, chance.choice(able), chance.choice([None, None, None, 1]), chance.random() < 0.8))


def test_hosts_come_and_go() -> None:
    seen = [with_hosts(PolicyMachine(), seed) for seed in range(12)]
    assert sum(referee.migrated for referee in seen) > 5, "nothing migrated"
    assert any(referee.shared_out for referee in seen), "no gang was on several hosts"
    assert any(referee.preempted for referee in seen), "nobody gave way"
    assert sum(referee.resumed for referee in seen) > 2, "nobody who had given way was resumed"
    assert sum(referee.resumed_together for referee in seen) > 0, "no gang was resumed"
    assert all(referee.longest_wait > 100 for referee in seen), "nobody had to wait"
    assert all(len(referee.machine.room.total) <= 5 * (1 + 2 + 5) for referee in seen), "numbers of hosts that have left are not used again"


# ---- deliberate faults --------------------------------------------------------------------------------------------------


class Partial(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices[:-1] or devices, out)


class NoMemory(Hosts):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, 0, shape.compute))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, 0, shape.compute))


class NoCompute(Hosts):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, shape.memory))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, shape.memory))


class Of(PolicyMachine):
    def __init__(self, room: type[Hosts], memory: Sequence[int] = MEMORY) -> None:
        super().__init__()
        self.room = room(memory)
        self.holdings = Holdings(self.room)
        self.waiting = Waiting(self.leases, self.holdings, self._clock, Kinds(self.room))
        self.migrations = Migrations(self.room, self.leases, self._give_back)
        self.preemption = Preemption(self.room, self.holdings)
        self.suspension = Suspension(self.room, self.holdings, self.leases, HOLD_AFTER, self._take)


class NoQuota(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices, out)
        lease.account.gpus -= lease.shape.gpus

    def _release(self, number: int) -> None:
        if number in self.leases and self.leases[number].devices:
            self.leases[number].account.gpus += self.leases[number].shape.gpus
        super()._release(number)


class NoHold(Hosts):
    def hold(self, device: int, held: bool) -> None:
        pass


class WrongPlace(PolicyMachine):
    def place(self, lease: int) -> tuple[int, int] | None:
        found = super().place(lease)
        return (min(found[0] + 1, found[1]), found[1]) if found else None


class Loses(PolicyMachine):
    """Forgets who waits at the end of the queue when a lease ends."""

    def _release(self, number: int) -> None:
        super()._release(number)
        if len(self.order()) > 2:
            self._forget(self.leases[self.order()[-1]])


class NeverLate(PolicyMachine):
    _next_time_out = None  # type: ignore[assignment]


class LastFirst(PolicyMachine):
    """Among one user's leases the last that came is the first."""

    def _ask(self, event: Asked, out: list[Instruction]) -> None:
        self._arrivals -= 2
        super()._ask(event, out)


class NoUse(PolicyMachine):
    """Use is not counted: the fair order is that of arrival."""

    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices, out)
        lease.account.end(self._clock, lease.rate)
        lease.rate = 0.0


class Lazy(PolicyMachine):
    """Does nothing for those who wait when a lease ends."""

    def _serve(self, out: list[Instruction], all_of_it: bool = True) -> None:
        pass


class OverHosts(Hosts):
    """A lease has what is free anywhere."""

    def find(self, shape: Shape, most: int | None = None, host: int | None = None, near: Near | None = None) -> list[int]:
        found = super().find(shape, most, host, near)
        more = [d for d, size in enumerate(self.total) if size and d not in found and self.fits(d, shape) and not self._of[d].cordoned]
        return [*found, *more][: shape.gpus] if host is None else found


class Silent(PolicyMachine):
    """Nobody is told that a host has left."""

    def _lose(self, host: int, out: list[Instruction]) -> None:
        super()._lose(host, out)
        out[:] = [one for one in out if not isinstance(one, Lost)]


class Haunted(Hosts):
    """A host that has left is found all the same."""

    def leave(self, host: int) -> None:
        pass


class NoCordon(Hosts):
    """A host that is cordoned grants on."""

    def cordon(self, host: int, cordoned: bool) -> None:
        pass


class Beside(PolicyMachine):
    """What a lease has at its destination is not taken from anybody."""

    def __init__(self) -> None:
        super().__init__()
        self.migrations = BesideMigrations(self.room, self.leases, self._give_back)


class BesideMigrations(Migrations):
    def find_destination(self, lease: Lease, out: list[Instruction]) -> None:
        super().find_destination(lease, out)
        for device in lease.destination:
            self._room.give_back(device, lease.shape)
            self._room.take(device, Shape(lease.shape.gpus))

    def end(self, event: Migrated) -> None:
        for device in self._leases[event.lease].destination if event.lease in self._leases else ():
            self._room.give_back(device, Shape(self._leases[event.lease].shape.gpus))
            self._room.take(device, self._leases[event.lease].shape)
        super().end(event)


class EachForItself(PolicyMachine):
    """The leases of a gang are granted one by one."""

    def _ask_in_gang(self, lease: Lease, out: list[Instruction]) -> None:
        self._queue_up(lease, out)


class Torn(PolicyMachine):
    """What a gang has is shared out among its leases whatever the hosts are."""

    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        if lease.gang and lease.shape.part > 1:
            devices = [*devices[1:], devices[0]]
            at = iter(lease.gang.parts)
            for first in range(0, len(devices), lease.shape.part):
                number = next(at)
                self._give(self.leases[number], devices[first : first + lease.shape.part], out)
            self.waiting.remove(lease, self._at)
            del self.leases[lease.id]
            lease.gang.whole, lease.gang.granted = 0, True
            return
        super()._grant(lease, devices, out)


class GoesOn(PolicyMachine):
    """A gang of which one is given up waits on without it."""

    def _leave_gang(self, lease: Lease) -> None:
        assert lease.gang is not None
        if lease.gang.whole and len(lease.gang.parts) > 1:
            whole = self.leases[lease.gang.whole]
            self.waiting.remove(whole, self._at)
            whole.shape = replace(whole.shape, gpus=whole.shape.gpus - whole.shape.part)
            self.waiting.add(whole, self._at)
            self._out_of_gang(lease)
            del self.leases[lease.id]
            return
        super()._leave_gang(lease)


class Promised(Preemption):
    """Everybody is taken for preemptible."""

    def has_promised(self, lease: Lease) -> bool:
        return True


class ToAnybody(Preemption):
    """They give way to those of their own priority."""

    def any_below(self, priority: int) -> bool:
        return super().any_below(priority + 1)

    def choose(self, shape: Shape, priority: int) -> Choice | None:
        return super().choose(shape, priority + 1)


def gives_way(kind: type[Preemption]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.preemption = kind(machine.room, machine.holdings)
    return machine


class Forgotten(Suspension):
    """Who has given way waits for good."""

    def resume(self, suspended: list[Lease], priority: int, first: int, at: float, out: list[Instruction]) -> bool:
        return False


class Behind(Suspension):
    """Who has given way has its devices again behind all that wait."""

    def resume(self, suspended: list[Lease], priority: int, first: int, at: float, out: list[Instruction]) -> bool:
        return priority == -PRIORITIES and super().resume(suspended, priority, first, at, out)


class AtOnce(Suspension):
    """Who has given way has its devices again whoever has them."""

    def may_resume(self, lease: Lease, at: float) -> bool:
        return True


class OneByOne(Suspension):
    """Each of a gang has its devices again when they are free."""

    def _gang(self, lease: Lease) -> list[Lease]:
        return [lease]


class Stays(PolicyMachine):
    """Of a gang only those give way whose GPUs are wanted."""

    def _ask_to_give_way(self, leases: Iterable[Lease], text: str, out: list[Instruction]) -> None:
        if "of its gang" not in text:
            super()._ask_to_give_way(leases, text, out)


class Given(Hosts):
    """What is given back is not looked at again."""

    def give_back(self, device: int, shape: Shape) -> None:
        before = self._changed_rows.copy()
        super().give_back(device, shape)
        self._changed_rows = before


class LetGo(Hosts):
    """Nor what is not held any more."""

    def hold(self, device: int, held: bool) -> None:
        before = self._changed_rows.copy()
        super().hold(device, held)
        self._changed_rows = before


class WithLess(Kinds):
    """Where there is no room for a kind there is none for what wants less."""

    def in_vain(self, kind: Kind) -> None:
        for other in [other for other in self._able if kind.shape.wants_at_least(other.shape)]:
            super().in_vain(other)
        super().in_vain(kind)


class NotParts(Kinds):
    """A gang is looked for where a host has room for all of it."""

    def _with_room(self, room: Room) -> Iterator[Kind]:
        return (kind for kind in super()._with_room(room) if kind.shape.gpus == kind.shape.together)


class NotOwn(Holdings):
    """What becomes free of the devices that are held for a gang is not looked at with others."""

    def freed(self, device: int) -> None:
        worth = {holding: holding.worth for holding in self}
        super().freed(device)
        for holding in self:
            holding.worth = worth[holding]


def holds(kind: type[Holdings]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.holdings = machine.waiting._holdings = machine.preemption._holdings = machine.suspension._holdings = kind(machine.room)
    return machine


def sorts(kinds: type[Kinds]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.waiting.kinds = kinds(machine.room)
    return machine


def suspends(kind: type[Suspension]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.suspension = kind(machine.room, machine.holdings, machine.leases, HOLD_AFTER, machine._take)
    return machine


OF_HOSTS = {
    "a suspended lease waits": lambda: suspends(Forgotten),
    "was overtaken": lambda: suspends(Behind),
    "held for another|more (memory|compute)": lambda: suspends(AtOnce),
    "a gang is resumed partially": lambda: suspends(OneByOne),
    "a gang gives way partially": Stays,
    "who has not promised": lambda: gives_way(Promised),
    "to none of a higher priority": lambda: gives_way(ToAnybody),
    "a gang is granted partially": EachForItself,
    "not on one host that": Torn,
    "granted partially|is in the order|lost": GoesOn,
    "is cordoned": lambda: Of(NoCordon, ()),
    "more (memory|compute)": Beside,
    "waits for GPUs that are free": lambda: Of(Given, ()),
    "for GPUs that are free": lambda: Of(LetGo, ()),
    "GPUs that are free": lambda: sorts(WithLess),
    "that are free": lambda: sorts(NotParts),
    "are free": lambda: holds(NotOwn),
    "not on one host|held for another": lambda: Of(OverHosts, ()),
    "was not told": Silent,
    "that is there|not another host": lambda: Of(Haunted, ()),
}


@pytest.mark.parametrize("what", OF_HOSTS)
def test_each_fault_with_hosts_is_seen(what: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=what):
        for seed in range(20):
            with_hosts(OF_HOSTS[what](), seed)


FAULTS = {
    "partially": Partial,
    "more memory": lambda memory: Of(NoMemory),
    "more compute": lambda memory: Of(NoCompute),
    "held": lambda memory: Of(NoHold),
    "quota": NoQuota,
    "wrong place": WrongPlace,
    "lost": Loses,
    "too long": NeverLate,
    "came later": LastFirst,
    "used more": NoUse,
    "that are free": Lazy,
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_is_seen(what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        for seed in range(20):
            by_chance(FAULTS[what](MEMORY), seed)
