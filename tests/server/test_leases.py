"""The leases' bookkeeping: who works on which GPUs, until when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuvirt.server.lease import NO_ID, NO_LAUNCH, Asked, ElsewhereError, Lease, Membership, NotGranted
from gpuvirt.server.leases import LINGER, Leases
from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.rights import Rights

GIB = 1 << 30
A, B = b"a" * 16, b"b" * 16
X, Y = b"x" * 16, b"y" * 16
HOLDER: dict[str, object] = {}


def make(gpus: int = 4, slots: int = 10, per_token: int | None = None, expiry: float = 30, memory: list[int] | None = None) -> Leases:
    return Leases(PolicyMachine(memory or [GIB] * gpus), slots, per_token, expiry)


def test_a_process_of_its_own_has_a_lease_of_its_own() -> None:
    leases = make()
    first, second = leases.join(1, Asked(A, 2), HOLDER), leases.join(2, Asked(A, 2), HOLDER)
    assert (first.devices, second.devices) == ((0, 1), (2, 3)) and first.lease is not second.lease
    leases.leave(1, 0.0)
    assert list(leases) == [second.lease]
    assert leases.join(3, Asked(A, 2), HOLDER).devices == (0, 1)


def test_a_launch_shares_one() -> None:
    """Also the process that begins when the one before has ended; other tokens and launches have others."""
    leases = make()
    asked = Asked(A, 2, launch=X)
    members = [leases.join(n, asked, HOLDER) for n in (1, 2)]
    assert members[0].lease is members[1].lease and members[0].slot != members[1].slot
    assert leases.join(3, Asked(B, 2, launch=X), HOLDER).devices == (2, 3)
    for n in (1, 2):
        leases.leave(n, 100.0)
    assert leases.next_expiry() == 100 + LINGER and leases.expire(99 + LINGER) == []
    leases.join(4, Asked(B, 1), HOLDER)  # whatever begins meanwhile
    again = leases.join(5, asked, HOLDER)
    assert again.lease is members[0].lease and leases.next_expiry() is None
    leases.leave(5, 200.0)
    assert leases.expire(200 + LINGER) == [again.lease]
    assert leases.join(6, asked, HOLDER).lease is not again.lease


def test_a_launch_that_has_ended_keeps_nothing() -> None:
    leases = make()
    leases.join(1, Asked(A, 1, launch=X), HOLDER)
    leases.join(2, Asked(A, 1, launch=Y), HOLDER)
    leases.leave(1, 0.0)
    leases.launch_ended(X, B)  # a stranger's word
    leases.launch_ended(NO_LAUNCH, A)
    assert len(list(leases)) == 2
    leases.launch_ended(X, A)
    leases.launch_ended(Y, A)
    assert len(list(leases)) == 1
    leases.leave(2, 0.0)
    assert list(leases) == []
    leases.join(3, Asked(A, 1, launch=Y), HOLDER)  # it came after the report
    leases.leave(3, 0.0)
    assert list(leases) == []


def test_a_named_lease_outlives_its_sessions() -> None:
    leases = make(expiry=30)
    lease = leases.open(X, Asked(A, 2), HOLDER, now=0)
    other = leases.open(Y, Asked(A, 2), HOLDER, now=0)
    assert (lease.devices, other.devices) == ((0, 1), (2, 3))
    for n in range(3):
        assert leases.join(n, Asked(A, 2, lease=X), HOLDER).lease is lease
        leases.leave(n, 0.0)
    assert leases.join(3, Asked(A, 0, lease=X, launch=B), HOLDER).devices == (0, 1)  # the lease comes before the launch
    leases.renew(Y, A, 20)
    assert leases.expire(49) == [] and leases.expire(50) == [other]
    leases.leave(3, 60.0)  # nobody has renewed it since, and now it has no session
    assert leases.next_expiry() == 30 and leases.expire(60) == [lease] and list(leases) == []
    assert leases.open(X, Asked(A, 4), HOLDER, now=70).devices == (0, 1, 2, 3)


def test_a_lease_that_was_let_go_ends_with_its_last_session() -> None:
    leases = make()
    lease = leases.open(X, Asked(A, 1), HOLDER, now=0)
    leases.join(1, Asked(A, 1, lease=X), HOLDER)
    with pytest.raises(NotGranted, match="has ended"):
        leases.let_go(X, B, 1)
    leases.let_go(X, A, 1)
    assert leases.expire(2) == []
    leases.leave(1, 2.0)
    assert leases.next_expiry() == 1 and leases.expire(2) == [lease]


def test_release_takes_the_sessions_along() -> None:
    leases = make()
    leases.open(X, Asked(A, 1), HOLDER, now=0)
    leases.join(1, Asked(A, 1, lease=X), HOLDER)
    leases.join(2, Asked(A, 1, lease=X), HOLDER)
    assert leases.release(X, A) == {1, 2} and list(leases) == []
    with pytest.raises(NotGranted, match="has ended") as error:
        leases.join(3, Asked(A, 1, lease=X), HOLDER)
    assert error.value.unknown
    leases.leave(1, 0.0)
    leases.leave(2, 0.0)
    assert leases.sessions_on(0) == 0 and leases.next_expiry() is None


def test_a_stranger_learns_nothing_of_a_lease() -> None:
    leases = make()
    leases.open(X, Asked(A, 1), HOLDER, now=0)
    texts = set()
    for id in (X, Y):
        for attempt in (
            lambda id=id: leases.join(1, Asked(B, 1, lease=id), HOLDER),
            lambda id=id: leases.renew(id, B, 0),
            lambda id=id: leases.release(id, B),
            lambda id=id: leases.check(Asked(B, 1, lease=id)),
        ):
            with pytest.raises(NotGranted) as error:
                attempt()  # type: ignore[no-untyped-call]
            texts.add((str(error.value), error.value.unknown))
    assert len(texts) == 1 and len(list(leases)) == 1 and leases.sessions_on(0) == 0


@pytest.mark.parametrize(
    ("gpus", "memory", "text"),
    [(1, 0, "--gpus 1 .* has 2 GPUs"), (3, 0, "has 2 GPUs; leave"), (2, 2 * GIB, "of this lease has 1.0 GiB"), (2, 9 * GIB, "--memory")],
)
def test_other_than_the_lease_has(gpus: int, memory: int, text: str) -> None:
    for named in (True, False):
        leases = make(memory=[GIB, GIB, 4 * GIB, 4 * GIB])
        if named:
            leases.open(X, Asked(A, 2), HOLDER, now=0)
        else:
            leases.join(1, Asked(A, 2, launch=X), HOLDER)
        asked = Asked(A, gpus, memory, lease=X if named else NO_ID, launch=X)
        with pytest.raises(NotGranted, match=text):
            leases.join(2, asked, HOLDER)
        if named:
            with pytest.raises(NotGranted, match=text):
                leases.check(asked)
        assert leases.sessions_on(0) == (not named)


def test_memory_stays_a_sessions_own() -> None:
    leases = make()
    leases.open(X, Asked(A, 1, 5), HOLDER, now=0)
    leases.open(Y, Asked(A, 1, 0, Rights(memory=9)), HOLDER, now=0)
    assert [leases.join(n, Asked(A, 1, m, lease=X), HOLDER).memory for n, m in enumerate((0, 3, 7))] == [5, 3, 7]
    assert leases.join(7, Asked(A, 1, rights=Rights(memory=9), lease=Y), HOLDER).memory == 9
    with pytest.raises(NotGranted, match="may have"):
        leases.join(8, Asked(A, 1, 10, Rights(memory=9), lease=Y), HOLDER)


def test_limits() -> None:
    leases = make(per_token=2, slots=3)
    leases.open(X, Asked(A, 1), HOLDER, now=0)
    with pytest.raises(NotGranted, match="another"):
        leases.open(X, Asked(A, 1), HOLDER, now=0)
    with pytest.raises(NotGranted, match="another"):
        leases.open(NO_ID, Asked(A, 1), HOLDER, now=0)
    leases.join(1, Asked(A, 1, lease=X), HOLDER)
    leases.join(2, Asked(A, 1, lease=X), HOLDER)
    with pytest.raises(NotGranted, match=r"has 2 sessions .*--sessions-per-token"):
        leases.join(3, Asked(A, 1, lease=X), HOLDER)
    leases.open(Y, Asked(A, 1), HOLDER, now=0)
    with pytest.raises(NotGranted, match="has 2 leases"):
        leases.open(b"z" * 16, Asked(A, 1), HOLDER, now=0)
    leases.join(3, Asked(B, 1), HOLDER)
    with pytest.raises(NotGranted, match="3 sessions; try again"):
        leases.join(4, Asked(B, 1), HOLDER)
    leases.leave(1, 0.0)
    with pytest.raises(NotGranted, match="3 leases; try again"):
        leases.join(4, Asked(B, 1), HOLDER)
    assert leases.join(5, Asked(A, 1, lease=X), HOLDER).slot == 0
    with pytest.raises(NotGranted, match="has 4 GPUs"):
        leases.check(Asked(A, 5))


def test_a_lease_waits_for_memory_that_is_reserved() -> None:
    """All processes of its launch with it; it is gone with the last of them."""
    leases = make(gpus=1)
    decided: list[Lease] = []
    leases.decided = decided.append
    leases.join(1, Asked(A, 1, GIB), HOLDER)
    asked = Asked(B, 1, GIB, launch=X)
    members = [leases.join(n, asked, HOLDER, now=5.0) for n in (2, 3)]
    assert members[0].lease is members[1].lease and members[0].lease.waits and leases.place(members[0].lease) == (1, 1)
    with pytest.raises(NotGranted, match=r"cannot be had without waiting.* place 2 of 2"):
        leases.open(Y, Asked(A, 1, GIB, no_wait=True), HOLDER, now=5)
    with pytest.raises(NotGranted, match="cannot be had without waiting"):
        leases.join(9, Asked(A, 1, GIB, no_wait=True), HOLDER, now=5)
    leases.leave(2, 6.0)
    assert leases.place(members[0].lease) == (1, 1)
    leases.leave(3, 7.0)
    assert len(list(leases)) == 1 and not decided
    member = leases.join(4, asked, HOLDER, now=8.0)
    last = leases.join(5, replace(asked, launch=Y, wait=10), HOLDER, now=8.0)
    assert leases.next_expiry() == 18.0
    leases.expire(18.0)
    assert decided == [last.lease] and "10 s" in last.lease.refused and not last.lease.waits
    leases.leave(5, 18.0)
    leases.leave(1, 20.0)
    assert decided == [last.lease, member.lease] and member.devices == (0,) and leases.next_expiry() is None


def test_a_revoked_token() -> None:
    """Who waits is refused, leases without sessions are over at once, the others when their sessions have ended."""
    leases = make(gpus=1)
    decided: list[Lease] = []
    leases.decided = decided.append
    running = leases.join(1, Asked(A, 1, GIB), HOLDER)
    waiting = leases.join(2, Asked(A, 1, GIB), HOLDER)
    other = leases.join(3, Asked(B, 1, GIB), HOLDER)
    leases.revoke(A, "it is over", 1.0)
    assert decided == [waiting.lease] and waiting.lease.refused == "it is over"
    assert list(leases) == [running.lease, other.lease] and leases.place(other.lease) == (1, 1)
    leases.leave(2, 1.0)
    leases.leave(1, 2.0)
    assert other.devices == (0,)
    leases.leave(3, 3.0)
    leases.open(X, Asked(B, 1), HOLDER, now=3)
    leases.open(Y, Asked(A, 1), HOLDER, now=3)
    running = leases.join(4, Asked(B, 1), HOLDER)
    leases.join(5, Asked(B, 1, launch=X), HOLDER)
    leases.leave(5, 3.0)
    assert [lease.owner for lease in leases] == [B, A, B, B]
    leases.revoke(B, "it is over", 4.0)
    assert [lease.owner for lease in leases] == [A, B] and running.lease in leases


def test_tokens_of_one_user_are_one() -> None:
    """And a token of none is nobody else's, though a user may be called what its id is."""
    leases = make(gpus=2)
    ada = Rights(user="ada", gpus=1)
    leases.join(1, Asked(A, 1, rights=ada), HOLDER)
    assert leases.join(2, Asked(B, 1, rights=ada), HOLDER).lease.waits
    assert not leases.join(3, Asked(X, 1), HOLDER).lease.waits
    other = Rights(user=X.hex(), gpus=1)
    assert not leases.join(4, Asked(Y, 1, rights=other), HOLDER).lease.waits


