"""The scheduler and the members of a pool of many hosts, in simulated time: what they promise, and each deliberate fault, which is seen."""

from __future__ import annotations

import secrets
from dataclasses import replace
from unittest.mock import patch

import pytest
from cluster.gangs import Gang
from cluster.world import GIB, IMPORTANT, Client, World, program

from gpuvirt.cluster.member import Member
from gpuvirt.cluster.messages import Message, Place, Placed, Wanted
from gpuvirt.cluster.scheduler import TRIES, Scheduler
from gpuvirt.server.policy.events import COMPUTE, Event, Restored
from gpuvirt.server.policy.instructions import Grant, Instruction
from gpuvirt.server.policy.rights import Rights

# ---- one thing at a time --------------------------------------------------------------------------------------------------


def test_any_host_answers_for_all() -> None:
    """Eight programs ask at the same host of four with two GPUs each: all work at once."""
    world = World(1, (2, 2, 2, 2))
    world.run(1.0)
    for _ in range(8):
        world.comes(program(world, at="h0"))
    world.run(2.0)
    assert len(world.clients) == 8 and sorted(c.at for c in world.clients) == sorted(["h0", "h1", "h2", "h3"] * 2)
    assert max(world.waits) < 0.1
    world.run(60.0)
    assert world.outcomes == {"right": 8}
    world.at_rest()


def test_a_gang_is_on_one_host() -> None:
    world = World(1, (1, 2, 4))
    world.run(1.0)
    gang = program(world, 4, "h0")
    world.comes(gang)
    world.run(2.0)
    assert gang.at == "h2"
    world.comes(too_many := program(world, 5, "h0"))
    world.run(8.0)
    assert "no host of this pool has more than 4 GPUs" in too_many.outcome


def test_processes_of_one_launch_work_under_one_lease() -> None:
    """Also those that ask at other hosts, at the same time and later."""
    world = World(1, (2, 2, 2))
    world.run(1.0)
    first = program(world, 2, "h0")
    others = [Client(first.name, 1, 2, COMPUTE, 10.0, at) for at in ("h1", "h2", "h0")]
    for client in (first, *others):
        world.comes(client)
    world.run(3.0)
    late = Client(first.name, 1, 2, COMPUTE, 1.0, "h1")
    world.comes(late)
    world.run(4.0)
    assert len({client.at for client in world.clients}) == 1
    world.run(60.0)
    assert world.outcomes == {"right": 5}
    world.at_rest()


def test_who_waits_knows_its_place() -> None:
    world = World(1, (1, 1))
    world.run(1.0)
    for _ in range(2):
        world.comes(program(world, lasts=20.0))
    world.run(2.0)
    waits = [program(world, at="h0", user=2), program(world, at="h1", user=3)]
    for client in waits:
        world.comes(client)
        world.run(world.now + 1.5)
    lease = next(lease for lease in world.hosts["h1"].leases if lease.waits)
    assert world.hosts["h1"].leases.place(lease) == (2, 2) and "0 of the 1 GPU" in world.hosts["h1"].leases.why(lease)
    world.run(100.0)
    assert world.outcomes == {"right": 4}
    world.at_rest()


def test_a_host_that_dies_is_known_lost_within_five_seconds() -> None:
    world = World(1, (2, 2))
    world.run(1.0)
    world.kill("h1")
    world.run(6.0)
    assert world.scheduler is not None and [entry.name for entry in world.scheduler.hosts] == ["h0"]
    world.comes(gang := program(world, 2, "h0", 1.0))
    world.run(8.0)
    assert gang.outcome == "right"


def test_without_a_scheduler_what_works_goes_on_and_what_comes_waits() -> None:
    world = World(1, (2, 2))
    world.run(1.0)
    works = program(world, 2, "h0", 30.0)
    world.comes(works)
    world.run(2.0)
    dead, world.scheduler = world.scheduler, None
    world.run(10.0)
    waits = program(world, 1, "h1", 1.0)
    world.comes(waits)
    world.run(12.0)
    lease = next(lease for lease in world.hosts["h1"].leases if lease.waits)
    assert "scheduler does not answer" in world.hosts["h1"].leases.why(lease) and not works.outcome
    assert dead is not None
    world.start_scheduler()
    world.run(20.0)
    assert waits.outcome == "right" and world.scheduler is not None
    assert [*world.scheduler.holders().values()] == [works.at], "what works was not found again"
    world.run(60.0)
    assert works.outcome == "right"
    world.at_rest()


