"""Who gives way to a higher priority, when, and to what end."""

from __future__ import annotations

import pytest

from gpuvirt.server.policy.events import COMPUTE, Asked, HostCordoned, HostJoined, Migrate, Migrated, Passed, Released, Restored, UserSet
from gpuvirt.server.policy.instructions import Destination, Grant, Instruction, Preempt
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.preemption import PREEMPT_AFTER, PREEMPT_AGAIN

GIB = 1 << 30


def asked(at: float, lease: int, gpus: int = 1, priority: int = 0, preemptible: bool = True, compute: int = COMPUTE) -> Asked:
    return Asked(at, lease, "ada", gpus, 0, compute, priority, preemptible=preemptible)


def gives_way(out: list[Instruction]) -> list[int]:
    return [one.lease for one in out if isinstance(one, Preempt)]


@pytest.fixture
def machine() -> PolicyMachine:
    """Two hosts of two GPUs."""
    machine = PolicyMachine()
    for host in (1, 2):
        machine.handle(HostJoined(0.0, host, (GIB, GIB)))
    machine.handle(UserSet(0.0, "ada", priority=5))
    return machine


def test_as_few_as_possible_give_way_and_what_came_last_first(machine: PolicyMachine) -> None:
    for lease, gpus in ((1, 2), (2, 1), (3, 1)):
        machine.handle(asked(0.0, lease, gpus))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    assert machine.wake == 1.0 + PREEMPT_AFTER and not gives_way(machine.handle(Passed(1.0 + PREEMPT_AFTER - 0.1)))
    assert gives_way(machine.handle(Passed(1.0 + PREEMPT_AFTER))) == [3] and machine.wake is None
    assert "will be free for it: 0 of 1 are" in machine.why(9)
    assert not gives_way(machine.handle(Passed(100.0))), "it is said once"
    (grant,) = machine.handle(Released(101.0, 3))
    assert isinstance(grant, Grant) and grant.lease == 9 and grant.devices == (3,)


def test_what_one_gave_back_nobody_else_gets(machine: PolicyMachine) -> None:
    """Two have to give way for one that wants both GPUs of a host; what waits behind it does not get the first of them."""
    for lease in (1, 2):
        machine.handle(asked(0.0, lease, 1, preemptible=lease == 1))
    machine.handle(asked(0.0, 3, 2, preemptible=False))
    machine.handle(Released(0.0, 1))
    machine.handle(Released(0.0, 2))
    for lease in (4, 5):
        machine.handle(asked(0.0, lease))
    machine.handle(asked(1.0, 9, 2, priority=2, preemptible=False))
    machine.handle(asked(2.0, 8, 1, preemptible=False))
    assert sorted(gives_way(machine.handle(Passed(10.0)))) == [4, 5]
    assert not machine.handle(Released(11.0, 4))
    (grant,) = machine.handle(Released(12.0, 5))
    assert isinstance(grant, Grant) and grant.lease == 9


@pytest.mark.parametrize("priority", [0, 1])
def test_who_is_not_below_does_not_give_way(machine: PolicyMachine, priority: int) -> None:
    for lease in range(1, 5):
        machine.handle(asked(0.0, lease, priority=1))
    machine.handle(asked(1.0, 9, priority=priority, preemptible=False))
    assert machine.wake is None and not gives_way(machine.handle(Passed(50.0)))


def test_where_it_is_not_enough_nobody_gives_way(machine: PolicyMachine) -> None:
    """Each host has one that has not promised it."""
    for lease in range(1, 5):
        machine.handle(asked(0.0, lease, preemptible=lease % 2 == 0))
    assert [machine.leases[lease].devices for lease in range(1, 5)] == [(0,), (1,), (2,), (3,)]
    machine.handle(asked(1.0, 9, 2, priority=1, preemptible=False))
    assert not gives_way(machine.handle(Passed(50.0)))


def test_parts_of_a_gpu_are_added_up(machine: PolicyMachine) -> None:
    for lease in range(1, 9):
        machine.handle(asked(0.0, lease, compute=500))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    one, other = gives_way(machine.handle(Passed(10.0)))
    assert machine.leases[one].devices == machine.leases[other].devices
    machine.handle(Released(11.0, one))
    assert not machine.leases[9].devices
    machine.handle(Released(12.0, other))
    assert machine.leases[9].devices


def test_not_where_nothing_is_granted(machine: PolicyMachine) -> None:
    """A host that is drained gives nobody room by giving way."""
    machine.handle(asked(0.0, 1, 2))
    machine.handle(asked(0.0, 2, 2, preemptible=False))
    host = machine.room.host(machine.leases[1].devices[0])
    assert host is not None
    machine.handle(HostCordoned(0.5, host, True))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    assert not gives_way(machine.handle(Passed(50.0)))


