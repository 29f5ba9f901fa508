"""The order of turns on one device, over simulated time: parts as reserved, nothing saved up, nobody waits long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gpuvirt.server.policy import turn_order
from gpuvirt.server.policy.turn_order import LEAD, LEAST_REST, LEAST_TURN, TurnOrder


@dataclass
class Tenant:
    """works, rests: how long, by turns; rests 0: it always has work. late: how long it goes on when it is to stop. lies:
    says that it has nothing to run as soon as it is its turn."""

    lease: int
    share: float = 0.0
    works: float = float("inf")
    rests: float = 0.0
    late: float = 0.0
    lies: bool = False
    left: float = 0.0  # of its work
    ready: float = 0.0  # when it has work again; while left is 0
    had: float = 0.0
    waited: list[float] = field(default_factory=list)  # each time from its wish to its turn
    wished: float | None = None


class Device:
    """Tenants on one device, and a clock that goes from event to event."""

    def __init__(self, tenants: list[Tenant]) -> None:
        self.order, self.tenants, self.now = TurnOrder(), tenants, 0.0
        for number, tenant in enumerate(tenants):
            self.order.join(number, tenant.lease, tenant.share, 0.0)

    def run(self, until: float) -> None:
        order, steps = self.order, 0
        while self.now < until:
            steps += 1
            assert steps < 1_000_000, "the clock stands still"
            for number, tenant in enumerate(self.tenants):
                if not tenant.left and tenant.ready <= self.now:
                    tenant.left = tenant.works
                    tenant.wished = self.now
                    order.wants(number, self.now)
            if order.holder is None:
                chosen = order.next(set())
                if chosen is not None:
                    tenant = self.tenants[chosen]
                    order.begin(chosen, self.now)
                    if tenant.lies:
                        order.idle(chosen, self.now)
                    if tenant.wished is not None:
                        tenant.waited.append(self.now - tenant.wished)
                        tenant.wished = None
            moments = [tenant.ready for tenant in self.tenants if not tenant.left]
            if order.holder is not None:
                holder = self.tenants[order.holder]
                left = order.gives_way(set(), self.now)
                if left is not None and left <= 0:
                    order.stop(self.now)
                    self._goes_on(holder, min(holder.late, holder.left))
                    order.end(order.holder, bool(holder.left), self.now)
                    continue
                moments += [] if left is None else [self.now + left]
                moments += [self.now + holder.left] if holder.left else []
            self._goes_on(None if order.holder is None else self.tenants[order.holder], min(moments, default=until) - self.now, until)

    def _goes_on(self, holder: Tenant | None, seconds: float, until: float = float("inf")) -> None:
        seconds = max(min(seconds, until - self.now), 1e-9)
        self.now += seconds
        if holder is None or not holder.left:
            return
        holder.had += min(seconds, holder.left)
        holder.left = max(holder.left - seconds, 0.0)
        if holder.left < 1e-8:
            holder.left, holder.ready = 0.0, self.now + holder.rests
            self.order.idle(self.tenants.index(holder), self.now)

    def parts(self) -> list[float]:
        return [tenant.had / self.now for tenant in self.tenants]


def after(seconds: float, *tenants: Tenant) -> Device:
    device = Device([*tenants])
    device.run(seconds)
    assert sum(device.parts()) <= 1 + 1e-6
    for number, tenant in enumerate(tenants):
        assert device.order.spent(number, device.now) == pytest.approx(tenant.had, abs=1e-3)
    return device


CASES = {
    "equal": ([Tenant(1, 0.5), Tenant(2, 0.5)], [0.5, 0.5]),
    "a quarter": ([Tenant(1, 0.25), Tenant(2, 0.75)], [0.25, 0.75]),
    "the rest is shared": ([Tenant(1, 0.4), Tenant(2), Tenant(3), Tenant(4)], [0.4, 0.2, 0.2, 0.2]),
    "little is left": ([Tenant(1, 0.5), Tenant(2, 0.5), Tenant(3)], [0.5 / 1.05, 0.5 / 1.05, 0.05 / 1.05]),
    "what nobody takes": ([Tenant(1, 0.3), Tenant(2, 0.1)], [0.75, 0.25]),
    "two of one lease": ([Tenant(1, 0.5), Tenant(1, 0.5), Tenant(2, 0.5)], [0.25, 0.25, 0.5]),
    "alone": ([Tenant(1, 0.1)], [1.0]),
    "three": ([Tenant(1, 0.2), Tenant(2, 0.3), Tenant(3, 0.5)], [0.2, 0.3, 0.5]),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_are_as_reserved(case: str) -> None:
    tenants, parts = CASES[case]
    assert after(30.0, *(Tenant(one.lease, one.share) for one in tenants)).parts() == pytest.approx(parts, abs=0.01)


def test_who_stops_late_pays_for_it() -> None:
    """What it has had beyond its turn is its own."""
    assert after(30.0, Tenant(1, 0.5, late=0.02), Tenant(2, 0.5)).parts() == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_lie_wins_nothing() -> None:
    """Whoever says that it has nothing to run gives way at once, and what it has until it stops counts."""
    assert liar() == pytest.approx(0.5, abs=0.01)


def liar() -> float:
    device = Device([Tenant(1, 0.5, late=0.02, lies=True), Tenant(2, 0.5)])
    device.run(30.0)
    return device.parts()[0]


def test_a_lie_that_wins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: only what a session says is counted."""
    monkeypatch.setattr(TurnOrder, "stop", lambda self, now: None)
    assert liar() > 0.6


