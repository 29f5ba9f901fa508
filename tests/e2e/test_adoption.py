"""The daemon is killed and another one is started on its address: sessions go on, and their programs notice nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, run_program, running, start_server, wait_until

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.policy.suspension import SETTLE

TWO = ("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--idle", "0")
ONE = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "64m", "--idle", "0")  # there is no room for two programs
MOMENTS = 200
KEPT = ("session", "worker_pid", "devices", "pid", "user", "link", "started")


def after_kill(own_pool: Callable[..., Server], server: Server, *options: str) -> Server:
    """Another server in the place of one that is killed."""
    server.stop(signal.SIGKILL)
    again = own_pool(*(options or server.options), listen=server.info["address"])
    assert again.url == server.url
    return again


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return all(before[name] == after[name] for name in KEPT)


def stores(server: Server) -> list[int]:
    """The processes of a server's descriptor store."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"gpuvirt.server.fdstore.process" in line and f"-{server.info['port']}.sock".encode() in line:
            found.append(int(pid))
    return found


def lives(pid: int) -> bool:
    """Whether a process has not ended; one of a killed server waits for init to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parked(server: Server, session: dict[str, Any]) -> bool:
    """Whether it was idle, and is parked now."""
    try:
        return bool(ask_pool(resolve({"pool": server.url}), "park", session=session["session"], limit=200))
    except GpuvirtError as error:
        assert "it is not idle" in str(error)
        return False


def with_figures(server: Server) -> dict[str, Any]:
    """The only session, once its worker has said what it has done, which a busy one may not say in time."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = server.sessions()
        return "launches" in found[0]

    assert wait_until(are_there)
    (session,) = found
    return session


def move(server: Server, session: dict[str, Any], gpu: int) -> dict[str, Any]:
    answer: dict[str, Any] = ask_pool(resolve({"pool": server.url}), "move", session=session["session"], devices=[gpu], rest=60, limit=200)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_a_program_notices_nothing(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Not even that it has moved afterwards, to which it had to connect again. What it has is counted, and free at its end."""
    server, begin = own_pool(*TWO), tmp_path / "begin"
    program: list[str | Path] = [build("once"), "300", begin]
    begin.touch()
    reference = run_program(server, program, "--link", link)
    begin.unlink()
    with running(server, program, "--link", link) as process:
        (session,) = server.sessions()
        used = server.memory_used()
        again = after_kill(own_pool, server)
        (now,) = again.sessions()
        assert same(session, now) and again.memory_used() == used > 0
        (lease,) = again.leases()
        assert lease["state"] == "attached" and lease["devices"] == session["devices"]
        moved = move(again, session, 1 - session["devices"][0])
        third = after_kill(own_pool, again)
        (now,) = third.sessions()
        assert now["worker_pid"] == moved["worker_pid"] and now["devices"] == moved["devices"]
        begin.touch()
        out, err = process.communicate(timeout=200)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), out + err
    assert wait_until(lambda: third.sessions() == [] and third.leases() == [] and third.memory_used() == 0)
    assert len(stores(third)) == 1
    third.stop()
    assert wait_until(lambda: stores(third) == [])


@pytest.mark.slow
def test_killed_while_a_session_is_parked(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end, "pauses"]) as process:
        (session,) = server.sessions()
        assert process.stdout is not None and process.stdout.readline() == "round 0\n"
        used = server.memory_used()
        assert wait_until(lambda: parked(server, session))
        again = after_kill(own_pool, server)
        (now,) = again.sessions()
        assert same(session, now) and now["parked"] == used and again.memory_used() == 0
        (tmp_path / "end.0").touch()
        assert process.stdout.readline() == "round 1\n"
        assert again.memory_used() == used and again.sessions()[0]["parked"] is None
        # Its wish comes while there is no server, and is told the next one.
        assert wait_until(lambda: parked(again, session))
        again.stop(signal.SIGKILL)
        (tmp_path / "end.1").touch()
        third = own_pool(*server.options, listen=server.info["address"])
        assert process.stdout.readline() == "round 2\n"
        (tmp_path / "end.2").touch()
        end.touch()
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and out.endswith("right\n"), out + err
    assert wait_until(lambda: third.sessions() == [] and third.memory_used() == 0)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_killed_in_the_middle_of_a_move(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """The session stays where it is; its client, whose connection was cut for the move, finds nobody listening for a while."""
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end], "--link", link) as process:
        (session,) = server.sessions()
        assert wait_until(lambda: len(idle_workers(server)) == 1)
        (heir,), before = idle_workers(server), connections(session["pid"])
        os.kill(heir, signal.SIGSTOP)
        line = [*GPUVIRT, "move", session["session"], "--gpu", str(1 - session["devices"][0]), "--pool", server.url]
        moving = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment())
        assert wait_until(lambda: server.sessions()[0]["state"] == "moves")
        assert wait_until(lambda: not connections(session["pid"]) & before or link == "shm")  # those that it makes now wait for the move
        server.stop(signal.SIGKILL)
        moving.kill()
        moving.wait()
        again = own_pool(*server.options, listen=server.info["address"])
        if link == "shm":  # it may not have been given anything yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(heir, signal.SIGCONT)
            assert wait_until(lambda: not lives(heir))
        assert not lives(heir)
        (now,) = again.sessions()
        assert same(session, now)
        assert sum(device["memory_used"] > 0 for device in again.devices()) == 1
        moved = move(again, session, 1 - session["devices"][0])
        assert moved["from_pid"] == session["worker_pid"]
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: again.sessions() == [] and again.memory_used() == 0)


@pytest.mark.slow
def test_killed_when_a_session_has_all_but_moved(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Both workers have it: one stands still, the other waits for the word to begin. The first goes on."""
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end], "--link", "tcp") as process:
        (session,) = server.sessions()
        assert wait_until(lambda: len(idle_workers(server)) == 1)
        (heir,), before = idle_workers(server), connections(session["pid"])
        os.kill(heir, signal.SIGSTOP)
        line = [*GPUVIRT, "move", session["session"], "--gpu", str(1 - session["devices"][0]), "--pool", server.url]
        moving = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment())
        assert wait_until(lambda: not connections(session["pid"]) & before)
        server.process.send_signal(signal.SIGSTOP)
        os.kill(heir, signal.SIGCONT)
        wait_for_rest(session["worker_pid"], heir)
        again = after_kill(own_pool, server)
        moving.kill()
        moving.wait()
        assert wait_until(lambda: not lives(heir))
        (now,) = again.sessions()
        assert same(session, now)
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: again.sessions() == [] and again.memory_used() == 0)


