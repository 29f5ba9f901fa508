"""The record of use: what is added is there, once, whoever is killed and whatever becomes of the file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuvirt.server.observe.accounts import COUNTERS, Accounts, Holding, Sums
from gpuvirt.server.observe.facts import ATTACHED, IDLE, PARKED, QUEUED
from gpuvirt.server.observe.keeper import Keeper
from gpuvirt.server.observe.record import KEPT, Record, RecordError, month_of, record_file

JANUARY = 1_798_761_600.0  # 2027-01-01 00:00 UTC


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return record_file(tmp_path, "127.0.0.1", 7070)


def test_one_file_for_each_address(tmp_path: Path) -> None:
    names = [record_file(tmp_path, host, port).name for host, port in (("127.0.0.1", 1), ("127.0.0.1", 2), ("0.0.0.0", 1), ("../::1/x", 1))]
    assert len(set(names)) == 4 and all(record_file(tmp_path, "../::1/x", 1).parent == tmp_path and "/" not in name for name in names)


def test_the_hours_of_two_months(file: Path) -> None:
    """Two users' leases around the turn of a year, by a clock of the test's own."""
    accounts, record = Accounts(), Record(file)
    hour, clock = 3600.0, JANUARY - 3600
    for holdings, hours in (
        ([Holding("alice", 2, ATTACHED), Holding("bob", 1, QUEUED)], 0.5),
        ([Holding("alice", 2, PARKED), Holding("bob", 1, ATTACHED)], 1.5),  # the year ends within it
        ([Holding("alice", 2, IDLE)], 3),
        ([], 5),
    ):
        accounts.observe(clock, clock, holdings, {"alice": 1 << 30})
        record.add(accounts.take_fresh())
        clock += hours * hour
    accounts.observe(clock, clock, [], {})
    record.add(accounts.take_fresh())
    old, new = record.month("2026-12"), record.month("2027-01")
    assert [[getattr(old[user], state) / hour for state in ("attached", "parked", "idle", "queued")] for user in ("alice", "bob")] == [
        [1, 1, 0, 0],
        [0.5, 0, 0, 0.5],
    ]
    assert [[getattr(new[user], state) / hour for state in ("attached", "parked", "idle", "queued")] for user in ("alice", "bob")] == [
        [0, 2, 6, 0],
        [1, 0, 0, 0],
    ]
    assert old["alice"].reserved == 2 * hour and old["alice"].peak_memory == 1 << 30
    assert record.month("2027-01", "bob").keys() == {"bob"} and record.month("2027-02") == {}
    assert month_of(JANUARY) == "2027-01" and month_of(JANUARY - 1) == "2026-12"
    record.close()
    assert file.stat().st_mode & 0o777 == 0o600
    again = Record(file)
    assert again.month("2026-12") == old
    again.close()


ROWS = st.dictionaries(
    st.tuples(st.sampled_from(["2027-01-01", "2027-01-31", "2027-02-01"]), st.sampled_from(["alice", "bob"])),
    st.builds(Sums, **{f.name: st.integers(0, 1 << 40).map(float if f.type == "float" else int) for f in fields(Sums)}),
)


@pytest.mark.slow
@given(st.lists(ROWS, max_size=8))
def test_sums_of_the_parts(additions: list[dict[tuple[str, str], Sums]]) -> None:
    """Two servers add to one file in turns: a month has all of its days' and nothing else."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        records = [Record(Path(folder) / "record") for _ in range(2)]
        expected: dict[tuple[str, str], Sums] = {}
        for number, rows in enumerate(additions):
            records[number % 2].add(rows)
            for (day, account), sums in rows.items():
                expected.setdefault((day[:7], account), Sums()).add(sums)
        for month in ("2027-01", "2027-02"):
            found = records[0].month(month)
            assert {(month, account): asdict(sums) for account, sums in found.items()} == {
                key: asdict(sums) for key, sums in expected.items() if key[0] == month
            }
        for record in records:
            record.close()


