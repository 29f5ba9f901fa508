"""Hosts of one rack are near each other: a gang is in one where it can, and a lease near its user's others where that costs nothing."""

from __future__ import annotations

import pytest

from gpuvirt.server.policy.events import PACK, SPREAD, Asked, HostJoined, HostLeft, Migrate, Released, UserSet
from gpuvirt.server.policy.instructions import Destination, Grant, Instruction
from gpuvirt.server.policy.machine import PolicyMachine

GIB = 1 << 30


def pool(*hosts: tuple[str, int]) -> PolicyMachine:
    """Hosts 0, 1, … by their racks and how many GPUs they have."""
    machine = PolicyMachine()
    for number, (rack, gpus) in enumerate(hosts):
        machine.handle(HostJoined(0.0, number, (GIB,) * gpus, rack=rack))
    return machine


def granted(machine: PolicyMachine, out: list[Instruction]) -> list[int | None]:
    """The host of each lease that was granted."""
    return [machine.room.host(one.devices[0]) for one in out if isinstance(one, Grant)]


def ask(machine: PolicyMachine, number: int, user: str = "ada", gpus: int = 1) -> list[int | None]:
    return granted(machine, machine.handle(Asked(1.0, number, user, gpus, memory=GIB)))


def gang(machine: PolicyMachine, number: int, size: int) -> list[int | None]:
    """The hosts of a gang of leases with one GPU each."""
    out: list[Instruction] = []
    for part in range(size):
        out += machine.handle(Asked(1.0, 100 * number + part, "ada", 1, memory=GIB, gang=number, gang_size=size))
    return sorted(granted(machine, out), key=str)


def test_a_gang_is_in_one_rack() -> None:
    """Without racks it would be on the two hosts with the most GPUs, which are in different ones."""
    hosts = ("r1", 3), ("r2", 3), ("r2", 1)
    assert gang(pool(*hosts), 1, 4) == [1, 1, 1, 2]
    assert gang(pool(*(("", gpus) for _, gpus in hosts)), 1, 4) == [0, 0, 0, 1]


def test_of_racks_that_have_enough_the_one_with_the_fewest() -> None:
    assert gang(pool(("r1", 2), ("r1", 2), ("r1", 2), ("r2", 2), ("r2", 2)), 1, 4) == [3, 3, 4, 4]


def test_a_gang_that_no_rack_has_is_in_few() -> None:
    """In the two with the most."""
    assert gang(pool(("r1", 2), ("r2", 1), ("r2", 1), ("r2", 1), ("r3", 1)), 1, 5) == [0, 0, 1, 2, 3]


def test_hosts_without_a_rack_are_near_nobody() -> None:
    assert gang(pool(("", 2), ("", 2), ("r1", 1), ("r1", 2)), 1, 3) == [2, 3, 3]


def test_a_gang_that_one_host_has_is_there() -> None:
    assert gang(pool(("r1", 2), ("r1", 2), ("r2", 4)), 1, 4) == [2, 2, 2, 2]


@pytest.mark.parametrize("placement", ["", SPREAD])
def test_of_hosts_that_are_as_empty_one_near_the_users_others(placement: str) -> None:
    machine = pool(("r1", 2), ("r1", 2), ("r2", 2), ("r2", 2))
    machine.handle(UserSet(0.0, "ada", placement=placement))
    assert ask(machine, 1) == [0] and ask(machine, 2, "ben") == [1]
    assert ask(machine, 3, "ben") == [2], "its rack is as full as the others'"
    machine.handle(Released(2.0, 2))
    machine.handle(Released(2.0, 1))
    assert ask(machine, 4, "ben") == [3] and ask(machine, 5, "cyd") == [0], "of the empty ones the one near the other"


def test_who_packs_stays_in_its_rack() -> None:
    """Though a host elsewhere has fewer GPUs left."""
    machine = pool(("r1", 1), ("r1", 4), ("r2", 1))
    machine.handle(UserSet(0.0, "ada", placement=PACK))
    assert ask(machine, 1) == [0]
    assert ask(machine, 2) == [1]
    assert ask(machine, 3, gpus=3) == [1]
    assert ask(machine, 4) == [2], "there is no more in its rack"


def test_where_one_goes_that_migrates() -> None:
    """Of hosts that are as empty to one in its rack."""
    machine = pool(("r1", 1), ("r2", 1), ("r1", 1))
    assert ask(machine, 1) == [0]
    (said,) = machine.handle(Migrate(2.0, 1))
    assert isinstance(said, Destination) and machine.room.host(said.devices[0]) == 2


def test_a_host_comes_back_in_another_rack() -> None:
    machine = pool(("r1", 1), ("r1", 1), ("r2", 1), ("r2", 1))
    machine.handle(HostLeft(1.0, 1))
    machine.handle(HostJoined(1.0, 7, (GIB,), rack="r2"))
    assert gang(machine, 1, 3) == [2, 3, 7]
