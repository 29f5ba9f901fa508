"""The scheduler of a pool of many hosts: the policy machine over all their GPUs, and which lease is whose. No I/O, no clock, no chance.

Members tell it what their clients want and what they have; it answers with messages for members. A lease that is granted is first *placed*: the host
of its GPUs is told, and only when it has agreed the member whose client asked is told where it is. So a client that is sent to a host finds its lease
there, and a host gives nobody what it has not.

It keeps nothing that its members could not tell a successor: after a new start they join it with all that they have and wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpuvirt.cluster.entries import Key, LeaseEntry, MemberEntry, keys, restored_event
from gpuvirt.cluster.messages import (
    SILENCE,
    VERSION,
    Alive,
    Arrived,
    Cordon,
    Denied,
    Destination,
    Elsewhere,
    Ended,
    Finish,
    HostEntry,
    Hosts,
    Join,
    Leave,
    Message,
    Migrate,
    Migrated,
    NoDestination,
    NotWelcome,
    Over,
    Place,
    Placed,
    Preempt,
    Relocate,
    Resume,
    Shifted,
    Stays,
    Suspended,
    Waits,
    Want,
    Wanted,
    Welcome,
    Withdraw,
    lowest_limit,
)
from gpuvirt.server.policy import events, instructions
from gpuvirt.server.policy.events import Asked, HostCordoned, HostJoined, HostLeft, Kept, Moved, Passed, Released
from gpuvirt.server.policy.instructions import End, Grant, Instruction, Lost, Queue, Refuse, TimedOut
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights

SETTLE = 5.0  # seconds that a scheduler waits for the hosts that its predecessor had
UNKNOWN = (
    "the lease of these GPUs has ended: they were given back, their agent is gone, or their host is;"
    " leave this shell and attach again, or unset GPUVIRT_LEASE"
)
GANG_BROKEN = "the host of its GPUs was lost before all of its gang had theirs; ask for all of them anew"
TWICE = "another host of the pool has this lease, or others have its GPUs"
# Seconds until a lease is asked for anew that a host did not take, for each time. Books that differ must not end in a loop; mostly they are the same
# again when a lease has arrived whose migration was begun under an earlier scheduler.
AGAIN_AFTER = (0.0, 1.0, 3.0, 6.0)
TRIES = len(AGAIN_AFTER) + 1
SHORT = 64  # leases that wait, of which each is told its place whenever something happens
PLACES_EVERY = 1.0  # seconds between two looks at who waits at which place

COMING = 1 << 63  # in the number of what is kept for a lease that comes; those of leases are smaller

Out = list[tuple[str, Message]]  # messages, each with the name of the member that it is for


class Scheduler:
    """One pool.

    Args:
        epoch: higher than that of any scheduler that the pool has had.
        began: the time, seconds on the clock of all other times.
        expected: hosts of the scheduler before this one. Until they have joined, for `SETTLE` at most, nothing is granted or refused: what they have
            is not known yet, such as the lease of a launch whose next process asks at another host.
        rebalance: as `PolicyMachine` has it.
    """

    def __init__(self, epoch: int, began: float, expected: Collection[str] = (), rebalance: int = 0) -> None:
        self.epoch = epoch
        self.machine = PolicyMachine(rebalance=rebalance)
        self._began = began
        self._members: dict[str, MemberEntry] = {}
        self._names: dict[int, str] = {}  # the members' by their numbers
        self._hosts = 0
        self._leases: dict[int, LeaseEntry] = {}
        self._keys: dict[Key, int] = {}
        self._rights: dict[str, Rights] = {}
        self._expected = set(expected)
        # By the host, and the lease for which it keeps devices, though that migrates no more as far as is known here: as which lease the machine has
        # those.
        self._coming: dict[tuple[str, int], int] = {}
        self._later: list[tuple[float, LeaseEntry]] = []  # what is asked for anew, and when
        self._early: list[tuple[str, Wanted]] = []  # what was asked for, and where, before all was known
        self._looked = began

    @property
    def hosts(self) -> tuple[HostEntry, ...]:
        """Those that are there."""
        return tuple(member.entry for member in self._members.values())

    @property
    def leases(self) -> Collection[int]:
        """The numbers of those that wait, are being placed, or have GPUs."""
        return self._leases.keys()

    @property
    def wake(self) -> float | None:
        """When `passed` is wanted sooner than its time, None: it is not."""
        return min([when for when in (self.machine.wake, *(when for when, _ in self._later)) if when is not None], default=None)

    def holders(self) -> dict[int, str]:
        """The host of each lease that has GPUs."""
        return {number: lease.host for number, lease in self._leases.items() if lease.host}

    # ---- what comes ---------------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now: float) -> Out:
        """A message of a member, or of who wants to be one. Returns what is to be sent.

        Args:
            sender: its name: that of its host.
        """
        out: Out = []
        if isinstance(message, Join):
            self._join(sender, message, now, out)
            return out
        member = self._members.get(sender)
        if member is None:
            return [] if isinstance(message, Leave) else [(sender, NotWelcome("it is no member (any more); it is to join anew"))]
        member.heard = now
        match message:
            case Want():
                self._want(sender, message.wanted, now, out)
            case Placed():
                self._placed(sender, message, now, out)
            case Over():
                self._over(sender, message.lease, now, out)
            case Suspended():
                self._suspended(sender, message.lease, now, out)
            case Shifted():
                self._shifted(member, message, now, out)
            case Leave():
                self._leave(sender, now, out)
            case Cordon():
                self._cordon(member, message.cordoned, now, out)
            case Migrate():
                self._migrate(sender, message, now, out)
            case Migrated():
                self._migrated(sender, message, now, out)
            case Arrived():
                self._arrived(member, message, now, out)
            case Stays():
                self._stays(sender, message.lease, now, out)
            case Ended():
                lease = self._leases.get(self._keys.get(("launch", message.owner, message.launch), 0))
                if lease is not None and lease.placed and lease.host != sender:
                    out.append((lease.host, message))
            case Alive():
                pass
            case _:
                out.append((sender, NotWelcome(f"a member does not say {type(message).__name__}")))
        if not isinstance(message, Alive) and len(self.machine.waiting) <= SHORT:
            self._tell_places(out)
        return out

    def passed(self, now: float) -> Out:
        """Time has passed: to be called about once in `PLACES_EVERY`."""
        out: Out = []
        for name in [name for name, member in self._members.items() if now - member.heard > SILENCE]:
            self._leave(name, now, out)
        if self._expected and now - self._began >= SETTLE:
            self._expected.clear()
            self._settled(now, out)
        for due in [due for due in self._later if due[0] <= now]:
            self._later.remove(due)
            if self._leases.get(due[1].wanted.lease) is due[1]:
                self._ask(due[1], now, out)
        self._carry_out(self.machine.handle(Passed(now)), now, out)
        if now - self._looked >= PLACES_EVERY:
            self._looked = now
            self._tell_places(out)
            out += [(name, Alive()) for name in self._members]
        return out

    # ---- members ------------------------------------------------------------------------------------------------------

    def _join(self, name: str, join: Join, now: float, out: Out) -> None:
        if join.version != VERSION:
            out.append((name, NotWelcome(f"the pool speaks version {VERSION} of its hosts' messages; install the same gpuvirt on all hosts")))
            return
        if join.epoch > self.epoch:
            out.append((name, NotWelcome(f"the host has seen a later scheduler of this pool (epoch {join.epoch}, this one has {self.epoch})")))
            return
        askers: dict[int, dict[str, int]] = {}
        if name in self._members:
            other = self._members[name].entry.url
            if other != join.host.url:
                out.append((name, NotWelcome(f"the pool has a host called {name} already, at {other}; give this one another --name")))
                return
            askers = self._forget(name, now, out, {held.wanted.lease for held in join.held}, {each.lease for each in join.wanted})
        self._hosts += 1
        member = self._members[name] = MemberEntry(self._hosts, join.host, now)
        self._names[member.number] = name
        out.append((name, Welcome(self.epoch)))
        held = [each for each in join.held if self._may_have(each.wanted, askers, now, out)]
        coming = {each.wanted.lease | COMING: replace(each, wanted=replace(each.wanted, lease=each.wanted.lease | COMING)) for each in join.coming}
        had = tuple(restored_event(each, now) for each in [*held, *coming.values()])
        done = self.machine.handle(HostJoined(now, member.number, join.host.memory, had, join.host.cordoned, join.host.rack))
        refused = {one.lease for one in done if isinstance(one, Refuse)}
        self._coming.update({(name, number & ~COMING): number for number in coming if number not in refused})
        mine = {each.wanted.lease: each.wanted for each in held if each.wanted.lease not in refused}
        for number, wanted in mine.items():
            lease = self._leases[number] = LeaseEntry(wanted, askers.get(number, {}), name, True)
            self._remember(lease)
        out += [(name, Finish(each.wanted.lease, TWICE)) for each in join.held if each.wanted.lease not in mine]
        self._tell_hosts(out)
        for number in mine:  # whoever asked for it may not have heard
            self._tell_where(self._leases[number], out)
        self._carry_out([one for one in done if one.lease not in mine], now, out)
        for each in join.wanted:
            self._want(name, each, now, out)
        if self._expected:
            self._expected.discard(name)
            if not self._expected:
                self._settled(now, out)

    def _settled(self, now: float, out: Out) -> None:
        """All is known that there is: what was asked for meanwhile is decided."""
        self._tell_hosts(out)
        early, self._early = self._early, []
        for asker, wanted in early:
            if asker in self._members:
                self._want(asker, wanted, now, out)

    def _may_have(self, wanted: Wanted, askers: dict[int, dict[str, int]], now: float, out: Out) -> bool:
        """Whether a host that joins may have what it has, as far as others are concerned. askers: those who wait for it are added."""
        self._know(wanted, now, out)
        known = self._leases.get(wanted.lease)
        if known is None:
            return True
        if known.host:
            return False  # another host was told to take it, when nothing was heard of this one
        askers[wanted.lease] = self._drop(wanted.lease).askers
        self._carry_out(self.machine.handle(Released(now, wanted.lease)), now, out)
        return True

    def _leave(self, name: str, now: float, out: Out) -> None:
        self._forget(name, now, out)
        self._tell_hosts(out)

    def _forget(self, name: str, now: float, out: Out, keep: Collection[int] = (), waits: Collection[int] = ()) -> dict[int, dict[str, int]]:
        """A member is there no more, or joins anew.

        Args:
            keep: leases that it has still.
            waits: those that its clients wait for still.

        Returns:
            Who waits for what it has still.
        """
        member = self._members.pop(name)
        self._early = [early for early in self._early if early[0] != name]  # it says so again
        had = {number: lease for number, lease in self._leases.items() if lease.host == name}
        for number, lease in had.items():
            self._drop(number)
            self._withdraw(lease, "the host that has it was lost, or has joined anew", now, out)
        self._coming = {kept: own for kept, own in self._coming.items() if kept[0] != name}
        # First of all, so that nothing more is granted there.
        self._carry_out([one for one in self.machine.handle(HostLeft(now, member.number)) if not isinstance(one, Lost)], now, out)
        del self._names[member.number]
        for number, lease in list(self._leases.items()):
            asked = lease.askers.get(name)
            if asked is not None and asked not in waits:
                self._asker_gone(number, lease, name, now, out)
        for number, lease in had.items():
            lease.askers = {asker: own for asker, own in lease.askers.items() if asker != name or own in waits}
            if not lease.placed and number not in keep:  # it never had them: whoever asked gets others
                self._again(lease, now, out)
        return {number: lease.askers for number, lease in had.items() if number in keep}

    def _tell_hosts(self, out: Out) -> None:
        self.machine.limit(lowest_limit(self.hosts))
        out += [(name, Hosts(self.hosts, not self._expected)) for name in self._members]

    # ---- leases -------------------------------------------------------------------------------------------------------

    def _know(self, wanted: Wanted, now: float, out: Out) -> None:
        if self._rights.get(wanted.user) != wanted.rights:
            self._rights[wanted.user] = rights = wanted.rights
            user = rights.event(now, wanted.user)
            self._carry_out(self.machine.handle(user), now, out)

    def _remember(self, lease: LeaseEntry) -> None:
        for key in keys(lease.wanted):
            self._keys[key] = lease.wanted.lease

    def _drop(self, number: int) -> LeaseEntry:
        lease = self._leases.pop(number)
        for key in keys(lease.wanted):
            if self._keys.get(key) == number:
                del self._keys[key]
        return lease

    def _want(self, asker: str, wanted: Wanted, now: float, out: Out) -> None:
        if self._expected:
            self._early.append((asker, wanted))
            return
        self._know(wanted, now, out)
        known = next((self._keys[key] for key in keys(wanted) if key in self._keys), None)
        lease = self._leases.get(wanted.lease if known is None else known)
        if lease is not None:
            lease.askers[asker] = wanted.lease
            if lease.placed:
                self._tell_where(lease, out)
            return
        if any(wanted.id) and not wanted.gpus:  # of a program, which works under a lease that it names
            out.append((asker, Denied(wanted.lease, UNKNOWN)))
            return
        lease = self._leases[wanted.lease] = LeaseEntry(wanted, {asker: wanted.lease})
        self._remember(lease)
        self._ask(lease, now, out)

    def _ask(self, lease: LeaseEntry, now: float, out: Out) -> None:
        w = lease.wanted
        asked = Asked(now, w.lease, w.user, w.gpus, w.memory, w.compute, w.priority, w.no_wait, w.wait, w.gang, w.gang_size, w.preemptible)
        self._carry_out(self.machine.handle(asked), now, out)

    def _again(self, lease: LeaseEntry, now: float, out: Out, seconds: float = 0.0) -> None:
        """A lease that a host did not take is asked for anew after so many seconds, if somebody still waits for it. One of a gang is refused: the
        others have their GPUs, and whoever has asked for all of them is not to wait with those for the rest."""
        lease.host, lease.placed = "", False
        if lease.askers and lease.wanted.gang:
            out += [(asker, Denied(number, GANG_BROKEN)) for asker, number in lease.askers.items()]
        elif lease.askers:
            self._leases[lease.wanted.lease] = lease
            self._remember(lease)
            if seconds:
                self._later.append((now + seconds, lease))
            else:
                self._ask(lease, now, out)

    def _carry_out(self, said: Sequence[Instruction], now: float, out: Out) -> None:
        for one in said:
            lease = self._leases.get(one.lease)
            if lease is None:
                if isinstance(one, instructions.Relocate):  # it is none, and only keeps devices
                    self._carry_out(self.machine.handle(events.Stays(now, one.lease)), now, out)
                continue
            match one:
                case Grant():
                    lease.host = self._place_at(lease, one.devices, False, out)
                case Queue():
                    self._tell_place(lease, (one.place, one.queued, one.why), out)
                case Refuse() | TimedOut():
                    self._drop(one.lease)
                    late = isinstance(one, TimedOut)
                    out += [(asker, Denied(number, one.text, late)) for asker, number in lease.askers.items()]
                case instructions.Preempt():
                    out.append((lease.host, Preempt(one.lease, one.text)))
                case instructions.Resume():
                    out.append((lease.host, Resume(self.epoch, one.lease)))
                case End():
                    out.append((lease.host, Finish(one.lease, one.text)))
                case instructions.Relocate():
                    out.append((lease.host, Relocate(one.lease, self._names[one.host])))
                case instructions.Destination():
                    lease.destination = self._place_at(lease, one.devices, True, out)
                case instructions.NoDestination():
                    lease.destination = ""
                    out.append((lease.host, NoDestination(one.lease, one.text)))
                case _:
                    pass  # places are told once in a while

    def _place_at(self, lease: LeaseEntry, devices: Sequence[int], migrates: bool, out: Out) -> str:
        """The host of the devices is told to keep them. Returns its name."""
        number = self.machine.room.host(devices[0])
        assert number is not None
        first = self.machine.room.devices(number).start
        out.append((self._names[number], Place(self.epoch, lease.wanted, tuple(device - first for device in devices), migrates)))
        return self._names[number]

    def _placed(self, sender: str, placed: Placed, now: float, out: Out) -> None:
        lease = self._leases.get(placed.lease)
        if lease is not None and lease.destination == sender:
            self._placed_at_destination(lease, placed, now, out)
            return
        if placed.why_not and self._comes_no_more(sender, placed.lease, now, out):
            return
        if lease is None or lease.host != sender:
            if not placed.why_not:
                out.append((sender, Finish(placed.lease, "nobody waits for it any more")))
            return
        if placed.why_not:
            self._drop(placed.lease)
            self._carry_out(self.machine.handle(Released(now, placed.lease)), now, out)
            lease.tries += 1
            if lease.tries < TRIES:
                self._again(lease, now, out, AGAIN_AFTER[lease.tries - 1])
            else:
                out += [
                    (asker, Denied(number, f"the host that was to give its GPUs did not: {placed.why_not}")) for asker, number in lease.askers.items()
                ]
            return
        lease.placed = True
        self._tell_where(lease, out)

    def _tell_where(self, lease: LeaseEntry, out: Out) -> None:
        """Whoever waits for it hears where it is, and asks there from now on."""
        url = self._members[lease.host].entry.url
        out += [(asker, Elsewhere(number, url)) for asker, number in lease.askers.items() if asker != lease.host or number != lease.wanted.lease]
        lease.askers.clear()

    def _over(self, sender: str, number: int, now: float, out: Out) -> None:
        lease = self._leases.get(number)
        if self._comes_no_more(sender, number, now, out):
            return
        if lease is not None and lease.destination == sender:
            lease.destination = ""
            self._carry_out(self.machine.handle(events.Migrated(now, number, False)), now, out)
            return
        if lease is not None and lease.host == sender:
            self._withdraw(lease, "it has ended before it had migrated", now, out)
            self._drop(number)
            self._carry_out(self.machine.handle(Released(now, number)), now, out)
            return
        self._early = [early for early in self._early if (early[0], early[1].lease) != (sender, number)]
        for own, other in list(self._leases.items()):
            if other.askers.get(sender) == number:
                self._asker_gone(own, other, sender, now, out)

    def _asker_gone(self, number: int, lease: LeaseEntry, asker: str, now: float, out: Out) -> None:
        """A client does not wait any more; nobody else may."""
        lease.askers.pop(asker, None)
        if lease.askers or lease.placed:
            return
        if lease.host and lease.host in self._members:
            out.append((lease.host, Finish(number, "nobody waits for it any more")))
        self._drop(number)
        self._carry_out(self.machine.handle(Released(now, number)), now, out)

    def _suspended(self, sender: str, number: int, now: float, out: Out) -> None:
        lease = self._leases.get(number)
        if lease is not None and lease.host == sender:
            self._carry_out(self.machine.handle(events.Suspended(now, number)), now, out)

    def _shifted(self, member: MemberEntry, shifted: Shifted, now: float, out: Out) -> None:
        first = self.machine.room.devices(member.number).start
        devices = tuple(first + device for device in shifted.devices)
        lease = self._leases.get(shifted.lease)
        if lease is None or lease.host != member.entry.name:
            return
        try:
            self._carry_out(self.machine.handle(Moved(now, shifted.lease, devices)), now, out)
        except ValueError:  # others were granted that meanwhile, and the host will not take them: it is to tell anew what it has
            out.append((member.entry.name, NotWelcome("what it has is not what the scheduler thinks; it is to join anew")))

    # ---- migration ----------------------------------------------------------------------------------------------------

    def _cordon(self, member: MemberEntry, cordoned: bool, now: float, out: Out) -> None:
        member.entry = replace(member.entry, cordoned=cordoned)
        self._carry_out(self.machine.handle(HostCordoned(now, member.number, cordoned)), now, out)
        self._tell_hosts(out)

    def _migrate(self, sender: str, asked: Migrate, now: float, out: Out) -> None:
        lease, to = self._leases.get(asked.lease), self._members.get(asked.host)
        why = ""
        if lease is None or lease.host != sender or not lease.placed:
            why = "the pool's scheduler does not know that this host has it"
        elif lease.destination:
            why = "it migrates already"
        elif asked.host == sender:
            why = "it is at that host"
        elif asked.host and to is None:
            why = f"the pool has no host called {asked.host!r}; `gpuvirt devices` shows them"
        if why:
            out.append((sender, NoDestination(asked.lease, why)))
            return
        self._carry_out(self.machine.handle(events.Migrate(now, asked.lease, to.number if to else None, asked.wait)), now, out)

    def _placed_at_destination(self, lease: LeaseEntry, placed: Placed, now: float, out: Out) -> None:
        if not placed.why_not:
            out.append((lease.host, Destination(placed.lease, self._members[lease.destination].entry)))
            return
        text = f"{lease.destination} does not take it: {placed.why_not}"
        lease.destination = ""
        self._carry_out(self.machine.handle(events.Migrated(now, placed.lease, False)), now, out)
        out.append((lease.host, NoDestination(placed.lease, text)))

    def _migrated(self, sender: str, migrated: Migrated, now: float, out: Out) -> None:
        lease = self._leases.get(migrated.lease)
        if lease is None or lease.host != sender:
            return
        if lease.destination and migrated.done:
            lease.host = lease.destination
        else:
            self._withdraw(lease, "it stays where it was", now, out)
        lease.destination = ""
        self._carry_out(self.machine.handle(events.Migrated(now, migrated.lease, migrated.done)), now, out)

    def _stays(self, sender: str, number: int, now: float, out: Out) -> None:
        lease = self._leases.get(number)
        if lease is not None and lease.host == sender:
            self._carry_out(self.machine.handle(events.Stays(now, number)), now, out)

    def _withdraw(self, lease: LeaseEntry, text: str, now: float, out: Out) -> None:
        """A lease does not migrate any more, as far as is known. Nobody else gets what its destination keeps for it until that says so."""
        number, destination, lease.destination = lease.wanted.lease, lease.destination, ""
        if not destination:
            return
        out.append((destination, Withdraw(number, text)))
        self._coming[destination, number] = number | COMING
        self._carry_out(self.machine.handle(Kept(now, number, number | COMING)), now, out)

    def _comes_no_more(self, host: str, number: int, now: float, out: Out) -> bool:
        """A host keeps nothing any more for a lease that was to come. Whether it did, beside what is known of the lease itself."""
        kept = self._coming.pop((host, number), None)
        if kept is not None:
            self._carry_out(self.machine.handle(Released(now, kept)), now, out)
        return kept is not None

    def _arrived(self, member: MemberEntry, arrived: Arrived, now: float, out: Out) -> None:
        """It is here and nowhere else: the host that had it has given it away before this one began."""
        wanted, name = arrived.held.wanted, member.entry.name
        lease = self._leases.get(wanted.lease)
        if lease is not None and lease.destination == name:
            self._migrated(lease.host, Migrated(wanted.lease, True), now, out)
        if lease is not None and lease.host == name:
            return
        askers: dict[int, dict[str, int]] = {}
        if lease is not None:  # another scheduler has begun since, which knows nothing of a migration
            askers[wanted.lease] = self._drop(wanted.lease).askers
            self._carry_out(self.machine.handle(Released(now, wanted.lease)), now, out)
        self._know(wanted, now, out)
        first = self.machine.room.devices(member.number).start
        devices = tuple(first + device for device in arrived.held.devices)
        restored = restored_event(replace(arrived.held, devices=devices), now)
        done = self.machine.handle(replace(restored, kept=self._coming.pop((name, wanted.lease), 0)))
        if any(isinstance(one, Refuse) and one.lease == wanted.lease for one in done):
            out.append((name, Finish(wanted.lease, TWICE)))
        else:
            lease = self._leases[wanted.lease] = LeaseEntry(wanted, askers.get(wanted.lease, {}), name, True)
            self._remember(lease)
            self._tell_where(lease, out)
        self._carry_out([one for one in done if one.lease != wanted.lease], now, out)

    def _tell_places(self, out: Out) -> None:
        """Who waits hears what is new: its place, or why it waits."""
        for number in self.machine.order():
            lease, place = self._leases.get(number), self.machine.place(number)
            if lease is None or place is None:
                continue
            self._tell_place(lease, (*place, self.machine.why(number)), out)

    def _tell_place(self, lease: LeaseEntry, told: tuple[int, int, str], out: Out) -> None:
        if told != lease.told:
            lease.told = told
            out += [(asker, Waits(own, *told)) for asker, own in lease.askers.items()]