def a_process_comes_while_its_host_is_away(world: World) -> World:
    """The second process of a launch asks another host, when a new scheduler has not heard of the first one's yet."""
    world.run(1.0)
    first = program(world, 1, "h0", 30.0)
    world.comes(first)
    world.run(2.0)
    world.replace_scheduler(dead=True)
    world.cut(world.hosts[first.at])
    world.hosts[first.at].member.up = False
    other = next(host for host in world.hosts.values() if host.name != first.at)
    world.connect(other)
    world.run(world.now + 0.1)
    world.comes(Client(first.name, first.user, 1, COMPUTE, 30.0, other.name))
    world.run(world.now + 4.0)
    return world


def test_a_new_scheduler_waits_for_the_hosts_of_the_last_one() -> None:
    world = a_process_comes_while_its_host_is_away(World(1, (2, 2)))
    assert len(world.clients) == 2 and len({client.at for client in world.clients}) == 1
    world.run(60.0)
    assert world.outcomes == {"right": 2}
    world.at_rest()


def test_one_that_does_not_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Scheduler.__init__
    monkeypatch.setattr(Scheduler, "__init__", lambda self, epoch, began, expected=(), rebalance=0: begin(self, epoch, began))
    world = a_process_comes_while_its_host_is_away(World(1, (2, 2)))
    assert len({client.at for client in world.clients}) == 2


def test_the_lowest_limit_of_memory_holds_for_the_pool() -> None:
    """At the scheduler, and at a host that has none of its own."""
    world = World(1, (2, 2))
    limited = world.hosts["h1"]
    limited.member.entry = replace(limited.member.entry, most=GIB)
    world.connect(limited)
    world.run(3.0)
    assert world.scheduler is not None
    for policy in (world.scheduler.machine, world.hosts["h0"].member):
        assert "may have 1.0 GiB" in str(policy.impossible("u", 1, 2 * GIB)) and policy.impossible("u", 1, GIB) is None
    world.kill("h1")
    world.run(10.0)
    assert world.scheduler.machine.impossible("u", 1, 2 * GIB) is None


def test_a_host_that_takes_nothing_is_not_asked_for_ever() -> None:
    world = World(1, (2,))
    world.run(1.0)
    world.hosts["h0"].member.place_here = lambda lease, rights, migrates: "it does not want to"
    world.comes(client := program(world))
    world.run(15.0)
    assert client.outcome == "refused: the host that was to give its GPUs did not: it does not want to"
    assert world.messages["Place"] == TRIES
    world.at_rest()


def test_a_host_that_takes_it_later_is_asked_again() -> None:
    """What it keeps for a lease that migrates there a scheduler that has begun since does not know."""
    world = World(1, (2,))
    world.run(1.0)
    takes = world.hosts["h0"].member.place_here
    world.hosts["h0"].member.place_here = lambda *lease: takes(*lease) if world.now > 4.0 else "something comes here"
    world.comes(client := program(world))
    world.run(8.0)
    assert client.at == "h0" and not client.outcome and 3.0 < world.waits[-1] < 7.0
    world.run(60.0)
    assert client.outcome == "right"
    world.at_rest()


def test_an_earlier_scheduler_is_not_obeyed() -> None:
    """It was cut off, another took its place, and it comes back with what it has decided."""
    world = World(1, (2,))
    world.run(1.0)
    host, former = world.hosts["h0"], world.scheduler
    world.replace_scheduler(dead=True)
    world.run(10.0)
    assert former is not None and host.member.epoch == 2
    said: list[Message] = []
    host.member._send = said.append
    place = Place(1, Wanted(secrets.randbits(62), "u", Rights(), bytes(16), bytes(16), b"l" * 16, b"", 1), (0,))
    host.member.receive(place, world.now)
    assert said == [Placed(place.wanted.lease, "a later scheduler (epoch 2) is in charge")] and not [*host.leases]
    assert "has seen a later scheduler" in str(former.receive("h0", host.member.join(), world.now))


