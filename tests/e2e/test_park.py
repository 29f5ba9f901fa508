"""Sessions that are parked: what they have in device memory is in a file while they are idle, and is there again at the program's next call."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, read_line, running, wait_until

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve

ONE = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m")
BY_HAND = (*ONE, "--idle", "0")


def park(server: Server, session: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [*GPUVIRT, "park", session, "--pool", server.url, *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=200, check=False, env=clean_environment(**env))


def parked(server: Server, session: dict[str, Any]) -> int:
    """Parks a session as soon as it is idle. Returns the bytes that it gave back."""
    refusals = []

    def tried() -> bool:
        done = park(server, session["session"])
        refusals.append(done.stderr)
        return done.returncode == 0 or "it is not idle" not in done.stderr

    assert wait_until(tried)
    (now,) = (s for s in server.sessions() if s["session"] == session["session"])
    assert now["parked"] is not None, refusals
    return int(now["parked"])


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_what_device_memory_keeps(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Addresses, globals, function pointers, textures and mappings mean what they meant, however often the session was parked."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    with running(server, [build("moved"), end, "pauses"], "--link", link) as process:
        (session,) = server.sessions()
        assert process.stdout is not None
        for number in range(3):
            assert process.stdout.readline() == f"round {number}\n"
            used = server.memory_used()
            assert parked(server, session) == used > 0
            assert server.memory_used() == 0
            (tmp_path / f"end.{number}").touch()
        assert process.stdout.readline() == "round 3\n"
        assert server.memory_used() == used
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: server.sessions() == [] and server.memory_used() == 0)


@pytest.mark.slow
def test_idle(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A session that does nothing gives its memory back by itself, the host's with it, as its GPU is software."""
    server, end = own_pool(*ONE, "--idle", "1s"), tmp_path / "end"
    with running(server, [build("moved"), end, "holds", "200"]) as process:
        (session,) = server.sessions()
        assert wait_until(lambda: (server.sessions()[0]["parked"] or 0) >= 200 << 20)
        assert server.memory_used() == 0 and resident(session["worker_pid"]) < 190 << 20
        (lease,), (device,) = server.leases(), server.devices()
        assert lease["state"] == lease["sessions"][0]["state"] == "parked" and device["given_back"] >= 200 << 20
        shown = subprocess.run([*GPUVIRT, "ps", "--pool", server.url], capture_output=True, text=True, timeout=200, check=True).stdout
        assert f"{session['session']} gave back 2" in shown, shown
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_in_turns(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Whoever wants its memory back gets that of one that is idle."""
    server, ends, program = own_pool(*BY_HAND), [tmp_path / "0", tmp_path / "1"], build("moved")
    with running(server, [program, ends[0], "holds", "150"]) as first:
        parked(server, server.sessions()[0])
        with running(server, [program, ends[1], "holds", "150"]) as second:
            for number, process in ((0, first), (1, second)):
                ends[number].touch()
                out, err = process.communicate(timeout=100)
                assert (process.returncode, out) == (0, "right\n"), out + err
    assert server.log.read_text().count("has its memory again") == 2


@pytest.mark.slow
def test_refusals(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Each says why, and the session keeps what it has."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    with running(server, [build("moved"), end, "host"]) as process:
        (session,) = server.sessions()
        for name, why in (("0123456789abcdef", "there is no session '0123456789abcdef'"), (session["session"], "it is not idle: ")):
            done = park(server, name)
            assert done.returncode == 125 and done.stdout == "" and why in done.stderr, done.stdout + done.stderr
        assert server.sessions()[0]["parked"] is None
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"
    end.unlink()
    with running(server, [build("moved"), end, "holds", "10"]) as process:
        (session,) = server.sessions()
        parked(server, session)
        done = park(server, session["session"])
        assert done.returncode == 125 and "the session keeps its memory: it is parked already" in done.stderr, done.stderr
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


@pytest.mark.slow
def test_no_file(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Where its memory cannot be written the session keeps it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "parked").write_text("in the way")
    server, end = own_pool(*BY_HAND, env=clean_environment(GPUVIRT_CACHE=str(cache))), tmp_path / "end"
    with running(server, [build("moved"), end, "holds", "10"]) as process:
        done = park(server, server.sessions()[0]["session"])
        assert done.returncode == 125 and "no file for its memory in" in done.stderr, done.stderr
        assert server.memory_used() >= 10 << 20
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["client", "worker"])
def test_killed(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, who: str) -> None:
    """Nothing is left of a parked session whose program or worker is killed, and its place is free."""
    server, end = own_pool(*BY_HAND), tmp_path / "end"
    with running(server, [build("moved"), end, "holds", "200"]) as process:
        (session,) = server.sessions()
        parked(server, session)
        os.kill(session["pid" if who == "client" else "worker_pid"], signal.SIGKILL)
        if who == "worker":
            end.touch()
            assert process.wait(timeout=100) != 0
        assert wait_until(lambda: server.sessions() == [])
    end.unlink(missing_ok=True)
    with running(server, [build("moved"), end, "holds", "200"]) as process:
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


@pytest.mark.slow
def test_moves(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A parked session moves: it has its memory again on the other GPU."""
    server, end = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--idle", "0"), tmp_path / "end"
    with running(server, [build("moved"), end, "pauses"]) as process:
        (session,) = server.sessions()
        assert read_line(process) == "round 0\n"
        used = server.memory_used()
        parked(server, session)
        to = 1 - session["devices"][0]
        answer = ask_pool(resolve({"pool": server.url}), "move", session=session["session"], devices=[to], rest=60, limit=200)
        assert answer["devices"] == [to]
        assert (server.devices()[to]["memory_used"], server.sessions()[0]["parked"]) == (used, None)
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "round 1\nround 2\nright\n"), out + err
