"""The sums of users: exact, whatever leases and sessions do, and never less than before. The clocks are the tests' own."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from gpuvirt.server.observe.accounts import ACCOUNTS_MOST, COUNTERS, FIGURE_MOST, OTHERS, Accounts, Holding, Sums
from gpuvirt.server.observe.facts import ATTACHED, FIGURES, IDLE, LEASE_STATES, PARKED, QUEUED, SUSPENDED

NOON = 1_790_000_000 // 86400 * 86400 + 43200.0
USERS = ("alice", "bob", "token default")


def test_each_state_of_a_lease_is_counted_as_what_it_is() -> None:
    """Two GPUs: a minute in the queue, ten attached, twenty parked, five with nothing under them."""
    accounts, now = Accounts(), 0.0
    for state, seconds in ((QUEUED, 60), (ATTACHED, 600), (PARKED, 1200), (ATTACHED, 0), (IDLE, 300)):
        accounts.observe(now, NOON + now, [Holding("alice", 2, state)], {})
        now += seconds
    accounts.observe(now, NOON + now, [], {"alice": 5})
    accounts.observe(now + 1000, NOON + now + 1000, [], {"alice": 3})
    sums = accounts.totals["alice"]
    assert (sums.queued, sums.attached, sums.parked, sums.reserved, sums.peak_memory) == (60, 1200, 2400, 4200, 5)
    assert accounts.states == {IDLE: 600, ATTACHED: 1200, PARKED: 2400}


def test_midnight() -> None:
    """What passes midnight is shared out to the days, however long it is."""
    accounts = Accounts()
    accounts.observe(0, NOON, [Holding("alice", 1, ATTACHED)], {})
    accounts.observe(2.5 * 86400, NOON + 2.5 * 86400, [], {})
    fresh = accounts.take_fresh()
    assert sorted(sums.attached for sums in fresh.values()) == [43200, 86400, 86400]
    assert len({day for day, _ in fresh}) == 3 and accounts.take_fresh() == {}


def test_clocks_that_jump() -> None:
    """The wall's clock says what day it is, and nothing of how long anything took; the other may be read late."""
    accounts = Accounts()
    accounts.observe(10, NOON, [Holding("alice", 1, ATTACHED)], {})
    accounts.observe(20, NOON - 1e6, [Holding("alice", 1, ATTACHED)], {})
    accounts.observe(15, NOON + 1e6, [Holding("alice", 1, ATTACHED)], {})
    accounts.observe(30, NOON, [], {})
    assert accounts.totals["alice"].attached == 20


def test_a_worker_that_lies() -> None:
    """Figures that fall count for nothing, those beyond all bounds for little; the session's end takes nothing away."""
    accounts = Accounts()
    for launches in (5, 3, 9, 1 << 70):
        accounts.figures(1, "alice", "tcp", NOON, {"launches": launches})
        assert accounts.totals["alice"].launches == {5: 5, 3: 5, 9: 9, 1 << 70: FIGURE_MOST}[launches]
    accounts.ended(1)
    assert accounts.totals["alice"].launches == FIGURE_MOST and accounts.totals["alice"].sessions == 1


def test_a_session_of_an_earlier_server() -> None:
    """What that has counted is not counted once more."""
    accounts = Accounts()
    counted = dict.fromkeys(FIGURES, 70) | {"answers": 7, "cut_ns": 5 * 10**9, "rtt_ns": 10**8}
    accounts.figures(1, "alice", "tcp", NOON, {}, 10, adopted=True)
    accounts.figures(1, "alice", "tcp", NOON, counted, 10, adopted=True)
    assert accounts.totals == {}
    accounts.figures(1, "alice", "tcp", NOON, counted | {"launches": 75, "answers": 9}, 10, adopted=True)
    sums = accounts.totals["alice"]
    assert (sums.sessions, sums.launches, sums.commands, round(sums.network, 3)) == (0, 5, 0, 0.2)


