"""Who gives way to a higher priority, when, and to what end."""

from __future__ import annotations

import pytest

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
    Restored,
    Suspended,
    UserSet,
)
from gpuvirt.server.policy.holding import HOLD_AFTER
from gpuvirt.server.policy.hosts import ONE
from gpuvirt.server.policy.instructions import Destination, Grant, Instruction, Lost, NoDestination, Preempt, Resume
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.preemption import PREEMPT_AFTER, PREEMPT_AGAIN
from gpuvirt.server.policy.suspension import SETTLE

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


# ---- suspended, instead of given back -------------------------------------------------------------------------------------


def resumed(out: list[Instruction]) -> list[int]:
    return [one.lease for one in out if isinstance(one, Resume)]


def one_gpu() -> PolicyMachine:
    """One GPU, whose lease 1 gives way to lease 9."""
    machine = PolicyMachine([GIB])
    machine.handle(UserSet(0.0, "ada", priority=5))
    machine.handle(asked(0.0, 1))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [1]
    return machine


def test_a_suspended_lease_has_its_gpus_again_before_its_equals() -> None:
    """Its GPU goes to the higher priority, and then back to it, past what came meanwhile and would fit as well."""
    machine = one_gpu()
    assert granted(machine.handle(Suspended(11.0, 1))) == {9: (0,)}
    machine.handle(asked(12.0, 2))
    out = machine.handle(Released(13.0, 9))
    assert resumed(out) == [1] and not granted(out)
    assert granted(machine.handle(Released(14.0, 1))) == {2: (0,)}
    assert [line.split(": ", 1)[1] for line in machine.story(1)][2:] == [
        "it is to give way: a lease of priority 1 waits for its GPUs",
        "it has given way: its GPUs are others'",
        "as lease 9 is over, it has its GPUs again",
        "it is over",
    ]


def test_it_gives_way_again() -> None:
    machine = one_gpu()
    machine.handle(Suspended(11.0, 1))
    machine.handle(asked(12.0, 8, priority=2, preemptible=False))
    assert granted(machine.handle(Released(13.0, 9))) == {8: (0,)}, "a higher priority is before it"
    assert resumed(machine.handle(Released(14.0, 8))) == [1]
    machine.handle(asked(15.0, 7, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(15.0 + PREEMPT_AFTER))) == [1]


def test_what_is_suspended_costs_its_quota_and_nothing_of_its_share() -> None:
    machine = PolicyMachine([GIB])
    machine.handle(UserSet(0.0, "ada", gpus=1))
    machine.handle(UserSet(0.0, "ben", priority=5))
    machine.handle(asked(0.0, 1))
    machine.handle(Asked(1.0, 9, "ben", 1, 0, COMPUTE, 1))
    machine.handle(Passed(10.0))
    machine.handle(Suspended(11.0, 1))
    machine.handle(Passed(100.0))
    assert machine.use("ada") == pytest.approx(11.0, rel=0.01) and machine.gpus("ada") == 1
    machine.handle(asked(101.0, 2))
    assert machine.why(2) == "its token has 1 of the 1 GPU that it may have at a time"
    machine.handle(Released(102.0, 1))
    assert machine.gpus("ada") == 0 and machine.use("ada") == pytest.approx(11.0, rel=0.01)
    assert granted(machine.handle(Released(103.0, 9))) == {2: (0,)}