EVENTS = st.lists(st.tuples(st.sampled_from("ojlrxte"), st.integers(0, 5), st.integers(0, 3), st.integers(1, 3)), max_size=80)


@given(EVENTS)
def test_whatever_happens(events: list[tuple[str, int, int, int]]) -> None:
    """The policy holds exactly the leases that there are, each session is under one, slots are apart, and in the end nothing is left."""
    policy = PolicyMachine([GIB] * 3)
    leases = Leases(policy, 8, 5, 10)
    owners, ids, now = (A, B), (NO_ID, X, Y, b"z" * 16), 0.0
    running: dict[int, Membership] = {}
    for kind, session, name, gpus in events:
        owner = owners[session % 2]
        try:
            match kind:
                case "o":
                    leases.open(ids[name], Asked(owner, gpus), HOLDER, now)
                case "j" if session not in running:
                    running[session] = leases.join(session, Asked(owner, gpus, lease=ids[name]), HOLDER)
                case "l" if session not in running:
                    running[session] = leases.join(session, Asked(owner, gpus, GIB * (session % 3 // 2), launch=ids[name], wait=9), HOLDER, now=now)
                case "e":
                    leases.leave(session, now)
                    running.pop(session, None)
                case "r":
                    leases.renew(ids[name], owner, now)
                case "x":
                    for ended in leases.release(ids[name], owner):
                        leases.leave(ended, now)
                        running.pop(ended, None)
                case "t":
                    now += gpus * 4
                    leases.expire(now)
        except NotGranted:
            pass
        assert set(policy.leases) == {lease.number for lease in leases}
        assert {s for lease in leases for s in lease.sessions} == {s for s, member in running.items() if not member.lease.refused}
        assert sum(leases.sessions_on(d) for d in range(3)) == sum(len(member.devices) for member in running.values())
        assert len(policy.waiting) == sum(lease.waits for lease in leases)
        due = leases.next_expiry()
        assert due is None or due > now or kind != "t"
    for session in list(running):
        leases.leave(session, now)
    leases.expire(now + 100)
    assert list(leases) == [] and policy.leases == {}


def test_a_lease_moves_with_its_session() -> None:
    """It has both places while it moves; afterwards new sessions of its lease come where it is."""
    leases = make(2)
    member, other = leases.join(1, Asked(A, 1, memory=7, launch=X), HOLDER), leases.join(2, Asked(B, 1), HOLDER)
    future = leases.begin_move(1, (1,))
    assert (future.devices, future.memory) == ((1,), 7) and len({member.slot, other.slot, future.slot}) == 3
    assert leases.join(3, Asked(B, 1), HOLDER).slot not in (member.slot, other.slot, future.slot)
    with pytest.raises(NotGranted, match="moving already"):
        leases.begin_move(1, (1,))
    moved = leases.end_move(1)
    leases.stop_move(1)
    assert (moved.devices, moved.slot, moved.lease) == ((1,), future.slot, member.lease)
    assert [leases.sessions_on(device) for device in (0, 1)] == [1, 2]
    assert leases.join(4, Asked(A, 1, launch=X), HOLDER).devices == (1,)
    assert leases.join(5, Asked(B, 1), HOLDER).devices == (0,), "which has fewer now"


def test_a_move_that_stops_leaves_all_as_it_was() -> None:
    leases = make(2, slots=2)
    member = leases.join(1, Asked(A, 1), HOLDER)
    leases.begin_move(1, (1,))
    with pytest.raises(NotGranted, match="limit of 2 sessions"):
        leases.join(2, Asked(A, 1), HOLDER)
    leases.stop_move(1)
    assert member.devices == (0,) and leases.join(2, Asked(A, 1), HOLDER).devices == (1,)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((0,), "on GPU 0 already"),
        ((2,), "GPUs 0 to 1"),
        ((-1,), "GPUs 0 to 1"),
        ((0, 1), "has 1 GPU; name as many"),
        ((), "has 1 GPU; name as many"),
    ],
)
def test_moves_that_cannot_be(devices: tuple[int, ...], why: str) -> None:
    leases = make(2)
    leases.join(1, Asked(A, 1), HOLDER)
    with pytest.raises(NotGranted, match=why):
        leases.begin_move(1, devices)
    with pytest.raises(NotGranted, match="it has ended"):
        leases.begin_move(9, (1,))


def test_moves_to_another_size_and_of_one_of_several_cannot_be() -> None:
    leases = make(memory=[GIB, 2 * GIB, GIB])
    leases.join(1, Asked(A, 1, launch=X), HOLDER)
    with pytest.raises(NotGranted, match="another size"):
        leases.begin_move(1, (1,))
    leases.begin_move(1, (2,))
    leases.join(2, Asked(A, 1, launch=X), HOLDER)
    with pytest.raises(NotGranted, match="1 more session"):
        leases.end_move(1)
    leases.stop_move(1)
    with pytest.raises(NotGranted, match="1 more session"):
        leases.begin_move(1, (2,))


def kept(lease: Lease) -> Lease:
    """What the next server knows of a lease."""
    return replace(lease, sessions=set(), expires=None)


def test_sessions_of_an_earlier_server() -> None:
    """They have the leases, devices and slots that they had; whoever comes then gets others, and what they have is over when they are."""
    before, after = make(), make()
    launch, named = Asked(A, 1, launch=X), before.open(Y, Asked(A, 1, GIB), HOLDER, 0.0)
    members = {1: before.join(1, Asked(B, 1, GIB), HOLDER), 2: before.join(2, launch, HOLDER), 3: before.join(3, launch, HOLDER)}
    members[4] = before.join(4, Asked(A, 0, lease=Y), HOLDER)
    for number in (4, 3, 2, 1):
        was = members[number]
        now = after.adopt(number, kept(was.lease), was.slot, was.memory, Rights(), 1000.0)
        assert (now.devices, now.slot, now.memory, now.lease.number) == (was.devices, was.slot, was.memory, was.lease.number)
    assert len(list(after)) == 3 and after.find(Y, A).sessions == {4} and after.find(Y, A).number == named.number
    fifth = after.join(5, launch, HOLDER)
    assert fifth.lease.sessions == {2, 3, 5} and fifth.slot not in {member.slot for member in members.values()}
    with pytest.raises(NotGranted):
        after.join(6, Asked(B, 3, GIB, no_wait=True), HOLDER)
    for number in range(1, 6):
        after.leave(number, 1000.0)
    assert {lease.number for lease in after.expire(1000.0 + after.expiry)} == {named.number, fifth.lease.number}
    assert list(after) == []


def test_sessions_that_cannot_go_on() -> None:
    before = make(2)
    first, second = before.join(1, Asked(A, 1, GIB), HOLDER), before.join(2, Asked(A, 1, GIB), HOLDER)
    after = make(2)
    after.adopt(1, kept(first.lease), first.slot, 0, Rights(), 0.0)
    for lease, slot in ((kept(second.lease), first.slot), (kept(second.lease), -1), (kept(second.lease), 10)):
        with pytest.raises(NotGranted, match="in its place"):
            after.adopt(2, lease, slot, 0, Rights(), 0.0)
    for devices in ((0,), (2,), ()):
        with pytest.raises(NotGranted, match="not there any more"):
            after.adopt(2, replace(kept(second.lease), devices=devices), second.slot, 0, Rights(), 0.0)
    assert len(list(after)) == 1


def test_a_lease_that_went_came_back_and_ended_is_nowhere_else() -> None:
    """Two hosts that had it would else send whoever asks for it from one to the other."""
    here = Leases(PolicyMachine((GIB,)), 8, pooled=True)
    asked = Asked(b"o" * 8, 1)
    lease = here.open(b"i" * 16, asked, {}, 0.0)
    here.departed(lease, "tcp://elm:1", 1.0)
    with pytest.raises(ElsewhereError):
        here.find(b"i" * 16, b"o" * 8)
    back = Lease(lease.number, b"o" * 8, 1, 0, 0.0, {}, (0,), id=b"i" * 16)
    assert not here.place_here(back, Rights(), 2.0, migrates=True)
    here.arrived(back, 3.0)
    here.release(b"i" * 16, b"o" * 8, 4.0)
    with pytest.raises(NotGranted) as found:
        here.find(b"i" * 16, b"o" * 8)
    assert not isinstance(found.value, ElsewhereError)


def test_what_a_host_cannot_take_leaves_those_who_wait_there_alone() -> None:
    """A lease of the same launch waits here; the pool's scheduler places another of it here, which has no room."""
    leases, owner, launch = Leases(PolicyMachine([1 << 30]), 8, pooled=True), b"o" * 16, b"l" * 16
    leases.join(1, Asked(owner, 1, compute=COMPUTE), {})
    waits = leases.join(2, Asked(owner, 1, compute=COMPUTE, launch=launch), {}).lease
    comes = Lease(77, owner, 1, 0, 0.0, {}, (0,), COMPUTE, launch=launch)
    assert waits.waits and leases.place_here(comes, Rights(), 0.0)
    assert leases.join(3, Asked(owner, 1, compute=COMPUTE, launch=launch), {}).lease is waits
    leases.leave(1, 0.0)
    assert waits.devices == (0,) and waits.sessions == {2, 3}
