"""What the daemon says of turns, and does to those that do not keep to them: workers that answer as the test has them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from server.virtual_time import VirtualTimeLoop

from gpuvirt.server import turns as turns_module
from gpuvirt.server.turns import Turns
from gpuvirt.server.worker_library import May, TurnSaid

LIMIT = 30.0  # seconds for what never happens


class Worker:
    """obeys: it stops when it is told so, else only where it has never begun. wants: it has more work then. told: words, device and May."""

    def __init__(self, obeys: bool = True) -> None:
        self.obeys, self.wants = obeys, True
        self.told: list[tuple[int, May]] = []
        self.numbers: dict[int, int] = {}
        self.signals: list[int] = []
        self.says_turn: Callable[[int, int, int], None] = lambda device, what, number: None

    def turn(self, device: int, may: May, number: int) -> None:
        self.told.append((device, may))
        self.numbers[device] = number
        if may is May.WAIT and (self.obeys or (device, May.NOW) not in self.told):
            asyncio.get_running_loop().call_soon(self.stopped, device, number)

    def stopped(self, device: int, number: int) -> None:
        self.says_turn(device, TurnSaid.STOPPED_WANTS if self.wants else TurnSaid.STOPPED, number)

    def say(self, device: int, what: TurnSaid) -> None:
        self.says_turn(device, what, 0)

    def kill(self, sig: int = signal.SIGKILL) -> None:
        self.signals.append(sig)

    @property
    def stands(self) -> bool:
        """Whether its process is stopped."""
        return self.signals[-1:] == [signal.SIGSTOP]


def session(number: int, worker: Worker, *devices: int, compute: int = 0) -> Any:
    membership = SimpleNamespace(devices=devices, lease=SimpleNamespace(number=number, compute=compute))
    return SimpleNamespace(id=number, worker=worker, membership=membership)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.001)


def run(story: Callable[[Turns], Coroutine[Any, Any, None]], **how: Any) -> None:
    async def told() -> None:
        turns = Turns(**how)
        await story(turns)
        turns.close()

    loop = VirtualTimeLoop()
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patch.setattr(turns_module, "time", SimpleNamespace(monotonic=loop.time))
        runner.run(told())


def may(worker: Worker, device: int = 0) -> May | None:
    """What it was told last of a device."""
    return next((word for of, word in reversed(worker.told) if of == device), None)


def test_without_shares_nothing_is_said() -> None:
    async def story(turns: Turns) -> None:
        one, two = Worker(), Worker()
        turns.join(session(1, one, 0), adopted=False)
        turns.join(session(2, two, 0, 1))
        one.say(0, TurnSaid.WANTS)  # who says something all the same is not heard
        await asyncio.sleep(0.05)
        turns.leave(1)
        assert one.told == two.told == [] and one.signals == two.signals == []
        assert turns.spent(2) == 0 and not turns.shared([0, 1])

    run(story)


def test_turns_begin_and_end_with_a_share() -> None:
    """Both have turns, never at once; afterwards who is left may always run."""

    async def story(turns: Turns) -> None:
        one, two = Worker(), Worker()
        turns.join(session(1, one, 0))
        turns.join(session(2, two, 0, compute=500))
        assert turns.shared([0]) and may(one) is May.WAIT
        two.say(0, TurnSaid.WANTS)
        for _ in range(3):
            await until(lambda: may(one) is May.NOW)
            assert may(two) is not May.NOW
            await until(lambda: may(two) is May.NOW)
            assert may(one) is not May.NOW
        assert turns.spent(1) > 0 < turns.spent(2) and one.signals == two.signals == []
        turns.leave(2)
        assert may(one) is May.ALWAYS and not turns.shared([0]) and turns.spent(1) > 0

    run(story)


async def one_is_stopped(turns: Turns) -> tuple[Worker, Worker]:
    """One that does not stop when its turn is over, whose process is stopped, and the other, whose turn it is."""
    stubborn, other = Worker(obeys=False), Worker()
    turns.join(session(1, stubborn, 0, compute=500))
    turns.join(session(2, other, 0))
    stubborn.say(0, TurnSaid.WANTS)
    await until(lambda: may(stubborn) is May.NOW)
    other.say(0, TurnSaid.WANTS)
    await until(lambda: may(other) is May.NOW)
    assert stubborn.stands
    return stubborn, other


def test_who_does_not_stop_is_stopped() -> None:
    """Its process, until its next turn; what it says late changes nothing."""

    async def story(turns: Turns) -> None:
        stubborn, other = await one_is_stopped(turns)
        first = stubborn.numbers[0]
        await until(lambda: may(stubborn) is May.NOW)
        assert stubborn.signals == [signal.SIGSTOP, signal.SIGCONT] and may(other) is May.WAIT
        stubborn.stopped(0, first)  # the answer to a word that another has replaced
        await asyncio.sleep(0.005)
        assert may(stubborn) is May.NOW
        await until(lambda: stubborn.stands)
        stubborn.stopped(0, stubborn.numbers[0])  # said before the process was stopped, and read after that
        assert not stubborn.stands

    run(story)


def test_a_stopped_process_that_had_been_idle_goes_on() -> None:
    """It said so before it was stopped, and what it has to run since it cannot say."""

    async def story(turns: Turns) -> None:
        stubborn, _ = await one_is_stopped(turns)
        stubborn.say(0, TurnSaid.IDLE)  # read after that
        turns.leave(2)
        await until(lambda: not stubborn.stands and may(stubborn) is May.NOW)

    run(story)


def test_who_stands_still_leaves_its_other_devices() -> None:
    """A process is stopped whole: what it has elsewhere is given to others, and it gets nothing there until it goes on."""

    async def story(turns: Turns) -> None:
        both, here, there = Worker(obeys=False), Worker(), Worker()
        turns.join(session(1, both, 0, 1, compute=500))
        turns.join(session(2, here, 0, compute=100))
        turns.join(session(3, there, 1, compute=10))
        for device in (0, 1):
            both.say(device, TurnSaid.WANTS)
        await until(lambda: may(both, 0) is May.NOW and may(both, 1) is May.NOW)
        here.say(0, TurnSaid.WANTS)
        await until(lambda: both.stands)
        there.say(1, TurnSaid.WANTS)
        await until(lambda: may(there, 1) is May.NOW)
        assert may(both, 1) is May.WAIT
        await until(lambda: not both.stands and may(both, 0) is May.NOW and may(here, 0) is May.WAIT)

    run(story)


def test_an_adopted_worker_begins_anew() -> None:
    """Whatever an earlier daemon did with it."""

    async def story(turns: Turns) -> None:
        free, shares = Worker(), Worker()
        turns.join(session(1, free, 0), adopted=True)
        turns.join(session(2, shares, 1, compute=500), adopted=True)
        assert free.signals == shares.signals == [signal.SIGCONT]
        assert (may(free, 0), may(shares, 1)) == (May.ALWAYS, May.WAIT)
        await until(lambda: may(shares, 1) is May.NOW)  # it had work

    run(story)


def test_a_session_that_moves_keeps_its_seconds() -> None:
    async def story(turns: Turns) -> None:
        old, new, other = Worker(), Worker(), Worker()
        old.wants = new.wants = False
        turns.join(session(1, old, 0, compute=500))
        await asyncio.sleep(0.005)  # it has stopped
        old.say(0, TurnSaid.WANTS)
        await until(lambda: turns.spent(1) > 0.02)
        turns.join(session(1, new, 1, compute=500))
        before = turns.spent(1)
        assert before > 0.02 and not turns.shared([0]) and turns.shared([1])
        old.say(0, TurnSaid.WANTS)  # nobody listens to it any more
        old.say(1, TurnSaid.WANTS)
        await asyncio.sleep(0.005)
        assert turns.spent(1) == before and may(new, 1) is May.WAIT
        new.say(1, TurnSaid.WANTS)
        turns.join(session(2, other, 1))
        await until(lambda: turns.spent(1) > before)
        turns.leave(1)
        assert turns.spent(1) == 0

    run(story)



# ---- kernels that nobody can stop ---------------------------------------------------------------------------------------


class Kernels(Worker):
    """Runs kernels of so many seconds, one after the other: the one that has begun goes on, whatever it is told. gap: seconds between two."""

    def __init__(self, seconds: float, gap: float = 0.0) -> None:
        super().__init__()
        self.seconds, self.gap, self.runs, self.had = seconds, gap, False, 0

    def turn(self, device: int, may: May, number: int) -> None:
        self.told.append((device, may))
        self.numbers[device] = number
        if not self.runs and (self.wants or may is May.WAIT):
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if may(self) is not May.WAIT and not self.runs:
            self.runs = True
            asyncio.get_running_loop().call_later(self.seconds, self._over)
        elif may(self) is May.WAIT:
            self.stopped(0, self.numbers[0])

    def _over(self) -> None:
        self.had, self.runs = self.had + 1, False
        if may(self) is not May.WAIT and self.gap:
            self.wants = False
            self.say(0, TurnSaid.IDLE)
            asyncio.get_running_loop().call_later(self.gap, self.again)
        else:
            self._next()

    def again(self) -> None:
        """It has kernels to run, again or for the first time."""
        self.wants = True
        self.say(0, TurnSaid.WANTS)
        self._next()


def parts_of(one: Kernels, two: Kernels, seconds: float, **how: Any) -> float:
    """What the first, which has reserved a quarter, has had of the time of all turns."""
    found = 0.0
    ended: list[str] = []

    async def story(turns: Turns) -> None:
        nonlocal found
        turns.join(session(1, one, 0, compute=250))
        turns.join(session(2, two, 0, compute=750))
        one.say(0, TurnSaid.WANTS)
        two.say(0, TurnSaid.WANTS)
        await asyncio.sleep(seconds)
        found = turns.spent(1) / (turns.spent(1) + turns.spent(2))
        assert one.signals == two.signals == []

    run(story, end=lambda session, why: ended.append(why), **how)
    assert not ended
    return found


@pytest.mark.parametrize(("one", "two"), [(0.001, 0.001), (1.0, 0.001), (0.001, 1.0), (1.0, 1.0)])
def test_what_a_kernel_takes_beyond_its_turn_is_debt(one: float, two: float) -> None:
    assert parts_of(Kernels(one), Kernels(two), 300) == pytest.approx(0.25, abs=0.01)


def test_a_short_pause_costs_no_turn() -> None:
    """Whoever pauses for some milliseconds would wait for a kernel of a second each time, and lose its share."""
    assert parts_of(Kernels(1.0), Kernels(0.02, gap=0.005), 300) == pytest.approx(0.25, abs=0.02)


def test_pauses_that_cost_turns_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: a server that gives the device away at once."""
    monkeypatch.setattr(turns_module, "LINGER", 0.0)
    assert parts_of(Kernels(1.0), Kernels(0.02, gap=0.005), 300) > 0.5


