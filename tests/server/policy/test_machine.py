"""The policy machine by example: placement, the queue, refusals, stories."""

from __future__ import annotations

import pytest

from gpuvirt.server.policy.events import COMPUTE, Asked, Passed, Released, UserRevoked, UserSet
from gpuvirt.server.policy.holding import HOLD_AFTER
from gpuvirt.server.policy.instructions import End, Grant, Instruction, Queue, Refuse, TimedOut
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.shares import HALF_LIFE

GIB = 1 << 30


def only(out: list[Instruction]) -> Instruction:
    assert len(out) == 1, out
    return out[0]


def granted(machine: PolicyMachine, lease: int, gpus: int, memory: int = 0, compute: int = 0, at: float = 0.0) -> tuple[int, ...]:
    grant = only(machine.handle(Asked(at, lease, "ada", gpus, memory, compute)))
    assert isinstance(grant, Grant), grant
    return grant.devices


def test_who_reserves_nothing_goes_where_the_fewest_leases_are() -> None:
    machine = PolicyMachine([GIB] * 3)
    assert [granted(machine, n, gpus) for n, gpus in enumerate((1, 1, 1, 2, 1))] == [(0,), (1,), (2,), (0, 1), (2,)]
    machine.handle(Released(1.0, 0))
    machine.handle(Released(1.0, 3))
    assert granted(machine, 9, 1) == (0,)


def test_memory_is_reserved_and_small_devices_are_taken_first() -> None:
    machine = PolicyMachine([GIB, 2 * GIB])
    assert granted(machine, 1, 1, GIB) == (0,)
    assert granted(machine, 2, 1, GIB) == (1,)
    assert granted(machine, 3, 1) == (1,), "of the first GPU nothing is left"
    assert isinstance(only(machine.handle(Asked(0.0, 4, "ada", 1, 2 * GIB))), Queue)


