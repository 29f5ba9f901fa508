"""gpuvirt report of a real server with stand-in workers: the record outlives it, users see their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, start_fake, wait_until

from gpuvirt.server.observe.accounts import Sums
from gpuvirt.server.observe.record import Record, month_of
from gpuvirt.transport.token import parse_token


def report(server: FakeServer, *options: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "gpuvirt", "report", "--pool", server.url, *options]
    env = server.env | {"GPUVIRT_TOKEN": token or server.token.text(), "COLUMNS": "80"}
    return subprocess.run(line, capture_output=True, text=True, timeout=200, env=env, check=False)


def users(server: FakeServer, *options: str, token: str | None = None) -> dict[str, dict[str, Any]]:
    answer = json.loads(report(server, "--json", *options, token=token).stdout)
    return {row["user"]: row for row in answer["users"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_outlives_the_server(tmp_path: Path, how: int) -> None:
    """Sessions of two users, then the server is ended, and started anew on the same port: nothing is missing, nothing twice."""
    server = start_fake(tmp_path, gpus=2)
    tokens = {user: server.ask("token_create", name=f"{user}'s", user=user)["token"] for user in ("alice", "bob")}
    began = time.monotonic()
    for user, sessions in (("alice", 2), ("bob", 1)):
        for _ in range(sessions):
            sock, _, _ = server.attach(parse_token(tokens[user]), gpus=2)
            wait_until(lambda: [s.get("launches") for s in server.ask("ps")["sessions"]] == [3])
            sock.close()
            wait_until(lambda: server.ask("ps")["sessions"] == [])
    open_one, _, _ = server.attach(parse_token(tokens["bob"]))  # that runs when the server ends
    wait_until(lambda: users(server)["bob"]["launches"] == 7)
    before = users(server)
    took = time.monotonic() - began
    assert [(before[user]["sessions"], before[user]["launches"]) for user in ("alice", "bob")] == [(2, 8), (2, 7)]
    for row in before.values():
        assert 0 < row["attached"] <= row["reserved"] <= 2 * took and row["parked"] == 0
    server.process.send_signal(how)
    server.process.wait(100)
    open_one.close()
    (tmp_path / "ready.json").unlink(missing_ok=True)
    (file,) = (tmp_path / "state").glob("usage-127.0.0.1-0.sqlite")
    assert file.stat().st_mode & 0o777 == 0o600
    again = start_fake(tmp_path, gpus=2)
    after = users(again)
    assert [(after[user]["sessions"], after[user]["launches"]) for user in ("alice", "bob")] == [(2, 8), (2, 7)]
    assert all(after[user]["attached"] >= before[user]["attached"] for user in after)
    again.stop()


def test_it_is_written_without_being_asked_for(tmp_path: Path) -> None:
    """Soon after a session's end; what a killed server had counted by then is there."""
    server = start_fake(tmp_path)
    sock, _, _ = server.attach()
    sock.close()
    record = Record(tmp_path / "state" / "usage-127.0.0.1-0.sqlite")
    wait_until(lambda: bool(found := record.month(month_of(time.time()))) and found["token default"].launches == 4)
    server.process.kill()
    server.process.wait(100)
    sums = record.month(month_of(time.time()))["token default"]
    assert (sums.sessions, sums.launches, sums.bytes_in, sums.bytes_out) == (1, 4, 1, 2) and sums.attached > 0
    record.close()


@pytest.mark.slow
def test_who_sees_what(tmp_path: Path) -> None:
    """An admin all, others their own; a month at a time."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    record = Record(state / "usage-127.0.0.1-0.sqlite")
    day = f"{month_of(time.time())}-01"
    record.add({(day, user): Sums(attached=5400.0, parked=1800.0, launches=n, peak_memory=3 << 20) for n, user in enumerate(("alice", "bob"), 5)})
    record.add({("2026-01-31", "alice"): Sums(idle=36.0)})
    record.close()
    server = start_fake(tmp_path)
    alice, plain = (server.ask("token_create", name=name, user=user)["token"] for name, user in (("laptop", "alice"), ("plain", "")))
    shown = report(server).stdout
    assert all(text in shown for text in ("alice", "bob", "2.00", "1.50", "0.50", "3M", "11")), shown  # 5 and 6 launches, together
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80, shown
    assert users(server).keys() == {"alice", "bob"} and users(server, "--user", "bob").keys() == {"bob"}
    assert users(server, token=alice).keys() == {"alice"} and users(server, token=plain) == {}
    assert users(server, "--month", "2026-01", token=alice)["alice"]["reserved"] == 36
    refused = report(server, "--user", "bob", token=alice)
    assert refused.returncode == 125 and refused.stdout == "" and refused.stderr.count("\n") == 1 and "may see what 'alice' has had" in refused.stderr
    nothing = report(server, "--month", "2020-02")
    assert (nothing.returncode, nothing.stdout) == (0, "nothing was used in 2020-02\n")
    assert report(server, "--month", "2026-13").returncode == 2
    server.stop()


def test_no_record(tmp_path: Path) -> None:
    """A server whose record cannot be used serves all the same, and says why there is none."""
    (tmp_path / "state" / "usage-127.0.0.1-0.sqlite").mkdir(parents=True)
    server = start_fake(tmp_path)
    done = report(server)
    assert done.returncode == 125 and "keeps no record" in done.stderr
    sock, _, _ = server.attach()
    sock.close()
    assert "what users have had is not kept: " in server.stop()