def test_its_gpus_are_held_for_it_when_it_has_waited_for_long(machine: PolicyMachine) -> None:
    """Two GPUs, of which others always have one: after a minute they are its own as soon as both are free, unless a higher priority waits."""
    machine.handle(HostLeft(0.0, 2))
    machine.handle(asked(0.0, 1, 2))
    for lease in (8, 9):
        machine.handle(asked(1.0, lease, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [1]
    assert list(granted(machine.handle(Suspended(11.0, 1)))) == [8, 9]
    machine.handle(asked(12.0, 2))
    assert granted(machine.handle(Released(13.0, 8))) == {2: (0,)}, "what it cannot have others have"
    assert machine.wake == 11.0 + HOLD_AFTER
    machine.handle(Passed(11.0 + HOLD_AFTER))
    machine.handle(asked(80.0, 3))
    assert not granted(machine.handle(Released(81.0, 2))), "held"
    machine.handle(asked(82.0, 7, priority=1, preemptible=False))
    out = machine.handle(Passed(82.5))
    assert granted(out) == {7: (0,)} and not resumed(out), "not against a higher priority"
    machine.handle(Released(83.0, 7))
    assert resumed(machine.handle(Released(84.0, 9))) == [1]
    assert machine.leases[3].devices == ()


def test_what_was_restored_as_suspended_waits_until_all_are_restored() -> None:
    machine = PolicyMachine([GIB])
    assert not machine.handle(Restored(0.0, 1, "ada", (0,), 0, COMPUTE, 0, True, suspended=True))
    assert granted(machine.handle(Restored(0.1, 9, "ben", (0,), 0, COMPUTE, 0))) == {9: (0,)}
    assert not machine.handle(Passed(SETTLE))
    assert resumed(machine.handle(Released(SETTLE + 1, 9))) == [1]
    machine.handle(Restored(20.0, 2, "ada", (0,), 0, COMPUTE, 0, True, suspended=True))
    machine.handle(Released(20.0, 1))
    assert machine.wake == 20.0 + SETTLE and resumed(machine.handle(Passed(20.0 + SETTLE))) == [2]


def test_of_a_suspended_lease_nothing_is_left() -> None:
    """Its end, that of its host, and words that come too late."""
    machine = one_gpu()
    machine.handle(Suspended(11.0, 1))
    assert not machine.handle(Suspended(11.5, 1)) and not machine.handle(Suspended(11.5, 77))
    assert isinstance(machine.handle(Migrate(11.6, 1))[0], NoDestination) and not machine.has_room(1, (0,))
    machine.handle(Released(12.0, 1))
    machine.handle(Released(13.0, 9))
    assert machine.room.free(0) == (GIB, COMPUTE) and machine.room.leases(0) == 0 and not machine.leases and not machine.gpus("ada")
    machine = one_gpu()
    machine.handle(Suspended(11.0, 1))
    assert {one.lease for one in machine.handle(HostLeft(12.0, ONE)) if isinstance(one, Lost)} == {1, 9} and not machine.leases


def test_who_has_reserved_nothing_is_not_asked() -> None:
    """It would give nobody room."""
    machine = PolicyMachine([GIB])
    machine.handle(UserSet(0.0, "ada", priority=5))
    machine.handle(asked(0.0, 1, compute=0))
    machine.handle(asked(0.0, 2, compute=500))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [2]


# ---- gangs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(machine: PolicyMachine) -> PolicyMachine:
    """A gang of two leases, 1 and 2, each with the two GPUs of a host; lease 9 wants one GPU, and both are asked to give way."""
    for lease in (1, 2):
        machine.handle(Asked(0.0, lease, "ada", 2, 0, COMPUTE, gang=7, gang_size=2, preemptible=True))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    out = machine.handle(Passed(10.0))
    assert sorted(gives_way(out)) == [1, 2]
    first, second = (one for one in out if isinstance(one, Preempt))
    assert (first.text, second.text) == ("a lease of priority 1 waits for its GPUs", "a lease of priority 1 waits for GPUs of its gang")
    return machine


def test_a_gang_gives_way_and_is_resumed_as_one(pair: PolicyMachine) -> None:
    assert list(granted(pair.handle(Suspended(11.0, 2)))) == [9]
    assert not pair.handle(Suspended(12.0, 1)), "its GPUs are free, those of the other are not"
    assert granted(pair.handle(asked(13.0, 3, 2))) == {3: pair.leases[1].devices}, "so others have them"
    assert not resumed(pair.handle(Released(14.0, 9)))
    assert resumed(pair.handle(Released(15.0, 3))) == [1, 2]
    assert gives_way(pair.handle(asked(16.0, 8, priority=1, preemptible=False))) == []
    assert sorted(gives_way(pair.handle(Passed(16.0 + PREEMPT_AFTER)))) == [1, 2]


def test_the_gpus_of_a_gang_are_held_together(pair: PolicyMachine) -> None:
    pair.handle(Suspended(11.0, 2))
    pair.handle(Suspended(12.0, 1))
    pair.handle(asked(13.0, 3))
    pair.handle(Released(14.0, 9))
    pair.handle(Passed(12.0 + HOLD_AFTER))
    pair.handle(asked(80.0, 4))
    assert pair.leases[4].devices == (), "three are free, and held"
    assert resumed(pair.handle(Released(81.0, 3))) == [1, 2] and len(pair.holdings) == 0


def test_a_gang_waits_for_those_of_it_that_have_not_given_way_yet(pair: PolicyMachine) -> None:
    pair.handle(Suspended(11.0, 2))
    assert not resumed(pair.handle(Released(12.0, 9))), "the other one is about to"
    assert resumed(pair.handle(Suspended(13.0, 1))) == [1, 2]


def test_a_gang_does_not_wait_for_good_for_one_that_does_not_give_way(pair: PolicyMachine) -> None:
    pair.handle(Suspended(11.0, 2))
    pair.handle(Released(12.0, 9))
    assert not resumed(pair.handle(Passed(11.0 + HOLD_AFTER - 0.1))) and pair.wake == 11.0 + HOLD_AFTER
    assert resumed(pair.handle(Passed(11.0 + HOLD_AFTER))) == [2]


def test_of_a_gang_that_has_given_way_one_ends(pair: PolicyMachine) -> None:
    pair.handle(Suspended(11.0, 2))
    pair.handle(Suspended(12.0, 1))
    pair.handle(Released(13.0, 1))
    assert resumed(pair.handle(Released(14.0, 9))) == [2]
    assert pair.handle(Released(15.0, 2)) == [] and not pair.leases and not pair.gangs


def test_who_has_not_promised_stays_when_its_gang_gives_way(machine: PolicyMachine) -> None:
    for lease in (1, 2):
        machine.handle(Asked(0.0, lease, "ada", 2, 0, COMPUTE, gang=7, gang_size=2, preemptible=lease == 1))
    machine.handle(asked(1.0, 9, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [1]
    machine.handle(Suspended(11.0, 1))
    assert resumed(machine.handle(Released(12.0, 9))) == [1]


def test_a_machine_that_begins_anew_knows_a_gang_again() -> None:
    """One of it had given way; the other is asked to."""
    machine = PolicyMachine()
    machine.handle(UserSet(0.0, "ada", priority=5))
    for host, suspended in ((1, False), (2, True)):
        lease = Restored(0.0, host, "ada", (0, 1), 0, COMPUTE, 0, True, suspended, gang=7, gang_size=2)
        machine.handle(HostJoined(0.0, host, (GIB, GIB), (lease,)))
    for number in (8, 9):
        machine.handle(asked(1.0, number, 2, priority=1, preemptible=False))
    assert gives_way(machine.handle(Passed(10.0))) == [1]
    machine.handle(Suspended(11.0, 1))
    assert not resumed(machine.handle(Released(12.0, 8)))
    assert sorted(resumed(machine.handle(Released(13.0, 9)))) == [1, 2]


def test_what_is_restored_is_not_of_a_gang_that_assembles(machine: PolicyMachine) -> None:
    """Its other lease has not heard that it was granted, and is asked for anew: the gang is refused when its time is over."""
    machine.handle(Asked(0.0, 2, "ada", 2, 0, COMPUTE, gang=7, gang_size=2, preemptible=True))
    machine.handle(Restored(1.0, 1, "ada", (0, 1), 0, COMPUTE, 0, True, gang=7, gang_size=2))
    assert machine.why(2).startswith("1 of the 2 leases") and machine.leases[1].devices == (0, 1)
    assert machine.handle(Released(2.0, 1)) == [] and machine.place(2) == (1, 1)