def unequal(parts: list[float]) -> bool:
    return parts != pytest.approx([0.25, 0.75], abs=0.01)


def test_unequal_weights_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: everybody weighs the same."""
    monkeypatch.setattr(TurnOrder, "_weight", lambda self, of, now: 0.5)
    assert unequal(after(30.0, Tenant(1, 0.25), Tenant(2, 0.75)).parts())


def saved_up() -> float:
    """What one has of the second in which it comes back, after ten seconds without work."""
    device = Device([Tenant(1, 0.5), Tenant(2, 0.5, ready=10.0)])
    device.run(10.0)
    assert device.tenants[0].had == pytest.approx(10.0, abs=1e-3)
    device.run(11.0)
    return device.tenants[1].had


def test_nothing_is_saved_up() -> None:
    assert 0.5 <= saved_up() <= 0.5 + LEAD


def test_savings_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: whoever comes back stands where he stood."""
    monkeypatch.setattr(turn_order, "LEAD", 1e9)
    assert not 0.5 <= saved_up() <= 0.5 + 0.1


@pytest.mark.parametrize("others", [1, 3, 7])
def test_a_little_work_now_and_then_waits_a_turn_at_most(others: int) -> None:
    """An interactive program beside those that compute all the time."""
    part = 1 / (others + 1)
    device = after(60.0, Tenant(0, part, works=0.001, rests=0.2), *(Tenant(1 + n, part) for n in range(others)))
    waited = device.tenants[0].waited
    assert len(waited) > 200 and max(waited) <= max(LEAD * part, LEAST_TURN) + 1e-6


def test_turns_are_not_too_short() -> None:
    """However small the parts, the device changes hands a hundred times a second at most, but for work that is done."""
    device, changes, begin = Device([Tenant(n, 0.01) for n in range(100)]), [], TurnOrder.begin

    class Counted(TurnOrder):
        def begin(self, session: int, now: float) -> None:
            changes.append(now)
            begin(self, session, now)

    device.order.__class__ = Counted
    device.run(10.0)
    assert len(changes) <= 10.0 / LEAST_TURN + 1 and min(device.parts()) >= 0.008


def by_chance(seed: int) -> tuple[Device, Callable[[], float]]:
    """Tenants of all kinds; of the first two, which always have work, one has reserved a third of what the other has."""
    chance = random.Random(seed)
    tenants = [Tenant(0, 0.1), Tenant(1, 0.3)]
    for lease in range(2, 2 + chance.randrange(1, 8)):
        share = chance.choice([0.0, 0.05, 0.08])
        works, rests = chance.choice([(float("inf"), 0.0), (0.0005, 0.002), (0.05, 0.05), (2.0, 0.3)])
        tenants += [Tenant(lease, share, works, rests, chance.choice([0.0, 0.02])) for _ in range(chance.randrange(1, 3))]
    device = Device(tenants)
    return device, lambda: tenants[0].had / tenants[1].had


@pytest.mark.parametrize("seed", range(20))
def test_by_chance(seed: int) -> None:
    device, ratio = by_chance(seed)
    device.run(60.0)
    assert ratio() == pytest.approx(1 / 3, rel=0.05)
    reserved = {tenant.lease: tenant.share for tenant in device.tenants}
    least = min(1 / max(sum(reserved.values()) + LEAST_REST, 1), 1.0)
    assert device.tenants[1].had >= 60.0 * 0.3 * least * 0.97
    assert sum(device.parts()) == pytest.approx(1.0, abs=0.001), "the device stood still although there was work"
