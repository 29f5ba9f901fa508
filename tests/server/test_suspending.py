"""Leases that give way: all that works under them is parked before their devices are others', and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import suspending as suspending_module
from gpuvirt.server.lease import Asked, Lease
from gpuvirt.server.leases import Leases
from gpuvirt.server.memory_usage import MemoryUsage
from gpuvirt.server.parking import RETRY, Parking, ParkingState
from gpuvirt.server.policy.events import COMPUTE, Passed
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights
from gpuvirt.server.suspending import Suspending

GIB = 1 << 30
LOW, HIGH, OWNER = b"l" * 16, b"h" * 16, b"o" * 16


class Host:
    """One GPU, whose named lease `LOW` gives way to `HIGH` when `preempts` is called."""

    def __init__(self) -> None:
        self.policy = PolicyMachine([GIB])
        self.table = Leases(self.policy, 8)
        self.sessions: dict[int, Any] = {}
        self.parked: list[int] = []
        self.parks: dict[int, Callable[[], Awaitable[None]]] = {}  # what parking a session does
        self.told: list[int | None] = []
        parking: Any = SimpleNamespace(
            suspend=self._park, resume=lambda session: self.parked.remove(session.id) if session.id in self.parked else None
        )
        self.suspending = Suspending(
            self.table, self.sessions.values(), parking, lambda session: self.told.append(None if session is None else session.id)
        )
        self.low = self.open(LOW, -1, True)

    async def _park(self, session: Any) -> None:
        if session.id in self.parks:
            await self.parks[session.id]()
        self.parked.append(session.id)

    def open(self, id: bytes, priority: int, preemptible: bool = False) -> Lease:
        rights = Rights(priority=5)
        return self.table.open(id, Asked(OWNER, 1, 0, rights, compute=COMPUTE, priority=priority, preemptible=preemptible), {}, 0.0)

    def join(self, number: int) -> None:
        """A program attaches under `LOW`."""
        membership = self.table.join(number, Asked(OWNER, 1, lease=LOW), {})
        self.sessions[number] = SimpleNamespace(id=number, membership=membership)

    def leave(self, number: int) -> None:
        del self.sessions[number]
        self.table.leave(number, 0.0)

    def preempts(self) -> Lease:
        high = self.open(HIGH, 1)
        self.table.carry_out(self.policy.handle(Passed(10.0)))
        return high


def story(tell: Callable[[Host], Awaitable[None]]) -> None:
    async def told() -> None:
        host = Host()
        await tell(host)
        await host.suspending.close()

    asyncio.run(told())


async def soon(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_all_is_parked_before_the_devices_are_others() -> None:
    async def tell(host: Host) -> None:
        may = asyncio.Event()
        for number in (1, 2):
            host.join(number)
        host.parks[2] = may.wait  # type: ignore[assignment]
        high = host.preempts()
        await soon(lambda: host.parked == [1])
        assert host.low.suspends == "a lease of priority 1 waits for its GPUs" and not host.low.suspended and high.waits
        may.set()
        await soon(lambda: host.low.suspended)
        assert not high.waits and host.low.devices == high.devices == (0,) and not host.low.has_gpus
        assert {1, 2} <= set(host.told)
        host.table.release(HIGH, OWNER)
        assert host.low.has_gpus and not host.low.suspends and host.parked == []

    story(tell)


def test_one_that_attaches_meanwhile_is_waited_for() -> None:
    """It has joined, and its worker is not there yet: it would not be parked. One that comes later waits before it joins."""

    async def tell(host: Host) -> None:
        membership = host.table.join(1, Asked(OWNER, 1, lease=LOW), {})
        high = host.preempts()
        await asyncio.sleep(0.1)
        assert high.waits
        away = host.table.away(Asked(OWNER, 1, lease=LOW))
        assert away is not None and away[1] == "it gives way: a lease of priority 1 waits for its GPUs"
        host.sessions[1] = SimpleNamespace(id=1, membership=membership)
        await soon(lambda: not high.waits)
        assert host.parked == [1] and not away[0].done()
        host.table.release(HIGH, OWNER)
        assert away[0].done() and host.table.away(Asked(OWNER, 1, lease=LOW)) is None

    story(tell)


def test_what_cannot_be_parked_is_to_be_given_back() -> None:
    """And goes on until it is. The others are parked no more."""

    async def tell(host: Host) -> None:
        async def fails() -> None:
            raise GpuvirtError("its memory is shared")

        given_up = asyncio.Event()

        async def never() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

        for number in (1, 2, 3):
            host.join(number)
        host.parks |= {2: fails, 3: never}
        high = host.preempts()
        await soon(lambda: host.low.preempted)
        assert host.low.preempted == "a lease of priority 1 waits for its GPUs, and it cannot be suspended: its memory is shared"
        assert host.parked == [] and not host.low.suspends and high.waits and host.table.away(Asked(OWNER, 1, lease=LOW)) is None
        host.table.release(LOW, OWNER)
        assert not high.waits
        await given_up.wait()

    story(tell)


def test_what_takes_too_long_is_to_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspending_module, "LIMIT", 0.1)

    async def tell(host: Host) -> None:
        host.join(1)
        host.parks[1] = asyncio.Event().wait  # type: ignore[assignment]
        host.preempts()
        await soon(lambda: host.low.preempted)
        assert "have not finished within" in host.low.preempted and host.low.has_gpus

    story(tell)


def test_one_that_ends_meanwhile_is_no_reason() -> None:
    async def tell(host: Host) -> None:
        async def ends() -> None:
            host.leave(1)
            raise GpuvirtError("it has ended")

        host.join(1)
        host.parks[1] = ends
        high = host.preempts()
        await soon(lambda: not high.waits)
        assert host.low.suspended and not host.low.sessions

    story(tell)


def test_a_lease_that_is_given_back_meanwhile() -> None:
    """Who waits for it hears that it is over."""

    async def tell(host: Host) -> None:
        may = asyncio.Event()
        host.join(1)
        host.parks[1] = may.wait  # type: ignore[assignment]
        high = host.preempts()
        away = host.table.away(Asked(OWNER, 1, lease=LOW))
        assert away is not None
        host.table.release(LOW, OWNER)
        assert away[0].done() and not high.waits
        may.set()
        await asyncio.sleep(0.05)
        assert not host.low.suspended and host.policy.room.leases(0) == 1

    story(tell)


def test_a_migrating_lease_is_suspended_when_it_stays() -> None:
    async def tell(host: Host) -> None:
        host.join(1)
        host.low.leaving = asyncio.get_running_loop().create_future()
        high = host.preempts()
        await asyncio.sleep(0.1)
        assert high.waits
        host.low.leaving.set_result(None)
        host.low.leaving = None
        await soon(lambda: not high.waits)

    story(tell)


# ---- parking, for a suspended session -----------------------------------------------------------------------------------------


class Worker:
    """Parks at once, if `refusals` are over; wants its memory back when `wants` is called, and has it when it is answered and `back` is called."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.answers: list[bool] = []
        self.asks_room: Any = None

    async def park(self, fd: int, finish: float, parked: Any, wants: Any, back: Any) -> str:
        self.finish, self.wants, self.back = finish, wants, back
        if self.refusals:
            return self.refusals.pop(0)
        parked()
        return ""

    def answer_room(self, granted: bool) -> None:
        self.answers.append(granted)


