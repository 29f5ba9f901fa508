"""The policy machine: which lease gets which GPUs, and when. Events in, instructions out; no I/O, no clock, no chance.

All GPUs of a lease are on one host (hosts.py), those of a gang of leases on as few as have room (gangs.py). Hosts come and go; what had GPUs of one
that has left is over, and what waits goes on waiting.

**Order.** That of waiting.py.

**Backfill.** What does not fit does not stop what does: leases further back in the order are granted past it, also those of the same user where its
quota is not what they wait for (passes.py). Three rules end that:

- *The first in the order holds.* Once it has waited for `HOLD_AFTER`, devices are held for it: they take no other lease (holding.py). One lease
  holds at a time, until it is granted; in a pool of N hosts the first N / 8, on different ones. Its devices are free when the leases that they had
  are over, and any other device of the host that has room takes the place of one that has not; if another host has room for it sooner, it goes there.
- *Who gives way.* The first in the order that has waited for `PREEMPT_AFTER` gets the devices of preemptible leases of a lower priority where that is
  enough on one host, for a gang on several (preemption.py): they are asked to give way, and their devices are held for it. Who was only suspended
  has them again afterwards (suspension.py).
- *The eldest holds.* Priority, weights and users who come anew can keep a lease from ever being the first; age does not (eldest.py, which has the
  bound of how long anybody waits).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from gpuvirt.server.policy.books import Books
from gpuvirt.server.policy.events import (
    PLACEMENTS,
    PRIORITIES,
    Asked,
    Event,
    HostCordoned,
    HostJoined,
    HostLeft,
    Kept,
    Migrate,
    Migrated,
    Moved,
    Passed,
    Released,
    Restored,
    Stays,
    Suspended,
    UserRevoked,
    UserSet,
)
from gpuvirt.server.policy.gangs import ASSEMBLY, Gang, slices
from gpuvirt.server.policy.holding import HOLD_AFTER
from gpuvirt.server.policy.instructions import End, Grant, Hold, Instruction, Lost, Preempt, Queue, Refuse, TimedOut
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.passes import Pass
from gpuvirt.server.policy.preemption import PREEMPT_AFTER, PREEMPT_AGAIN
from gpuvirt.server.policy.reasons import count_text
from gpuvirt.server.policy.room import Shape
from gpuvirt.server.policy.suspension import SETTLE

LOOK = 64  # leases that do not fit, at which one pass looks before it stops: it bounds the time of a decision


class PolicyMachine(Books):
    """The books of a pool, and what follows from what happens."""

    # ---- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Handles one event.

        Raises:
            ValueError: the lease that is asked for is there already, or a number is out of its range.
        """
        out: list[Instruction] = []
        self._at = max(self._at, event.at)
        factor = self._clock.set(self._at)
        if factor != 1.0:
            for account in self._accounts.values():
                account.fade(factor)
        if isinstance(event, Asked):
            self._check(event)
        if isinstance(event, Released):
            self._release(event.lease)
        self._time_out(out)
        while self._looks and self._looks[0] <= self._at:
            heapq.heappop(self._looks)
        match event:
            case Asked():
                self._ask(event, out)
            case UserSet():
                self._set_user(event, out)
            case UserRevoked():
                self._revoke(event, out)
            case Suspended():
                self._suspend(event.lease)
            case Moved():
                self._move(event)
            case Restored():
                self._restore(event, out)
            case HostJoined():
                self._join(event, out)
            case HostLeft():
                self._lose(event.host, out)
            case HostCordoned():
                self._cordon(event.host, event.cordoned)
            case Migrate():
                self.migrations.begin(event, out)
            case Migrated():
                self.migrations.end(event)
                self.rebalancing.ended(event.lease)
                if (lease := self.leases.get(event.lease)) is not None and lease.devices and lease.suspended is None:
                    lease.preempted = lease.preempted and not event.done  # elsewhere it is asked anew
                    self.preemption.add(lease)
            case Kept():
                self._keep(event, out)
            case Stays():
                self.rebalancing.ended(event.lease)
            case Released() | Passed():
                pass
        if not isinstance(event, Asked):
            self._serve(out)
            if isinstance(event, HostJoined) or (isinstance(event, HostCordoned) and not event.cordoned):
                self.rebalancing.host_came(event.host)  # what waits goes first
            self.rebalancing.serve(self._at, out)
        self._history.append((event, out))
        return out

    @property
    def wake(self) -> float | None:
        """When `Passed` is wanted next, None: not at all."""
        time_out = self._next_time_out
        looks = self._looks[:1]
        return min([*looks, time_out] if time_out is not None else looks, default=None)

    @property
    def _next_time_out(self) -> float | None:
        while self._time_outs:
            when, number = self._time_outs[0]
            lease = self.leases.get(number)
            if lease is not None and lease.until == when:
                return when
            heapq.heappop(self._time_outs)
        return None

    # ---- users --------------------------------------------------------------------------------------------------------

    def _set_user(self, event: UserSet, out: list[Instruction]) -> None:
        if event.weight <= 0 or min(event.gpus, event.memory) < 0 or event.placement not in PLACEMENTS:
            raise ValueError("a user's weight is greater than 0, its limits are not negative, its placement is pack, spread or nothing")
        account = self._account(event.user)
        account.weight, account.quota, account.priority, account.memory = event.weight, event.gpus, event.priority, event.memory
        account.placement, account.revoked = event.placement, False
        for _, _, number in list(account.queue):
            lease = self.leases[number]
            never = self._never(lease)
            if never is not None:
                out += [Refuse(each, never) for each in self._forget(lease)]
        for holding in [holding for holding in self.holdings if self.leases[holding.lease].account is account]:
            self.holdings.let_go(holding.lease)  # its quota may be another

    def _revoke(self, event: UserRevoked, out: list[Instruction]) -> None:
        account = self._account(event.user)
        account.revoked = True
        text = "the token has been revoked; ask the server's owner for another"
        for _, _, number in list(account.queue):
            out += [Refuse(each, text) for each in self._forget(self.leases[number])]
        for gang in [gang for gang in self.gangs.values() if gang.user == event.user and gang.assembles]:
            out += [Refuse(each, text) for each in self._forget(self.leases[gang.parts[0]])]
        out += [End(number, "its token has been revoked") for number in sorted(account.leases)]

    # ---- leases -------------------------------------------------------------------------------------------------------

    def _check(self, event: Asked) -> None:
        if event.lease in self.leases:
            raise ValueError(f"there is a lease {event.lease:x} already")
        if min(event.memory, event.compute) < 0 or event.wait < 0 or abs(event.priority) > PRIORITIES:
            raise ValueError(f"a lease's numbers are not negative, its priority is from -{PRIORITIES} to {PRIORITIES}")

    def _never(self, lease: Lease) -> str | None:
        """Why what waits can never be had."""
        shape = lease.shape
        return self.impossible(lease.account.name, shape.gpus, shape.memory, shape.compute, lease.asked.priority, shape.part)

    def _ask(self, event: Asked, out: list[Instruction]) -> None:
        never = self.impossible(event.user, event.gpus, event.memory, event.compute, event.priority)
        if never is not None:
            out.append(Refuse(event.lease, never))
            return
        # Whoever has waited long enough holds first, and who is suspended and due by now has its devices again.
        self._serve(out, all_of_it=bool(self.suspension) or any(isinstance(one, TimedOut) for one in out))
        self._arrivals += 1
        account = self._account(event.user)
        shape = Shape(event.gpus, event.memory, event.compute, placement=account.placement)
        lease = Lease(event.lease, account, shape, event, (-event.priority, self._arrivals, event.lease))
        if event.gang:
            self._ask_in_gang(lease, out)
        else:
            self._queue_up(lease, out)

    def _queue_up(self, lease: Lease, out: list[Instruction]) -> None:
        """A lease, or a gang, gets what it wants or waits for it."""
        asked = lease.asked
        self.leases[lease.id] = lease
        self.waiting.add(lease, self._at)
        has_turn = self.waiting.has_turn(lease)
        devices = self.room.find(lease.shape, near=partial(self._near, lease)) if has_turn else []
        if len(devices) == lease.shape.gpus:
            self._grant(lease, devices, out)
            return
        if has_turn and lease.kind:
            self.waiting.kinds.in_vain(lease.kind)
        place = self.place(lease.id)
        assert place is not None
        why = self.why(lease.id)
        if asked.no_wait:
            self._forget(lease)
            where = f"it would be at place {place[0]} of {place[1]}"
            out.append(
                Refuse(lease.id, f"{count_text(lease.shape.gpus)} cannot be had without waiting: {why}, and {where}; ask again without --no-wait")
            )
            return
        if asked.wait:
            self._waits_until(lease, self._at + asked.wait)
        if self.preemption.any_below(asked.priority):
            heapq.heappush(self._looks, self._at + PREEMPT_AFTER)
        out += [Queue(number, *place, why) for number in lease.numbers]

    def _waits_until(self, lease: Lease, when: float) -> None:
        lease.until = when
        heapq.heappush(self._time_outs, (when, lease.id))

    def _ask_in_gang(self, lease: Lease, out: list[Instruction]) -> None:
        """A lease of a gang: with the last of them the gang is queued as a whole."""
        asked, account = lease.asked, lease.account
        name = account.name, asked.gang
        gang = self.gangs.get(name) or Gang(*name, asked.gang_size)
        others = [self.leases[number] for number in gang.parts]
        differs = asked.gang_size != gang.size or any((each.shape, each.asked.priority) != (lease.shape, asked.priority) for each in others)
        whole = Lease(-self._arrivals, account, replace(lease.shape, gpus=lease.shape.gpus * gang.size, part=lease.shape.gpus), asked, (0, 0, 0))
        refused = self._never(whole)
        if asked.no_wait:
            refused = "a lease of a gang waits for the others; ask for it without --no-wait"
        elif differs or gang.size < 1:
            refused = "the leases of a gang ask for the same, and each says how many they are"
        elif not gang.assembles:
            refused = "all leases of this gang have been asked for, and some have ended since; ask for another gang"
        if refused:
            out.append(Refuse(lease.id, refused))
            return
        self.gangs[name], self.leases[lease.id], lease.gang = gang, lease, gang
        gang.parts.append(lease.id)
        if others:
            others[-1].until = None
        if len(gang.parts) < gang.size:
            self._waits_until(lease, self._at + ASSEMBLY)  # the last one, for all of them
            place = self.place(lease.id)
            assert place is not None
            out.append(Queue(lease.id, *place, gang.missing()))
            return
        gang.whole, whole.gang = whole.id, gang
        whole.asked, whole.entry = replace(asked, at=self._at, lease=whole.id), (-asked.priority, self._arrivals, whole.id)
        self._queue_up(whole, out)

    def _leave_gang(self, lease: Lease) -> None:
        """A lease that waits is given up: the others of its gang assemble anew."""
        gang = lease.gang
        assert gang is not None
        if gang.whole:
            self.waiting.remove(self.leases.pop(gang.whole), self._at)
            gang.whole = 0
        self._out_of_gang(lease)
        del self.leases[lease.id]
        if gang.parts:
            self._waits_until(self.leases[gang.parts[-1]], self._at + ASSEMBLY)

    def _out_of_gang(self, lease: Lease) -> None:
        if lease.gang is None:
            return
        lease.gang.parts.remove(lease.id)
        if not lease.gang.parts:
            del self.gangs[lease.gang.user, lease.gang.number]

    def _restore(self, event: Restored, out: list[Instruction]) -> None:
        self._release(event.kept)
        shape = Shape(len(event.devices), event.memory, event.compute, placement=self._account(event.user).placement)
        there = event.lease not in self.leases and self.room.together(event.devices)
        if not there or not (event.suspended or all(self.room.fits(device, shape) for device in event.devices)):
            out.append(Refuse(event.lease, "what it had is not there any more"))
            return
        self._arrivals += 1
        asked = Asked(event.at, event.lease, event.user, shape.gpus, event.memory, event.compute, event.priority, preemptible=event.preemptible)
        account = self._account(event.user)
        lease = self.leases[event.lease] = Lease(event.lease, account, shape, asked, (0, self._arrivals, event.lease))
        self._restore_gang(lease, event)
        if event.suspended:
            self._book(lease, event.devices)
            self._wait_suspended(lease, self._at + SETTLE)
        else:
            self._give(lease, event.devices, out)

    def _keep(self, event: Kept, out: list[Instruction]) -> None:
        lease = self.leases.get(event.lease)
        if lease is None or not lease.destination:
            return
        devices, lease.destination = lease.destination, ()
        for device in devices:  # they are taken again before anybody is served
            self.room.give_back(device, lease.shape)
        self._restore(Restored(event.at, event.as_lease, lease.account.name, devices, lease.shape.memory, lease.shape.compute), out)

    def _restore_gang(self, lease: Lease, event: Restored) -> None:
        """It is one of a gang that has its GPUs; of one that assembles, because others of it have not heard that, it is none any more."""
        name = event.user, event.gang
        if event.gang and self.gangs.setdefault(name, Gang(*name, event.gang_size, granted=True)).granted:
            lease.gang = self.gangs[name]
            lease.gang.parts.append(lease.id)

    def _release(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None:
            return
        if not lease.devices:
            self._leave_gang(lease) if lease.gang else self._forget(lease)
            return
        del self.leases[number]
        self._out_of_gang(lease)
        account = lease.account
        account.leases.discard(number)
        account.gpus -= lease.shape.gpus
        if lease.suspended is None:
            self._take_back(lease)
        else:
            self.suspension.forget(lease)
        self._give_back(lease.destination, lease.shape)
        self.migrations.forget(number)
        self.rebalancing.ended(number)
        self._lane.released(lease, self._at)

    def _suspend(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is not None and lease.devices and lease.suspended is None:
            self._take_back(lease)
            # Who was not asked could not be resumed at its host, of which others know less than it does itself.
            self._wait_suspended(lease, self._at if lease.preempted else self._at + SETTLE)

    def _wait_suspended(self, lease: Lease, since: float) -> None:
        self.suspension.add(lease, since)
        for when in (since, since + HOLD_AFTER):
            heapq.heappush(self._looks, when)

    def _move(self, event: Moved) -> None:
        lease = self.leases[event.lease]
        if len(event.devices) != len(lease.devices) or not self.has_room(event.lease, event.devices):
            raise ValueError(f"lease {event.lease:x} cannot move there")
        self._give_back(set(lease.devices) - set(event.devices), lease.shape)
        for device in set(event.devices) - set(lease.devices):
            self.room.take(device, lease.shape)
        lease.devices = tuple(sorted(event.devices))

    def _join(self, event: HostJoined, out: list[Instruction]) -> None:
        self.room.join(event.host, event.memory, event.rack)
        self.room.cordon(event.host, event.cordoned)
        first = self.room.devices(event.host).start
        for one in event.leases:
            self._restore(replace(one, devices=tuple(first + device for device in one.devices)), out)

    def _lose(self, host: int, out: list[Instruction]) -> None:
        if not self.room.has(host):
            return
        if holding := self.holdings.on(host):
            self.holdings.let_go(holding.lease)
        self.migrations.lose(host, out)
        self.rebalancing.host_left(host)
        for lease in [lease for lease in self.leases.values() if lease.devices and self.room.host(lease.devices[0]) == host]:
            self._release(lease.id)
            out.append(Lost(lease.id, "the host of its GPUs is not there any more"))
        self.room.leave(host)

    def _cordon(self, host: int, cordoned: bool) -> None:
        if not self.room.has(host):
            return
        if cordoned and (holding := self.holdings.on(host)):
            self.holdings.let_go(holding.lease)
        self.room.cordon(host, cordoned)
        if cordoned:
            self.rebalancing.host_left(host)

    def _forget(self, lease: Lease) -> tuple[int, ...]:
        """Takes a lease that waits, and its gang, out of everything. Returns their numbers."""
        numbers, gang = lease.numbers, lease.gang
        if gang is None or gang.whole:
            entry = lease if gang is None else self.leases.pop(gang.whole)
            self.waiting.remove(entry, self._at)
        if gang is not None:
            del self.gangs[gang.user, gang.number]
        for number in numbers:
            del self.leases[number]
        return numbers

    def _grant(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        holding = self.holdings.of(lease.id)
        self.waiting.remove(lease, self._at)
        if holding and holding.elder:
            self._lane.granted(lease, holding.since)
        lease.until = None
        if lease.gang is None:
            self._give(lease, devices, out)
            return
        del self.leases[lease.id]
        lease.gang.whole, lease.gang.granted = 0, True
        for number, part in zip(lease.gang.parts, slices(sorted(devices), lease.shape.part), strict=True):
            self._give(self.leases[number], part, out)

    def _give(self, lease: Lease, devices: Sequence[int], out: list[Instruction]) -> None:
        self._book(lease, devices)
        self._take(lease)
        out.append(Grant(lease.id, lease.devices, lease.shape.memory or self.most(lease.account.memory)))

    def _time_out(self, out: list[Instruction]) -> None:
        while (when := self._next_time_out) is not None and when <= self._at:
            lease = self.leases[heapq.heappop(self._time_outs)[1]]
            place = self.place(lease.id)
            assert place is not None
            text = f"it has waited {self._at - lease.asked.at:.0f} s, as long as it wanted to, and was at place {place[0]} of {place[1]}"
            text = f"{text}; give more with --wait"
            if lease.gang and lease.gang.assembles:
                text = f"{lease.gang.missing()} for {ASSEMBLY:.0f} s; ask for all of them anew"
            out += [TimedOut(number, text) for number in self._forget(lease)]

    # ---- the queue ----------------------------------------------------------------------------------------------------

    def _serve(self, out: list[Instruction], all_of_it: bool = True) -> None:
        """Grants what can be granted, in the order, or (not all_of_it) what is in front of the first that cannot."""
        self.migrations.serve(out)
        suspended = self.suspension.in_order() if self.suspension and all_of_it else []
        if not self.waiting:
            self.suspension.resume(suspended, -PRIORITIES, -PRIORITIES, self._at, out)
            return
        if self.holdings.full and not all_of_it:
            return
        self._go_on_holding(out)
        self._choose_elder(out)
        self._go_on_holding(out)
        first = self.waiting.highest(-PRIORITIES)
        self.suspension.let_go_below(first)
        let_go = self._look(suspended, first, out, all_of_it)
        if self.suspension.resume(suspended, -PRIORITIES, first, self._at, out) or let_go:
            self._serve(out, all_of_it)  # what was held and is not needed may be enough for others

    def _look(self, suspended: list[Lease], first: int, out: list[Instruction], all_of_it: bool) -> bool:
        """Looks once at what waits. Returns whether something is held no more.

        Args:
            suspended, first: as for `Suspension.resume`.
        """
        looked, let_go = 0, False
        look = Pass(self.waiting, self.holdings, may_hold=not all_of_it or not (self.holdings.full or self._lane.next))
        for lease, to_hold in look:
            let_go = self.suspension.resume(suspended, lease.asked.priority, first, self._at, out) or let_go
            if to_hold:
                if not (self._preempt(lease, out) or (self._may_hold(lease) and self._hold(lease, out, elder=False))):
                    if not all_of_it:
                        break
                    look.may_hold = False
                continue
            holding, kind = self.holdings.of(lease.id), lease.kind
            devices = self.holdings.find(lease.id, lease.shape, partial(self._near, lease))
            if len(devices) == lease.shape.gpus:
                self._grant(lease, devices, out)
                self.waiting.kinds.look()
                if holding:
                    let_go = True
                    if all_of_it:
                        suspended[:] = self.suspension.in_order()  # what was held for it, and is not needed, may be theirs
            elif kind is not None:
                self.waiting.kinds.in_vain(kind)
                if holding:
                    holding.worth = False
                looked += holding is None
                if looked == LOOK:
                    break
        return let_go

    # ---- holding ------------------------------------------------------------------------------------------------------

    def _choose_elder(self, out: list[Instruction]) -> None:
        self._lane.next = False
        oldest = None if self.holdings.elder else self._lane.eldest(self.waiting.accounts, self.leases, self._at)
        if oldest is None:
            return
        if holding := self.holdings.of(oldest.id):
            self.holdings.by_age(holding)
        elif self.holdings.full or not self._hold(oldest, out, elder=True):
            self._lane.next = bool(self.room.to_hold(oldest.shape, ()))

    def _preempt(self, lease: Lease, out: list[Instruction]) -> bool:
        """Others give way to the first in the order, if they have promised to and that is enough."""
        shape, priority = lease.shape, lease.asked.priority
        if self.holdings.full or self._lane.next or self._at < lease.asked.at + PREEMPT_AFTER or not self.preemption.any_below(priority):
            return False
        if (lease.id, priority) == self._in_vain[:2] and self._at < self._in_vain[2] + PREEMPT_AGAIN:
            return False
        choice = self.preemption.choose(shape, priority)
        if choice is None:
            self._in_vain = lease.id, priority, self._at
            heapq.heappush(self._looks, self._at + PREEMPT_AGAIN)
            return False
        self.holdings.begin_on(lease.id, shape, choice.devices, self._at)
        out += _holds(lease, set(choice.devices), "others give way to it")
        self._ask_to_give_way(choice.leases, f"a lease of priority {priority} waits for its GPUs", out)
        # Of a gang the others could only wait for those.
        gangs = [lease.gang.parts for lease in choice.leases if lease.gang]
        others = [other for parts in gangs for other in map(self.leases.__getitem__, parts) if self.preemption.has_promised(other)]
        self._ask_to_give_way(others, f"a lease of priority {priority} waits for GPUs of its gang", out)
        return True

    def _ask_to_give_way(self, leases: Iterable[Lease], text: str, out: list[Instruction]) -> None:
        for lease in leases:
            if not lease.preempted and lease.suspended is None:
                lease.preempted = True
                out.append(Preempt(lease.id, text))

    def _may_hold(self, lease: Lease) -> bool:
        """Whether the first in the order has waited for long enough, and there is a place for it among those that hold."""
        return not self.holdings.full and not self._lane.next and self._at - lease.asked.at >= HOLD_AFTER

    def _hold(self, lease: Lease, out: list[Instruction], elder: bool) -> bool:
        holding = self.holdings.begin(lease.id, lease.shape, elder, self._at)
        if holding is not None:
            out += _holds(lease, holding.devices, "it has waited longest of all" if elder else "it is the first in the order")
        return holding is not None

    def _go_on_holding(self, out: list[Instruction]) -> None:
        """What is held may have become free, or something else in its place."""
        for holding in self.holdings.stirred():
            if self.leases[holding.lease].devices:
                continue  # it is resumed in its turn
            if self.holdings.swap(holding):
                out += _holds(self.leases[holding.lease], holding.devices, "others have become free sooner")
            if not holding.missing:
                self._grant(self.leases[holding.lease], sorted(holding.devices), out)


def _holds(lease: Lease, devices: set[int], text: str) -> list[Instruction]:
    """What is held for a lease, or for each of a gang."""
    each = slices(sorted(devices), lease.shape.together)
    return [Hold(number, part, text) for number, part in zip(lease.numbers, each, strict=True)]
