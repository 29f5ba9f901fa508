"""The means by which a program orders one thing after another: events, waits of the host, values in memory, host functions, the legacy stream."""

from __future__ import annotations

import random

from random_programs.order import Event, Order, Point, Stream

FLAGS, POLLED = 1 << 14, 1 << 10  # FLAGS, and the words that the host looks at, in interpreter

FOR_STREAMS = {"event": 6, "old_event": 5, "value": 3, "barrier": 1, "signal": 1, "sync": 1}
FOR_HOSTS = {"sync": 3, "poll": 1, "event": 3, "old_event": 3, "signal": 2, "polled_value": 2, "context": 1}


class Means:
    def __init__(self, order_: Order, without: frozenset[str]) -> None:
        self.o = order_
        self.weights = [{name: weight for name, weight in of.items() if name not in without} for of in (FOR_HOSTS, FOR_STREAMS)]
        self.flags = 0
        self.polled = 0
        self.signals = 0

    def order(self, thread: int, stream: Stream | None, point: Point, rng: random.Random) -> None:
        """What the thread does next, or submits to the stream, comes after the point."""
        o = self.o
        if point.agent < o.threads:
            o.await_thread(thread, point.agent)
            return
        source = o.by_agent[point.agent]
        if not source.alive:
            o.know(thread, source.last)
            o.sync_context(thread)
            return
        weights = self.weights[stream is not None]
        for _ in range(20):
            means = rng.choices(list(weights), list(weights.values()))[0]
            if getattr(self, f"by_{means}")(thread, stream, source, point, rng):
                return
        self.by_sync(thread, stream, source, point, rng)

    def hand(self, source: Stream, thread: int, rng: random.Random) -> int:
        """The thread that goes on with the source: this one, or the one that has used it last."""
        if source.owner is not None:
            return source.owner
        return source.last.agent if rng.random() < 0.5 else thread

    def told(self, thread: int, hand: int) -> None:
        if hand != thread:
            self.o.await_thread(thread, hand)

    def by_sync(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random, poll: bool = False) -> bool:
        hand = self.hand(source, thread, rng)
        self.o.sync_stream(hand, source, poll)
        self.told(thread, hand)
        return True

    def by_poll(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        return self.by_sync(thread, stream, source, point, rng, True)

    def by_context(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        self.o.know(thread, source.last)
        self.o.sync_context(thread)
        return self.o.clocks[thread][point.agent] >= point.tick

    def by_event(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        hand = self.hand(source, thread, rng)
        event = self.o.event_for(hand, rng.random() < 0.1, rng.randrange(1 << 16))
        self.o.record(hand, source, event)
        self.use(thread, stream, event, rng)
        return True

    def by_old_event(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        known = [event for event in self.o.events if event.clock and event.clock[point.agent] >= point.tick]
        if not known:
            return False
        self.use(thread, stream, rng.choice(known), rng)
        return True

    def use(self, thread: int, stream: Stream | None, event: Event, rng: random.Random) -> None:
        if stream:
            self.o.wait_event(thread, stream, event)
        else:
            self.o.sync_event(thread, event, rng.random() < 0.4)

    def by_barrier(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        """A piece of work of the legacy stream is after the one and before the other."""
        if not (stream and stream.blocking and source.blocking):
            return False
        self.o.know(thread, source.last)
        self.o.submit(thread, self.o.legacy, "barrier")
        return self.o.clock_at(thread, stream)[point.agent] >= point.tick

    def by_value(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        if not stream or self.flags >= FLAGS:
            return False
        hand = self.hand(source, thread, rng)
        self.o.submit(hand, source, "flag_write", self.flags, source.number)
        clock = source.clock
        self.told(thread, hand)
        self.o.submit(thread, stream, "flag_wait", self.flags, stream.number, rng.randrange(2), work=False, also=clock)
        self.flags += 1
        return True

    def by_signal(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        """A host function tells the thread."""
        if self.signals >= FLAGS:
            return False
        hand = self.hand(source, thread, rng)
        self.o.submit(hand, source, "host", 4, -1, 0, -1, 0, 0, self.signals, source.number, rng.randrange(2))
        clock = source.clock
        self.o.emit(thread, "signal_wait", self.signals)
        self.o.joined(thread, clock)
        self.signals += 1
        return True

    def by_polled_value(self, thread: int, stream: Stream | None, source: Stream, point: Point, rng: random.Random) -> bool:
        """The host looks at a word that the stream writes."""
        if self.polled >= POLLED:
            return False
        hand = self.hand(source, thread, rng)
        self.o.submit(hand, source, "poll_write", self.polled, source.number)
        clock = source.clock
        self.o.emit(thread, "poll_wait", self.polled)
        self.o.joined(thread, clock)
        self.polled += 1
        return True