@pytest.mark.slow
def test_killed_while_a_session_waits_for_its_memory(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """The server had been told; the next one is told once more."""
    server, first, second = own_pool(*ONE), tmp_path / "first", tmp_path / "second"
    with running(server, [build("moved"), first, "pauses"]) as process:
        (session,) = server.sessions()
        assert process.stdout is not None and process.stdout.readline() == "round 0\n"
        assert wait_until(lambda: parked(server, session))
        with running(server, [build("moved"), second, "host"]) as other:
            (tmp_path / "first.0").touch()
            assert wait_until(lambda: "waits for memory" in [s["state"] for s in server.sessions()])
            again = after_kill(own_pool, server)
            assert wait_until(lambda: "waits for memory" in [s["state"] for s in again.sessions()])
            second.touch()
            assert other.communicate(timeout=100)[0] == "right\n"
        assert process.stdout.readline() == "round 1\n"
        (tmp_path / "first.1").touch()
        first.touch()
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and out.endswith("right\n"), out + err


def idle_workers(server: Server) -> list[int]:
    """The server's workers that have no session and can take one."""
    (template,) = [pid for pid in children(server.process.pid) if b"server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [pid for pid in children(template) if pid not in server.worker_pids()]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_rest(*pids: int) -> None:
    """Returns when these processes have not calculated for a while."""
    used, since = [0], time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.1)
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        now = [int(row[11]) + int(row[12]) for row in fields]
        if now != used:
            used, since = now, time.monotonic()


def connections(pid: int) -> set[str]:
    """The TCP connections of a process, by their inodes."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "01" and row[9] in inodes}


@pytest.mark.slow
def test_a_server_with_other_gpus(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """What cannot go on is ended, and leaves nothing."""
    server = own_pool(*TWO)
    with running(server, [build("moved"), tmp_path / "end"]) as process:
        (session,) = server.sessions()
        again = after_kill(own_pool, server, "--backend", "soft", "--gpus", "1", "--gpu-memory", "256m")
        assert again.sessions() == [] and again.memory_used() == 0
        assert not lives(session["worker_pid"])
        out, err = process.communicate(timeout=100)
    assert process.returncode == 3 and "lost the GPU server" in err, out + err
    assert "is ended: the server's GPUs are others than it began with" in again.log.read_text()


@pytest.mark.slow
def test_a_lease_gives_way_across_servers(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """The next server knows that the lease of a program may give way; the one after that, that it has; and its program goes on as if nothing was."""
    server, low, high, end = own_pool(*ONE), "0f" * 16, "0e" * 16, tmp_path / "end"

    def asks(operation: str, lease: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = ask_pool(resolve({"pool": server.url}), operation, lease=bytes.fromhex(lease), **more)
        return answer

    whole = {"gpus": 1, "compute": 1000, "queue": True, "holder": {}}
    assert asks("lease_open", low, priority=-1, preemptible=True, **whole)["devices"] == [0]
    with running(server, [build("moved"), end], GPUVIRT_POOL=server.url, GPUVIRT_LEASE=low) as process:
        server = after_kill(own_pool, server)
        assert asks("lease_open", high, **whole)["devices"] == []
        assert wait_until(lambda: asks("lease_renew", high)["devices"] == [0] and "priority 0" in asks("lease_renew", low).get("suspended", ""))
        server = after_kill(own_pool, server)
        assert asks("lease_renew", high)["devices"] == [0] and "higher priority" in asks("lease_renew", low).get("suspended", "")
        launches = with_figures(server)["launches"]
        end.touch()
        time.sleep(SETTLE + 2)
        session = with_figures(server)
        assert process.poll() is None and session["launches"] == launches and session["state"] != "attached", "it has GPUs that are another's"
        asks("lease_release", high)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_the_store_is_killed_first(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Another one is started and told everything."""
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end]) as process:
        (session,) = server.sessions()
        (store,) = stores(server)
        os.kill(store, signal.SIGKILL)
        assert wait_until(lambda: "another descriptor store keeps" in server.log.read_text())
        again = after_kill(own_pool, server)
        (now,) = again.sessions()
        assert same(session, now) and again.memory_used() > 0
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_nobody_comes_after_the_server(build: Callable[..., Path], tmp_path: Path) -> None:
    """The program goes on without a server; when it has ended, so have its worker and the store."""
    server, end = start_server(tmp_path / "server", *TWO), tmp_path / "end"
    with running(server, [build("moved"), end]) as process:
        (session,) = server.sessions()
        server.stop(signal.SIGKILL)
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert wait_until(lambda: not lives(session["worker_pid"]) and stores(server) == [])


