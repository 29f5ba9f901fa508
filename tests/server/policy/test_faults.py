"""Deliberate faults of the policy machine: the referee sees each of them in what test_invariants.py plays by chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
from server.policy.test_invariants import MEMORY, by_chance, with_hosts

from gpuvirt.server.policy.events import PRIORITIES, Asked, Migrated
from gpuvirt.server.policy.holding import HOLD_AFTER, Holdings
from gpuvirt.server.policy.hosts import Hosts, Near
from gpuvirt.server.policy.instructions import Instruction, Lost
from gpuvirt.server.policy.kinds import Kind, Kinds
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.migrations import Migrations
from gpuvirt.server.policy.preemption import Choice, Preemption
from gpuvirt.server.policy.room import Room, Shape
from gpuvirt.server.policy.suspension import Suspension
from gpuvirt.server.policy.waiting import Waiting


class Partial(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices[:-1] or devices, out)


class NoMemory(Hosts):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, 0, shape.compute))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, 0, shape.compute))


class NoCompute(Hosts):
    def take(self, device: int, shape: Shape) -> None:
        super().take(device, Shape(shape.gpus, shape.memory))

    def give_back(self, device: int, shape: Shape) -> None:
        super().give_back(device, Shape(shape.gpus, shape.memory))


class Of(PolicyMachine):
    def __init__(self, room: type[Hosts], memory: Sequence[int] = MEMORY) -> None:
        super().__init__()
        self.room = room(memory)
        self.holdings = Holdings(self.room)
        self.waiting = Waiting(self.leases, self.holdings, self._clock, Kinds(self.room))
        self.migrations = Migrations(self.room, self.leases, self._give_back)
        self.preemption = Preemption(self.room, self.holdings)
        self.suspension = Suspension(self.room, self.holdings, self.leases, HOLD_AFTER, self._take)


class NoQuota(PolicyMachine):
    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        super()._grant(lease, devices, out)
        lease.account.gpus -= lease.shape.gpus

    def _release(self, number: int) -> None:
        if number in self.leases and self.leases[number].devices:
            self.leases[number].account.gpus += self.leases[number].shape.gpus
        super()._release(number)


class NoHold(Hosts):
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
    _next_time_out = None  # type: ignore[assignment]


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


class OverHosts(Hosts):
    """A lease has what is free anywhere."""

    def find(self, shape: Shape, most: int | None = None, host: int | None = None, near: Near | None = None) -> list[int]:
        found = super().find(shape, most, host, near)
        more = [d for d, size in enumerate(self.total) if size and d not in found and self.fits(d, shape) and not self._of[d].cordoned]
        return [*found, *more][: shape.gpus] if host is None else found


class Silent(PolicyMachine):
    """Nobody is told that a host has left."""

    def _lose(self, host: int, out: list[Instruction]) -> None:
        super()._lose(host, out)
        out[:] = [one for one in out if not isinstance(one, Lost)]


class Haunted(Hosts):
    """A host that has left is found all the same."""

    def leave(self, host: int) -> None:
        pass


class NoCordon(Hosts):
    """A host that is cordoned grants on."""

    def cordon(self, host: int, cordoned: bool) -> None:
        pass


class Beside(PolicyMachine):
    """What a lease has at its destination is not taken from anybody."""

    def __init__(self) -> None:
        super().__init__()
        self.migrations = BesideMigrations(self.room, self.leases, self._give_back)


class BesideMigrations(Migrations):
    def find_destination(self, lease: Lease, out: list[Instruction]) -> None:
        super().find_destination(lease, out)
        for device in lease.destination:
            self._room.give_back(device, lease.shape)
            self._room.take(device, Shape(lease.shape.gpus))

    def end(self, event: Migrated) -> None:
        for device in self._leases[event.lease].destination if event.lease in self._leases else ():
            self._room.give_back(device, Shape(self._leases[event.lease].shape.gpus))
            self._room.take(device, self._leases[event.lease].shape)
        super().end(event)


class EachForItself(PolicyMachine):
    """The leases of a gang are granted one by one."""

    def _ask_in_gang(self, lease: Lease, out: list[Instruction]) -> None:
        self._queue_up(lease, out)


class Torn(PolicyMachine):
    """What a gang has is shared out among its leases whatever the hosts are."""

    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        if lease.gang and lease.shape.part > 1:
            devices = [*devices[1:], devices[0]]
            at = iter(lease.gang.parts)
            for first in range(0, len(devices), lease.shape.part):
                number = next(at)
                self._give(self.leases[number], devices[first : first + lease.shape.part], out)
            self.waiting.remove(lease, self._at)
            del self.leases[lease.id]
            lease.gang.whole, lease.gang.granted = 0, True
            return
        super()._grant(lease, devices, out)


class GoesOn(PolicyMachine):
    """A gang of which one is given up waits on without it."""

    def _leave_gang(self, lease: Lease) -> None:
        assert lease.gang is not None
        if lease.gang.whole and len(lease.gang.parts) > 1:
            whole = self.leases[lease.gang.whole]
            self.waiting.remove(whole, self._at)
            whole.shape = replace(whole.shape, gpus=whole.shape.gpus - whole.shape.part)
            self.waiting.add(whole, self._at)
            self._out_of_gang(lease)
            del self.leases[lease.id]
            return
        super()._leave_gang(lease)


class Promised(Preemption):
    """Everybody is taken for preemptible."""

    def has_promised(self, lease: Lease) -> bool:
        return True


class ToAnybody(Preemption):
    """They give way to those of their own priority."""

    def any_below(self, priority: int) -> bool:
        return super().any_below(priority + 1)

    def choose(self, shape: Shape, priority: int) -> Choice | None:
        return super().choose(shape, priority + 1)


def gives_way(kind: type[Preemption]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.preemption = kind(machine.room, machine.holdings)
    return machine


class Forgotten(Suspension):
    """Who has given way waits for good."""

    def resume(self, suspended: list[Lease], priority: int, first: int, at: float, out: list[Instruction]) -> bool:
        return False


class Behind(Suspension):
    """Who has given way has its devices again behind all that wait."""

    def resume(self, suspended: list[Lease], priority: int, first: int, at: float, out: list[Instruction]) -> bool:
        return priority == -PRIORITIES and super().resume(suspended, priority, first, at, out)


class AtOnce(Suspension):
    """Who has given way has its devices again whoever has them."""

    def may_resume(self, lease: Lease, at: float) -> bool:
        return True


class OneByOne(Suspension):
    """Each of a gang has its devices again when they are free."""

    def _gang(self, lease: Lease) -> list[Lease]:
        return [lease]


class Stays(PolicyMachine):
    """Of a gang only those give way whose GPUs are wanted."""

    def _ask_to_give_way(self, leases: Iterable[Lease], text: str, out: list[Instruction]) -> None:
        if "of its gang" not in text:
            super()._ask_to_give_way(leases, text, out)


class Given(Hosts):
    """What is given back is not looked at again."""

    def give_back(self, device: int, shape: Shape) -> None:
        before = self._changed_rows.copy()
        super().give_back(device, shape)
        self._changed_rows = before


class LetGo(Hosts):
    """Nor what is not held any more."""

    def hold(self, device: int, held: bool) -> None:
        before = self._changed_rows.copy()
        super().hold(device, held)
        self._changed_rows = before


class WithLess(Kinds):
    """Where there is no room for a kind there is none for what wants less."""

    def in_vain(self, kind: Kind) -> None:
        for other in [other for other in self._able if kind.shape.wants_at_least(other.shape)]:
            super().in_vain(other)
        super().in_vain(kind)


class NotParts(Kinds):
    """A gang is looked for where a host has room for all of it."""

    def _with_room(self, room: Room) -> Iterator[Kind]:
        return (kind for kind in super()._with_room(room) if kind.shape.gpus == kind.shape.together)


class NotOwn(Holdings):
    """What becomes free of the devices that are held for a gang is not looked at with others."""

    def freed(self, device: int) -> None:
        worth = {holding: holding.worth for holding in self}
        super().freed(device)
        for holding in self:
            holding.worth = worth[holding]


def holds(kind: type[Holdings]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.holdings = machine.waiting._holdings = machine.preemption._holdings = machine.suspension._holdings = kind(machine.room)
    return machine


def sorts(kinds: type[Kinds]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.waiting.kinds = kinds(machine.room)
    return machine


def suspends(kind: type[Suspension]) -> PolicyMachine:
    machine = PolicyMachine()
    machine.suspension = kind(machine.room, machine.holdings, machine.leases, HOLD_AFTER, machine._take)
    return machine


OF_HOSTS = {
    "a suspended lease waits": lambda: suspends(Forgotten),
    "was overtaken": lambda: suspends(Behind),
    "held for another|more (memory|compute)": lambda: suspends(AtOnce),
    "a gang is resumed partially": lambda: suspends(OneByOne),
    "a gang gives way partially": Stays,
    "who has not promised": lambda: gives_way(Promised),
    "to none of a higher priority": lambda: gives_way(ToAnybody),
    "a gang is granted partially": EachForItself,
    "not on one host that": Torn,
    "granted partially|is in the order|lost": GoesOn,
    "is cordoned": lambda: Of(NoCordon, ()),
    "more (memory|compute)": Beside,
    "waits for GPUs that are free": lambda: Of(Given, ()),
    "for GPUs that are free": lambda: Of(LetGo, ()),
    "GPUs that are free": lambda: sorts(WithLess),
    "that are free": lambda: sorts(NotParts),
    "are free": lambda: holds(NotOwn),
    "not on one host|held for another": lambda: Of(OverHosts, ()),
    "was not told": Silent,
    "that is there|not another host": lambda: Of(Haunted, ()),
}


@pytest.mark.parametrize("what", OF_HOSTS)
def test_each_fault_with_hosts_is_seen(what: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=what):
        for seed in range(20):
            with_hosts(OF_HOSTS[what](), seed)


FAULTS = {
    "partially": Partial,
    "more memory": lambda memory: Of(NoMemory),
    "more compute": lambda memory: Of(NoCompute),
    "held": lambda memory: Of(NoHold),
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
