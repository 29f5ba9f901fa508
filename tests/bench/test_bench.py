"""The benchmark runs and its report has what readers look for. Speeds are nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench import runner

ROOT = Path(__file__).resolve().parents[2]


def test_bench_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--tiny", "--rounds", "2", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "software GPU" and report["rounds"] == 2 and len(report["raw"]) == 2
    assert [(r["name"], r["link"]) for r in report["rows"]] == [(q.name, link) for q in runner.QUANTITIES for link in ("shm", "tcp")]
    for row in report["rows"]:
        assert 0 < row["low"] <= row["value"] <= row["high"], row
        assert (row["target"] is None) == (row["met"] is None), row
        assert row["bare"] is None or row["bare"] > 0, row


def test_targets() -> None:
    """A time must not exceed its target, a rate must not fall below; each round is compared with its own bare figure."""
    calls = dict.fromkeys(("memcpy", *(q.name for q in runner.QUANTITIES)), 1.0)
    bare = {"bare_shm": {"round_trip": {"p50": 0.1}}, "bare_tcp": {"round_trip": {"p50": 8.0}, "bulk_GB_s": 4.0}}
    rounds = [{"bare": bare, "shm": calls | {"h2d": 0.8, "wait_awake": 4.0}, "tcp": calls | {"h2d": 2.9, "wait_awake": 10.5}}]
    rows = {(r.name, r.link): r for r in runner.compare(rounds)}
    assert rows["launch_burst", "shm"].met is False and rows["launch_burst", "tcp"].met is True
    assert rows["wait_awake", "shm"].met is False and rows["wait_awake", "tcp"].met is True
    assert rows["wait_awake", "tcp"].beyond == 2.5
    assert rows["h2d", "shm"].met is True and rows["h2d", "shm"].bare == 1.0
    assert rows["h2d", "tcp"].met is False and rows["h2d", "tcp"].bare == 4.0
    assert rows["isolated_idle", "tcp"].met is None
