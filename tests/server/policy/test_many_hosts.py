"""The policy machine over a pool of many hosts, in simulated time: gangs are whole and on one host, and shares are fair, while hosts come and go."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from server.policy.referee import Referee
from server.policy.simulation import DAY, Job, Simulation
from server.policy.test_waiting import first_only

from gpuvirt.server.policy.eldest import bound
from gpuvirt.server.policy.events import COMPUTE, Asked, HostJoined, HostLeft, UserSet
from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.passes import Pass
from gpuvirt.server.policy.shares import Account

GIB = 1 << 30
HOUR = 3600.0
EACH = 10  # GPUs of a host
WARM = 2 * DAY


def pool(hosts: int) -> PolicyMachine:
    machine = PolicyMachine()
    for host in range(hosts):
        machine.handle(HostJoined(0.0, host, (80 * GIB,) * EACH))
    return machine


class Labs(Simulation):
    """Each always has leases that wait, of one GPU or several by chance; now and then a host goes, with all that runs there, and comes back.

    Args:
        gangs: for what part of the leases of one GPU or several there is a gang of leases in its place, which have 8 GPUs each.
    """

    def __init__(self, weights: list[float], hosts: int, seed: int, gangs: float = 0.0) -> None:
        super().__init__(pool(hosts))
        self.chance, self.weights, self.part = random.Random(seed), weights, gangs
        self.users = {f"lab{number}": weight for number, weight in enumerate(weights)}
        self.several = 0
        self.gangs: dict[int, list[Job]] = {}  # by number, those that have not ended
        self.begun: dict[int, list[float]] = {}  # by gang, when each of its leases was granted
        for user, weight in self.users.items():
            self.machine.handle(UserSet(0.0, user, weight))
        for _ in range(hosts * EACH * 2 // len(weights)):
            for user in self.users:  # in turns: an empty pool is the first one's
                self.at(0.0, lambda user=user: self.more(user))  # type: ignore[misc]
        self.at(HOUR, self.a_host_goes)

    def more(self, user: str) -> None:
        gpus, lasts = self.chance.choice([1, 2, 2, 4, 4, 8, 10]), self.chance.uniform(2 * HOUR, 22 * HOUR)
        if self.part and self.chance.random() < self.part:
            job, size = Job(user, 8, lasts, compute=COMPUTE), self.chance.choice([2, 4, 8])
            self.gangs[self._number + 1] = [job] * size
            self.ask_for_gang(job, size)
            return
        self.several += gpus > 1
        self.ask(Job(user, gpus, lasts, compute=COMPUTE))

    def ended(self, job: Job) -> None:
        for number, left in self.gangs.items():
            if left[0] is job:  # the others of it end at the same time, but for one whose host was lost
                left.pop()
                if left:
                    return
                del self.gangs[number]
                break
        self.more(job.user)

    def _begin(self, lease: int) -> None:
        gang = self.machine.leases[lease].gang
        super()._begin(lease)
        if gang is not None:
            self.begun.setdefault(min(gang.parts), []).append(self.now)

    def a_host_goes(self) -> None:
        host = self.chance.choice([*self.machine.room])
        self.take(HostLeft(self.now, host))
        self.at(self.now + HOUR, lambda: self.take(HostJoined(self.now, host, (80 * GIB,) * EACH)))
        self.at(self.now + 7 * HOUR, self.a_host_goes)

    def run(self, until: float) -> None:
        """What was used is counted from the end of the second day: what everybody has of a pool that was empty is no matter of shares."""
        self.at(WARM, self.forget_use)
        super().run(until)
        of = self.machine.room.host
        for lease in self.machine.leases.values():
            assert len(lease.devices) in (0, lease.shape.gpus), "a gang is granted partially"
            assert not lease.devices or len({of(device) for device in lease.devices}) == 1, "a lease is on two hosts"
        for times in self.begun.values():
            assert len(times) in (2, 4, 8) and len({*times}) == 1, "a gang has begun in parts"

    def forget_use(self) -> None:
        self.used = {}
        self._began = dict.fromkeys(self._began, self.now)

    def unfairness(self) -> float:
        """How far the share of a lab is from what its weight says, as a part of that; of the lab for which it is most."""
        all_used, all_weights = sum(self.used.values()), sum(self.weights)
        return max(abs(self.used[user] / all_used / (weight / all_weights) - 1) for user, weight in self.users.items())


def judge(labs: Labs, hosts: int, days: float) -> None:
    used = sum(labs.used.values()) / (hosts * EACH * days * DAY)
    print(
        f"{hosts} hosts, {days:g} days: {labs.granted} leases ({labs.several} of several GPUs, {len(labs.begun)} gangs), "
        f"{labs.lost} lost with their hosts, {used:.1%} used, "
        f"unfairness {labs.unfairness():.2%}"
    )
    assert labs.unfairness() <= 0.02
    assert used > 0.9 and labs.lost > 0


class Crowded(Simulation):
    """24 hosts of 2 GPUs, for which more single GPUs are always wanted than there are; now and then one user wants both GPUs of 16 hosts at once."""

    def __init__(self, machine: PolicyMachine, seed: int) -> None:
        super().__init__(machine, Referee(machine, ()), 37)
        self.chance = random.Random(seed)
        for host in range(24):
            self.take(HostJoined(0.0, host, (80 * GIB,) * 2))
        for number in range(120):
            self.more(f"u{number % 12}")
        self.at(HOUR, self.gang)

    def more(self, user: str) -> None:
        self.ask(Job(user, 1, self.chance.uniform(0.2 * HOUR, 2 * HOUR), compute=COMPUTE))

    def gang(self) -> None:
        self.ask_for_gang(Job("gangs", 2, HOUR, compute=COMPUTE), 16)

    def ended(self, job: Job) -> None:
        if job.user != "gangs":
            self.more(job.user)
        elif not any(each.user == "gangs" for each in self._jobs.values()):
            self.at(self.now + 5 * HOUR, self.gang)

    def longest_of_gangs(self) -> float:
        waiting = [self.now - since for lease, since in self.waiting.items() if self._jobs[lease].user == "gangs"]
        return max([*self.waits.get("gangs", []), *waiting])


@pytest.mark.slow
def test_a_gang_over_many_hosts_is_not_starved() -> None:
    """It has its 32 GPUs of 16 hosts at once, within the bound, though single ones are taken all the time."""
    play = Crowded(PolicyMachine(), 4)
    play.run(6 * DAY)
    assert play.referee is not None
    limit, gangs = bound(13, 2 * HOUR), len(play.waits["gangs"]) // 16
    used = sum(play.used.values()) / (48 * 6 * DAY)
    print(f"{gangs} gangs, the longest wait {play.longest_of_gangs() / HOUR:.1f} h, bound {limit / HOUR:.0f} h; {used:.1%} used")
    assert play.longest_of_gangs() <= limit and gangs > 10 and play.referee.shared_out >= gangs


@pytest.mark.slow
def test_gangs_that_starve_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: nothing is held for gangs."""
    begin = Holdings.begin
    monkeypatch.setattr(Holdings, "begin", lambda self, lease, shape, *rest: None if shape.part else begin(self, lease, shape, *rest))
    play = Crowded(PolicyMachine(), 4)
    play.run(3 * DAY)
    assert "gangs" not in play.waits


