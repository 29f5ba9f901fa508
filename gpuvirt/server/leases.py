"""Leases: which GPUs a user holds for as long as they are used, and the sessions that work under each. No I/O, no clock of its own.

A lease begins in one of three ways. A *named* one is opened over the control channel; programs join it by its id, which their hellos carry, and it
outlives them until it is released, or until nobody has renewed it in time and no session is left. That of a *launch* begins with the first session
of a `gpuvirt run`; all processes of the launch work under it, and it lasts until the last has ended and `LINGER` is over, or the launcher has
reported. A process of neither has one to itself. Whoever joins a lease holds the token that it was opened with.

In a pool of many hosts it may turn out to be another host's: then whoever waits for it is sent there, and a lease that was asked for at another host
is here before its programs come (gpuvirt.cluster).

A lease may have to wait for its GPUs (policy/machine.py). The session that began it is its member meanwhile; of a named one its
opener asks until it has them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpuvirt.server.lease import NO_ID, NO_LAUNCH, NO_PROCESS, Asked, ElsewhereError, Lease, Membership, NotGranted
from gpuvirt.server.policy import events
from gpuvirt.server.policy.events import Event
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.instructions import Elsewhere, Grant, Instruction, Preempt, Refuse, Resume, TimedOut
from gpuvirt.server.policy.rights import Rights
from gpuvirt.server.recent import Recent
from gpuvirt.sizes import format_size

LINGER = 10.0  # seconds that a launch keeps its GPUs between one of its processes and the next
EXPIRY_LEAST = 5  # seconds that a named lease lasts without being renewed, whatever the grace period is
ARRIVAL_LIMIT = 900.0  # seconds that a lease of another host has to come here
REMEMBERED = 4096  # launches that have ended; named leases that were refused, that have gone elsewhere


class Policy(Protocol):
    """What decides which devices a lease gets, and when: `policy.machine.PolicyMachine`, whose methods these are, or `gpuvirt.cluster.member.Member`.

    Attributes:
        room: the devices of this server.
        wake: when `events.Passed` is wanted next, None: not at all.
    """

    @property
    def room(self) -> Hosts: ...

    @property
    def wake(self) -> float | None: ...

    def handle(self, event: Event) -> list[Instruction]: ...

    def impossible(self, user: str, gpus: int, memory: int = 0, compute: int = 0, priority: int = 0) -> str | None: ...

    def most(self, user: int) -> int: ...

    def place(self, lease: int) -> tuple[int, int] | None: ...

    def why(self, lease: int) -> str: ...

    def has_room(self, number: int, devices: Sequence[int]) -> bool: ...


class Leases:
    """All leases of one server.

    Args:
        policy: decides which devices a lease gets, and when. Each token is a user of it, or all tokens of one user together are.
        slots: the largest number of sessions, and of leases, at the same time.
        per_token: the same for one token, None: all.
        expiry: seconds that a named lease lasts without being renewed.
        pooled: there are other hosts, which may have leases that are not known here.

    Attributes:
        no_shares: why no part of a device's compute can be reserved, "": it can.
        decided: called with a lease that has waited, once it has its GPUs or is refused.
        gives_way: called with a lease that is to give way, or has its GPUs again after it has been suspended.
        changed, ended: called with a named lease that has GPUs, when it has others, or another end, than before, and when it has ended.
    """

    def __init__(self, policy: Policy, slots: int, per_token: int | None = None, expiry: float = EXPIRY_LEAST, pooled: bool = False) -> None:
        self._policy, self._slots, self._per_token, self._pooled = policy, slots, per_token, pooled
        self.expiry = max(expiry, EXPIRY_LEAST)
        self._leases: dict[int, Lease] = {}
        self._named: dict[bytes, Lease] = {}
        self._launches: dict[tuple[bytes, bytes], Lease] = {}
        self._processes: dict[tuple[bytes, bytes], Lease] = {}  # of programs that were sent here
        self._sent = Recent[tuple[bytes, bytes], str](REMEMBERED)  # named leases that are elsewhere, by id and token
        self._following = Recent[tuple[bytes, bytes], float](REMEMBERED)  # named leases that have gone from here, until their keepers ask
        self._ended_launches = Recent[tuple[bytes, bytes], None](REMEMBERED)
        self._refused = Recent[tuple[bytes, bytes], str](REMEMBERED)  # named leases that had waited, by id and token
        self._members: dict[int, Membership] = {}
        self._moving: dict[int, Membership] = {}  # what sessions that are about to move will have
        self._rights: dict[str, Rights] = {}  # what the policy was told of its users
        self.no_shares = ""
        self.decided: Callable[[Lease], None] | None = None
        self.gives_way: Callable[[Lease, Preempt | Resume], None] = _ask_back
        self.changed: Callable[[Lease], None] = lambda lease: None
        self.ended: Callable[[Lease], None] = lambda lease: None

    def __iter__(self) -> Iterator[Lease]:
        """All leases, oldest first."""
        return iter(self._leases.values())

    def get(self, number: int) -> Lease | None:
        return self._leases.get(number)

    def away(self, asked: Asked) -> tuple[asyncio.Future[None], str] | None:
        """When the lease that a session is to work under is known to be here, or elsewhere, and has its GPUs, and why it does not yet; None: nothing
        is to be waited for."""
        lease = self._named.get(asked.lease) if asked.lease != NO_ID else self._launches.get((asked.owner, asked.launch))
        if lease is None or lease.owner != asked.owner:
            return None
        if lease.leaving is not None:
            return lease.leaving, "its GPUs become those of another host"
        if lease.suspends:
            lease.away = lease.away or asyncio.get_running_loop().create_future()
            return lease.away, f"it gives way: {lease.suspends}"
        return None

    def lasts(self, lease: Lease) -> bool:
        """Whether it has not ended."""
        return self._leases.get(lease.number) is lease

    def sessions_on(self, device: int) -> int:
        """How many sessions use this device."""
        return sum(device in member.devices for member in self._members.values())

    # ---- named leases ---------------------------------------------------------------------------------------------------

    def open(self, id: bytes, asked: Asked, holder: dict[str, Any], now: float, started: float = 0.0) -> Lease:
        """A named lease under an id that the opener chose; it may have to wait for its GPUs, and ends unless it is renewed, then too.

        Raises:
            NotGranted: this server cannot grant it, or there is a lease of this id.
        """
        if id in self._named or id == NO_ID:
            raise NotGranted("there is a lease of this id already; open one under another")
        lease = self._ask(asked, holder, started, now, id)
        lease.expires = now + self.expiry
        self._refused.pop((id, asked.owner), None)
        self.note(lease)
        return lease

    def restore(self, lease: Lease, rights: Rights, now: float) -> None:
        """A lease goes on that an earlier server granted. rights: of its token, now.

        Raises:
            NotGranted: its GPUs are not there, or others have them.
        """
        user = self._know(Asked(lease.owner, lease.wanted, rights=rights), now)
        devices, lease.devices = lease.devices, ()
        self._leases[lease.number] = lease
        if lease.named:
            lease.expires = lease.expires if lease.arrives else now + self.expiry  # nobody could renew it meanwhile
        out = self._policy.handle(self._restored(lease, user, devices, now))
        if lease.suspended:
            lease.devices, lease.suspends = devices, "it has given way to a lease of a higher priority"
        self.carry_out(out, new=lease)
        if lease.refused:
            raise NotGranted(lease.refused)
        # Programs find it only now: one that was refused takes nobody's place who waits here under the same name.
        if lease.named:
            self._named[lease.id] = lease
            if not lease.arrives:
                self._sent.pop((lease.id, lease.owner), None)
        elif lease.launch != NO_LAUNCH:
            self._launches[lease.owner, lease.launch] = lease

    def suspended(self, lease: Lease, now: float) -> None:
        """What works under a lease has been put away: its devices are others' until it is resumed."""
        lease.suspended = True
        lease.suspensions += 1
        self.note(lease)
        self.carry_out(self._policy.handle(events.Suspended(now, lease.number)))

    def place_here(self, lease: Lease, rights: Rights, now: float, migrates: bool = False) -> str:
        """A lease that was asked for here or at another host of the pool has these devices of this one.

        Args:
            lease: as the pool says it is; of an equal number as one that waits here, it is that one.
            rights: of its token.
            migrates: it works at another host, and is to come here.

        Returns:
            Why it cannot have them, "": it has them.
        """
        known = self._leases.get(lease.number)
        if known is None:
            lease.arrives = migrates
            lease.expires = now + (ARRIVAL_LIMIT if migrates else self.expiry if lease.named else LINGER)
            try:
                self.restore(lease, rights, now)
            except NotGranted as error:
                return str(error)
            if lease.process != NO_PROCESS and not lease.named and lease.launch == NO_LAUNCH:
                self._processes[lease.owner, lease.process] = lease
            if not migrates:
                self.note(lease)
            return ""
        if migrates:
            return "it is here already, or a program here waits for it and has not heard yet where it is"
        if not known.waits:
            return "" if known.devices == lease.devices else "it has others"
        user = self._know(Asked(lease.owner, lease.wanted, rights=rights), now)
        out = self._policy.handle(self._restored(lease, user, lease.devices, now))
        why = next((one.text for one in out if isinstance(one, Refuse)), "")
        if not why:
            self.carry_out(out)
        return why

    def _restored(self, lease: Lease, user: str, devices: tuple[int, ...], now: float) -> events.Restored:
        has = lease.memory, lease.compute, lease.priority, lease.preemptible, lease.suspended
        return events.Restored(now, lease.number, user, devices, *has)

    def note(self, lease: Lease) -> None:
        """What a later server must know of a lease is another."""
        if lease.named and lease.devices:
            self.changed(lease)

    def find(self, id: bytes, owner: bytes) -> Lease:
        """The named lease of this id.

        Raises:
            NotGranted: there is none that this token may use. The answer does not tell whether another token has it.
        """
        lease = self._named.get(id)
        self.check_not_refused(id, owner)
        if lease is not None and lease.seeks:
            lease = None
        if lease is None and (sent := self._sent.get((id, owner))):
            raise ElsewhereError(sent)
        if lease is None or lease.owner != owner:
            text = "the lease of these GPUs has ended: they were given back, their agent is gone, or the server was started anew"
            raise NotGranted(f"{text}; leave this shell and attach again, or unset GPUVIRT_LEASE", unknown=True)
        return lease

    def check_not_refused(self, id: bytes, owner: bytes) -> None:
        """Raises:
        NotGranted: a named lease of this id waited, and was refused.
        """
        if refused := self._refused.get((id, owner)):
            raise NotGranted(refused, unknown=True)

    def renew(self, id: bytes, owner: bytes, now: float) -> Lease:
        """The lease lasts for `expiry` from now on.

        Raises:
            NotGranted: there is no such lease.
        """
        try:
            lease = self.find(id, owner)
        except ElsewhereError:
            self._following.pop((id, owner), None)
            raise
        lease.expires = now + self.expiry
        self.note(lease)
        return lease

    def release(self, id: bytes, owner: bytes, now: float = 0.0) -> set[int]:
        """Ends a named lease. Returns its sessions, which have lost their GPUs: whoever runs them is to end them.

        Raises:
            NotGranted: there is no such lease.
        """
        lease = self.find(id, owner)
        if lease.waits:
            self._refuse(lease, "the lease was given back before it had its GPUs", now)
            return set()
        self.end(lease, now)
        return set(lease.sessions)

    def let_go(self, id: bytes, owner: bytes, now: float) -> None:
        """Nobody will renew a named lease any more: it ends with its last session.

        Raises:
            NotGranted: there is no such lease.
        """
        lease = self.find(id, owner)
        lease.expires = now
        self.note(lease)

    # ---- sessions -------------------------------------------------------------------------------------------------------

    def check(self, asked: Asked) -> None:
        """Whether a session could ever be had.

        Raises:
            NotGranted: not on this server, or not under the lease that it names.
        """
        if asked.lease != NO_ID:
            lease = self._of(asked)
            if lease is not None and not lease.seeks:
                self._fits(lease, asked)
        elif asked.gpus and (never := self._impossible(asked, asked.gpus, 0.0)) is not None:
            raise NotGranted(never)

    def join(self, session: int, asked: Asked, holder: dict[str, Any], started: float = 0.0, now: float = 0.0) -> Membership:
        """A session begins, under the lease that it names, that of its launch, or one of its own, which may have to wait.

        Raises:
            NotGranted: there is no such lease, it has other GPUs than are asked for, or this server cannot grant one.
        """
        if session in self._members:
            raise ValueError(f"session {session:x} has its devices already")
        lease = self._of(asked)
        own = sum(member.lease.owner == asked.owner for member in self._members.values())
        if self._per_token is not None and own >= self._per_token:
            what = f"this token has {own} sessions on this server, as many as one token may"
            raise NotGranted(f"{what}; end one, or have the server run with a higher --sessions-per-token")
        slot = self._free_slot()
        if slot is None:
            raise NotGranted(f"this server has its limit of {self._slots} sessions; try again when one has ended")
        if lease is None:
            lease = self._ask(asked, holder, started, now)
        elif not lease.seeks:
            self._fits(lease, asked)
        if not lease.named:
            lease.expires = None
        lease.sessions.add(session)
        member = self._members[session] = Membership(lease, slot, asked.memory or lease.memory or self._policy.most(asked.rights.memory))
        return member

    def _of(self, asked: Asked) -> Lease | None:
        """The lease that a session is to work under, None: it is not here (yet).

        Raises:
            NotGranted: it names one that there is not.
        """
        if asked.lease == NO_ID:
            return self._launches.get((asked.owner, asked.launch)) or self._processes.pop((asked.owner, asked.process), None)
        lease = self._named.get(asked.lease)
        if lease is not None and lease.seeks and lease.owner == asked.owner:
            return lease
        known = lease is not None or any((asked.lease, asked.owner) in said for said in (self._refused, self._sent))
        return self.find(asked.lease, asked.owner) if known or not self._pooled else None

    def adopt(self, session: int, lease: Lease, slot: int, memory: int, rights: Rights, now: float) -> Membership:
        """A session goes on that an earlier server began.

        Args:
            lease: under which it worked; of an equal number as one that is here, it is that one.
            slot, memory: as in `Membership`.
            rights: of its token, now.

        Raises:
            NotGranted: its GPUs are not there, or others have them.
        """
        if session in self._members or any(member.slot == slot for member in self._members.values()) or not 0 <= slot < self._slots:
            raise NotGranted("another session is in its place")
        if lease.number not in self._leases:
            self.restore(lease, rights, now)
        lease = self._leases[lease.number]
        lease.sessions.add(session)
        self._members[session] = Membership(lease, slot, memory)
        return self._members[session]

    def leave(self, session: int, now: float) -> None:
        """A session has ended, for whatever reason."""
        member = self._members.pop(session, None)
        if member is None:
            return
        lease = member.lease
        lease.sessions.discard(session)
        if lease.sessions or (lease.named and not lease.seeks):
            return
        if not lease.devices or lease.launch == NO_LAUNCH or self.launch_has_ended(lease.launch, lease.owner):
            self.end(lease, now)
        else:
            lease.expires = now + LINGER

    def launch_ended(self, launch: bytes, owner: bytes, now: float = 0.0) -> None:
        """The launcher says that its program has ended: its lease is over when its last session is."""
        if launch == NO_LAUNCH:
            return
        self._ended_launches[launch, owner] = None
        lease = self._launches.get((owner, launch))
        if lease is not None and not lease.sessions:
            self.end(lease, now)

    def launch_has_ended(self, launch: bytes, owner: bytes) -> bool:
        return (launch, owner) in self._ended_launches

    # ---- moving ---------------------------------------------------------------------------------------------------------

    def begin_move(self, session: int, devices: tuple[int, ...]) -> Membership:
        """What a session will have on these devices; until `end_move`, or else `stop_move`, it has that beside what it has.

        Raises:
            NotGranted: it cannot go there.
        """
        present = self._members.get(session)
        if present is None:
            raise NotGranted("it has ended")
        if session in self._moving:
            raise NotGranted("it is moving already")
        if present.lease.suspends:
            raise NotGranted("its lease has given way to one of a higher priority; it can move when it has its GPUs again")
        sizes = self._policy.room.total
        if len(set(devices)) != len(devices) or len(devices) != len(present.devices):
            raise NotGranted(f"the session has {present.lease.gpus}; name as many with --gpu, each once")
        if not all(0 <= device < len(sizes) for device in devices):
            raise NotGranted(f"this pool has GPUs 0 to {len(sizes) - 1}; `gpuvirt devices` lists them")
        if devices == present.devices:
            raise NotGranted(f"the session is on GPU {','.join(map(str, devices))} already")
        if any(sizes[to] != sizes[since] for to, since in zip(devices, present.devices, strict=True)):
            raise NotGranted("the session has seen a GPU of another size; choose one with the same memory")
        self._alone(present)
        self._has_room(present, devices)
        slot = self._free_slot()
        if slot is None:
            raise NotGranted(f"this server has its limit of {self._slots} sessions, and a move needs one more; try again when one has ended")
        self._moving[session] = Membership(replace(present.lease, devices=devices), slot, present.memory)
        return self._moving[session]

    def end_move(self, session: int, now: float = 0.0) -> Membership:
        """The session, and its lease, have what `begin_move` said; nobody has what the session had before.

        Raises:
            NotGranted: another program works under its lease since, or has what it reserves: it stays where it is.
        """
        present, future = self._members[session], self._moving[session]
        self._alone(present)
        self._has_room(present, future.devices)
        lease = present.lease
        lease.devices = future.devices
        self.carry_out(self._policy.handle(events.Moved(now, lease.number, lease.devices)))
        self.note(lease)
        member = self._members[session] = Membership(lease, future.slot, future.memory)
        return member

    def stop_move(self, session: int) -> None:
        self._moving.pop(session, None)

    def arrive(self, session: int, lease: Lease, memory: int) -> Membership:
        """A session of another host goes on here, under a lease that arrives.

        Raises:
            NotGranted: there is no place for it.
        """
        slot = self._free_slot()
        if slot is None or session in self._members or not self.lasts(lease):
            raise NotGranted(f"this server has its limit of {self._slots} sessions" if slot is None else "its lease has ended, or it is here already")
        lease.sessions.add(session)
        self._members[session] = Membership(lease, slot, memory)
        return self._members[session]

    def arrived(self, lease: Lease, now: float) -> None:
        """A lease that arrived is this server's now, with the sessions that have come."""
        lease.arrives = lease.comes = False
        self._sent.pop((lease.id, lease.owner), None)  # it has been here before
        lease.expires = now + self.expiry if lease.named else None if lease.sessions else now + LINGER
        self.note(lease)

    def departed(self, lease: Lease, url: str, now: float) -> None:
        """A lease is at another server, with all its sessions."""
        for session in [*lease.sessions]:
            self._members.pop(session, None)
        lease.sessions.clear()
        if lease.named:
            self._following[lease.id, lease.owner] = now
        self._send_on(lease, url)
        self.carry_out(self._policy.handle(events.Released(now, lease.number)))

    def following(self, now: float) -> int:
        """How many named leases have gone to other servers whose keepers, which renew them four times in `expiry`, do not know that yet."""
        return sum(now - since < self.expiry / 2 for since in self._following.values())

    def _alone(self, member: Membership) -> None:
        others = len(member.lease.sessions) - 1
        if others:
            raise NotGranted(f"its lease has {others} more session{'s' if others > 1 else ''}, and sessions of one lease do not move together yet")

    def _has_room(self, member: Membership, devices: tuple[int, ...]) -> None:
        if not self._policy.has_room(member.lease.number, devices):
            raise NotGranted("what its lease reserves is not free there")

    def _free_slot(self) -> int | None:
        taken = {member.slot for member in [*self._members.values(), *self._moving.values()]}
        return next((s for s in range(self._slots) if s not in taken), None)

    # ---- time -----------------------------------------------------------------------------------------------------------

    def next_expiry(self) -> float | None:
        """When `expire` is to be called next, None: no lease ends, and none has waited long enough, by itself."""
        due = [lease.expires for lease in self._leases.values() if lease.expires is not None and not lease.sessions]
        wake = self._policy.wake
        return min(due if wake is None else [*due, wake], default=None)

    def expire(self, now: float) -> list[Lease]:
        """Ends leases that nobody has renewed in time and that have no session; returns them."""
        over = [lease for lease in self._leases.values() if not lease.sessions and lease.expires is not None and lease.expires <= now]
        for lease in over:
            self.end(lease, now)
        self.carry_out(self._policy.handle(events.Passed(now)))
        return over

    # ---- granting -------------------------------------------------------------------------------------------------------

    def place(self, lease: Lease) -> tuple[int, int]:
        """The place of a lease among those that wait, from 1, and how many they are; zeros when it does not wait."""
        return self._policy.place(lease.number) or (0, 0)

    def why(self, lease: Lease) -> str:
        """Why a lease waits, for people."""
        return self._policy.why(lease.number)

    def revoke(self, owner: bytes, why: str, now: float) -> None:
        """A token is worth nothing any more: its leases are over, or are when the sessions that work under them have ended."""
        for lease in [lease for lease in self._leases.values() if lease.owner == owner]:
            if lease.waits:
                self._refuse(lease, why, now)
            elif lease.named or not lease.sessions:
                self.end(lease, now)

    def _refuse(self, lease: Lease, why: str, now: float) -> None:
        """A lease that waits gets nothing, for a reason that is not the policy's."""
        lease.refused = why
        self._remember(lease)
        self.end(lease, now)
        if self.decided:
            self.decided(lease)

    def _remember(self, lease: Lease) -> None:
        """Whoever asks for a named lease that was refused is told why."""
        if lease.named:
            self._refused[lease.id, lease.owner] = lease.refused

    def _know(self, asked: Asked, now: float) -> str:
        """The policy's name of who asks; the policy knows its rights."""
        rights = asked.rights
        user = f"user {rights.user}" if rights.user else asked.owner.hex()
        if self._rights.get(user) != rights:
            self._rights[user] = rights
            self.carry_out(self._policy.handle(rights.event(now, user)))
        return user

    def _impossible(self, asked: Asked, gpus: int, now: float) -> str | None:
        if asked.compute and self.no_shares:
            return self.no_shares
        return self._policy.impossible(self._know(asked, now), gpus, asked.memory, asked.compute, asked.priority)

    def _ask(self, asked: Asked, holder: dict[str, Any], started: float, now: float, id: bytes = NO_ID) -> Lease:
        """id: of one that is opened under a name."""
        own = sum(lease.owner == asked.owner for lease in self._leases.values())
        if self._per_token is not None and own >= self._per_token:
            what = f"this token has {own} leases on this server, as many as one token may"
            raise NotGranted(f"{what}; end one, or have the server run with a higher --sessions-per-token")
        if len(self._leases) >= self._slots:
            raise NotGranted(f"this server has its limit of {self._slots} leases; try again when one has ended")
        number = secrets.randbits(63) | 1
        if asked.compute and self.no_shares:
            raise NotGranted(self.no_shares)
        user = self._know(asked, now)
        lease = self._leases[number] = Lease(number, asked.owner, asked.gpus, asked.memory, started, holder, compute=asked.compute)
        lease.id, lease.launch, lease.process = id if id != NO_ID else asked.lease, asked.launch, asked.process
        lease.priority, lease.preemptible = asked.priority, asked.preemptible
        lease.seeks = id == NO_ID and asked.lease != NO_ID
        if lease.named:
            self._named[lease.id] = lease
        elif lease.launch != NO_LAUNCH:
            self._launches[lease.owner, lease.launch] = lease
        how = asked.priority, asked.no_wait, asked.wait, asked.gang, asked.gang_size, asked.preemptible
        wanted = events.Asked(now, number, user, asked.gpus, asked.memory, asked.compute, *how)
        self.carry_out(self._policy.handle(wanted), new=lease)
        if lease.refused:
            raise NotGranted(lease.refused)
        return lease

    def carry_out(self, instructions: Sequence[Instruction], new: Lease | None = None) -> None:
        """Does what the policy says. new: a lease whose caller looks at it itself."""
        for one in instructions:
            lease = self._leases.get(one.lease)
            if lease is None or not isinstance(one, Grant | Refuse | TimedOut | Elsewhere | Preempt | Resume):
                continue
            if isinstance(one, Preempt | Resume):
                self.gives_way(lease, one)
                continue
            if isinstance(one, Grant):
                lease.devices = one.devices
                self.note(lease)
            elif isinstance(one, Elsewhere):
                self._send_on(lease, one.url)
            else:
                lease.refused = one.text
                self._remember(lease)
                self._forget(lease)
            if lease is not new and self.decided:
                self.decided(lease)

    def _send_on(self, lease: Lease, url: str) -> None:
        """It is another host's; who asks for it here is to ask there."""
        lease.elsewhere = url
        if lease.named:
            self._sent[lease.id, lease.owner] = url
        self._forget(lease)

    def _fits(self, lease: Lease, asked: Asked) -> None:
        if asked.gpus and asked.gpus != lease.wanted:
            whose = "the lease that it works under" if lease.named else "its launch"
            raise NotGranted(f"--gpus {asked.gpus} (GPUVIRT_GPUS) was asked for and {whose} has {lease.gpus}; leave GPUVIRT_GPUS as it was")
        if asked.compute and asked.compute != lease.compute:
            has = f"{lease.compute / events.COMPUTE:g} of each GPU" if lease.compute else "no part of its GPUs' compute for itself"
            whose = "the lease that it works under" if lease.named else "its launch"
            raise NotGranted(
                f"--compute {asked.compute / events.COMPUTE:g} (GPUVIRT_COMPUTE) was asked for and {whose} has {has}; leave it as it was"
            )
        never = self._impossible(asked, lease.wanted, 0.0)
        if never is not None:
            raise NotGranted(never)
        least = min((self._policy.room.total[device] for device in lease.devices), default=asked.memory)
        if asked.memory > least:
            text = f"{format_size(asked.memory)} per GPU were asked for and a GPU of this lease has {format_size(least)}"
            raise NotGranted(f"{text}; ask for less with --memory")

    def end(self, lease: Lease, now: float) -> None:
        """It is over; of its sessions whoever runs them is to end them."""
        self._forget(lease)
        if lease.away is not None and not lease.away.done():
            lease.away.set_result(None)
        self.carry_out(self._policy.handle(events.Released(now, lease.number)))

    def _forget(self, lease: Lease) -> None:
        if self._leases.pop(lease.number, None) is not None and lease.named:
            self.ended(lease)
        if self._named.get(lease.id) is lease:
            del self._named[lease.id]
        if self._launches.get((lease.owner, lease.launch)) is lease:
            del self._launches[lease.owner, lease.launch]
        if self._processes.get((lease.owner, lease.process)) is lease:
            del self._processes[lease.owner, lease.process]


def _ask_back(lease: Lease, said: Preempt | Resume) -> None:
    """Where nothing can be suspended: whoever keeps the lease is to give it back."""
    if isinstance(said, Preempt):
        lease.preempted = said.text
