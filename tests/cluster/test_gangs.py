"""Gangs of leases in a pool of many hosts: all of them or none, whichever hosts they are on, whatever is lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cluster.gangs import Gang
from cluster.world import World, program

from gpuvirt.cluster import entries
from gpuvirt.cluster import scheduler as scheduler_module
from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import Denied
from gpuvirt.cluster.scheduler import Scheduler
from gpuvirt.server.lease import Lease
from gpuvirt.server.policy.events import Restored, UserSet
from gpuvirt.server.policy.gangs import ASSEMBLY
from gpuvirt.server.policy.rights import Rights


def leases_of(world: World, gang: Gang) -> dict[str, list[Lease]]:
    """Those that are known at each host."""
    found = {name: [lease for lease in host.leases if lease.id in gang.at] for name, host in world.hosts.items()}
    return {name: leases for name, leases in found.items() if leases}


def waits_for_all(world: World) -> Gang:
    """Five GPUs of six are free, and six are wanted."""
    world.run(1.0)
    world.comes(program(world, 1, "h0", 10.0))
    world.run(2.0)
    gang = Gang(world, "h1", 3, 2)
    gang.comes()
    world.run(8.0)
    return gang


def test_all_or_none() -> None:
    world = World(1, (2, 2, 2))
    gang = waits_for_all(world)
    assert {name: len(leases) for name, leases in leases_of(world, gang).items()} == {"h1": 3}
    leases = world.hosts["h1"].leases
    parts = leases_of(world, gang)["h1"]
    assert all(lease.waits and leases.place(lease) == (1, 1) and "4 of the 6 GPUs" in leases.why(lease) for lease in parts)
    world.run(14.0)
    assert sorted(gang.at.values()) == ["h0", "h1", "h2"] and gang.works_until
    world.run(60.0)
    assert world.outcomes == {"right": 1, "gang right": 1}
    world.at_rest()


def test_leases_that_are_granted_one_by_one_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = scheduler_module.Asked
    monkeypatch.setattr(scheduler_module, "Asked", lambda *args: begin(*args[:9]))  # without the gang
    world = World(1, (2, 2, 2))
    assert any(lease.devices for leases in leases_of(world, waits_for_all(world)).values() for lease in leases)


def test_a_gang_that_has_room_on_one_host_is_there() -> None:
    world = World(1, (2, 4, 8))
    world.run(1.0)
    (gang := Gang(world, "h0", 4, 2)).comes()
    world.run(3.0)
    assert {*gang.at.values()} == {"h2"}
    world.run(60.0)
    world.at_rest()


def test_a_gang_that_is_not_complete_is_refused() -> None:
    """Who has asked for some of its leases and has gone is not waited for."""
    world = World(1, (2, 2))
    world.run(1.0)
    gang = Gang(world, "h0", 3, 1)
    missing = gang.at.popitem()[0]
    gang.comes()
    world.run(3.0)
    lease = next(iter(world.hosts["h0"].leases))
    assert world.hosts["h0"].leases.why(lease) == "2 of the 3 leases of its gang have been asked for"
    world.run(3.0 + ASSEMBLY)
    assert gang.outcome == "gang broken" and missing not in gang.at
    world.at_rest()


def its_host_dies(world: World) -> Gang:
    """One of three that were told of it, before it has agreed."""
    world.run(1.0)
    (gang := Gang(world, "h0", 3, 2)).comes()
    scheduler = world.scheduler
    assert scheduler is not None
    while not scheduler.holders():
        world.run(world.now + 0.0005)
    world.kill("h2")
    world.run(60.0)
    return gang


def test_a_host_dies_before_it_has_its_part() -> None:
    """The others go back, and who has asked is told; nobody waits with a part of a gang for the rest of it."""
    world = World(1, (2, 2, 2))
    assert its_host_dies(world).outcome == "gang broken" and world.now < 100
    world.at_rest()


def test_a_part_that_is_asked_for_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Scheduler._again

    def alone(self: Scheduler, lease: object, now: float, out: list[tuple[str, Denied]]) -> None:
        again(self, lease, now, out)  # type: ignore[arg-type]
        out[:] = [(name, message) for name, message in out if not isinstance(message, Denied)]

    monkeypatch.setattr(Scheduler, "_again", alone)
    assert its_host_dies(World(1, (2, 2, 2))).outcome != "gang broken"


def gives_way(world: World, before: Callable[[World], None] = lambda world: None, size: int = 1) -> tuple[Gang, Gang]:
    """A gang of a low priority has the GPUs of both hosts, and another wants those of so many."""
    for host in world.hosts.values():
        host.member.handle(UserSet(0.0, bytes([2] * 16).hex(), priority=5))
    world.run(1.0)
    (low := Gang(world, "h0", 2, 2, lasts=300.0, preemptible=True)).comes()
    world.run(4.0)
    before(world)
    high = Gang(world, "h1", size, 2, lasts=5.0, user=2)
    high.asked = replace(high.asked, priority=3, rights=Rights(priority=5))
    high.comes()
    world.run(world.now + 20.0)
    return low, high


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_gang_gives_way_to_a_higher_priority(hosts: int) -> None:
    """Its keeper hears so from the host that has the lease, wherever it was asked for."""
    world = World(1, (2, 2))
    low, high = gives_way(world, size=hosts)
    assert low.outcome == "gang gave way" and "of priority 3" in low.preempted and high.outcome == "gang right"
    world.run(100.0)
    world.at_rest()


def test_it_does_at_the_next_scheduler() -> None:
    """Which hears of its promise from the hosts that have its leases."""
    world = World(1, (2, 2))
    low, high = gives_way(world, lambda world: world.replace_scheduler(dead=True))
    assert low.outcome == "gang gave way" and high.outcome == "gang right"


def suspended(world: World) -> int:
    return sum(lease.suspended for host in world.hosts.values() for lease in host.leases)


def comes_and_goes(world: World, between: Callable[[World], None]) -> None:
    """A gang has both hosts; one of a higher priority wants one of them for a while."""
    world.suspends = True
    for host in world.hosts.values():
        host.member.handle(UserSet(0.0, bytes([2] * 16).hex(), priority=5))
    world.run(1.0)
    Gang(world, "h0", 2, 2, lasts=300.0, preemptible=True).comes()
    world.run(4.0)
    between(world)
    high = Gang(world, "h1", 1, 2, lasts=30.0, user=2)
    high.asked = replace(high.asked, priority=3, rights=Rights(priority=5))
    high.comes()
    world.run(world.now + 20.0)
    assert high.works_until and not high.outcome
    between(world)
    world.run(world.now + 60.0)
    assert high.outcome == "gang right"


@pytest.mark.parametrize("anew", [False, True], ids=["the same scheduler", "the next ones"])
def test_a_gang_is_suspended_and_resumed_as_a_whole(anew: bool) -> None:
    world, counts = World(1, (2, 2)), []

    def between(world: World) -> None:
        counts.append(suspended(world))
        if anew:
            world.replace_scheduler(dead=True)
            world.run(world.now + 4.0)

    comes_and_goes(world, between)
    assert counts == [0, 2] and world.suspensions == {"suspended": 2, "resumed": 2}
    world.run(500.0)
    assert world.outcomes == {"gang right": 2}
    world.at_rest()


def test_a_gang_that_the_next_scheduler_takes_apart_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "Restored", lambda *args: Restored(*args[:-2]))
    counts: list[int] = []

    def between(world: World) -> None:
        counts.append(suspended(world))
        world.replace_scheduler(dead=True)
        world.run(world.now + 4.0)

    comes_and_goes(World(1, (2, 2)), between)
    assert counts == [0, 1]


def test_a_promise_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Member._wanted
    monkeypatch.setattr(Member, "_wanted", lambda self, lease: replace(wanted(self, lease), preemptible=lease.waits and lease.preemptible))
    low, high = gives_way(World(1, (2, 2)), lambda world: world.replace_scheduler(dead=True))
    assert not low.outcome and not high.outcome


def test_a_scheduler_dies_while_a_gang_waits() -> None:
    """The next one hears of all of its leases, and grants them together."""
    world = World(1, (2, 2, 2))
    gang = waits_for_all(world)
    world.replace_scheduler(dead=True)
    world.run(30.0)
    assert gang.works_until or gang.outcome == "gang right"
    world.run(60.0)
    assert world.outcomes == {"right": 1, "gang right": 1}
    world.at_rest()
