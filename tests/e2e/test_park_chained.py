"""Sessions on real GPUs are parked by their driver's virtual memory management.

Chained: the driver is our own client library, on strict software GPUs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, clean_environment, running, start_server, wait_until
from e2e.test_park import park, parked

pytestmark = pytest.mark.slow
MIB = 1 << 20


@pytest.mark.parametrize("link", [pytest.param("shm", marks=pytest.mark.wide), "tcp"])
def test_what_device_memory_keeps(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Addresses, globals, function pointers, textures and mappings mean what they meant. The driver has the memory again meanwhile."""
    (near, far), end = chain("--idle", "0"), tmp_path / "end"
    with running(near, [build("moved"), end, "pauses"], "--link", link) as process:
        (session,) = near.sessions()
        assert process.stdout is not None
        for number in range(3):
            assert process.stdout.readline() == f"round {number}\n"
            used, driver = near.memory_used(), far.memory_used()
            gave = parked(near, session)
            assert 0 < gave <= used and near.memory_used() == used - gave
            assert wait_until(lambda: far.memory_used() == driver - gave)  # noqa: B023 (it is called at once)
            (tmp_path / f"end.{number}").touch()
        assert process.stdout.readline() == "round 3\n"
        assert wait_until(lambda: (near.memory_used(), far.memory_used()) == (used, driver))
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: near.sessions() == [] and near.memory_used() == 0)


def test_idle(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path) -> None:
    """A session that does nothing gives its memory back by itself, and its GPU is another one's."""
    (near, far), ends = chain("--idle", "1s"), [tmp_path / "0", tmp_path / "1"]
    with running(near, [build("moved"), ends[0], "holds", "150"]) as first:
        assert wait_until(lambda: (near.sessions()[0]["parked"] or 0) >= 150 * MIB)
        assert wait_until(lambda: far.memory_used() < 100 * MIB)
        with running(near, [build("moved"), ends[1], "holds", "150"]) as second:
            for end, process in zip(ends, (first, second), strict=True):
                end.touch()
                out, err = process.communicate(timeout=100)
                assert (process.returncode, out) == (0, "right\n"), out + err


def test_an_allocation_waits_for_room(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path) -> None:
    """Nobody is parked before somebody wants the memory; then whoever is idle is."""
    (near, _), ends = chain("--idle", "0"), [tmp_path / "0", tmp_path / "1"]
    with running(near, [build("moved"), ends[0], "holds", "150"]) as first, running(near, [build("moved"), ends[1], "holds", "150"]) as second:
        assert sum(session["parked"] is not None for session in near.sessions()) == 1
        for end, process in zip(ends, (first, second), strict=True):
            end.touch()
            out, err = process.communicate(timeout=100)
            assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.parametrize("who", [pytest.param("client", marks=pytest.mark.wide), "worker"])
def test_killed(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path, who: str) -> None:
    """Nothing is left of a parked session whose program or worker is killed, and its place is free."""
    (near, far), end = chain("--idle", "0"), tmp_path / "end"
    with running(near, [build("moved"), end, "holds", "100"]) as process:
        (session,) = near.sessions()
        parked(near, session)
        os.kill(session["pid" if who == "client" else "worker_pid"], signal.SIGKILL)
        if who == "worker":
            end.touch()
            assert process.wait(timeout=100) != 0
        assert wait_until(lambda: near.sessions() == [] and far.sessions() == [])
    end.unlink(missing_ok=True)
    with running(near, [build("moved"), end, "holds", "200"]) as process:
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


def test_refusals(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path) -> None:
    (near, _), end = chain("--idle", "0"), tmp_path / "end"
    with running(near, [build("moved"), end, "host"]) as process:
        (session,) = near.sessions()
        done = park(near, session["session"])
        assert done.returncode == 125 and done.stdout == "" and "it is not idle: " in done.stderr, done.stdout + done.stderr
        assert near.sessions()[0]["parked"] is None
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


def test_the_daemon_is_killed(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path) -> None:
    """The next daemon knows that the session is parked, although the driver still has something of it, and brings its memory back."""
    (near, far), end = chain("--idle", "0"), tmp_path / "end"
    with running(near, [build("moved"), end, "holds", "100"]) as process:
        gave = parked(near, near.sessions()[0])
        near.stop(signal.SIGKILL)
        listen = near.url.removeprefix("tcp://")
        env = clean_environment(GPUVIRT_POOL=far.url)
        again = start_server(tmp_path / "near", *near.options, listen=listen, env=env)
        try:
            assert again.sessions()[0]["parked"] == gave
            end.touch()
            out, err = process.communicate(timeout=100)
        finally:
            again.stop()
    assert (process.returncode, out) == (0, "right\n"), out + err
