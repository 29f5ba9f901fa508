"""A host's part in a pool of many: the policy of its leases, which asks the scheduler. No I/O, no clock, no chance.

What its clients want it asks of the scheduler; what the scheduler places here it takes if there is room. Its own policy machine only keeps the books
of its devices: so whatever a scheduler thinks, or two of them at the same time, no device is given to more leases than it has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

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
    Held,
    HostEntry,
    Hosts,
    Join,
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
from gpuvirt.server.lease import Lease
from gpuvirt.server.policy import events, instructions
from gpuvirt.server.policy.events import Asked, Event, HostJoined, Moved, Passed, Released, Restored, UserSet
from gpuvirt.server.policy.hosts import Hosts as Room
from gpuvirt.server.policy.instructions import Instruction, Refuse, TimedOut
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights

Send = Callable[[Message], None]
LATE = SILENCE + 1.0  # seconds after which a limit of waiting is kept that no scheduler has kept


class Member:
    """The policy of a host's `Leases` (a `gpuvirt.server.leases.Policy`).

    Args:
        local: the host's own books; it grants nothing by itself.
        entry: what the pool is told of the host.
        send: sends a message to the scheduler, behind the last `join`.

    Attributes:
        leases: the host's leases by number, and all of them; set before anything else is called.
        place_here: takes what the scheduler places here (migrates: it comes from another host): "" or why not. Set likewise.
        destination: takes the answer to `migrate`: the host to which a lease may go, or why it stays.
        relocate: is told of a lease that is to go to another host, by its name, if it can; else `stays` is to be called. Set likewise.
        finish: ends a lease for a reason. Set likewise.
        launch_ended: is told of the end of a launch, and whose it was. Set likewise.
        up: this host is a member.
        heard: when something came of the scheduler last.
        epoch: the highest of a scheduler that was seen.
        scheduler: where it is, for people.
        hosts: of the pool, as the scheduler said last.
    """

    def __init__(self, local: PolicyMachine, entry: HostEntry, send: Send, scheduler: str = "") -> None:
        self._local, self.entry, self._send, self.scheduler = local, entry, send, scheduler
        self.lease: Callable[[int], Lease | None] = lambda number: None
        self.leases: Callable[[], Iterable[Lease]] = lambda: ()
        self.place_here: Callable[[Lease, Rights, bool], str] = lambda lease, rights, migrates: "nobody takes it"
        self.destination: Callable[[int, HostEntry | str], None] = lambda number, answer: None
        self.relocate: Callable[[int, str], None] = lambda number, host: None
        self.finish: Callable[[int, str], None] = lambda number, text: None
        self.launch_ended: Callable[[bytes, bytes], object] = lambda launch, owner: None
        self.epoch = 0
        self.hosts: tuple[HostEntry, ...] = ()
        self.up = False
        self._joins = False  # it has said that it joins: what it says from then on counts, once the scheduler has agreed
        self.heard = 0.0
        self._asked: dict[int, Asked] = {}  # what waits
        self._gangs: dict[int, tuple[int, int]] = {}  # of which gang a lease is, and how many that has
        self._users: dict[int, str] = {}  # of each lease
        self._rights: dict[str, Rights] = {}
        self._waits: dict[int, Waits] = {}
        self._mirror: PolicyMachine | None = None  # of the pool's hosts, without any lease
        self._why_not = "it has not been heard of yet"
        self._seeks: set[int] = set()  # leases that are to migrate, and have no destination yet

    # ---- the policy of this host's leases -----------------------------------------------------------------------------

    @property
    def room(self) -> Room:
        return self._local.room

    @property
    def wake(self) -> float | None:
        """When what waits has waited for as long as it wanted to, and the scheduler, which is to say so, has not."""
        return min((asked.at + asked.wait + LATE for asked in self._asked.values() if asked.wait), default=None)

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case Asked():
                return self._ask(event)
            case UserSet():
                self._rights[event.user] = Rights.of(event)
                if self._mirror is not None:
                    self._mirror.handle(event)
            case Restored(suspended=True):  # its devices are others': the books have nothing of it
                self._users[event.lease] = event.user
                return []
            case Restored():
                out = self._local.handle(event)
                if not any(isinstance(one, Refuse) and one.lease == event.lease for one in out):
                    self._users[event.lease] = event.user
                    self._asked.pop(event.lease, None)
                    self._waits.pop(event.lease, None)
                return out
            case Released():
                self._users.pop(event.lease, None)
                self._asked.pop(event.lease, None)
                self._waits.pop(event.lease, None)
                self._gangs.pop(event.lease, None)
                self._tell(Over(event.lease))
            case events.Suspended():
                self._tell(Suspended(event.lease))
                return self._local.handle(Released(event.at, event.lease))
            case Moved():
                self._tell(Shifted(event.lease, event.devices))
            case Passed():
                return [*self._local.handle(event), *self._late(event.at)]
            case _:
                pass
        return self._local.handle(event)

    def _ask(self, event: Asked) -> list[Instruction]:
        self._users[event.lease] = event.user
        if not self.up and event.no_wait:
            return [Refuse(event.lease, f"GPUs cannot be had without waiting: {self._absent}; ask again without --no-wait")]
        self._asked[event.lease] = event
        if event.gang:
            self._gangs[event.lease] = event.gang, event.gang_size
        lease = self.lease(event.lease)
        assert lease is not None
        self._tell(Want(self._wanted(lease)))
        return []

    def _late(self, now: float) -> list[Instruction]:
        late = [asked for asked in self._asked.values() if asked.wait and now >= asked.at + asked.wait + LATE]
        texts = {asked.lease: f"it has waited {now - asked.at:.0f} s, longer than it wanted to: {self.why(asked.lease)}" for asked in late}
        for asked in late:
            self._ended(asked.lease)
            self._tell(Over(asked.lease))
        return [TimedOut(number, text) for number, text in texts.items()]

    def impossible(self, user: str, gpus: int, memory: int = 0, compute: int = 0, priority: int = 0) -> str | None:
        """By the hosts that there are now; None while there is no word of all."""
        return None if self._mirror is None else self._mirror.impossible(user, gpus, memory, compute, priority)

    def most(self, user: int) -> int:
        return self._local.most(user)

    def place(self, lease: int) -> tuple[int, int] | None:
        said = self._waits.get(lease)
        return (said.place, said.queued) if said is not None and self.up else None

    def why(self, lease: int) -> str:
        if lease not in self._asked:
            return ""
        if not self.up:
            return self._absent
        said = self._waits.get(lease)
        return said.why if said is not None else "the pool's scheduler has not decided yet"

    def has_room(self, number: int, devices: Sequence[int]) -> bool:
        return self._local.has_room(number, devices)

    @property
    def _absent(self) -> str:
        return f"the pool's scheduler{f' at {self.scheduler}' if self.scheduler else ''} does not answer ({self._why_not})"

    # ---- the scheduler ------------------------------------------------------------------------------------------------

    def join(self) -> Join:
        """The first word to a scheduler, and the word after a silence; it is to be sent at once."""
        self.up = False
        for lease in [lease for lease in self.leases() if lease.arrives and not lease.comes]:
            self.finish(lease.number, "the scheduler that had placed it here has lost this host")  # and so it has no destination any more
        self._joins = True
        leases = [*self.leases()]
        held = tuple(Held(self._wanted(lease), lease.devices, lease.suspended) for lease in leases if lease.devices and not lease.arrives)
        wanted = tuple(self._wanted(lease) for lease in leases if lease.waits and lease.number in self._asked)
        coming = tuple(Held(self._wanted(lease), lease.devices) for lease in leases if lease.arrives)
        return Join(VERSION, self.entry, self.epoch, held, wanted, coming)

    def _wanted(self, lease: Lease) -> Wanted:
        user = self._users[lease.number]
        has = lease.memory, lease.compute, lease.priority
        asked = self._asked.get(lease.number) or Asked(0.0, lease.number, user, lease.wanted, *has, preemptible=lease.preemptible)
        gpus = 0 if lease.seeks else asked.gpus
        known = user, self._rights.get(user, Rights()), lease.owner, lease.id, lease.launch, lease.process
        wanted = gpus, asked.memory, asked.compute, asked.priority, asked.no_wait, asked.wait
        return Wanted(lease.number, *known, *wanted, lease.holder, lease.started, *self._gangs.get(lease.number, (0, 1)), asked.preemptible)

    def _tell(self, message: Message) -> None:
        if self._joins:
            self._send(message)

    def tell_ended(self, launch: bytes, owner: bytes) -> None:
        """A launcher has said to this host that its program has ended; the lease may be another's."""
        self._tell(Ended(owner, launch))

    # ---- migration ----------------------------------------------------------------------------------------------------

    def cordon(self, cordoned: bool) -> None:
        """Whether nobody gets this host's devices from now on."""
        self.entry = replace(self.entry, cordoned=cordoned)
        self._tell(Cordon(cordoned))

    def migrate(self, number: int, host: str, wait: bool) -> None:
        """Asks for a destination for a lease; the answer goes to `destination`. host: which, "": any. wait: until there is room."""
        if not self.up:
            self.destination(number, self._absent)
            return
        self._seeks.add(number)
        self._tell(Migrate(number, host, wait))

    def migrated(self, number: int, done: bool) -> None:
        """A lease is at its destination, or (not done) is not to go there."""
        self._seeks.discard(number)
        self._tell(Migrated(number, done))

    def stays(self, number: int) -> None:
        """A lease does not go where the scheduler would have had it."""
        self._tell(Stays(number))

    def arrived(self, lease: Lease) -> None:
        """A lease of another host is this one's now."""
        self._tell(Arrived(Held(self._wanted(lease), lease.devices)))

    def _answer(self, number: int, answer: HostEntry | str) -> None:
        if number in self._seeks:
            self._seeks.discard(number)
            self.destination(number, answer)

    # ---- the scheduler's presence -------------------------------------------------------------------------------------

    def lost(self, why: str) -> None:
        """The scheduler is not there (any more): what has GPUs keeps them, what waits goes on waiting."""
        self.up, self._joins, self._why_not = False, False, why
        for number in [*self._seeks]:
            self._answer(number, self._absent)

    def silent(self, now: float) -> bool:
        """Whether nothing has been heard for too long of a scheduler that was there."""
        return self.up and now - self.heard > SILENCE

    def alive(self) -> None:
        """To be called once in `messages.ALIVE_EVERY`."""
        self._tell(Alive())

    def receive(self, message: Message, now: float) -> list[Instruction]:
        """A message of the scheduler. Returns what the leases are to carry out."""
        self.heard = now
        match message:
            case Welcome():
                self.up, self.epoch = True, max(self.epoch, message.epoch)
            case NotWelcome():
                self.lost(message.why)
            case Hosts():
                self._know_hosts(message, now)
            case Place():
                self._place(message)
            case Destination():
                self._answer(message.lease, message.host)
            case NoDestination():
                self._answer(message.lease, message.text)
            case Relocate():
                self.relocate(message.lease, message.host)
            case Elsewhere():
                return [instructions.Elsewhere(message.lease, message.url)] if self._ended(message.lease) else []
            case Denied():
                if not self._ended(message.lease):
                    return []
                return [TimedOut(message.lease, message.text) if message.late else Refuse(message.lease, message.text)]
            case Waits():
                if message.lease in self._asked:
                    self._waits[message.lease] = message
            case Ended():
                self.launch_ended(message.launch, message.owner)
            case Preempt():
                return [instructions.Preempt(message.lease, message.text)]
            case Resume():
                return self._resume(message, now)
            case Withdraw():
                self._withdraw(message)
            case Finish():
                self.finish(message.lease, message.text)
            case _:
                pass
        return []

    def _ended(self, number: int) -> bool:
        """Whether it waited; it does so no more."""
        if self._asked.pop(number, None) is None:
            return False
        self._waits.pop(number, None)
        self._users.pop(number, None)
        self._gangs.pop(number, None)
        return True

    def _know_hosts(self, told: Hosts, now: float) -> None:
        self.hosts = told.hosts
        if not told.complete:  # then nobody is told that the pool can never give what is asked for
            self._mirror = None
            return
        self._mirror = PolicyMachine(most=lowest_limit(told.hosts))
        for number, host in enumerate(told.hosts):
            self._mirror.handle(HostJoined(now, number, host.memory))
        for user, rights in self._rights.items():
            self._mirror.handle(rights.event(now, user))

    def _resume(self, resume: Resume, now: float) -> list[Instruction]:
        """A lease has its devices again, if by this host's books they have room for it."""
        lease = self.lease(resume.lease)
        if resume.epoch < self.epoch or lease is None or not lease.suspended:
            return []
        has = lease.devices, lease.memory, lease.compute, lease.priority, lease.preemptible
        if any(isinstance(one, Refuse) for one in self._local.handle(Restored(now, lease.number, self._users[lease.number], *has))):
            self._tell(Suspended(lease.number))
            return []
        return [instructions.Resume(lease.number)]

    def _withdraw(self, withdraw: Withdraw) -> None:
        lease = self.lease(withdraw.lease)
        if lease is not None and lease.arrives and not lease.comes:
            self.finish(withdraw.lease, withdraw.text)

    def _place(self, place: Place) -> None:
        if place.epoch < self.epoch:
            self._tell(Placed(place.wanted.lease, f"a later scheduler (epoch {self.epoch}) is in charge"))
            return
        w = place.wanted
        lease = Lease(w.lease, w.owner, w.gpus, w.memory, w.started, w.holder, place.devices, w.compute, id=w.id, launch=w.launch, process=w.process)
        lease.priority, lease.preemptible = w.priority, w.preemptible
        refused = self.place_here(lease, w.rights, place.migrates)
        if w.gang and not refused:
            self._gangs[w.lease] = w.gang, w.gang_size
        self._tell(Placed(w.lease, refused))