def test_a_new_scheduler_says_of_nothing_that_it_can_never_be_had() -> None:
    """As long as hosts of the one before may still join it. Of what no host has it says so afterwards."""
    world = World(1, (1, 4))
    world.run(1.0)
    world.cut(world.hosts["h1"])
    world.replace_scheduler(dead=True)
    world.connect(world.hosts["h0"])
    world.run(1.1)
    member = world.hosts["h0"].member
    assert member.up and [host.name for host in member.hosts] == ["h0"]
    assert member.impossible("u", 4) is None
    world.comes(large := program(world, 4, "h0", lasts=1.0))
    world.run(20.0)
    assert large.outcome == "right"
    assert member.impossible("u", 4) is None and "this pool has" in str(member.impossible("u", 5))


# ---- everything at once ---------------------------------------------------------------------------------------------------


@patch("gpuvirt.server.leases.ARRIVAL_LIMIT", 1e6)  # what is kept for nobody is not to hide behind it
def chaos(seed: int, hours: float = 0.25) -> World:
    """Programs by chance on six hosts, of which connections are cut, some die and others come, under schedulers that end or are cut off."""
    world = World(seed, (1, 2, 2, 4, 4, 8), rebalance=3)
    chance = world.chance

    def someone() -> bool:
        if world.now < hours * 3600:
            gpus, lasts = chance.choice([1, 1, 1, 2, 2, 4, 8]), chance.expovariate(1 / 20)
            client = program(world, gpus, lasts=lasts, user=chance.randrange(5), compute=chance.choice([COMPUTE, 500, 250, 0]))
            client.preemptible = chance.random() < 0.7
            world.comes(client)
            if chance.random() < 0.1:
                important = program(world, chance.choice([1, 2, 4]), lasts=lasts, user=IMPORTANT)
                important.priority = chance.choice([1, 2])
                world.comes(important)
            if chance.random() < 0.3:  # a second process of the same launch, wherever
                world.comes(Client(client.name, client.user, gpus, client.compute, lasts, chance.choice([*world.hosts])))
            if chance.random() < 0.1:
                Gang(world, chance.choice([*world.hosts]), chance.choice([2, 3, 4]), chance.choice([1, 1, 2]), lasts, chance.randrange(5)).comes()
        return world.now < hours * 3600

    def trouble() -> bool:
        if world.now >= hours * 3600:
            return False
        kind = chance.choice(["cut", "cut", "cut", "stall", "stall", "kill", "new", "dead scheduler", "cut off scheduler"])
        some = chance.choice([*world.hosts]) if world.hosts else ""
        if kind == "cut" and some:
            world.cut(world.hosts[some])
        elif kind == "stall" and some:
            world.hosts[some].stalls = world.now + chance.uniform(0.0, 8.0)
        elif kind == "kill" and len(world.hosts) > 3:
            world.kill(some)
        elif kind == "new" and len(world.hosts) < 9:
            world.add_host(f"n{world._number}", chance.choice([1, 2, 4, 8]))
        elif "scheduler" in kind:
            world.replace_scheduler(dead=kind == "dead scheduler")
        return True

    def goes_elsewhere() -> bool:
        """Some lease is to migrate; some host is drained, or is there again for all."""
        if world.now >= hours * 3600:
            return False
        name = chance.choice([*world.hosts])
        host, kind = world.hosts[name], chance.random()
        cordoned = [other for other in world.hosts.values() if other.member.entry.cordoned]
        if kind < 0.2 or len(cordoned) > 1:
            world.cordon(name if not cordoned else cordoned[0].name, not cordoned)
        able = [lease for lease in host.leases if lease.has_gpus and not lease.suspends and not lease.arrives and lease.number not in world.moving]
        if able:
            world.migrate(name, chance.choice(able).number, chance.choice(["", "", *world.hosts]), wait=chance.random() < 0.5)
        return True

    def heal() -> None:
        for host in world.hosts.values():
            if host.member.entry.cordoned:
                world.cordon(host.name, False)

    world.every(1.5, someone)
    world.every(7.0, trouble)
    world.every(1.7, goes_elsewhere)
    world.passes, world.suspends = 0.9, True
    world.at(hours * 3600, heal)
    world.run(hours * 3600)
    if not any(len(host.memory) == 8 for host in world.hosts.values()):
        world.add_host("last", 8)
    world.retired.clear()
    world.run(hours * 3600 + 1800)
    return world


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_nothing_is_granted_twice_or_leaked(seed: int) -> None:
    judge(chaos(seed))


