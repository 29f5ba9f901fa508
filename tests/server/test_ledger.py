"""Named leases outlive their daemon: the ledger brings them back."""

from __future__ import annotations

import dataclasses
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, start_fake, wait_until
from server.test_lease_sessions import ask_as, leases, open_lease

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.ledger.store import LeaseRow, Ledger
from gpuvirt.server.policy.events import Asked, Restored
from gpuvirt.server.policy.instructions import Grant, Queue, Refuse
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.preemption import PREEMPT_AFTER
from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import ControlError
from gpuvirt.transport.token import parse_token

GIB = 1 << 30
ROW = LeaseRow(5, b"i" * 16, b"o" * 8, (0, 2), GIB, {"program": "sh"}, 1.0, 2.0)


def again(folder: Path, before: FakeServer, how: int = signal.SIGKILL, **options: Any) -> FakeServer:
    """The daemon is killed, or stopped, and another one started on its port."""
    before.process.send_signal(how)
    before.process.communicate(timeout=100)
    (folder / "ready.json").unlink(missing_ok=True)
    return start_fake(folder, port=before.port, **options)


def ledger_of(folder: Path, server: FakeServer) -> Path:
    return folder / "state" / f"ledger-127.0.0.1-{server.port}.sqlite"


@pytest.mark.slow
def test_a_lease_outlives_the_daemon(tmp_path: Path) -> None:
    """Its GPUs and their memory are reserved as before; it can be renewed, joined and given back; a revoked token's has ended."""
    five = {"gpus": 5, "gpu_memory": GIB}
    server = start_fake(tmp_path, **five)
    try:
        other = parse_token(server.ask("token_create", name="other")["token"])
        ask_as(server, other, "lease_open", lease=b"x" * 16, gpus=1, memory=GIB, holder={})
        id, opened = open_lease(server, 3, memory=GIB)
        gone, _ = open_lease(server, 1)
        server.ask("lease_release", lease=gone)
        server.ask("token_revoke", which="other")
        before = [lease for lease in leases(server) if lease["lease"] == opened["number"]]
        server = again(tmp_path, server, **five)
        assert leases(server) == before
        assert ledger_of(tmp_path, server).stat().st_mode & 0o777 == 0o600
        assert server.ask("lease_renew", lease=id)["devices"] == opened["devices"]
        with pytest.raises(ControlError, match="cannot be had without waiting"):
            open_lease(server, 3, memory=GIB)
        server = again(tmp_path, server, signal.SIGTERM, **five)
        assert leases(server) == before
        sock, welcome, _ = server.attach(lease=id, gpus=3)
        assert welcome.status == hs.WELCOME_OK
        sock.close()
        server.ask("lease_release", lease=id)
        assert leases(server) == []
        last, _ = open_lease(server, 5, memory=GIB)
        server.ask("lease_release", lease=last)
    finally:
        server.stop()
    assert not ledger_of(tmp_path, server).exists(), "nothing is left that a later server must know"


def test_what_cannot_come_back_ends_with_a_reason(tmp_path: Path) -> None:
    """A lease that nobody renewed in time, and one whose GPUs the server has no more."""
    server = start_fake(tmp_path, gpus=4, gpu_memory=GIB)
    try:
        _, late = open_lease(server, 1)
        _, large = open_lease(server, 3, memory=GIB)
        server.process.kill()
        server.process.communicate(timeout=100)
        with sqlite3.connect(ledger_of(tmp_path, server)) as db:
            db.execute("UPDATE leases SET expires = ? WHERE number = ?", (time.time() - 1, int(late["number"], 16)))
        db.close()
        server = again(tmp_path, server, gpus=2, gpu_memory=GIB)
        assert leases(server) == []
    finally:
        said = server.stop()
    assert f"{late['number']} of an earlier server has ended: nobody has renewed it in time" in said, said
    assert f"{large['number']} of an earlier server has ended: what it had is not there any more" in said, said