def test_parts_of_compute_are_packed() -> None:
    machine = PolicyMachine([GIB] * 4)
    assert [granted(machine, n, 1, compute=500) for n in range(3)] == [(0,), (0,), (1,)]
    assert granted(machine, 8, 2, compute=COMPUTE) == (2, 3)
    assert granted(machine, 9, 1) == (1,), "all other GPUs are reserved"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Asked(0, 1, "ben", 0), "at least 1"),
        (Asked(0, 1, "ben", 3), "this pool has 2 GPUs"),
        (Asked(0, 1, "ada", 2), "this token may have 1 at a time"),
        (Asked(0, 1, "ben", 2, 2 * GIB), "only 1 of"),
        (Asked(0, 1, "ben", 1, 3 * GIB), "the pool's GPUs have 2.0 GiB"),
        (Asked(0, 1, "ada", 1, GIB), "with this token may have 512.0 MiB"),
        (Asked(0, 1, "ben", 1, compute=1500), "1.5 of each GPU's compute"),
        (Asked(0, 1, "ada", 1, priority=3), "may ask for 2 at most"),
        (Asked(0, 1, "cyd", 1), "revoked"),
    ],
)
def test_what_can_never_be_is_refused_at_once(asked: Asked, text: str) -> None:
    machine = PolicyMachine([GIB, 2 * GIB])
    machine.handle(UserSet(0, "ada", gpus=1, priority=2, memory=GIB // 2))
    machine.handle(UserRevoked(0, "cyd"))
    refused = only(machine.handle(asked))
    assert isinstance(refused, Refuse) and text in refused.text and not machine.leases


def test_a_queue() -> None:
    machine = PolicyMachine([GIB] * 2)
    machine.handle(UserSet(0.0, "eva", priority=1))
    granted(machine, 1, 2, compute=COMPUTE)
    assert only(machine.handle(Asked(1.0, 2, "ada", 2, compute=COMPUTE))) == Queue(2, 1, 1, "0 of the 2 GPUs that it needs are free")
    refused = only(machine.handle(Asked(1.0, 3, "ben", 1, compute=COMPUTE, no_wait=True)))
    assert isinstance(refused, Refuse) and "without waiting" in refused.text and "it would be at place 1 of 2" in refused.text
    machine.handle(Asked(2.0, 4, "ben", 1, compute=COMPUTE, wait=30))
    machine.handle(Asked(3.0, 5, "eva", 1, compute=COMPUTE, priority=1))
    assert machine.order() == [5, 4, 2], "ben has used nothing yet"
    assert machine.wake == 32.0
    late = only(machine.handle(Passed(32.0)))
    assert isinstance(late, TimedOut) and "30 s" in late.text and "place 2 of 3" in late.text and machine.wake is None
    assert machine.handle(Released(33.0, 1)) == [Grant(5, (0,))]
    assert machine.handle(Released(34.0, 5)) == [Grant(2, (0, 1))]


def test_a_quota() -> None:
    machine = PolicyMachine([GIB] * 4)
    machine.handle(UserSet(0.0, "ada", gpus=2))
    granted(machine, 1, 1)
    assert "1 of the 2 GPUs that it may have" in machine.handle(Asked(1.0, 2, "ada", 2))[0].why  # type: ignore[union-attr]
    assert isinstance(only(machine.handle(Asked(2.0, 3, "ada", 1))), Queue), "it would take what the one before it waits for"
    assert isinstance(only(machine.handle(Asked(2.0, 4, "ben", 1))), Grant)
    assert [type(one) for one in machine.handle(Released(3.0, 1))] == [Grant]
    assert machine.handle(UserSet(4.0, "ada", gpus=3))[0] == Grant(3, (3,))
    assert machine.gpus("ada") == 3


def test_revoked() -> None:
    machine = PolicyMachine([GIB])
    granted(machine, 1, 1, GIB)
    machine.handle(Asked(0.0, 2, "ada", 1, GIB))
    machine.handle(Asked(0.0, 3, "ben", 1, GIB))
    out = machine.handle(UserRevoked(1.0, "ada"))
    assert [type(one) for one in out] == [Refuse, End] and machine.gpus("ada") == 1
    assert machine.handle(Released(2.0, 1)) == [Grant(3, (0,), GIB)]
    machine.handle(UserSet(3.0, "ada"))
    assert isinstance(only(machine.handle(Asked(3.0, 4, "ada", 1))), Queue)


def test_use_fades() -> None:
    machine = PolicyMachine([GIB] * 2)
    granted(machine, 1, 2, compute=500)
    machine.handle(Released(100.0, 1))
    assert machine.use("ada") == pytest.approx(100.0, rel=1e-3)
    machine.handle(Passed(100.0 + HALF_LIFE))
    assert machine.use("ada") == pytest.approx(50.0, rel=1e-3)
    machine.handle(Passed(1000 * HALF_LIFE))
    assert machine.use("ada") == pytest.approx(0.0, abs=1e-9)
    granted(machine, 2, 1, compute=COMPUTE, at=1000 * HALF_LIFE)
    machine.handle(Passed(1000 * HALF_LIFE + 60))
    assert machine.use("ada") == pytest.approx(60.0, rel=1e-2)


def test_a_story() -> None:
    machine = PolicyMachine([4 * GIB] * 2)
    granted(machine, 1, 1, 4 * GIB)
    machine.handle(Asked(10.0, 2, "ben", 2, GIB, 500))
    machine.handle(Asked(11.0, 3, "cyd", 1, GIB))
    machine.handle(Asked(10.0 + HOLD_AFTER, 4, "cyd", 1, 4 * GIB))
    machine.handle(Released(80.0, 3))
    machine.handle(Released(90.0, 1))
    machine.handle(Released(95.0, 2))
    assert machine.story(2) == [
        "+0.0 s: ben asks for 2 GPUs with 1.0 GiB and 0.5 of the compute each",
        "+0.0 s: it waits at place 1 of 1: 1 of the 2 GPUs that it needs is free",
        "+60.0 s: as cyd asks for lease 4, GPU 0, 1 take no other lease until it is granted: it is the first in the order",
        "+80.0 s: as lease 1 is over, it gets GPU 0, 1; 1 that came later had been granted before it",
        "+85.0 s: it is over",
    ]
    assert machine.story(99) == []


def test_a_story_whose_beginning_is_forgotten() -> None:
    machine = PolicyMachine([GIB], history=2)
    granted(machine, 1, 1, GIB)
    machine.handle(Asked(1.0, 2, "ben", 1, GIB))
    machine.handle(Passed(2.0))
    machine.handle(Released(3.0, 1))
    assert machine.story(2) == ["(what was before is forgotten)", "+0.0 s: as lease 1 is over, it gets GPU 0"]


def test_numbers_out_of_range() -> None:
    machine = PolicyMachine([GIB])
    granted(machine, 1, 1)
    for wrong in (Asked(0, 1, "ada", 1), Asked(0, 2, "ada", 1, -1), Asked(0, 2, "ada", 1, wait=-1.0), Asked(0, 2, "ada", 1, priority=101)):
        with pytest.raises(ValueError):
            machine.handle(wrong)
    with pytest.raises(ValueError):
        machine.handle(UserSet(0, "ada", weight=0.0))
