"""What the policy machine never does, whatever comes in: hypothesis and chance against the referee (test_faults.py: each fault that it sees)."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from server.policy.referee import Referee

from gpuvirt.server.policy.events import (
    COMPUTE,
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
from gpuvirt.server.policy.machine import PolicyMachine

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
