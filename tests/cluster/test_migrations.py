"""Leases that migrate in a pool of many hosts, in simulated time: whoever is lost, each is at one host, and nobody gets what is kept for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster.world import Client, World, program

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import Held, Join
from gpuvirt.server.policy.events import Kept
from gpuvirt.server.policy.machine import PolicyMachine


def one_lease(world: World, name: str) -> int:
    (number,) = (lease.number for lease in world.hosts[name].leases if lease.devices)
    return number


def two_programs(world: World) -> tuple[Client, Client]:
    """One for 300 s, another for 60 s, which have all that two hosts have."""
    world.run(1.0)
    both = program(world, at="h0", lasts=300.0), program(world, at="h1", lasts=60.0)
    for client in both:
        world.comes(client)
        world.run(world.now + 1.0)
    return both


def test_a_lease_migrates_and_is_found_where_it_is() -> None:
    """Also by the next process of its launch, which asks where it was."""
    world = World(1, (2, 2, 2))
    world.run(1.0)
    world.comes(first := program(world, 2, "h0", lasts=100.0))
    world.run(2.0)
    source, destination = first.at, "h2" if first.at != "h2" else "h1"
    number = one_lease(world, source)
    world.migrate(source, number, destination)
    world.run(30.0)
    assert first.at == destination and world.migrations["done"] == 1 and not [*world.hosts[source].leases]
    world.comes(second := Client(first.name, first.user, 2, first.compute, 10.0, source))
    world.run(33.0)
    assert second.at == destination and one_lease(world, destination) == number
    world.run(200.0)
    assert world.outcomes == {"right": 2}
    world.at_rest()


def test_one_that_cannot_migrate_stays() -> None:
    """At once where it does not want to wait; else until there is room."""
    world = World(1, (1, 1))
    long, short = two_programs(world)
    source, number = long.at, one_lease(world, long.at)
    world.migrate(source, number)
    world.run(5.0)
    assert world.migrations["stayed"] == 1
    world.migrate(source, number, "nobody")
    world.run(6.0)
    assert world.migrations["stayed"] == 2
    world.migrate(source, number, wait=True)
    world.run(50.0)
    assert long.at == source and one_lease(world, source) == number
    world.run(120.0)
    assert long.at == short.at and one_lease(world, short.at) == number and world.migrations["done"] == 1


def test_what_migrates_goes_before_what_waits() -> None:
    """A host is drained though others wait for GPUs."""
    world = World(1, (1, 1))
    long, short = two_programs(world)
    source = long.at
    world.comes(later := program(world, at="h0", lasts=10.0, user=2))
    world.run(5.0)
    world.cordon(source, True)
    world.migrate(source, one_lease(world, source), wait=True)
    world.run(120.0)
    assert long.at == short.at and not [lease for lease in world.hosts[source].leases if lease.devices] and not later.outcome
    world.cordon(source, False)
    world.run(125.0)
    assert later.at == source and one_lease(world, source)


def test_a_cordoned_host_is_so_for_the_next_scheduler() -> None:
    world = World(1, (1, 1))
    world.run(1.0)
    world.cordon("h0", True)
    world.run(2.0)
    world.replace_scheduler(dead=True)
    world.run(10.0)
    world.comes(client := program(world, at="h0"))
    world.run(11.0)
    assert client.at == "h1"


def migrates_as_the_scheduler_dies(world: World) -> Client:
    """The next one hears of it from the hosts: where it is, and that it is there no more."""
    world.run(1.0)
    world.comes(client := program(world, at="h0", lasts=100.0))
    world.run(2.0)
    source, destination = client.at, "h1" if client.at == "h0" else "h0"
    world.migrate(source, one_lease(world, source))
    while not world.migrations["begun"]:
        world.run(world.now + 0.001)
    assert [lease.arrives for lease in world.hosts[destination].leases] == [True]
    world.replace_scheduler(dead=True)
    world.run(40.0)
    assert world.migrations["done"] == 1, world.migrations
    assert world.scheduler is not None
    assert [*world.scheduler.holders().values()] == [destination], "the scheduler believes it elsewhere"
    return client


def test_a_migration_outlives_the_scheduler() -> None:
    world = World(3, (1, 1))
    client = migrates_as_the_scheduler_dies(world)
    world.run(200.0)
    assert client.outcome == "right"
    world.at_rest()


def one_of_both_is_cut_off(world: World, which: str) -> None:
    """After the lease was placed at its destination, and before its source has heard of that. The source's connection stalls first, so that the
    scheduler hears all that the destination has to say."""
    world.run(1.0)
    world.comes(client := program(world, at="h0", lasts=1000.0))
    world.run(2.0)
    source, destination = world.hosts[client.at], world.hosts["h1" if client.at == "h0" else "h0"]
    world.migrate(client.at, one_lease(world, client.at))
    while not [*destination.leases]:
        world.run(world.now + 0.0005)
    if which == "source":
        source.stalls = world.now + 10.0
    else:
        world.cut(destination)
        world.connect(destination)
    world.run(20.0)
    assert not [*destination.leases], "it keeps devices for a lease that does not come"
    assert world.migrations == {"asked for": 1, "stayed": 1}


@pytest.mark.parametrize("which", ["source", "destination"])
def test_when_one_of_both_was_cut_off_the_destination_keeps_nothing(which: str) -> None:
    one_of_both_is_cut_off(World(1, (1, 1)), which)


def test_one_that_does_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = World.finish
    monkeypatch.setattr(World, "finish", lambda self, host, number: None if host.leases.get(number).arrives else finish(self, host, number))
    with pytest.raises(AssertionError, match="keeps devices"):
        one_of_both_is_cut_off(World(1, (1, 1)), "destination")


def test_an_arrival_that_is_not_told_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "arrived", lambda self, lease: None)
    with pytest.raises(AssertionError, match="elsewhere"):
        migrates_as_the_scheduler_dies(World(3, (1, 1)))


def test_a_lease_that_is_told_before_it_has_arrived_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then two hosts have it for the next scheduler, and one of them is told to end it."""
    join = Member.join

    def tells_all(self: Member) -> Join:
        told, arriving = join(self), [lease for lease in self.leases() if lease.arrives]
        return replace(told, held=(*told.held, *(Held(self._wanted(lease), lease.devices) for lease in arriving)))

    monkeypatch.setattr(Member, "join", tells_all)
    with pytest.raises(AssertionError):
        for seed in range(10):
            assert migrates_as_the_scheduler_dies(World(seed, (1, 1))).outcome != "ended by the scheduler"


