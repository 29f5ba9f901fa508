"""In which order a pass looks at what one user waits for, and what it passes over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuvirt.server.policy.events import COMPUTE, Asked, HostJoined, Released, UserSet
from gpuvirt.server.policy.instructions import Grant, Instruction
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.passes import Pass
from gpuvirt.server.policy.shares import Account

GIB = 1 << 30


def behind_many(quota: int = 0) -> tuple[PolicyMachine, list[Instruction]]:
    """The two GPUs of each of three hosts are taken. A user waits for ten leases of two, behind them for one of one GPU; and a GPU becomes free."""
    machine = PolicyMachine()
    machine.handle(UserSet(0.0, "other", placement="spread"))
    for host in range(3):
        machine.handle(HostJoined(0.0, host, (GIB, GIB)))
    for number in range(6):
        machine.handle(Asked(0.0, 1 + number, "other", 1, compute=COMPUTE))
    machine.handle(UserSet(0.0, "many", gpus=quota))
    for number in range(10):
        machine.handle(Asked(1.0, 100 + number, "many", 2, memory=number % 3 * (GIB // 4), compute=COMPUTE))
    machine.handle(Asked(2.0, 200, "many", 1, compute=COMPUTE))
    return machine, machine.handle(Released(3.0, 1))


def test_leases_that_nobody_can_have_keep_nobody_back() -> None:
    """However many of them are in front, whatever they want beside."""
    machine, out = behind_many()
    assert [one.lease for one in out if isinstance(one, Grant)] == [200]
    assert len(machine.waiting) == 10


def test_where_a_quota_is_the_reason_the_order_holds() -> None:
    """Of two GPUs that the user may have, the first that waits is to have both."""
    _, out = behind_many(quota=2)
    assert not [one for one in out if isinstance(one, Grant)]


def test_nobody_is_kept_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: a user's first lease keeps its others back."""
    monkeypatch.setattr(Pass, "_by_kind", first_only)
    _, out = behind_many()
    assert not [one for one in out if isinstance(one, Grant)]


def first_only(self: Pass, account: Account) -> Iterator[Lease]:
    yield self._waiting.lease(account.queue[0])
