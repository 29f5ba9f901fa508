"""What the policy machine never does, whatever comes in: hypothesis against the referee; and each deliberate fault, which the referee sees."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from server.policy.referee import Referee

from gpuvirt.server.policy.events import COMPUTE, Asked, Passed, Released, UserRevoked, UserSet
from gpuvirt.server.policy.instructions import Instruction
from gpuvirt.server.policy.machine import Lease, PolicyMachine
from gpuvirt.server.policy.room import Room, Shape

GIB = 1 << 30
MEMORY = [4 * GIB, 4 * GIB, 4 * GIB, 8 * GIB, 8 * GIB]
USERS = ("ada", "ben", "cyd")


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
    )
    def ask(self, seconds: float, user: str, gpus: int, memory: int, compute: int, priority: int, no_wait: bool, wait: float) -> None:
        self.referee.handle(Asked(self._later(seconds), self.next, user, gpus, memory, compute, priority, no_wait, wait))
        self.next += 1

    @precondition(lambda self: self.referee.leases)
    @rule(seconds=seconds, which=st.integers(0, 1000))
    def release(self, seconds: float, which: int) -> None:
        lease = sorted(self.referee.leases)[which % len(self.referee.leases)]
        self.referee.handle(Released(self._later(seconds), lease))

    @rule(seconds=seconds)
    def passed(self, seconds: float) -> None:
        self.referee.handle(Passed(self._later(seconds)))

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
        room = self.referee.machine.room
        assert [room.free(d) for d in range(5)] == [(size, COMPUTE) for size in MEMORY]
        assert [room.leases(d) for d in range(5)] == [0] * 5 and not self.referee.machine.leases and self.referee.machine.held is None


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


# ---- deliberate faults --------------------------------------------------------------------------------------------------


class Partial(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices[:-1] or devices, out)


class NoMemory(Room):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, 0, shape.compute))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, 0, shape.compute))


class NoCompute(Room):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, shape.memory))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, shape.memory))


class Overcommits(PolicyMachine):
    def __init__(self, room: type[Room]) -> None:
        super().__init__(MEMORY)
        self.room = room(MEMORY)


class NoQuota(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices, out)
        lease.account.gpus -= lease.shape.gpus

    def _release(self, number: int) -> None:
        if number in self.leases and self.leases[number].devices:
            self.leases[number].account.gpus += self.leases[number].shape.gpus
        super()._release(number)


class NoHold(Room):
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
    wake = None  # type: ignore[assignment]


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


FAULTS = {
    "partially": Partial,
    "more memory": lambda memory: Overcommits(NoMemory),
    "more compute": lambda memory: Overcommits(NoCompute),
    "held": lambda memory: Overcommits(NoHold),
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