GANGS = 0.01
WEIGHTS = [1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0, 4.0]


@pytest.mark.slow
def test_ten_days_on_two_hundred_hosts() -> None:
    labs = Labs(WEIGHTS, 200, 3, GANGS)
    labs.run(WARM + 10 * DAY)
    judge(labs, 200, 10)
    assert len(labs.begun) > 50


@pytest.mark.wide
def test_gangs_that_keep_their_users_others_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: behind a lease that nobody can have its user gets nothing else."""
    monkeypatch.setattr(Pass, "_by_kind", first_only)
    labs = Labs(WEIGHTS, 200, 3, 2 * GANGS)
    labs.run(WARM + 10 * DAY)
    assert labs.unfairness() > 0.03


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_month_on_a_thousand_hosts() -> None:
    """10,000 GPUs. (How long decisions take: python -m tests.bench.policy 10000 6000 100 1000.)"""
    labs = Labs(WEIGHTS, 1000, 3, GANGS)
    labs.run(WARM + 30 * DAY)
    judge(labs, 1000, 30)


@pytest.mark.slow
def test_unfair_shares_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: weights do not count."""
    key = Account.key
    monkeypatch.setattr(Account, "key", lambda self, ahead: key(self, ahead) * self.weight)
    labs = Labs(WEIGHTS, 200, 3)
    labs.run(WARM + 3 * DAY)
    assert labs.unfairness() > 0.1


@pytest.mark.parametrize("compute", [0, 100])
@pytest.mark.parametrize("memory", [0, GIB // 8])
@pytest.mark.parametrize("hosts", [1, 3])
def test_a_user_has_its_leases_where_it_wishes(hosts: int, memory: int, compute: int) -> None:
    """Packed they are on one GPU as long as it has room, spread on all, whatever they reserve; the other user's wish changes nothing."""
    where: dict[str, list[int]] = {"pack": [], "spread": []}
    for user in where:
        machine = PolicyMachine()
        for host in range(1, hosts + 1):
            machine.handle(HostJoined(0.0, host, (GIB,) * 4))
        for placement in where:
            machine.handle(UserSet(0.0, placement, placement=placement))
        for lease in range(1, 4 * hosts + 1):
            machine.handle(Asked(1.0, lease, user, 1, memory, compute))
            where[user] += machine.leases[lease].devices
    assert sorted(where["spread"]) == [*range(4 * hosts)]
    each = min(8 if memory else 4 * hosts, 10 if compute else 4 * hosts)
    packed = Counter(where["pack"])
    assert len(packed) == -(-4 * hosts // each) and {device // 4 for device in packed} == {where["pack"][0] // 4}
