"""What a server says of two users' programs is what the programs say themselves (`--stats`): ps, top, metrics, report."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.cutter import Cutter
from e2e.harness import GPUVIRT, Server, clean_environment, running, wait_until
from prometheus_client.parser import text_string_to_metric_families

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.server.observe.metrics_server import FRESH

USERS = ("alice", "bob")


def scrape(server: Server) -> dict[tuple[str, frozenset[str]], float]:
    """Samples by name and the values of their labels, collected after the call has begun."""
    time.sleep(FRESH)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.info['metrics_port']}/metrics", timeout=100) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(sample.name, frozenset(sample.labels.values())): sample.value for family in families for sample in family.samples}


def of_user(samples: dict[tuple[str, frozenset[str]], float], name: str, *labels: str) -> float:
    return samples.get((f"gpuvirt_{name}", frozenset(labels)), 0)


def gpuvirt(*line: str, **env: str) -> str:
    done = subprocess.run([*GPUVIRT, *line], capture_output=True, text=True, timeout=200, env=clean_environment(**env), check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_users(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Launches and bytes are the same, also of a session that has moved; what was parked is told, and counted as given back."""
    state = {"GPUVIRT_STATE": str(tmp_path / "state")}
    server = own_pool(
        "--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--metrics", "127.0.0.1:0", "--idle", "0", env=clean_environment(**state)
    )
    tokens = {user: gpuvirt("token", "create", f"{user}'s", "--user", user, **state).strip().splitlines()[-1] for user in USERS}
    program, began = build("moved"), time.monotonic()

    def gave_back(session: dict[str, Any]) -> bool:
        line = [*GPUVIRT, "park", session["session"], "--pool", server.url]
        return subprocess.run(line, capture_output=True, timeout=200, check=False).returncode == 0

    with contextlib.ExitStack() as programs:
        started = {
            user: programs.enter_context(
                running(
                    server, [program, tmp_path / user, "holds", mib], "--link", link, f"--stats={tmp_path / user}.json", GPUVIRT_TOKEN=tokens[user]
                )
            )
            for user, mib, link in zip(USERS, ("20", "40"), ("tcp", "shm"), strict=True)
        }
        sessions = {session["account"]: session for session in server.sessions()}
        assert wait_until(lambda: gave_back(sessions["bob"]))
        assert wait_until(lambda: of_user(scrape(server), "lease_gpu_seconds_total", "bob", "parked") > 0)
        seen = json.loads(gpuvirt("top", "--once", "--json", "--pool", server.url, GPUVIRT_TOKEN=tokens["bob"]))
        assert [(one["account"], one["state"]) for one in seen["sessions"]] == [("bob", "parked")] and seen["others"]["sessions"] == 1
        assert seen["others"]["memory_used"] >= 20 << 20 and seen["devices"][sessions["bob"]["devices"][0]]["given_back"] >= 40 << 20
        to = [1 - sessions["alice"]["devices"][0]]  # in another worker, which goes on counting where this one ends
        assert ask_pool(resolve({"pool": server.url}), "move", session=sessions["alice"]["session"], devices=to, rest=60, limit=200)["devices"] == to
        before = scrape(server)
        assert of_user(before, "sessions", "parked") == of_user(before, "sessions", "attached") == 1
        for user, process in started.items():
            (tmp_path / user).touch()
            out, err = process.communicate(timeout=100)
            assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: server.sessions() == [] and server.leases() == [])
    took, after = time.monotonic() - began, scrape(server)
    rows = {row["user"]: row for row in json.loads(gpuvirt("report", "--json", "--pool", server.url))["users"]}
    assert rows.keys() == set(USERS)
    for user in USERS:
        stats, row = json.loads((tmp_path / f"{user}.json").read_text()), rows[user]
        told = [of_user(after, f"session_{name}_total", user, *way) for name, way in (("launches", ()), ("bytes", ("in",)), ("bytes", ("out",)))]
        assert told == [stats["launches"], stats["bytes_out"], stats["bytes_in"]], user
        assert [row["launches"], row["bytes_in"], row["bytes_out"], row["sessions"]] == [*told, 1]
        assert told[1] == of_user(after, "link_bytes_total", stats["transport"], "in")
        assert row["peak_memory"] >= {"alice": 20, "bob": 40}[user] << 20 and 0 < row["attached"] <= row["reserved"] <= took
        assert row["parked"] == pytest.approx(of_user(after, "lease_gpu_seconds_total", user, "parked"))
    assert rows["alice"]["parked"] == 0 < rows["bob"]["parked"]
    assert gpuvirt("report", "--pool", server.url, GPUVIRT_TOKEN=tokens["bob"]).count("alice") == 0


@pytest.mark.slow
def test_what_the_network_takes(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Over a link of 20 ms each answer takes as much, and the time of a cut is known; a program on the same host loses next to nothing."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", "--metrics", "127.0.0.1:0")
    lost: dict[str, float] = {}
    for number, link in enumerate(("shm", "delay(rtt=20ms,tcp)"), 1):
        before = scrape(server)
        stats = tmp_path / f"{number}.json"
        with running(server, [build("moved"), tmp_path / str(number), "holds", "10"], "--link", link, f"--stats={stats}") as process:
            (tmp_path / str(number)).touch()
            out, err = process.communicate(timeout=100)
            assert (process.returncode, out) == (0, "right\n"), out + err
        assert wait_until(lambda: server.sessions() == [])
        after = scrape(server)
        answers, lost[link] = (
            sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)
            for name in ("gpuvirt_session_answers_total", "gpuvirt_session_network_seconds_total")
        )
        said = json.loads(stats.read_text())
        assert 0 < answers <= said["waits"] + 1, "the goodbye is no call of the program's"
    assert lost["delay(rtt=20ms,tcp)"] >= 0.02 * answers * 0.99
    cutter = Cutter(int(server.url.rsplit(":", 1)[1]))
    end = tmp_path / "cut"
    with running(cutter.url, [build("moved"), end, "holds", "10"], "--link", "tcp", GPUVIRT_TOKEN=server.token()) as process:
        before = scrape(server)
        cutter.cut_all()
        end.touch()
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out) == (0, "right\n"), out + err
    cutter.close()
    assert wait_until(lambda: server.sessions() == [])
    after = scrape(server)
    key = "gpuvirt_link_reconnections_total", frozenset(["tcp"])
    assert after[key] > before[key]
