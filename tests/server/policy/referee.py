"""Watches a policy machine: keeps its own books of what was asked, granted and released, and asserts after every event what must always hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuvirt.server.policy.events import (
    COMPUTE,
    Asked,
    Event,
    HostCordoned,
    HostJoined,
    HostLeft,
    Migrate,
    Migrated,
    Released,
    Stays,
    Suspended,
    UserRevoked,
    UserSet,
)
from gpuvirt.server.policy.gangs import ASSEMBLY
from gpuvirt.server.policy.holding import HOLD_AFTER
from gpuvirt.server.policy.hosts import ONE
from gpuvirt.server.policy.instructions import (
    Destination,
    End,
    Grant,
    Hold,
    Instruction,
    Lost,
    NoDestination,
    Preempt,
    Queue,
    Refuse,
    Relocate,
    Resume,
    TimedOut,
)
from gpuvirt.server.policy.machine import LOOK, PolicyMachine
from gpuvirt.server.policy.passes import LOOK_USER
from gpuvirt.server.policy.rebalancing import LIMIT as REBALANCE_LIMIT
from gpuvirt.server.policy.shares import AHEAD, HALF_LIFE
from gpuvirt.server.policy.suspension import SETTLE


@dataclass
class Known:
    """A lease that waits or is granted. destination: what it has of another host until it has migrated; seeks: it waits for that; suspended: since
    when its devices are others'."""

    asked: Asked
    arrival: int
    devices: tuple[int, ...] = ()
    destination: tuple[int, ...] = ()
    seeks: bool = False
    at: float = 0.0  # granted
    suspended: float | None = None  # since when it waits for its devices


