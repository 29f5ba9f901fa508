"""Turns: on a device of which leases have reserved parts of the compute (`--compute`), the kernels of one session at a time run.

policy/turn_order.py says whose turn it is; here are the words to the workers and back, and the daemon's clock, by which turns are measured. A
session whose turn is over stops between two blocks of its kernels. One that has not within `OVERRUN` is stopped from outside (SIGSTOP), whole,
until its next turn; the time until then is counted as its own. A kernel on a real GPU cannot be stopped: there the others wait until it has
ended, which is its session's debt, and a session that lets others wait for `overrun` seconds is told so and ended. Where no lease has reserved
anything there are no turns, and sessions run side by side.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.policy.turn_order import TurnOrder
from gpuvirt.server.session import Session
from gpuvirt.server.worker_library import May, TurnSaid
from gpuvirt.server.workers.worker_process import WorkerProcess

log = logging.getLogger("gpuvirt.server")

OVERRUN = 0.02  # seconds that a session has to stop
LINGER = 0.03  # seconds for which one that cannot be stopped counts on after its last kernel: giving way may cost it another one's longest kernel
AGAIN = 1.0  # seconds between two looks at whether anybody waits for a kernel that cannot be stopped


class _State(IntEnum):
    """Of a session on one device, by what it was told last."""

    RUNS = 0  # it may: it is its turn, or there are none
    STOPPING = 1
    STOPPED = 2
    FROZEN = 3  # its process is stopped, in the middle of something on this device
    ENDING = 4  # it has let others wait for too long


@dataclass
class _Member:
    """One session on one device.

    Attributes:
        number: of the last word to it.
        since: when it was to stop.
        quiet_since: when it said that it had nothing to run, None: it has.
        lingers: until that counts.
    """

    worker: WorkerProcess
    number: int = field(default_factory=lambda: secrets.randbits(31))
    state: _State = _State.RUNS
    since: float = 0.0
    quiet_since: float | None = None
    lingers: asyncio.TimerHandle | None = None

    def works(self) -> None:
        """What it has said of being idle is void."""
        self.quiet_since = None
        self.stay_idle()

    def stay_idle(self) -> None:
        if self.lingers is not None:
            self.lingers.cancel()
            self.lingers = None


class _Device:
    def __init__(self) -> None:
        self.order = TurnOrder()
        self.members: dict[int, _Member] = {}
        self.shared = False
        self.timer: asyncio.TimerHandle | None = None


class Turns:
    """The turns of all devices of a server.

    Args:
        end: ends a session that cannot be stopped, for a reason that its client is told; None: sessions can be stopped from outside.
        overrun: seconds that such a session has to stop, while others wait.
    """

    def __init__(self, end: Callable[[int, str], None] | None = None, overrun: float = 60.0) -> None:
        self._end, self._overrun = end, overrun
        self._devices: defaultdict[int, _Device] = defaultdict(_Device)
        self._spent: dict[int, float] = {}  # by session: seconds of its turns on devices that it has left, as it moved

    def close(self) -> None:
        for device in self._devices.values():
            if device.timer is not None:
                device.timer.cancel()

    # ---- who there is ---------------------------------------------------------------------------------------------------

    def join(self, session: Session, adopted: bool = False) -> None:
        """A session begins on its devices, or goes on there in another worker, which has been given it.

        Args:
            adopted: an earlier daemon may have told it anything.
        """
        self._leave_devices(session.id)
        if adopted:
            session.worker.kill(signal.SIGCONT)
        worker = session.worker
        worker.says_turn = lambda device, what, number: self._heard(session.id, worker, device, what, number)
        for ordinal in session.membership.devices:
            device, member = self._devices[ordinal], _Member(worker)
            device.members[session.id] = member
            lease = session.membership.lease
            device.order.join(session.id, lease.number, lease.compute / COMPUTE, time.monotonic())
            if device.shared:
                self._tell(ordinal, member, May.WAIT)
                if not adopted:
                    member.state = _State.STOPPED  # it has not begun
            elif adopted:
                self._tell(ordinal, member, May.ALWAYS)
            self._update(ordinal)

    def leave(self, session: int) -> None:
        """It has ended."""
        self._leave_devices(session)
        self._spent.pop(session, None)

    def _leave_devices(self, session: int) -> None:
        for ordinal, device in [*self._devices.items()]:
            member = device.members.pop(session, None)
            if member is None:
                continue
            member.works()
            self._spent[session] = self._spent.get(session, 0.0) + device.order.leave(session, time.monotonic())
            self._update(ordinal)

    def spent(self, session: int) -> float:
        """Seconds of turns that a session has had on all its devices, by this daemon's clock."""
        here = [device.order for device in self._devices.values() if session in device.members]
        return self._spent.get(session, 0.0) + sum(order.spent(session, time.monotonic()) for order in here)

    def shared(self, devices: Iterable[int]) -> bool:
        """Whether there are turns on any of these devices."""
        return any(self._devices[device].shared for device in devices if device in self._devices)

    # ---- words ----------------------------------------------------------------------------------------------------------

    def _tell(self, ordinal: int, member: _Member, may: May) -> None:
        member.number = (member.number + 1) & 0x7FFFFFFF
        member.state = _State.STOPPING if may is May.WAIT else _State.RUNS
        member.since = time.monotonic()
        member.worker.turn(ordinal, may, member.number)

    def _heard(self, session: int, worker: WorkerProcess, ordinal: int, what: int, number: int) -> None:
        device = self._devices.get(ordinal)
        member = device.members.get(session) if device is not None else None
        if device is None or member is None or member.worker is not worker or not device.shared:
            return
        now = time.monotonic()
        if what in (TurnSaid.STOPPED, TurnSaid.STOPPED_WANTS):
            if number != member.number or member.state is _State.RUNS:
                return  # it answers a word that another has replaced
            if member.state is _State.FROZEN:  # it was said before the process was stopped
                self._continue(session, ordinal, member)
            member.state = _State.STOPPED
            wants = what == TurnSaid.STOPPED_WANTS or self._lingers(session, ordinal, member, now)
            device.order.end(session, wants, now)
            if what == TurnSaid.STOPPED_WANTS:
                member.works()
        elif what == TurnSaid.WANTS:
            member.works()
            device.order.wants(session, now)
        elif member.state is _State.FROZEN:
            pass  # that it was idle was said before its process was stopped, which goes on only when it is given a turn
        elif what == TurnSaid.IDLE and not self._lingers(session, ordinal, member, now):
            device.order.idle(session, now)
        self._update(ordinal)

    def _lingers(self, session: int, ordinal: int, member: _Member, now: float) -> bool:
        """It has nothing to run. Whether that does not count yet; where a session can be stopped it counts at once."""
        member.quiet_since = now if member.quiet_since is None else member.quiet_since
        left = 0.0 if self._end is None else member.quiet_since + LINGER - now
        member.stay_idle()
        if left > 0:
            member.lingers = asyncio.get_running_loop().call_later(left, self._is_idle, session, ordinal, member)
        return left > 0

    def _is_idle(self, session: int, ordinal: int, member: _Member) -> None:
        if ordinal in self._devices and self._devices[ordinal].members.get(session) is member:
            self._devices[ordinal].order.idle(session, time.monotonic())
            self._update(ordinal)

    # ---- whose turn it is -----------------------------------------------------------------------------------------------

    def _update(self, ordinal: int) -> None:
        """Does what is due on a device, and sets the timer for what will be."""
        device, now = self._devices[ordinal], time.monotonic()
        if device.timer is not None:
            device.timer.cancel()
            device.timer = None
        if device.shared != device.order.shared:
            self._share(ordinal, device, now)
        if not device.shared:
            if not device.members:
                del self._devices[ordinal]
            return
        due: list[float] = []
        for session, member in device.members.items():
            if member.state is _State.STOPPING:
                left = member.since + (OVERRUN if self._end is None else self._overrun) - now
                if left > 0:
                    due.append(left)
                elif self._end is None:
                    self._freeze(session, ordinal, member, now)
                elif device.order.others_wait(session):
                    member.state = _State.ENDING
                    kernels = f"its kernels ran on for {self._overrun:g} s after its turn on GPU {ordinal}"
                    self._end(session, f"{kernels}, and others wait (serve --overrun)")
                else:
                    due.append(AGAIN)
        holder = device.order.holder
        if holder is None and not any(member.state in (_State.STOPPING, _State.ENDING) for member in device.members.values()):
            self._begin(ordinal, device, now)
            holder = device.order.holder
        if holder is not None and device.members[holder].state is _State.RUNS:
            left_of_turn = device.order.gives_way(self._frozen_elsewhere(ordinal), now)
            if left_of_turn is not None and left_of_turn <= 0:
                device.order.stop(now)
                self._tell(ordinal, device.members[holder], May.WAIT)
                left_of_turn = OVERRUN
            if left_of_turn is not None:
                due.append(left_of_turn)
        if due:
            device.timer = asyncio.get_running_loop().call_later(min(due), self._update, ordinal)

    def _share(self, ordinal: int, device: _Device, now: float) -> None:
        """Turns begin, or end, on a device."""
        device.shared = device.order.shared
        for session, member in device.members.items():
            if device.shared:
                self._tell(ordinal, member, May.WAIT)
            else:
                if member.state is _State.FROZEN:
                    self._continue(session, ordinal, member)
                device.order.end(session, False, now)
                self._tell(ordinal, member, May.ALWAYS)
        how = "is shared by turns: a lease has reserved a part of its compute" if device.shared else "is not shared by turns any more"
        log.info("GPU %d %s", ordinal, how)

    def _begin(self, ordinal: int, device: _Device, now: float) -> None:
        session = device.order.next(self._frozen_elsewhere(ordinal))
        if session is None:
            return
        member = device.members[session]
        if member.state is _State.FROZEN:
            self._continue(session, ordinal, member)
        device.order.begin(session, now)
        self._tell(ordinal, member, May.NOW)

    def _freeze(self, session: int, ordinal: int, member: _Member, now: float) -> None:
        """It runs although its turn is over. It wants to, of course."""
        member.worker.kill(signal.SIGSTOP)
        member.state = _State.FROZEN
        self._devices[ordinal].order.end(session, True, now)
        for other, device in [*self._devices.items()]:  # what it has of other devices does not go on either
            if other != ordinal and session in device.members and device.order.holder == session:
                self._tell(other, device.members[session], May.WAIT)
                device.members[session].state = _State.STOPPED
                device.order.end(session, True, now)
                asyncio.get_running_loop().call_soon(self._update, other)

    def _continue(self, session: int, ordinal: int, member: _Member) -> None:
        """Its process goes on: on its other devices it may have turns again, and whoever has one there is to give way to it."""
        member.worker.kill(signal.SIGCONT)
        for other, device in self._devices.items():
            if other != ordinal and session in device.members:
                asyncio.get_running_loop().call_soon(self._update, other)

    def _frozen_elsewhere(self, ordinal: int) -> set[int]:
        """Sessions that stand still because of another device."""
        here = self._devices[ordinal].members
        return {
            session
            for other, device in self._devices.items()
            for session, member in device.members.items()
            if other != ordinal and session in here and member.state is _State.FROZEN
        }
