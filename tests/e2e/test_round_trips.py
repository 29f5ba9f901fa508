"""Waits of a program: few up to its first result, then only those for data that it reads."""

from __future__ import annotations

import collections
import contextlib
import json
import re
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import HERE, Server, clean_environment, run_program, start_server

pytestmark = pytest.mark.slow

PROGRAMS = HERE / "programs"
CONNECTING = 3  # a connection's own round trips, which no call waits for: TCP's, the greeting's, the hello's
TRIES = 3  # until a figure is the exact one
LEAST, MOST = 3, 12  # on a busy machine a start nearby takes some 0.1 s more than one far away, at best


@contextlib.contextmanager
def with_caches(folder: Path) -> Iterator[tuple[Server, Path]]:
    """A server whose caches are its own, and the client's cache folder."""
    server = start_server(
        folder, "--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(GPUVIRT_CACHE=str(folder / "server"))
    )
    try:
        yield server, folder / "client"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    with with_caches(tmp_path_factory.mktemp("round")) as cached:
        yield cached


def start(cached: tuple[Server, Path], stats: Path, link: str = "tcp") -> tuple[int, int, float]:
    """Runs the small program: its waits, the bytes it sent, its seconds."""
    server, client = cached
    begun = time.monotonic()
    done = run_program(
        server, [sys.executable, PROGRAMS / "cold_start.py"], "--link", link, f"--stats={stats}", timeout=300, GPUVIRT_CACHE=str(client)
    )
    seconds = time.monotonic() - begun
    assert (done.returncode, done.stdout) == (0, "1000000.0\n"), done.stderr
    figures = json.loads(stats.read_text())
    return int(figures["waits"]), int(figures["bytes_out"]), seconds


def check_few(waits: int) -> None:
    assert CONNECTING + waits <= MOST


def test_cold_start(tmp_path: Path) -> None:
    """With warm caches: attaching, the free memory that CuPy asks for, the result; and with cold ones, one more for each of four modules.

    On a busy machine an answer may be there before it is waited for, or a start take a wait more.
    """
    stats = tmp_path / "stats"
    for n in range(TRIES):
        with with_caches(tmp_path / str(n)) as cached:
            cold, sent, _ = start(cached, stats)
            assert sent > 1_000_000
            check_few(cold)
            if cold < 3 + 4:  # and perhaps one for the link to take the largest image
                continue
            for _ in range(TRIES):
                warm, sent, _ = start(cached, stats)
                assert sent < 10_000
                check_few(warm)
                if warm == 3:
                    return
            raise AssertionError(f"{warm} waits with warm caches")
    raise AssertionError(f"{cold} waits with cold caches")


def test_cold_start_by_the_clock(cached: tuple[Server, Path], tmp_path: Path) -> None:
    """What counters miss the clock sees: so much longer the program takes for each millisecond of distance, be it counted as a wait or not."""
    start(cached, tmp_path / "stats")
    near, far, trips = [], [], 0.0
    for rounds in range(1, 11):
        near.append(start(cached, tmp_path / "stats", "delay(rtt=1ms,tcp)")[2])
        far.append(start(cached, tmp_path / "stats", "delay(rtt=601ms,tcp)")[2])  # far enough that a busy machine's noise is a part of one trip
        trips = (min(far) - min(near)) / 0.6
        if rounds >= 2 and LEAST < trips < MOST:  # or not yet: on a busy machine it takes longer until each of the two has had a quiet moment
            break
    assert LEAST < trips < MOST, f"{trips:.1f} round trips"


def train(cached: tuple[Server, Path], every: int, *steps: int) -> dict[int, int]:
    """Waits for each number of steps."""
    server, client = cached
    done = run_program(server, [sys.executable, PROGRAMS / "training.py", str(every), *map(str, steps)], timeout=300, GPUVIRT_CACHE=str(client))
    assert done.returncode == 0, done.stdout + done.stderr
    return {int(n): int(waits) for n, waits in re.findall(r"(\d+) steps, (\d+) waits", done.stderr)}


def always_waiting() -> set[str]:
    """The driver's functions that the table calls sync."""
    tables = (tomllib.loads(path.read_text()) for path in (HERE.parents[1] / "native" / "api" / "functions").glob("*.toml"))
    return {name for table in tables for name, entry in table.items() if isinstance(entry, dict) and entry.get("class") == "sync"}


def test_a_training_loop_calls_nothing_else_that_always_waits(cached: tuple[Server, Path], tmp_path: Path) -> None:
    """What 100 steps more, with two reads more, add: copies to the host, or waits for them, and nothing else of what is awaited."""
    server, client = cached
    counts = []
    for steps in (100, 200):
        trace = tmp_path / f"{steps}"
        line: list[str | Path] = [sys.executable, PROGRAMS / "training.py", "50", str(steps)]
        done = run_program(server, line, timeout=300, GPUVIRT_CACHE=str(client), GPUVIRT_TRACE=str(trace))
        assert done.returncode == 0, done.stdout + done.stderr
        names = re.findall(r"\b(cu[A-Z]\w*?)(?:_v\d+)?(?:_ptsz|_ptds)?\(", trace.read_text())
        counts.append(collections.Counter(names))
    more = counts[1] - counts[0]
    assert more["cuLaunchKernel"] >= 100
    awaited = {name: n for name, n in more.items() if name in always_waiting()}
    assert awaited.keys() <= {"cuMemcpyDtoH", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"}, awaited
    assert 0 < sum(awaited.values()) <= 4, awaited


def check_reads_only(waits: dict[int, int], every: int) -> None:
    """No more waits than reads; fewer where a read's answer is there before the program waits for it, as on a busy machine."""
    assert all(0 < n <= steps // every for steps, n in waits.items()), waits


def test_a_training_loop_waits_for_what_it_reads(cached: tuple[Server, Path]) -> None:
    waits = train(cached, 50, 100, 200, 400)
    assert list(waits) == [100, 200, 400]
    check_reads_only(waits, 50)


def test_a_loop_that_reads_more_would_be_noticed(cached: tuple[Server, Path]) -> None:
    """The deliberate fault of the test above."""
    waits = train(cached, 10, 100)
    with pytest.raises(AssertionError):
        check_reads_only(waits, 50)
