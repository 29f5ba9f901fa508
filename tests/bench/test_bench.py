"""The benchmarks run, and their reports have the documented fields. Speeds are not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import link_costs, notebooks, sealed_training, slope, verbs_costs, verbs_rates
from bench.pools import clean_environment, pool
from faults import fault

from gpuvirt.bench import report
from gpuvirt.client import links

ROOT = Path(__file__).resolve().parents[2]


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "gpuvirt", "bench", "--tiny", *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=280, env=clean_environment(), check=False)


@pytest.mark.slow
def test_every_link_that_leads_there(tmp_path: Path) -> None:
    done = bench("--local", "--json", f"--stats={tmp_path / 'stats'}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["links"] == ["shm", "tcp"] and found["software"] and len(found["rounds"]) == 2
    assert any("software GPU" in note for note in found["notes"])
    rows = {(r["name"], r["link"]): r for r in found["rows"]}
    for link in found["links"]:
        for quantity in report.QUANTITIES:
            row = rows[quantity.name, link]
            assert 0 < row["low"] <= row["value"] <= row["high"], row
            judged = quantity.target is not None and quantity.target(links.parse(link)) is not None
            assert (row["bare"] is not None) == bool(quantity.bare) and (row["met"] is not None) == judged, row
        assert rows["waits", link]["value"] == 0, rows["waits", link]
        assert rows["message_us", link]["value"] > 0
    assert rows["far_training", "tcp"]["value"] > 0  # beside the loop without delay, which a busy machine holds up as much as it likes
    assert {(r["link"], r["threads"]) for r in found["launch_rates"]} == {(link, n) for link in ("shm", "tcp") for n in (1, 4)}
    stats = [json.loads(line) for line in (tmp_path / "stats").read_text().splitlines()]
    assert [s["transport"] for s in stats] == ["shm", "tcp"] * 2
    assert "round 2 of 2, over tcp" in done.stderr and "private" not in done.stderr


@pytest.mark.slow
def test_a_link_with_a_delay_has_no_bare_transport() -> None:
    done = bench("--rounds", "1", "--link", "delay(rtt=1ms,tcp)")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "A link with a delay has no bare transport" in words and "64 bytes through sockets" not in words
    assert "using a private local pool" in done.stderr
    for heading in ("cuLaunchKernel", "waits of 100 steps", "Launches from many threads", "software GPU"):
        assert heading in done.stdout


@pytest.mark.slow
def test_a_gpu_that_computes_nothing(tmp_path: Path) -> None:
    """A worker that drops every launch is as quick as can be, and its figures are worth nothing."""
    with pool(tmp_path, **fault("launches")) as url:
        done = bench("--pool", url, "--link", "tcp", "--json")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "losses are not those" in done.stderr


# ---- what a report says of its figures --------------------------------------------------------------------------------


def result(link: str = "tcp(plain)", **changed: float) -> dict[str, Any]:
    """One round in which everything takes 1, but what is changed."""
    figures: dict[str, Any] = {q.name: 1.0 for q in report.QUANTITIES} | {q.bare: 1.0 for q in report.QUANTITIES if q.bare}
    rate = {"threads": 100, "rate": 1.0, "client_us": 1.0, "worker_us": 4.0, "kernel_us": changed.pop("kernel_us", 3.0)}
    figures |= {"reads": 2, "waits": 2, "rates": [rate]} | changed
    amounts = {"copy_bytes": 64 << 20, "steps": 100, "threads": [100]}
    return {"links": [link], "rounds": [[figures]], "far": [], "amounts": amounts, "software": True, "same_host": True}


@pytest.mark.parametrize(
    ("changed", "name", "met"),
    [
        ({"launch_burst": 1.0}, "launch_burst", True),
        ({"launch_burst": 1.1}, "launch_burst", False),
        ({"wait_awake": 10.5, "bare_round_trip": 8.0}, "wait_awake", True),
        ({"wait_awake": 11.5, "bare_round_trip": 8.0}, "wait_awake", False),
        ({"h2d": 3.1, "bare_h2d": 4.0}, "h2d", True),
        ({"h2d": 2.9, "bare_h2d": 4.0}, "h2d", False),
        ({"d2h_pinned": 3.5, "bare_d2h_pinned": 4.0}, "d2h_pinned", False),
        ({"waits": 2}, "waits", True),
        ({"waits": 3}, "waits", False),
        ({"kernel_us": 2.1}, "message_us", True),
        ({"kernel_us": 1.9}, "message_us", False),
        ({"wait_idle": 1000}, "wait_idle", None),
    ],
)
def test_targets(changed: dict[str, float], name: str, met: bool | None) -> None:
    assert next(row.met for row in report.rows(result(**changed)) if row.name == name) is met


def test_copies_over_a_sealed_link_are_not_held_against_plain_sockets() -> None:
    rows = {row.name: row for row in report.rows(result("tcp", h2d=0.5))}
    assert rows["h2d"].compared == 0.5 and rows["h2d"].target is None and rows["h2d"].met is None
    assert rows["wait_awake"].met is not None and rows["launch_burst"].met is not None
    assert any("sealed link" in note for note in report.notes(result("tcp")))
    assert not any("sealed link" in note for note in report.notes(result("tcp(plain)")) + report.notes(result("shm")))


def runs(trips_of: dict[int, int], reads: int = 8, waits: int = 8) -> slope.Runs:
    """Loops of 0.3 s and some round trips a number of steps."""
    made: slope.Runs = {}
    for steps, trips in trips_of.items():
        for rtt in slope.RTTS_MS:
            made[steps, rtt] = [{"loop_s": 0.3 + trips * rtt / 1e3, "reads": reads, "waits": waits}] * 3
    return made


def test_the_clock_sees_what_counters_miss() -> None:
    (good,) = slope.evaluate(runs({400: 8}))
    assert good["slope_is_reads"] and good["waits_are_reads"] and good["total_met"] and round(good["slope"], 6) == 8
    (uncounted,) = slope.evaluate(runs({400: 10}))
    assert uncounted["waits_are_reads"] and not uncounted["slope_is_reads"] and not uncounted["total_met"]
    (counted,) = slope.evaluate(runs({400: 8}, waits=400))
    assert not counted["waits_are_reads"]


@pytest.mark.wide
def test_the_costs_of_sealing(tmp_path: Path) -> None:
    found = link_costs.measure(tmp_path, rounds=3, records=500)
    assert set(found) == {"one_way_burst", "one_way_sustained", "one_way_cpu", "waiting", "waiting_cpu", "aead"}
    assert all(figure["plain"] > 0 and figure["sealed"] > 0 for name, figure in found.items() if name != "aead")
    assert 0 < found["aead"]["frame_64"] < found["aead"]["frame_64k"]


@pytest.mark.wide
def test_the_costs_of_verbs(tmp_path: Path) -> None:
    """Records gather behind doorbells: far fewer than one for eight, however slow the machine."""
    found = verbs_costs.measure(tmp_path, records=4000, rounds=3, threads=(1, 10))
    assert set(found) == {"1", "10"}
    for figures in found.values():
        assert figures["sender"] > 0 and 0 < figures["doorbells"] < 1 / 8 and figures["work_requests"] >= figures["doorbells"]


@pytest.mark.wide
def test_the_rates_of_rails(tmp_path: Path) -> None:
    """On rails so slow that any machine keeps up with them; the program itself checks that nothing was copied."""
    found = verbs_rates.measure(tmp_path, gbps=1, delay_us=500, milliseconds=1500, rails=(1, 2))
    assert set(found) == {"1", "2"}
    for figures in found.values():
        assert 0 < figures["share"] < 1.1 and figures["slice"] == pytest.approx(1049, rel=0.01)
        for name in verbs_rates.BESIDE:
            found_beside = figures[name]
            assert 1000 < found_beside["idle_p50"] <= found_beside["idle_p99"] and found_beside["p50"] > 1000
            assert (found_beside["share"] > 0) == (name != "computing")


@pytest.mark.wide
def test_what_notebooks_wait(tmp_path: Path) -> None:
    alone, waits, most = notebooks.measure(tmp_path, 3, cells=2, think=0.5)
    assert len(alone) == 2 and len(waits) == 6 and min(*alone, *waits) > 0 and 0.4 < most <= 1


@pytest.mark.wide
def test_the_cost_of_sealing_for_a_distant_loop(tmp_path: Path) -> None:
    """Both loops are there in each turn, and none is quicker than its one round trip."""
    made = sealed_training.measure(tmp_path, turns=2, steps=50)
    assert len(made) == 2 and all(turn.keys() == {"plain", "sealed"} and min(turn.values()) >= 0.03 for turn in made)
