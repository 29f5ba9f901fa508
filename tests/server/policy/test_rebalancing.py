"""Leases move to a host that has come, if they gain by it, and no more of them than may."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from server.policy.referee import Referee

from gpuvirt.server.policy.events import (
    COMPUTE,
    PACK,
    Asked,
    HostCordoned,
    HostJoined,
    HostLeft,
    Migrate,
    Migrated,
    Passed,
    Released,
    Stays,
    UserSet,
)
from gpuvirt.server.policy.instructions import Destination, Grant, Instruction, Relocate
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rebalancing import LIMIT, Rebalancing

GIB = 1 << 30


def crowded(leases: int, rebalance: int, gpus: int = 1, user: UserSet | None = None) -> PolicyMachine:
    """Leases 1, 2, … share the GPUs of host 1."""
    machine = PolicyMachine(rebalance=rebalance)
    machine.handle(HostJoined(0.0, 1, (GIB,) * gpus))
    if user is not None:
        machine.handle(user)
    for number in range(1, leases + 1):
        assert any(isinstance(one, Grant) for one in machine.handle(Asked(0.0, number, "ada", gpus)))
    return machine


def moves(out: list[Instruction]) -> list[tuple[int, int]]:
    return [(one.lease, one.host) for one in out if isinstance(one, Relocate)]


def follow(machine: PolicyMachine, out: list[Instruction], at: float = 1.0) -> list[int]:
    """Does what is said until nothing more is to move. Returns the leases that have moved."""
    moved = []
    while found := moves(out):
        ((number, host),) = found
        begun = machine.handle(Migrate(at, number, host))
        assert any(isinstance(one, Destination) for one in begun) and not moves(begun), "another moves at the same time"
        moved.append(number)
        out = machine.handle(Migrated(at, number, True))
    return moved


def counts(machine: PolicyMachine) -> list[int]:
    return [machine.room.leases(device) for device in range(len(machine.room.total))]


def test_the_youngest_move_until_both_have_as_many() -> None:
    machine = crowded(5, rebalance=10)
    assert follow(machine, machine.handle(HostJoined(1.0, 2, (GIB,)))) == [5, 4]
    assert counts(machine) == [3, 2]
    assert "it is to move to another host: a host has come whose GPUs fewer share" in "\n".join(machine.story(5))


def test_no_more_than_may() -> None:
    machine = crowded(8, rebalance=2)
    assert follow(machine, machine.handle(HostJoined(1.0, 2, (GIB,)))) == [8, 7]
    assert counts(machine) == [6, 2]
    assert not moves(machine.handle(Passed(1000.0))), "more move later"


@pytest.mark.parametrize("leases, rebalance", [(2, 0), (1, 5)])
def test_none_where_it_is_not_asked_for_and_none_without_a_gain(leases: int, rebalance: int) -> None:
    machine = crowded(leases, rebalance)
    assert not moves(machine.handle(HostJoined(1.0, 2, (GIB,))))


def test_two_leases_on_one_gpu_get_one_each() -> None:
    machine = crowded(2, rebalance=5)
    assert follow(machine, machine.handle(HostJoined(1.0, 2, (GIB,)))) == [2]


def test_a_lease_moves_with_all_its_gpus_or_stays() -> None:
    machine = crowded(2, rebalance=5, gpus=2)
    assert not moves(machine.handle(HostJoined(1.0, 2, (GIB,)))), "the host has one GPU"
    machine = crowded(2, rebalance=5, gpus=2)
    assert follow(machine, machine.handle(HostJoined(1.0, 3, (GIB, GIB, GIB)))) == [2]


def test_what_is_packed_stays() -> None:
    machine = crowded(3, rebalance=5, user=UserSet(0.0, "ada", placement=PACK))
    assert not moves(machine.handle(HostJoined(1.0, 2, (GIB,))))


def test_who_waits_goes_before() -> None:
    """The new host's GPU is for the lease that waits for a whole one; nothing moves there."""
    machine = crowded(2, rebalance=5)
    machine.handle(Asked(1.0, 3, "ben", 1, compute=COMPUTE))
    machine.handle(Asked(1.0, 4, "ben", 1, compute=COMPUTE))
    out = machine.handle(HostJoined(2.0, 2, (GIB,)))
    assert any(isinstance(one, Grant) for one in out) and not moves(out)


def test_a_host_that_takes_nothing_gets_nothing_until_it_does() -> None:
    machine = crowded(3, rebalance=5)
    assert not moves(machine.handle(HostJoined(1.0, 2, (GIB,), cordoned=True)))
    assert follow(machine, machine.handle(HostCordoned(2.0, 2, False))) == [3]