def test_a_damaged_ledger_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One of another version too; a row that makes no sense costs itself only."""
    ledger = Ledger(tmp_path, "h", 1)
    path = ledger.path
    ledger.write(ROW)
    ledger.close()
    for n, spoil in enumerate((lambda: path.write_bytes(b"no database" * 999), lambda: _run(path, "PRAGMA user_version = 99"))):
        spoil()
        ledger = Ledger(tmp_path, "h", 1)
        assert [*ledger.leases()] == []
        assert len([*tmp_path.glob("*.damaged")]) == n + 1
        ledger.write(ROW)
        ledger.close()
    _run(path, "INSERT INTO leases SELECT 6, x'00', owner, '[]', memory, holder, started, expires, compute, priority, 1, suspended FROM leases")
    ledger = Ledger(tmp_path, "h", 1)
    assert [*ledger.leases()] == [ROW] and "0000000000000006 cannot be read" in caplog.text
    ledger.erase(5)
    ledger.close()
    assert not path.exists()


@pytest.mark.slow
def test_a_lease_gives_way_at_the_next_daemon(tmp_path: Path) -> None:
    """It is known there, too, that its keeper has promised to, and of what priority it is."""
    server = start_fake(tmp_path, gpus=2, gpu_memory=GIB)
    try:
        token = parse_token(server.ask("token_create", name="important", priority=5)["token"])

        def asks(operation: str, which: int, **more: Any) -> dict[str, Any]:
            return ask_as(server, token, operation, lease=bytes([which] * 16), **more)

        def opens(priority: int, **more: Any) -> list[int]:
            devices: list[int] = asks("lease_open", priority, gpus=2, memory=GIB, holder={}, queue=True, priority=priority, **more)["devices"]
            return devices

        assert opens(2, preemptible=True) == [0, 1]
        server = again(tmp_path, server, gpus=2, gpu_memory=GIB)
        assert opens(1) == []
        time.sleep(PREEMPT_AFTER + 1)
        assert "place" in asks("lease_renew", 1) and "preempted" not in asks("lease_renew", 2)
        assert opens(3) == []
        wait_until(lambda: asks("lease_renew", 3)["devices"] == [0, 1] and "priority 3" in asks("lease_renew", 2).get("suspended", ""))
        server = again(tmp_path, server, gpus=2, gpu_memory=GIB)
        assert asks("lease_renew", 3)["devices"] == [0, 1] and "higher priority" in asks("lease_renew", 2).get("suspended", "")
        asks("lease_release", 3)
        wait_until(lambda: "suspended" not in asks("lease_renew", 2))
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("version", "later"), [(1, ("compute", "priority", "preemptible", "suspended")), (2, ("priority", "preemptible", "suspended"))]
)
def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path, version: int, later: tuple[str, ...]) -> None:
    """Its leases have reserved no compute, or are of priority 0 and have promised nothing."""
    full = dataclasses.replace(ROW, compute=250, priority=-3, preemptible=True, suspended=True)
    ledger = Ledger(tmp_path, "h", 1)
    ledger.write(full)
    path = ledger.path
    ledger.close()
    for column in later:
        _run(path, f"ALTER TABLE leases DROP COLUMN {column}")
    _run(path, f"PRAGMA user_version = {version}")
    for _ in range(2):
        ledger = Ledger(tmp_path, "h", 1)
        assert [*ledger.leases()] == [dataclasses.replace(ROW, compute=0 if "compute" in later else 250)]
        ledger.close()
    ledger = Ledger(tmp_path, "h", 1)
    ledger.write(full)
    assert [*ledger.leases()] == [full]
    ledger.close()


def test_a_full_disk_ends_no_lease(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and again when it happens again."""
    ledger = Ledger(tmp_path, "h", 1)
    for _ in range(2):
        ledger._db.execute("PRAGMA query_only = ON")
        for _ in range(3):
            ledger.write(ROW)
            ledger.erase(5)
        ledger._db.execute("PRAGMA query_only = OFF")
        ledger.write(ROW)
        assert [*ledger.leases()] == [ROW]
    ledger.close()
    assert caplog.text.count("cannot be written") == 2


def _run(path: Path, line: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(line)
    db.close()


def test_one_daemon_has_the_ledger(tmp_path: Path) -> None:
    """A second process is refused, and the ledger stays what it was. (SQLite's locks are a process's.)"""
    ledger = Ledger(tmp_path, "h", 1)
    ledger.write(ROW)
    line = "import sys, pathlib; from gpuvirt.server.ledger.store import Ledger; Ledger(pathlib.Path(sys.argv[1]), 'h', 1)"
    done = subprocess.run([sys.executable, "-c", line, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode and f"{GpuvirtError.__name__}: another server uses" in done.stderr, done.stderr
    assert [*ledger.leases()] == [ROW]
    ledger.close()


def test_the_policy_gives_back_only_what_is_there() -> None:
    """Nothing is reserved twice, and what is given back counts for those who come later."""
    machine = PolicyMachine([GIB, GIB])
    assert machine.handle(Restored(0.0, 1, "u", (1,), GIB)) == [Grant(1, (1,), GIB)]
    for devices in ((1,), (0, 0), (2,), (-1,), ()):
        assert [type(one) for one in machine.handle(Restored(0.0, 2, "u", devices, GIB))] == [Refuse], devices
    assert machine.handle(Asked(0.0, 3, "v", 1, GIB)) == [Grant(3, (0,), GIB)]
    assert isinstance(machine.handle(Asked(0.0, 4, "v", 1, GIB))[0], Queue)
