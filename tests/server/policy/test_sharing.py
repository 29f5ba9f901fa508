"""The policy machine: events in, decisions out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuvirt.server.policy.sharing import Ended, Grant, Policy, Refuse, Wanted

GIB = 1 << 30


def granted(policy: Policy, session: int, gpus: int, memory: int = 0) -> Grant:
    decision = policy.handle(Wanted(session, gpus, memory))
    assert isinstance(decision, Grant), decision
    return decision


def test_least_loaded_first() -> None:
    policy = Policy([GIB] * 3, 10)
    assert granted(policy, 1, 1).devices == (0,)
    assert granted(policy, 2, 1).devices == (1,)
    assert granted(policy, 3, 1).devices == (2,)
    assert granted(policy, 4, 2).devices == (0, 1)
    assert granted(policy, 5, 1).devices == (2,)
    policy.handle(Ended(1))
    policy.handle(Ended(4))
    assert granted(policy, 6, 1).devices == (0,)


def test_several_share_a_device() -> None:
    policy = Policy([GIB], 10)
    assert [granted(policy, s, 1).devices for s in range(1, 4)] == [(0,)] * 3
    assert policy.load(0) == 3


def test_one_owner_does_not_get_all_slots() -> None:
    policy = Policy([GIB], 10, owner_slots=2)
    assert all(isinstance(policy.handle(Wanted(s, 1, owner=b"a")), Grant) for s in (1, 2))
    refused = policy.handle(Wanted(3, 1, owner=b"a"))
    assert isinstance(refused, Refuse) and "has 2 sessions" in refused.text and "--sessions-per-token" in refused.text
    assert isinstance(policy.handle(Wanted(4, 1, owner=b"b")), Grant)
    policy.handle(Ended(1))
    assert isinstance(policy.handle(Wanted(5, 1, owner=b"a")), Grant)


@pytest.mark.parametrize(
    ("server", "token", "asked", "got"), [(0, 0, 0, 0), (0, 5, 0, 5), (7, 0, 0, 7), (7, 5, 0, 5), (7, 9, 0, 7), (7, 5, 5, 5), (7, 5, 1, 1)]
)
def test_memory_of_a_session(server: int, token: int, asked: int, got: int) -> None:
    policy = Policy([GIB], 10, session_memory=server)
    decision = policy.handle(Wanted(1, 1, asked, b"a", token))
    assert isinstance(decision, Grant) and decision.memory == got
    for more in filter(None, (server, token)):
        refused = policy.handle(Wanted(2, 1, more + 5, b"a", token))
        assert isinstance(refused, Refuse) and "--memory" in refused.text
        assert policy.impossible(1, more + 5, token) == refused.text


def test_slots_are_not_shared_and_come_back() -> None:
    policy = Policy([GIB], 2)
    assert (granted(policy, 1, 1).slot, granted(policy, 2, 1).slot) == (0, 1)
    refused = policy.handle(Wanted(3, 1))
    assert isinstance(refused, Refuse) and "2 sessions" in refused.text
    policy.handle(Ended(1))
    assert granted(policy, 4, 1).slot == 0


@pytest.mark.parametrize(("gpus", "memory", "text"), [(3, 0, "has 2 GPUs"), (0, 0, "at least 1"), (1, 3 * GIB, "3.0 GiB"), (2, 2 * GIB, "only 1 of")])
def test_refusals(gpus: int, memory: int, text: str) -> None:
    policy = Policy([GIB, 2 * GIB], 4)
    refused = policy.handle(Wanted(1, gpus, memory))
    assert isinstance(refused, Refuse) and text in refused.text
    assert policy.sessions == {}


def test_memory_decides_which_device() -> None:
    policy = Policy([GIB, 2 * GIB], 4)
    assert granted(policy, 1, 1, 2 * GIB).devices == (1,)
    assert granted(policy, 2, 1, 2 * GIB).devices == (1,)
    assert granted(policy, 3, 1).devices == (0,)


def test_end_of_an_unknown_session_changes_nothing() -> None:
    policy = Policy([GIB], 1)
    assert policy.handle(Ended(9)) is None
    assert granted(policy, 1, 1).slot == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.integers(0, 5)), max_size=60))
def test_whatever_happens(events: list[tuple[bool, int, int]]) -> None:
    """No device twice in a grant, no slot twice at once, and what ends leaves no trace."""
    policy = Policy([GIB] * 4, 6)
    for begins, session, gpus in events:
        if begins and session not in policy.sessions:
            decision = policy.handle(Wanted(session, gpus))
            if isinstance(decision, Grant):
                assert len(set(decision.devices)) == gpus == len(decision.devices)
                assert all(0 <= d < 4 for d in decision.devices)
        elif not begins:
            policy.handle(Ended(session))
        slots = [grant.slot for grant in policy.sessions.values()]
        assert len(set(slots)) == len(slots)
        assert sum(policy.load(d) for d in range(4)) == sum(len(g.devices) for g in policy.sessions.values())
    for session in list(policy.sessions):
        policy.handle(Ended(session))
    assert [policy.load(d) for d in range(4)] == [0] * 4