def test_old_days_go(file: Path) -> None:
    """The file does not grow for ever, and a sum beyond SQLite's numbers is no error."""
    record = Record(file)
    record.add({("2024-01-01", "alice"): Sums(launches=1)})
    record.add({("2026-01-01", "alice"): Sums(launches=1 << 70)})
    assert record.month("2024-01")["alice"].launches == 1
    record.add({("2027-01-01", "alice"): Sums(launches=1)})
    assert record.month("2024-01") == {} and record.month("2026-01")["alice"].launches == (1 << 63) - 1 and KEPT > 2 * 365
    record.close()


KILLED = """
import os, sys
from pathlib import Path
from gpuvirt.server.observe.record import Record
from gpuvirt.server.observe.accounts import Sums
record = Record(Path(sys.argv[1]))
while True:
    record.add({("2027-01-01", user): Sums(launches=1) for user in ("alice", "bob")})
    os.write(1, b".")
"""


def test_a_server_that_is_killed(file: Path) -> None:
    """What was added before is there, each addition whole."""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and len(process.stdout.read(20)) == 20
            process.send_signal(signal.SIGKILL)
    record = Record(file)
    alice, bob = record.month("2027-01")["alice"], record.month("2027-01")["bob"]
    assert alice == bob and alice.launches >= 60
    record.close()


@pytest.mark.parametrize("how", ["torn", "overwritten", "no database"])
def test_a_damaged_file(file: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is moved aside with one line, and a new record begins."""
    record = Record(file)
    record.add({(f"2027-01-{day:02d}", f"user {number}"): Sums(launches=number) for day in range(1, 30) for number in range(50)})
    record.close()
    size = file.stat().st_size
    if how == "torn":
        os.truncate(file, size // 2 + 100)
    elif how == "overwritten":
        file.write_bytes(file.read_bytes()[:4096] + os.urandom(size - 4096))
    else:
        file.write_text("this is no database\n" * 100)
    damaged = file.read_bytes()
    with caplog.at_level(logging.INFO, "gpuvirt.server"):
        record = Record(file)
    (line,) = caplog.messages
    aside = file.with_name(f"{file.name}.damaged")
    assert "is damaged" in line and aside.name in line and aside.read_bytes() == damaged
    record.add({("2027-01-01", "alice"): Sums(launches=2)})
    assert record.month("2027-01") == {"alice": Sums(launches=2)} and file.stat().st_mode & 0o777 == 0o600
    record.close()


def test_what_cannot_be_used(tmp_path: Path, file: Path) -> None:
    """A link, a folder, another version's: refused by name, and left alone."""
    (tmp_path / "elsewhere").touch()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match=r"cannot be used: .*symbolic"):
        Record(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(RecordError, match="cannot be used"):
        Record(file)
    file.rmdir()
    with sqlite3.connect(file) as newer:
        newer.execute("PRAGMA user_version = 9")
    with pytest.raises(RecordError, match="is of version 9"):
        Record(file)


def test_what_cannot_be_written_is_kept(file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another has the file locked the sums stay in memory, which is said once; then nothing is missing and nothing twice."""
    monkeypatch.setattr("gpuvirt.server.observe.record.BUSY", 0.01)

    async def main() -> None:
        accounts = Accounts()
        keeper = Keeper(accounts, Record(file))
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            for launches in (1, 2, 3):
                accounts.figures(1, "alice", "tcp", JANUARY, {"launches": launches})
                await keeper.keep()
            assert keeper.record.month("2027-01") == {}
            other.execute("ROLLBACK")
        await keeper.keep()
        await keeper.keep()
        assert keeper.record.month("2027-01")["alice"] == Sums(sessions=1, launches=3)
        accounts.figures(1, "alice", "tcp", JANUARY, {"launches": 4})
        await keeper.close()
        again = Record(file)
        assert again.month("2027-01")["alice"].launches == 4
        again.close()

    asyncio.run(main())
    assert len(caplog.messages) == 1 and "is locked" in caplog.messages[0]


def test_counters_have_columns() -> None:
    assert {*COUNTERS, "peak_memory"} == {f.name for f in fields(Sums)}