@pytest.mark.parametrize("seeds", [pytest.param((100, 102), marks=pytest.mark.wide), pytest.param((102, 220), marks=pytest.mark.long)])
def test_that_for_many_seeds(seeds: tuple[int, int]) -> None:
    for seed in range(*seeds):
        judge(chaos(seed))


def judge(world: World) -> None:
    assert not world.clients, f"{len(world.clients)} programs wait for ever: {world.clients[0]}"
    world.at_rest()
    print(f"{sum(world.outcomes.values())} programs: {dict(world.outcomes)}; {sum(world.messages.values())} messages, {world.epoch} schedulers")
    print(f"migrations: {dict(world.migrations)}; suspensions: {dict(world.suspensions)}")
    assert world.outcomes["right"] > 200 and world.outcomes["gang right"] > 10 and world.migrations["done"] > 20
    assert not world.outcomes["refused by a host"], "a host had not what the scheduler thought"
    assert world.suspensions["resumed"] > 5 and world.migrations["relocated"] > 3


# ---- deliberate faults ----------------------------------------------------------------------------------------------------


def two_schedulers_at_once(world: World) -> list[str]:
    """Each places a lease on the same device of a host. Returns why the host did not take them."""
    world.run(1.0)
    host, said = world.hosts["h0"], list[Message]()
    host.member._send = said.append
    for epoch in (1, 2):
        wanted = Wanted(epoch, "u", Rights(), bytes(16), bytes(16), bytes([epoch]) * 16, b"", 1, compute=COMPUTE)
        host.member.receive(Place(epoch, wanted, (0,)), world.now)
        world.check(host)
    return [message.why_not for message in said if isinstance(message, Placed)]


def test_a_host_gives_nothing_twice_whoever_says_so() -> None:
    first, second = two_schedulers_at_once(World(1, (2,)))
    assert not first and "not there" in second


def test_a_host_that_believes_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Member.handle

    def trusting(self: Member, event: Event) -> list[Instruction]:
        return [Grant(event.lease, event.devices)] if isinstance(event, Restored) else handle(self, event)

    monkeypatch.setattr(Member, "handle", trusting)
    with pytest.raises(AssertionError, match="granted twice"):
        two_schedulers_at_once(World(1, (2,)))


def ends_while_its_host_joins(world: World) -> None:
    """A lease, between a host's word that it joins and the answer."""
    world.run(1.0)
    world.comes(works := program(world, at="h0", lasts=1000.0))
    world.run(2.0)
    host = world.hosts["h0"]
    world.cut(host)
    world.connect(host)
    host.leases.leave(works.session, world.now)
    host.leases.launch_ended(works.name, bytes([works.user]) * 16, world.now)
    world.over(works, "right")
    world.run(10.0)
    world.at_rest()


def test_what_ends_while_its_host_joins_is_told() -> None:
    ends_while_its_host_joins(World(1, (1,)))


def test_silence_while_a_host_joins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_when_welcome(self: Member, message: Message) -> None:
        if self.up:
            self._send(message)

    monkeypatch.setattr(Member, "_tell", only_when_welcome)
    with pytest.raises(AssertionError, match="the scheduler keeps leases"):
        ends_while_its_host_joins(World(1, (1,)))


def its_host_dies_before_it_has_the_lease(world: World) -> Client:
    """One of two that could have it; the scheduler has told it already."""
    world.run(1.0)
    world.comes(client := program(world, 2, "h0", 5.0))
    scheduler = world.scheduler
    assert scheduler is not None
    while not scheduler.holders():
        world.run(world.now + 0.0005)
    (host,) = scheduler.holders().values()
    world.kill(host)
    world.run(60.0)
    return client


def test_a_lease_whose_host_dies_is_granted_at_another() -> None:
    world = World(1, (1, 2, 2))
    assert its_host_dies_before_it_has_the_lease(world).outcome == "right"
    world.at_rest()


def test_one_that_is_not_granted_anew_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_again", lambda self, lease, now, out: None)
    assert its_host_dies_before_it_has_the_lease(World(1, (1, 2, 2))).outcome != "right"


def test_an_end_that_is_not_noted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_over", lambda self, sender, number, now, out: None)
    with pytest.raises(AssertionError, match=r"from host to host|keeps leases|for ever"):
        judge(chaos(0))
