"""The policy machine over simulated months: nobody starves, shares are fair, the pool is used."""

from __future__ import annotations

import random

import pytest
from server.policy.referee import Referee
from server.policy.simulation import DAY, Job, Simulation, jain

from gpuvirt.server.policy import eldest
from gpuvirt.server.policy import machine as machine_module
from gpuvirt.server.policy.eldest import bound
from gpuvirt.server.policy.events import COMPUTE, Asked, Released, UserSet
from gpuvirt.server.policy.instructions import Grant
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.room import Room, Shape
from gpuvirt.server.policy.shares import Account

GIB = 1 << 30
HOUR = 3600.0
GANGS = (1, 1, 1, 1, 2, 2, 4, 4, 8, 16)


# ---- many users, random gangs -------------------------------------------------------------------------------------------


def crowd(days: float, load: float, check_every: int = 97, seed: int = 5) -> Simulation:
    """64 GPUs, 100 users who ask for gangs by chance, more by day than by night; some for parts of GPUs, some with quotas, weights, priorities.

    Args:
        load: what they want of what there is, over the whole time.
    """
    chance = random.Random(seed)
    memory = [80 * GIB] * 64
    policy = PolicyMachine(memory)
    simulation = Simulation(policy, Referee(policy, memory), check_every)
    referee = simulation.referee
    assert referee is not None
    for user in range(100):
        quota = chance.choice([0, 0, 8, 16, 64])
        referee.handle(UserSet(0.0, f"u{user}", chance.choice([0.5, 1.0, 1.0, 2.0]), quota, 1 if user % 10 == 0 else 0))
    per_job = 1.1 * HOUR * sum(GANGS) / len(GANGS)  # GPU-seconds, about
    every = per_job / (64 * load)

    def someone() -> None:
        user = chance.randrange(100)
        quota = referee.users[f"u{user}"].gpus or 64
        lasts = min(chance.expovariate(1 / HOUR) + 60, 8 * HOUR)
        compute, bytes_each = chance.choice([(COMPUTE, 0), (COMPUTE, 0), (500, 20 * GIB), (0, 80 * GIB)])
        gpus = chance.choice(GANGS) if chance.random() < 0.999 else 64
        priority = chance.choice([0, 1]) if user % 10 == 0 else 0
        simulation.ask(Job(f"u{user}", min(gpus, quota), lasts, bytes_each, compute, priority))
        by_day = 1.5 if simulation.now % DAY < DAY / 2 else 0.5
        simulation.at(simulation.now + chance.expovariate(by_day / every), someone)

    simulation.at(0.0, someone)
    simulation.run(days * DAY)
    return simulation


def judge_crowd(simulation: Simulation, days: float) -> None:
    # The bound is that of a user's first lease; here it holds for all of them.
    limit = bound(simulation.most_waiting, simulation.longest_job)
    utilisation = sum(simulation.used.values()) / (64 * days * DAY)
    waits = sorted(wait for each in simulation.waits.values() for wait in each)
    print(
        f"{days:g} days: {simulation.granted} leases, {utilisation:.0%} of the GPU-seconds given out (a part of a GPU counts as one), "
        f"waits: median {waits[len(waits) // 2]:.0f} s, 99 % below {waits[len(waits) * 99 // 100] / HOUR:.1f} h, "
        f"longest {simulation.longest_wait / HOUR:.1f} h; bound {limit / HOUR:.0f} h"
    )
    assert simulation.longest_wait <= limit
    assert len(simulation.waits) == 100, "somebody got nothing"


@pytest.mark.slow
def test_a_crowd_for_days() -> None:
    judge_crowd(crowd(5, 0.8), 5)


MONTHS = [pytest.param(load, marks=pytest.mark.wide if load < 0.8 else pytest.mark.long) for load in (0.6, 0.8, 1.0)]


@pytest.mark.parametrize("load", MONTHS)
def test_a_crowd_for_months(load: float) -> None:
    judge_crowd(crowd(120, load, 997), 120)


# ---- shares -------------------------------------------------------------------------------------------------------------


class Tenants(Simulation):
    """Each always has some leases waiting; how large and how long they are is by chance, and other for each tenant."""

    def __init__(self, weights: list[float], seed: int, gpus: int = 16) -> None:
        super().__init__(PolicyMachine([80 * GIB] * gpus))
        self.chance = random.Random(seed)
        self.weights = weights
        for tenant, weight in enumerate(weights):
            self.machine.handle(UserSet(0.0, str(tenant), weight))
            for _ in range(3 + 5 * (tenant % 3)):  # some ask for more at a time than others
                self.at(0.0, lambda user=tenant: self.more(user))  # type: ignore[misc]

    def more(self, user: int) -> None:
        lasts = self.chance.uniform(300, 1800 * (1 + user % 4))
        self.ask(Job(str(user), self.chance.choice([1, 1, 2, 4]), lasts, compute=COMPUTE))

    def ended(self, job: Job) -> None:
        self.more(int(job.user))

    def fairness(self) -> float:
        return jain([self.used.get(str(tenant), 0.0) / weight for tenant, weight in enumerate(self.weights)])