def test_what_the_network_takes() -> None:
    """A round trip for each answer, and the time of cuts; a worker that takes a session over counts from nothing, what its link passed goes on."""
    accounts, second = Accounts(), 10**9
    accounts.figures(1, "alice", "tcp", NOON, {"bytes_in": 100, "answers": 10, "rtt_ns": second // 10, "cut_ns": 0}, worker=7)
    accounts.figures(1, "alice", "tcp", NOON, {"bytes_in": 150, "answers": 12, "rtt_ns": second // 10, "cut_ns": second // 2}, worker=7)
    accounts.figures(1, "alice", "tcp", NOON, {"bytes_in": 160, "answers": 3, "rtt_ns": second // 10, "cut_ns": second}, worker=8)
    sums = accounts.totals["alice"]
    assert (sums.answers, sums.bytes_in, sums.sessions) == (15, 160, 1) and abs(sums.network - (1.2 + 0.5 + 0.3 + 1)) < 1e-9
    accounts.figures(1, "alice", "tcp", NOON, {"answers": 4, "rtt_ns": 1 << 60}, worker=8)
    assert sums.network < 14, "a client's word for its round trip has a bound"


def test_what_is_kept_has_a_bound() -> None:
    accounts = Accounts()
    for number in range(ACCOUNTS_MOST + 50):
        accounts.figures(number, f"user {number}", "shm", NOON, {"launches": 2})
    assert len(accounts.totals) == ACCOUNTS_MOST + 1 and accounts.totals[OTHERS].launches == 100
    assert sum(sums.sessions for sums in accounts.totals.values()) == ACCOUNTS_MOST + 50


STEP = st.one_of(
    st.tuples(st.just("pass"), st.floats(0, 1e5, allow_nan=False)),
    st.tuples(st.just("figures"), st.integers(1, 4), st.lists(st.integers(0, 1000), min_size=4, max_size=4)),
    st.tuples(st.just("end"), st.integers(1, 4)),
    st.tuples(st.just("lease"), st.integers(0, 3), st.sampled_from(LEASE_STATES), st.integers(1, 8)),
    st.tuples(st.just("keep"), st.booleans()),
)


@given(st.lists(STEP, max_size=60))
def test_sums_are_those_of_the_parts(steps: list[tuple[object, ...]]) -> None:
    """What is kept by days, what is not kept yet, and the totals agree; no counter ever falls."""
    accounts, now = Accounts(), 0.0
    kept: dict[str, Sums] = {}
    figures: dict[int, dict[str, int]] = {}
    expected = dict.fromkeys(FIGURES, 0)
    leases: dict[int, Holding] = {}
    attached = reserved = 0.0
    before: dict[str, Sums] = {}
    began = 0
    for step in steps:
        match step:
            case ("pass", float(seconds)):
                now += seconds
                attached += sum(seconds * lease.gpus for lease in leases.values() if lease.state == ATTACHED)
                reserved += sum(seconds * lease.gpus for lease in leases.values() if lease.state not in (QUEUED, SUSPENDED))
            case ("figures", int(session), list(more)):
                began += session not in figures
                known = figures.setdefault(session, dict.fromkeys(FIGURES, 0))
                for name, grown in zip(FIGURES, more, strict=True):
                    known[name] += grown
                    expected[name] += grown
                accounts.figures(session, USERS[session % 3], ("shm", "tcp")[session % 2], NOON + now, known)
            case ("end", int(session)):
                figures.pop(session, None)
                accounts.ended(session)
            case ("lease", int(number), str(state), int(gpus)):
                leases[number] = Holding(USERS[number % 3], gpus, state)
            case ("keep", bool(fails)):
                fresh = accounts.take_fresh()
                if fails:
                    accounts.put_back(fresh)
                else:
                    for (_, account), sums in fresh.items():
                        kept.setdefault(account, Sums()).add(sums)
        accounts.observe(now, NOON + now, leases.values(), {})
        for account, sums in before.items():
            assert all(getattr(accounts.totals[account], name) >= getattr(sums, name) for name in COUNTERS)
        before = {account: Sums(**asdict(sums)) for account, sums in accounts.totals.items()}
    for (_, account), sums in accounts.take_fresh().items():
        kept.setdefault(account, Sums()).add(sums)
    assert kept.keys() == accounts.totals.keys()
    for account, sums in accounts.totals.items():
        assert all(abs(getattr(sums, name) - getattr(kept[account], name)) <= 1e-6 * (1 + getattr(sums, name)) for name in COUNTERS)
    total = Sums()
    for sums in accounts.totals.values():
        total.add(sums)
    assert {name: getattr(total, name) for name in FIGURES} == expected and total.sessions == began
    assert abs(total.attached - attached) <= 1e-6 * (1 + attached) and abs(total.reserved - reserved) <= 1e-6 * (1 + reserved)
    assert abs(sum(accounts.states.values()) - reserved) <= 1e-6 * (1 + reserved)
    assert sum(link["in"] for link in accounts.links.values()) == expected["bytes_in"]