def asks_while_a_lease_comes(world: World, lost: str) -> Client:
    """Its image takes 40 s. After a second its source is lost, or the scheduler; a program wants the destination's GPU."""
    world.carrying = 40.0, 40.0
    world.run(1.0)
    world.comes(client := program(world, at="h0", lasts=70.0))
    world.run(2.0)
    source, destination = client.at, "h1" if client.at == "h0" else "h0"
    world.migrate(source, one_lease(world, source))
    world.run(3.0)
    if lost == "source":
        world.kill(source)
    elif lost == "source's connection":
        world.hosts[source].stalls = world.now + 10.0
    else:
        world.replace_scheduler(dead=True)
    world.run(12.0)
    world.comes(other := program(world, at=destination, lasts=5.0))
    world.run(41.0)
    assert not other.outcome and other in world.clients, "it did not wait"
    world.run(300.0)
    world.at_rest()
    assert client.outcome == ("lost with its host" if lost == "source" else "right")
    return other


@pytest.mark.parametrize("lost", ["source", "source's connection", "scheduler"])
def test_nobody_gets_what_is_kept_for_a_lease_that_comes(lost: str) -> None:
    """What a destination keeps it keeps, whoever has forgotten that; who wants it waits, and is not sent to a host that refuses it."""
    assert asks_while_a_lease_comes(World(1, (1, 1)), lost).outcome == "right"


@pytest.mark.parametrize("lost", ["source", "scheduler"])
def test_what_is_not_known_to_be_kept_is_seen(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    join = Member.join
    monkeypatch.setattr(Member, "join", lambda self: replace(join(self), coming=()))
    handle = PolicyMachine.handle
    monkeypatch.setattr(PolicyMachine, "handle", lambda self, event: [] if isinstance(event, Kept) else handle(self, event))
    with pytest.raises(AssertionError):
        assert asks_while_a_lease_comes(World(1, (1, 1)), lost).outcome == "right"