def parking_story(tell: Callable[[Parking, Any, Worker], Awaitable[None]], tmp_path: Any) -> None:
    async def told() -> None:
        usage, worker = MemoryUsage([GIB]), Worker()
        usage.claim(1, 0)
        session = SimpleNamespace(id=1, label="one", slot=1, moves=False, worker=worker, parking=ParkingState())
        parking = Parking([session], usage, [GIB], 0, tmp_path / "parked")  # type: ignore[list-item]
        try:
            await tell(parking, session, worker)
        finally:
            parking.ended(session)  # type: ignore[arg-type]
            await parking.close()
            usage.close()

    asyncio.run(told())


def test_a_suspended_session_gets_nothing_until_it_is_resumed(tmp_path: Any) -> None:
    async def tell(parking: Parking, session: Any, worker: Worker) -> None:
        await parking.suspend(session)
        assert worker.finish > 0 and session.parking.parked is not None
        worker.wants()
        await asyncio.sleep(4 * RETRY)
        assert worker.answers == []
        parking.resume(session)
        await soon(lambda: worker.answers == [True])

    parking_story(tell, tmp_path)


def test_one_that_is_about_to_have_its_memory_is_parked_again(tmp_path: Any) -> None:
    """It was told that there is room, and had not said yet that it has its memory."""

    async def tell(parking: Parking, session: Any, worker: Worker) -> None:
        await parking.park(session)
        worker.wants()
        await soon(lambda: worker.answers == [True])
        suspended = asyncio.ensure_future(parking.suspend(session))
        await asyncio.sleep(3 * RETRY)
        assert not suspended.done()
        worker.back()
        await suspended
        assert session.parking.parked is not None

    parking_story(tell, tmp_path)


def test_only_what_passes_is_waited_for(tmp_path: Any) -> None:
    async def tell(parking: Parking, session: Any, worker: Worker) -> None:
        worker.refusals = ["it is not idle: a kernel runs", "it is being parked already"]
        await parking.suspend(session)
        assert not worker.refusals and not session.parking.never
        worker.wants()
        parking.resume(session)
        await soon(lambda: worker.answers == [True])
        worker.back()
        worker.refusals = ["its memory is shared"]
        with pytest.raises(GpuvirtError, match="shared"):
            await parking.suspend(session)

    parking_story(tell, tmp_path)