@pytest.mark.long
def test_two_hundred_moments(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Programs come and go, move and are parked, while their server is killed again and again: each says what it says when nothing happens."""
    server, chance = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--idle", "1s"), random.Random(11)
    program: list[str | Path] = [build("once"), "400"]
    reference = run_program(server, program)
    assert reference.returncode == 0, reference.stderr
    done: list[subprocess.CompletedProcess[str]] = []
    over = threading.Event()

    def launch(link: str) -> None:
        while not over.is_set():
            done.append(run_program(server, program, "--link", link))
            over.wait(done[-1].returncode != 0)

    def disturb() -> None:
        while not over.wait(chance.random()):
            with contextlib.suppress(GpuvirtError, IndexError, ValueError):
                session = chance.choice(ask_pool(resolve({"pool": server.url}), "ps", limit=5)["sessions"])
                what = {"op": "park"} if chance.random() < 0.3 else {"op": "move", "devices": [1 - session["devices"][0]], "rest": 5}
                ask_pool(resolve({"pool": server.url}), what.pop("op"), session=session["session"], limit=10, **what)

    threads = [threading.Thread(target=launch, args=(link,)) for link in ("shm", "tcp", "tcp(channels=2)")] + [threading.Thread(target=disturb)]
    for thread in threads:
        thread.start()
    present = server
    try:
        for _ in range(MOMENTS):
            time.sleep(chance.random() * 1.5)
            present = after_kill(own_pool, present)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    # Who attaches while there is no server, or when it is killed, has no session yet that could outlive it.
    lost = [one for one in done if (one.returncode, one.stdout) != (0, reference.stdout)]
    assert not (wrong := [(one.stdout, one.stderr[-700:]) for one in lost if one.stdout and "at cudaMalloc(&state" not in one.stdout]), wrong
    print(f"{MOMENTS} kills, {len(done) - len(lost)} programs that were right, {len(lost)} that found no server when they began")
    assert len(done) - len(lost) > MOMENTS / 4
    assert wait_until(lambda: present.sessions() == [] and present.leases() == [] and present.memory_used() == 0)
    present.stop()
    assert wait_until(lambda: stores(present) == [])