class Referee:
    """Args: machine: fresh. memory: bytes of its devices, all of one host; (): hosts join later. rebalance: how many leases may move to a host that
    comes."""

    def __init__(self, machine: PolicyMachine, memory: Sequence[int], rebalance: int = 0) -> None:
        self.rebalance = rebalance
        self.relocations: dict[int, int] = {}  # by host, since it came
        self.relocating: dict[int, tuple[int, float]] = {}  # by lease: the host, and since when
        self.relocated = 0
        self.machine, self.memory = machine, [*memory]  # of devices whose hosts have left, too
        self.hosts = {ONE: range(len(memory))} if memory else dict[int, range]()
        self.cordoned: set[int] = set()
        self.migrated = 0
        self.now = 0.0
        self.leases: dict[int, Known] = {}
        self.users: dict[str, UserSet] = {}
        self.revoked: set[str] = set()
        self.used: dict[str, float] = {}  # faded, brought up to `now` at each event
        self.gangs: dict[tuple[str, int], set[int]] = {}  # what was asked for of each, and neither refused nor over
        self.preempted: set[int] = set()
        self.resumed = self.resumed_together = 0  # leases, gangs
        self.shared_out = 0  # gangs that were granted on several hosts
        self.arrivals = 0
        self.longest_wait = 0.0

    # ---- one event ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, thorough: bool = True) -> list[Instruction]:
        """Gives the event to the machine, judges its answer and, if thorough, the whole of its state."""
        gone = set(self.hosts.get(event.host, ())) if isinstance(event, HostLeft | HostCordoned) else set()
        before = {number: devices for number, devices in self._held().items() if not devices & gone}  # else it begins to hold anew
        out = self.machine.handle(event)
        self._pass_time(event.at)
        match event:
            case UserSet():
                self.users[event.user] = event
                self.revoked.discard(event.user)
            case UserRevoked():
                self.revoked.add(event.user)
                has = {number for number, known in self.leases.items() if known.devices and known.asked.user == event.user}
                assert {one.lease for one in out if isinstance(one, End)} == has, "what a revoked user has was not ended"
            case Asked():
                self.arrivals += 1
                self.leases[event.lease] = Known(event, self.arrivals)
                if event.gang:
                    self.gangs.setdefault((event.user, event.gang), set()).add(event.lease)
                answers = [one for one in out if one.lease == event.lease and isinstance(one, Grant | Queue | Refuse)]
                assert len(answers) == 1, "a request has one answer"
                assert not (event.no_wait and isinstance(answers[0], Queue)), "who does not want to wait waits"
            case Released():
                self.leases.pop(event.lease, None)
                self.relocating.pop(event.lease, None)
                self.gangs = {gang: parts - {event.lease} for gang, parts in self.gangs.items()}
            case Suspended():
                known = self.leases[event.lease]
                if known.devices and known.suspended is None:
                    known.suspended = self.now if event.lease in self.preempted else self.now + SETTLE
            case HostJoined():
                self._join(event)
                self.relocations[event.host] = 0
            case Stays():
                self.relocating.pop(event.lease, None)
            case HostCordoned():
                self.relocations[event.host] = 0
                (self.cordoned.add if event.cordoned else self.cordoned.discard)(event.host)
            case Migrate():
                answers = [one for one in out if one.lease == event.lease and isinstance(one, Destination | NoDestination)]
                assert len(answers) == 1 or (event.wait and not answers), "who asks for a destination has one answer"
                self.leases[event.lease].seeks = True
            case Migrated():
                self._migrated(event)
            case HostLeft():
                gone = self.hosts.pop(event.host, range(0))
                left = {number for number, known in self.leases.items() if set(known.destination) & set(gone)}
                assert left <= {one.lease for one in out if isinstance(one, NoDestination)}, "what was to go to a host that left was not told"
                had = {number for number, known in self.leases.items() if set(known.devices) & set(gone)}
                assert {one.lease for one in out if isinstance(one, Lost)} == had, "what had GPUs of a host that left was not told"
                for number in had:
                    del self.leases[number]
                    self.relocating.pop(number, None)
                self.gangs = {gang: parts - had for gang, parts in self.gangs.items()}
        for one in out:
            self._judge(one, before)
        self._check_gangs(out)
        self._check_suspended(out, before, at_rest=not isinstance(event, Asked))  # one that is refused changes nothing
        if thorough:
            self.check()
        return out

    def _join(self, event: HostJoined) -> None:
        numbers = self.machine.room.devices(event.host)
        assert len(numbers) == len(event.memory) and not any(set(numbers) & set(others) for others in self.hosts.values()), "two hosts have a device"
        self.hosts[event.host] = numbers
        (self.cordoned.add if event.cordoned else self.cordoned.discard)(event.host)
        self.memory += [0] * (numbers.stop - len(self.memory))
        self.memory[numbers.start : numbers.stop] = event.memory

    def _migrated(self, event: Migrated) -> None:
        known = self.leases.get(event.lease)
        host = self.relocating.pop(event.lease, (-1, 0.0))[0]
        self.relocated += event.done and known is not None and self._host(known.destination) == host
        if known is not None:
            if event.done and known.destination:
                known.devices = known.destination
                self.preempted.discard(event.lease)
                self.migrated += 1
            known.destination, known.seeks = (), False

    def _host(self, devices: tuple[int, ...]) -> int | None:
        """The host that has all of these."""
        return next((host for host, numbers in self.hosts.items() if set(devices) <= set(numbers)), None)

    def _judge(self, one: Instruction, before: dict[int, frozenset[int]]) -> None:
        if isinstance(one, End | Lost):
            return
        if isinstance(one, Preempt):
            self._judge_preempt(one)
            return
        assert one.lease in self.leases, f"{one} of a lease that is not there"
        known = self.leases[one.lease]
        if isinstance(one, Relocate):
            self._judge_relocate(one)
            return
        if isinstance(one, Resume):
            assert known.suspended is not None, "a lease is resumed that has its GPUs"
            self._judge_taken(one.lease, known.devices, before)
            known.suspended = None
            self.preempted.discard(one.lease)
            self.resumed += 1
            return
        if isinstance(one, Destination | NoDestination):
            migrates = known.seeks or (known.destination and isinstance(one, NoDestination))
            assert known.devices and migrates, f"{one} of a lease that does not migrate"
            known.seeks, known.destination = False, one.devices if isinstance(one, Destination) else ()
            if isinstance(one, Destination):
                host = self._host(one.devices)
                assert host is not None and host != self._host(known.devices), "its destination is not another host"
                assert host not in self.cordoned, "a device of a host that is cordoned was granted"
                assert [self.memory[d] for d in one.devices] == [self.memory[d] for d in known.devices], "its destination has other GPUs"
            return
        assert not known.devices or (isinstance(one, Hold) and known.suspended is not None), f"{one} of a lease that is granted"
        match one:
            case Grant():
                assert len(set(one.devices)) == len(one.devices) == known.asked.gpus, "a gang is granted partially"
                assert self._host(one.devices) is not None, "its GPUs are not on one host that is there"
                assert self._host(one.devices) not in self.cordoned, "a device of a host that is cordoned was granted"
                self._judge_taken(one.lease, one.devices, before)
                known.devices, known.at = one.devices, self.now
                self.longest_wait = max(self.longest_wait, self.now - known.asked.at)
            case Refuse() | TimedOut():
                assert one.text
                if isinstance(one, TimedOut):
                    waited, limits = self.now - known.asked.at, [known.asked.wait] * bool(known.asked.wait) + [ASSEMBLY] * bool(known.asked.gang)
                    assert limits and waited >= min(limits), "it had not waited that long"
                del self.leases[one.lease]
                self.gangs = {gang: parts - {one.lease} for gang, parts in self.gangs.items()}
            case Queue():
                assert 1 <= one.place <= one.queued and one.why
            case Hold():
                assert len(set(one.devices)) == known.asked.gpus, "another number of devices is held"

    def _judge_taken(self, lease: int, devices: tuple[int, ...], before: dict[int, frozenset[int]]) -> None:
        still = self._held()
        for other, held in before.items():
            taken = held & still.get(other, frozenset()) & set(devices)
            assert other == lease or not taken, "a device that is held for another was granted"

    def _judge_relocate(self, one: Relocate) -> None:
        known = self.leases[one.lease]
        assert known.devices and not known.destination and known.suspended is None, "what has no GPUs, or migrates, is to move"
        assert one.host in self.hosts and one.host not in self.cordoned, "a lease is to move to a host that takes none"
        assert self._host(known.devices) != one.host, "a lease is to move to where it is"
        counts = Counter(d for k in self.leases.values() for d in (*(k.devices if k.suspended is None else ()), *k.destination))
        crowd, there = min(counts[device] for device in known.devices), sorted(counts[device] for device in self.hosts[one.host])
        assert len(there) >= len(known.devices) and crowd >= there[len(known.devices) - 1] + 2, "a lease is to move and gains nothing"
        assert all(self.now >= since + REBALANCE_LIMIT for _, since in self.relocating.values()), "two leases are to move at the same time"
        self.relocating[one.lease] = one.host, self.now
        self.relocations[one.host] += 1
        assert self.relocations[one.host] <= self.rebalance, "more leases are to move than may"

    def _judge_preempt(self, one: Preempt) -> None:
        known = self.leases[one.lease]
        assert known.asked.preemptible and known.devices and known.suspended is None, "who has not promised it is to give way"
        assert one.lease not in self.preempted, "a lease is asked twice to give way"
        self.preempted.add(one.lease)
        theirs = {device for number in self._parts(one.lease) for device in self.leases[number].devices}  # one of a gang does with the others
        held = [self.leases[number].asked for number, devices in self._held().items() if devices & theirs]
        assert any(asked.priority > known.asked.priority for asked in held), "a lease gives way to none of a higher priority"

    def _held(self) -> dict[int, frozenset[int]]:
        """What is held, by lease; for a gang by each of its leases."""
        held = {holding.lease: frozenset(holding.devices) for holding in self.machine.holdings}
        wholes = {gang.whole: gang.parts for gang in self.machine.gangs.values()}
        return {number: devices for entry, devices in held.items() for number in wholes.get(entry, [entry])}

    def _assembles(self, known: Known) -> bool:
        gang = known.asked.user, known.asked.gang
        return bool(known.asked.gang) and len(self.gangs[gang]) < known.asked.gang_size

    def _check_gangs(self, out: list[Instruction]) -> None:
        """All or none: no gang has a lease that waits beside one that has got its GPUs."""
        for parts in self.gangs.values():
            got = {one.lease: self._host(one.devices) for one in out if isinstance(one, Grant) and one.lease in parts}
            asked = {self.leases[number].asked.gang_size for number in got}
            assert not got or asked == {len(got)}, "a gang is granted partially"
            self.shared_out += len(set(got.values())) > 1
            again = {one.lease for one in out if isinstance(one, Resume)} & parts
            assert not again or all(self.leases[number].suspended is None for number in parts), "a gang is resumed partially"
            self.resumed_together += len(again) > 1
            away = {one.lease for one in out if isinstance(one, Preempt)} & parts
            promised = {number for number in parts if self.leases[number].asked.preemptible and self.leases[number].suspended is None}
            reserves = any(self.leases[number].asked.memory or self.leases[number].asked.compute for number in away)
            assert not away or not reserves or promised <= self.preempted, "a gang gives way partially"

    def _free(self) -> tuple[list[int], list[int]]:
        """Bytes and parts of compute by device that nobody has reserved."""
        memory, compute = self.memory.copy(), [COMPUTE] * len(self.memory)
        for known in self.leases.values():
            for device in (*(known.devices if known.suspended is None else ()), *known.destination):
                memory[device] -= known.asked.memory
                compute[device] -= known.asked.compute
        return memory, compute

    def _check_suspended(self, out: list[Instruction], before: dict[int, frozenset[int]], at_rest: bool) -> None:
        """Nobody of its own priority or a lower one gets what a suspended lease could have, unless it was held for it; nothing of that is idle."""
        memory, compute = self._free()
        every = self._held()
        got = {one.lease: one.devices for one in out if isinstance(one, Grant)}
        for number, known in self.leases.items():
            if known.suspended is None:
                continue
            parts = {part for part in self._parts(number) if self.leases[part].suspended is not None}
            since = max(self.leases[part].suspended or 0.0 for part in parts)
            expected = {part for part in self._parts(number) - parts if part in self.preempted}  # they are about to give way as well
            if self.now < (since + HOLD_AFTER if expected else since):
                continue
            others = {device for other, devices in every.items() if other not in parts for device in devices}
            asked, wanted = known.asked, Counter(device for part in parts for device in self.leases[part].devices)
            behind = [devices for lease, devices in got.items() if self.leases[lease].asked.priority <= asked.priority and lease not in before]
            idle: list[tuple[tuple[int, ...], str]] = [((), "a suspended lease waits for GPUs that are free")] if at_rest else []
            for given, text in [*idle, *((devices, "was overtaken") for devices in behind)]:
                share = [(self.leases[lease].asked.memory, self.leases[lease].asked.compute) for lease, devices in got.items() if devices is given]
                more = share[0] if share else (0, 0)
                free = [
                    device not in others
                    and memory[device] + more[0] * (device in given) >= max(asked.memory * count, 1)
                    and compute[device] + more[1] * (device in given) >= max(asked.compute * count, 1)
                    for device, count in wanted.items()
                ]
                assert not all(free), text

    def _pass_time(self, at: float) -> None:
        at = max(at, self.now)
        faded = 0.5 ** ((at - self.now) / HALF_LIFE)
        # The integral of a constant rate that fades: rate * (1 - faded) * HALF_LIFE / ln 2.
        grown = (1 - faded) * HALF_LIFE / 0.6931471805599453
        rates = self._rates()
        self.used = {user: self.used.get(user, 0.0) * faded + rates.get(user, 0.0) * grown for user in self.used.keys() | rates.keys()}
        self.now = at

    def _rates(self) -> dict[str, float]:
        rates: dict[str, float] = {}
        for known in self.leases.values():
            for device in known.devices if known.suspended is None else ():
                share = max(known.asked.compute / COMPUTE, known.asked.memory / self.memory[device])
                rates[known.asked.user] = rates.get(known.asked.user, 0.0) + share
        return rates

    # ---- what must always hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        memory, compute = self._free()
        gpus = dict[str, int]()
        for known in self.leases.values():
            gpus[known.asked.user] = gpus.get(known.asked.user, 0) + len(known.devices)
        assert min(memory, default=0) >= 0, "more memory is reserved than a device has"
        assert min(compute, default=0) >= 0, "more compute is reserved than a device has"
        self._check_quotas(gpus)
        waiting = {number: known for number, known in self.leases.items() if not known.devices}
        order = self.machine.order()
        assert sorted(order) == sorted(waiting), "a lease that waits was lost"
        ready = [number for number in order if not self._assembles(self.leases[number])]
        entries = [*dict.fromkeys(self._entry(number) for number in ready)]
        assert len(self.machine.waiting) == len(entries) and order[: len(ready)] == ready, "what assembles is in the order"
        for number in order:
            place = entries.index(self._entry(number)) if number in ready else len(entries)
            assert self.machine.place(number) == (place + 1, max(len(entries), place + 1)), "a wrong place"
            assert self.machine.why(number)
        self._check_order([min(self._parts(number)) for number in ready if number == min(self._parts(number))])
        self._check_nothing_idle(waiting, memory, compute, gpus)
        for known in waiting.values():
            assert not known.asked.wait or known.asked.gang or self.now < known.asked.at + known.asked.wait, "it has waited for too long"
        assert all(known.asked.user not in self.revoked for known in waiting.values()), "a revoked user waits"

    def _entry(self, number: int) -> tuple[str, int] | int:
        """What is queued: the lease, or the gang."""
        asked = self.leases[number].asked
        return (asked.user, asked.gang) if asked.gang else number

    def _parts(self, number: int) -> set[int]:
        asked = self.leases[number].asked
        return self.gangs[asked.user, asked.gang] if asked.gang else {number}

    def _check_quotas(self, gpus: dict[str, int]) -> None:
        for user, number in gpus.items():
            quota = self.users[user].gpus if user in self.users else 0
            has = max((k.at for k in self.leases.values() if k.devices and k.asked.user == user), default=0.0)
            lowered = user in self.users and self.users[user].at >= has  # what it had before its quota was made smaller stays
            assert not quota or number <= quota or lowered, "more GPUs than the quota"

    def _check_order(self, order: list[int]) -> None:
        rates = self._rates()
        held = {number: devices for number, devices in self._held().items() if number in order}
        assert set(order[: len(held)]) == held.keys(), "one that holds is behind one that does not"
        ranked = [self.leases[number] for number in order if number not in held]
        for first, second in itertools.pairwise(ranked):
            a, b = first.asked, second.asked
            if a.priority != b.priority:
                assert a.priority > b.priority, "a lower priority is ahead of a higher one"
            elif a.user == b.user:
                assert self._arrival(first) < self._arrival(second), "who came later is ahead"
            else:
                keys = [
                    (self.used.get(user, 0.0) + AHEAD * rates.get(user, 0.0)) / (self.users[user].weight if user in self.users else 1.0)
                    for user in (a.user, b.user)
                ]
                assert keys[0] <= keys[1] * (1 + 1e-6) + 1e-3, "who has used more is ahead"

    def _arrival(self, known: Known) -> int:
        """Of a gang: when it was the last time that all of it had been asked for."""
        return max(self.leases[number].arrival for number in self._parts(known.asked.lease))

    def _not_looked_at(self, waiting: dict[int, Known]) -> set[str]:
        """Users of whose leases a pass may not see all: it sees each of a user with a quota, and of gangs each kind."""
        gangs = {(known.asked.gpus, known.asked.memory, known.asked.compute, known.asked.gang_size) for known in waiting.values() if known.asked.gang}
        of_users = Counter(known.asked.user for known in waiting.values())
        return {u for u, count in of_users.items() if len(gangs) >= LOOK or (u in self.users and self.users[u].gpus and count >= LOOK_USER)}

    def _check_nothing_idle(self, waiting: dict[int, Known], memory: list[int], compute: list[int], gpus: dict[str, int]) -> None:
        """What waits does not fit."""
        every, unseen = self._held(), self._not_looked_at(waiting)
        held = {device for devices in every.values() for device in devices}
        for number, known in waiting.items():
            asked = known.asked
            if asked.user in unseen or self._assembles(known):
                continue
            if number in every:
                own = every[number]
            else:
                own = frozenset()
                quota = self.users[asked.user].gpus if asked.user in self.users else 0
                if quota and gpus.get(asked.user, 0) + sum(k.asked.gpus for k in waiting.values() if k.asked.user == asked.user) > quota:
                    continue  # it may have to let its user's others go first
            rooms = [
                sum(memory[d] >= max(asked.memory, 1) and compute[d] >= max(asked.compute, 1) and (d not in held or d in own) for d in numbers)
                for host, numbers in self.hosts.items()
                if host not in self.cordoned
            ]
            assert sum(room // asked.gpus for room in rooms) < asked.gang_size, "a lease waits for GPUs that are free"