def test_what_was_restored_gives_way_as_before() -> None:
    machine = PolicyMachine()
    machine.handle(UserSet(0.0, "ada", priority=5))
    machine.handle(HostJoined(0.0, 1, (GIB,), (Restored(0.0, 1, "ada", (0,), 0, COMPUTE, -1, True),)))
    machine.handle(asked(1.0, 9, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [1]


def test_a_gang_that_one_host_can_have(machine: PolicyMachine) -> None:
    for lease in (1, 2):
        machine.handle(asked(0.0, lease, 2))
    for lease in (8, 9):
        machine.handle(Asked(1.0, lease, "ada", 1, 0, COMPUTE, 1, gang=4, gang_size=2))
    (given,) = gives_way(machine.handle(Passed(10.0)))
    out = machine.handle(Released(11.0, given))
    assert [one.lease for one in out if isinstance(one, Grant)] == [8, 9]


def test_where_it_has_migrated_to(machine: PolicyMachine) -> None:
    """It gives way for its new host's devices; what waits in vain is looked at again only after a while, and then, too."""
    machine.handle(asked(0.0, 1, 2))
    (there,) = machine.handle(Migrate(0.0, 1))
    assert isinstance(there, Destination)
    machine.handle(Migrated(1.0, 1, True))
    machine.handle(asked(1.0, 2, 2, preemptible=False))
    machine.handle(HostCordoned(1.0, 2, True))
    machine.handle(asked(1.0, 9, 2, priority=1, preemptible=False))
    assert not gives_way(machine.handle(Passed(10.0))) and machine.wake == 10.0 + PREEMPT_AGAIN
    assert not gives_way(machine.handle(HostCordoned(10.5, 2, False)))
    assert gives_way(machine.handle(Passed(10.0 + PREEMPT_AGAIN))) == [1]
    assert granted(machine.handle(Released(12.0, 1))) == {9: there.devices}


def gang(machine: PolicyMachine, size: int, gpus: int, at: float = 1.0) -> None:
    """One of priority 1, whose leases are 11, 12 and so on."""
    for lease in range(11, 11 + size):
        assert not gives_way(machine.handle(Asked(at, lease, "ada", gpus, 0, COMPUTE, 1, gang=4, gang_size=size)))


def granted(out: list[Instruction]) -> dict[int, tuple[int, ...]]:
    return {one.lease: one.devices for one in out if isinstance(one, Grant)}


def test_for_a_gang_that_no_host_can_have_they_give_way_on_several(machine: PolicyMachine) -> None:
    """What they give back is held until all have; nobody else gets any of it."""
    for lease, gpus in ((1, 2), (2, 1), (3, 1)):
        machine.handle(asked(0.0, lease, gpus))
    gang(machine, 2, 2)
    machine.handle(asked(2.0, 8, preemptible=False))
    assert sorted(gives_way(machine.handle(Passed(10.0)))) == [1, 2, 3]
    assert not machine.handle(Released(11.0, 2)) and not machine.handle(Released(12.0, 1))
    assert granted(machine.handle(Released(13.0, 3))) == {11: (0, 1), 12: (2, 3)}


def test_beside_what_is_free_as_few_as_possible_give_way(machine: PolicyMachine) -> None:
    """Of a third host, which is empty, nothing has to be given back; of the others the one where one lease does."""
    machine.handle(HostCordoned(0.0, 2, True))
    for lease in (1, 2):
        machine.handle(asked(0.0, lease, 1))
    machine.handle(HostCordoned(0.0, 2, False))
    machine.handle(asked(0.0, 3, 2))
    machine.handle(HostJoined(0.0, 3, (GIB, GIB)))
    gang(machine, 2, 2)
    assert gives_way(machine.handle(Passed(10.0))) == [3]
    assert granted(machine.handle(Released(11.0, 3))) == {11: (2, 3), 12: (4, 5)}


@pytest.mark.parametrize("why", ["too large", "not promised", "drained"])
def test_for_a_gang_that_cannot_be_had_by_that_nobody_gives_way(machine: PolicyMachine, why: str) -> None:
    for lease in (1, 2):
        machine.handle(asked(0.0, lease, 2, preemptible=lease == 1 or why != "not promised"))
    machine.handle(HostJoined(0.0, 3, (GIB, GIB)))
    machine.handle(asked(0.0, 3, 1, preemptible=False))
    if why == "drained":
        machine.handle(HostCordoned(0.5, 2, True))
    gang(machine, 3 if why == "too large" else 2, 2)
    assert not gives_way(machine.handle(Passed(50.0)))
