"""What happens before what in a program, by CUDA's rules: vector clocks of host threads and streams, and the steps that make them.

A thread's tick is a step of it; a stream's tick is a piece of its work. Where the documentation leaves open whether something waits (a copy to
pageable memory, a free), it is taken not to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Clock = list[int]  # by agent: how many of its ticks are over
STREAMS = 40  # at most, of one program
HISTORY = 32  # of a stream's work that is remembered for those who wait for the stream as it was when they asked


class Point(NamedTuple):
    agent: int
    tick: int


class Submitted(NamedTuple):
    thread: int
    tick: int  # of the thread
    clock: Clock
    work: bool  # and not only a record or a wait


def join(a: Clock, b: Clock) -> Clock:
    return [x if x > y else y for x, y in zip(a, b, strict=True)]


@dataclass
class Stream:
    number: int  # as the interpreter calls it
    agent: int
    blocking: bool
    clock: Clock
    last: Point  # the submission, or what made the stream: a thread's
    owner: int | None = None  # whose per-thread stream it is
    legacy: bool = False
    alive: bool = True
    ticks: int = 0
    history: list[Submitted] = field(default_factory=list)
    waits: dict[int, int] = field(default_factory=dict)  # the last tick of each thread that has waited for it


@dataclass
class Event:
    number: int
    clock: Clock | None = None  # what it says, once recorded
    recorded: Point | None = None
    uses: dict[int, int] = field(default_factory=dict)  # the last tick of each thread that has used it since


class Order:
    """The steps so far, and the clocks that they make."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.lines: list[str] = []
        self.agents = 2 * threads + 1 + STREAMS
        zero = [0] * self.agents
        self.clocks = [list(zero) for _ in range(threads)]
        self.legacy = Stream(0, threads, True, list(zero), Point(0, 0), legacy=True)
        self.own = [Stream(1, threads + 1 + t, True, list(zero), Point(t, 0), owner=t) for t in range(threads)]
        self.streams = [self.legacy, *self.own]
        self.by_agent = {stream.agent: stream for stream in self.streams}
        self.lanes: list[Stream] = []  # that only captures use
        self.events: list[Event] = []
        self.managed_touched: dict[int, Point] = {}  # by each thread of the host, last: what is submitted comes after
        self.captured: Point | None = None
        self.context_synced: dict[int, int] = {}

    # -- steps of threads

    def emit(self, thread: int, name: str, *numbers: int) -> Point:
        self.lines.append(f"{thread} {name} {' '.join(map(str, numbers))}")
        clock = self.clocks[thread]
        clock[thread] += 1
        return Point(thread, clock[thread])

    def await_thread(self, thread: int, other: int) -> None:
        self.emit(thread, "await", other, self.clocks[other][other])
        self.clocks[thread] = join(self.clocks[thread], self.clocks[other])

    def know(self, thread: int, point: Point | None) -> None:
        """The thread goes on when a step of another one is done."""
        if point is not None and self.clocks[thread][point.agent] < point.tick:
            self.await_thread(thread, point.agent)

    def knows(self, thread: int, point: Point) -> bool:
        return self.clocks[thread][point.agent] >= point.tick

    # -- work of streams

    def new_stream(self, thread: int, blocking: bool, priority: int) -> Stream | None:
        number = len(self.by_agent) - self.threads + 2  # 0 to 2 are the special ones
        agent = self.threads + len(self.by_agent)
        if agent >= self.agents or number >= 64:
            return None
        made = self.emit(thread, "stream", number, 0 if blocking else 1, priority)
        stream = Stream(number, agent, blocking, list(self.clocks[thread]), made)
        self.streams.append(stream)
        self.by_agent[agent] = stream
        return stream

    def destroy_stream(self, thread: int, stream: Stream) -> None:
        for waiter, tick in stream.waits.items():
            self.know(thread, Point(waiter, tick))
        self.know(thread, stream.last)
        self.emit(thread, "stream_destroy", stream.number)
        stream.alive = False
        self.streams.remove(stream)

    def seen(self, thread: int, stream: Stream, work: bool) -> Clock | None:
        """How far the stream's work goes that the thread knows to be submitted."""
        clock = self.clocks[thread]
        for submitted in reversed(stream.history):
            if clock[submitted.thread] >= submitted.tick and (submitted.work or not work):
                return submitted.clock
        return None

    def before_submitting(self, thread: int, stream: Stream) -> None:
        self.know(thread, stream.last)
        for touched in self.managed_touched.values():
            self.know(thread, touched)

    def clock_at(self, thread: int, stream: Stream, work: bool = True) -> Clock:
        """After what a piece of work would run that the thread submitted now."""
        clock = join(stream.clock, self.clocks[thread])
        if work:
            for other in self.streams if stream.legacy else [self.legacy] if stream.blocking else []:
                if other is not stream and other.blocking and (seen := self.seen(thread, other, True)):
                    clock = join(clock, seen)
        return clock

    def submit(self, thread: int, stream: Stream, name: str, *numbers: int, work: bool = True, also: Clock | None = None) -> Point:
        self.before_submitting(thread, stream)
        step = self.emit(thread, name, *numbers)
        clock = self.clock_at(thread, stream, work)
        if also:
            clock = join(clock, also)
        stream.ticks += 1
        clock[stream.agent] = stream.ticks
        stream.clock, stream.last = clock, step
        stream.history.append(Submitted(thread, step.tick, clock, work))
        if len(stream.history) > 2 * HISTORY:
            del stream.history[:HISTORY]
        return Point(stream.agent, stream.ticks)

    def joined(self, thread: int, clock: Clock | None) -> None:
        """A call of the thread returned when that was over."""
        if clock:
            self.clocks[thread] = join(self.clocks[thread], clock)

    def sync_stream(self, thread: int, stream: Stream, poll: bool = False) -> None:
        self.know(thread, stream.last)
        stream.waits[thread] = self.emit(thread, "stream_poll" if poll else "stream_sync", stream.number).tick
        self.joined(thread, stream.clock)

    def sync_context(self, thread: int) -> None:
        self.know(thread, self.captured)
        step = self.emit(thread, "context_sync")
        self.context_synced[thread] = step.tick
        for stream in self.by_agent.values():
            self.joined(thread, self.seen(thread, stream, False))

    # -- events

    def record(self, thread: int, stream: Stream, event: Event) -> None:
        for user, tick in event.uses.items():
            self.know(thread, Point(user, tick))
        self.submit(thread, stream, "record", event.number, stream.number, work=False)
        event.clock, event.recorded, event.uses = stream.clock, stream.last, {thread: stream.last.tick}

    def event_for(self, thread: int, fresh: bool, flags: int) -> Event:
        """One that the thread may record: nobody of whom it does not know is about to use it."""
        free = [e for e in self.events if all(self.knows(thread, Point(u, tick)) for u, tick in e.uses.items())]
        if (free and not fresh) or len(self.events) >= 250:
            return free[flags % len(free)] if free else self.events[flags % len(self.events)]
        event = Event(len(self.events))
        event.uses[thread] = self.emit(thread, "event", event.number, 2 if flags & 1 else 3).tick
        self.events.append(event)
        return event

    def wait_event(self, thread: int, stream: Stream, event: Event) -> None:
        self.know(thread, event.recorded)
        self.submit(thread, stream, "wait", event.number, stream.number, work=False, also=event.clock)
        event.uses[thread] = stream.last.tick

    def sync_event(self, thread: int, event: Event, poll: bool) -> None:
        self.know(thread, event.recorded)
        event.uses[thread] = self.emit(thread, "event_poll" if poll else "event_sync", event.number).tick
        self.joined(thread, event.clock)