@pytest.mark.parametrize("weights", [[1.0] * 8, [1.0, 1.0, 2.0, 2.0, 3.0, 4.0]], ids=["equal", "unequal"])
def test_shares_are_fair(weights: list[float]) -> None:
    tenants = Tenants(weights, 3)
    tenants.run(4 * DAY)
    print(f"Jain index {tenants.fairness():.4f}, {sum(tenants.used.values()) / (16 * 4 * DAY):.0%} used")
    assert tenants.fairness() >= 0.99


@pytest.mark.parametrize(("weights", "fault"), [([1.0] * 8, "no use"), ([1.0, 1.0, 2.0, 2.0, 3.0, 4.0], "no weights")])
def test_unfair_shares_are_seen(weights: list[float], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate faults: the fair order is that of arrival; weights do not count."""
    key = Account.key
    if fault == "no use":
        monkeypatch.setattr(Account, "key", lambda self, ahead: 0.0)
    else:
        monkeypatch.setattr(Account, "key", lambda self, ahead: key(self, ahead) * self.weight)
    tenants = Tenants(weights, 3)
    tenants.run(4 * DAY)
    assert tenants.fairness() < 0.95


# ---- starvation ---------------------------------------------------------------------------------------------------------


def against(rival: str, days: float) -> Simulation:
    """8 GPUs. After an hour "old" asks for all of them, while rivals come who would each go before it, and never leave a GPU free."""
    policy = PolicyMachine([80 * GIB] * 8)
    simulation = Simulation(policy)
    policy.handle(UserSet(0.0, "vip", priority=5))
    chance = random.Random(1)
    number = 0

    def someone() -> None:
        nonlocal number
        number += 1
        user = {"priority": "vip", "new users": f"new{number}", "small": f"s{number % 4}"}[rival]
        gpus, priority = (1, 5) if rival == "priority" else (1, 0)
        simulation.ask(Job(user, gpus, chance.uniform(600, 1200), compute=COMPUTE, priority=priority))
        simulation.at(simulation.now + 110, someone)

    # It has used much, and so stands behind everybody.
    simulation.ask(Job("old", 8, HOUR, compute=COMPUTE))
    simulation.at(HOUR / 2, someone)
    simulation.at(HOUR, lambda: simulation.ask(Job("old", 8, 600.0, compute=COMPUTE)))
    simulation.run(days * DAY)
    return simulation


@pytest.mark.parametrize("rival", ["priority", "new users", "small"])
def test_nobody_starves(rival: str) -> None:
    simulation = against(rival, 1)
    assert len(simulation.waits["old"]) == 2, "it starved"
    # Of new users there are ever more that wait; but they came later, and so only those that are the eldest at the same time count.
    limit = bound(2, 1200.0)
    print(f"waited {simulation.waits['old'][1] / HOUR:.1f} h, the bound is {limit / HOUR:.1f} h")
    assert simulation.waits["old"][1] <= limit


@pytest.mark.parametrize("rival", ["priority", "new users"])
def test_starvation_is_seen(rival: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: age gives nobody anything."""
    monkeypatch.setattr(eldest, "PATIENCE", 1e12)
    assert len(against(rival, 1).waits["old"]) == 1


def test_backfill_for_ever_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: nothing is held for who is the first in the order."""
    monkeypatch.setattr(eldest, "PATIENCE", 1e12)
    monkeypatch.setattr(machine_module, "HOLD_AFTER", 1e12)
    assert len(against("small", 1).waits["old"]) == 1


# ---- a large pool -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions look at few devices and leases, however many there are. (How long they take: tests/bench/policy.py.)"""
    looked = 0
    find = Room.find

    def counted(self: Room, shape: Shape, most: int | None = None) -> list[int]:
        nonlocal looked
        looked += len(self._levels)
        return find(self, shape, most)

    monkeypatch.setattr(Room, "find", counted)
    chance = random.Random(2)
    machine = PolicyMachine([80 * GIB] * 10_000)
    at, running, waiting, asked = 0.0, dict[int, tuple[int, ...]](), 0, dict[int, Asked]()
    for number in range(1, 4200):
        at += 0.5
        event: Asked | Released
        if number < 3500 or chance.random() < 0.5:
            gpus, compute = chance.choice([1, 2, 4, 8, 16]), chance.choice([COMPUTE, 500, 250])
            event = asked[number] = Asked(at, number, f"u{number % 300}", gpus, chance.choice([0, 20 * GIB]), compute)
        else:
            event = Released(at, chance.choice(list(running)))
            del running[event.lease]
        running |= {one.lease: one.devices for one in machine.handle(event) if isinstance(one, Grant)}
        waiting = max(waiting, len(machine.waiting))
    free = [COMPUTE] * 10_000
    for lease, devices in running.items():
        assert len(set(devices)) == asked[lease].gpus
        for device in devices:
            free[device] -= asked[lease].compute
    assert min(free) >= 0 and len(running) + len(machine.waiting) == len(machine.leases)
    assert sorted(machine.order()) == sorted(number for number, lease in machine.leases.items() if not lease.devices)
    print(f"{len(running)} leases, at most {waiting} waiting; {looked / 4200:.0f} levels looked at in a decision")
    assert waiting > 100 and looked < 100 * 4200