def test_who_lets_others_wait_for_too_long_is_ended() -> None:
    """Once, and only while somebody waits."""
    ended: list[tuple[int, str]] = []

    async def story(turns: Turns) -> None:
        long, other = Kernels(1e6), Kernels(0.01)
        other.wants = False
        turns.join(session(1, long, 0, compute=500))
        turns.join(session(2, other, 0))
        long.say(0, TurnSaid.WANTS)
        await asyncio.sleep(1000)
        assert may(long) is May.NOW and not ended
        other.again()
        await asyncio.sleep(19.9)
        assert may(long) is May.WAIT and not ended and not other.had
        await asyncio.sleep(100)
        assert ended == [(1, "its kernels ran on for 20 s after its turn on GPU 0, and others wait (serve --overrun)")] and not other.had
        turns.leave(1)
        assert may(other) is May.ALWAYS
        await asyncio.sleep(0.05)
        assert other.had and not long.signals

    run(story, end=lambda session, why: ended.append((session, why)), overrun=20)


def test_nobody_is_ended_whom_nobody_waits_for() -> None:
    """Turns begin while a kernel runs: its session is told to stop, as all are, and nobody else wants anything."""
    ended: list[str] = []

    async def story(turns: Turns) -> None:
        long, other = Kernels(100.0), Kernels(0.01)
        other.wants = False
        turns.join(session(1, long, 0))
        long._next()
        turns.join(session(2, other, 0, compute=500))
        await asyncio.sleep(99)
        assert may(long) is May.WAIT and not long.had
        await asyncio.sleep(10)
        assert long.had and not long.signals

    run(story, end=lambda session, why: ended.append(why), overrun=20)
    assert not ended