def test_one_that_stays_is_not_asked_again_and_the_next_is() -> None:
    machine = crowded(6, rebalance=3)
    assert moves(machine.handle(HostJoined(1.0, 2, (GIB,)))) == [(6, 2)]
    assert moves(machine.handle(Stays(2.0, 6))) == [(5, 2)]
    assert moves(machine.handle(Released(3.0, 5))) == [(4, 2)]
    machine.handle(Migrate(4.0, 4, 2))
    assert not moves(machine.handle(Migrated(4.0, 4, False)))
    assert counts(machine) == [5, 0]


def test_nobody_waits_for_good_for_a_host_that_says_nothing() -> None:
    machine = crowded(6, rebalance=2)
    assert moves(machine.handle(HostJoined(1.0, 2, (GIB,)))) == [(6, 2)]
    assert not moves(machine.handle(Passed(LIMIT)))
    assert moves(machine.handle(Passed(1.0 + LIMIT))) == [(5, 2)]


def test_what_was_planned_for_a_host_that_goes_is_forgotten() -> None:
    machine = crowded(6, rebalance=3)
    machine.handle(HostJoined(1.0, 2, (GIB,)))
    machine.handle(HostLeft(2.0, 2))
    assert not moves(machine.handle(Stays(2.0, 6)))
    assert moves(machine.handle(HostJoined(3.0, 3, (GIB,)))) == [(6, 3)]


def test_what_gains_no_more_in_its_turn_stays() -> None:
    machine = crowded(4, rebalance=3)
    assert moves(machine.handle(HostJoined(1.0, 2, (GIB,)))) == [(4, 2)]
    assert not moves(machine.handle(Released(2.0, 1))) and not moves(machine.handle(Released(2.0, 2)))
    assert not moves(machine.handle(Released(3.0, 4))), "lease 3 has its GPU for itself"
    assert counts(machine) == [1, 0]


# ---- by chance ----------------------------------------------------------------------------------------------------------

MOVES = 3


def by_chance(machine: PolicyMachine, seed: int, events: int = 500) -> Referee:
    """Leases that share GPUs, on hosts that come, go and are drained, under the referee's eyes."""
    chance = random.Random(seed)
    referee = Referee(machine, (), MOVES)
    at = 0.0
    for number in range(1, events):
        at += chance.choice([0.0, 1.0, 20.0, 200.0])
        host, kind = chance.randrange(4), chance.random()
        if referee.relocating and kind < 0.3:
            goes_on(referee, at, chance)
        elif kind < 0.4 and (host not in referee.hosts or len(referee.hosts) > 1):
            joins = HostJoined(at, host, (GIB,) * chance.choice([1, 2, 3]), cordoned=chance.random() < 0.1)
            referee.handle(HostLeft(at, host) if host in referee.hosts else joins)
        elif kind < 0.45 and host in referee.hosts:
            referee.handle(HostCordoned(at, host, host not in referee.cordoned))
        elif kind < 0.75 and referee.hosts and len(referee.leases) < 20:
            referee.handle(Asked(at, number, chance.choice("abc"), chance.choice([1, 1, 2])))
        elif referee.leases:
            referee.handle(Released(at, chance.choice(sorted(referee.leases))))
    return referee


def goes_on(referee: Referee, at: float, chance: random.Random) -> None:
    """A lease that is to move to a host that has come begins to do so, or is there, or stays."""
    number = chance.choice(sorted(referee.relocating))
    known, (host, _) = referee.leases[number], referee.relocating[number]
    if known.destination:
        referee.handle(Migrated(at, number, chance.random() < 0.9))
    elif host not in referee.hosts or chance.random() < 0.2:
        referee.handle(Stays(at, number))
    else:
        referee.handle(Migrate(at, number, host))


def test_by_chance() -> None:
    seen = [by_chance(PolicyMachine(rebalance=MOVES), seed) for seed in range(12)]
    assert sum(referee.relocated for referee in seen) > 40


class Restless(Rebalancing):
    """Leases move whether they gain by it or not."""

    def _gains(self, lease: Lease, host: int) -> bool:
        return self._room.has(host)


class Boundless(Rebalancing):
    """More leases move than may."""

    def host_came(self, host: int) -> None:
        self._moves = 100
        super().host_came(host)


class AllAtOnce(Rebalancing):
    """One moves when the one before it has not yet."""

    def serve(self, at: float, out: list[Instruction]) -> None:
        self._moving = None
        super().serve(at, out)


class Stubborn(Rebalancing):
    """What was planned for a host that is drained moves there."""

    def host_left(self, host: int) -> None:
        pass

    def _gains(self, lease: Lease, host: int) -> bool:
        return self._room.has(host) and (self._room.cordoned(host) or super()._gains(lease, host))


FAULTS: dict[str, Callable[..., Rebalancing]] = {
    "gains nothing": Restless,
    "more leases are to move than may": Boundless,
    "at the same time": AllAtOnce,
    "to a host that takes none": Stubborn,
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_is_seen(what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        for seed in range(20):
            machine = PolicyMachine()
            machine.rebalancing = FAULTS[what](machine.room, machine.leases, MOVES)
            by_chance(machine, seed)
