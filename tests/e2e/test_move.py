"""Sessions that move to another GPU and another worker while their program runs: the program notices nothing."""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.cutter import UP, Cutter
from e2e.harness import GPUVIRT, Server, clean_environment, run_program, running, wait_until

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.errors import GpuvirtError

OVER = "there is no session|ended"  # says who is to move a session that is over
TWO = ("--backend", "soft", "--gpus", "2", "--gpu-memory", "1g")


def move(server: Server, session: str, gpu: int | str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [*GPUVIRT, "move", session, "--gpu", str(gpu), "--pool", server.url, *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=200, check=False, env=clean_environment(**env))


def moved(server: Server, session: str, gpu: int) -> dict[str, Any]:
    """Moves a session and checks that the worker that had it is dead."""
    answer: dict[str, Any] = ask_pool(resolve({"pool": server.url}), "move", session=session, devices=[gpu], rest=60, limit=200)
    assert answer["devices"] == [gpu] != answer["from"] and answer["worker_pid"] != answer["from_pid"]
    assert not Path(f"/proc/{answer['from_pid']}").exists() and Path(f"/proc/{answer['worker_pid']}").exists()
    return answer


def refused(server: Server, session: str, gpu: int | str, why: str, *options: str) -> None:
    done = move(server, session, gpu, *options)
    assert done.returncode == 125 and done.stdout == "" and why in done.stderr, done.stdout + done.stderr


def moves_while_running(server: Server, once: Path, rounds: int, link: str, least: int, begin: Path, seed: int) -> None:
    """The program says what it says when its session stays, however often and whenever that moves."""
    chance = random.Random(seed)
    # It may be over before the next worker has started, or before a busy machine lets the test go on: then it has more to do.
    lines = ([once, str(rounds << 2 * again), begin] for again in range(5))
    assert any(moves(server, line, link, least, begin, chance) >= least for line in lines), "it was over too soon"


def moves(server: Server, program: list[str | Path], link: str, least: int, begin: Path, chance: random.Random) -> int:
    """Returns how often the session moved."""
    begin.touch()
    reference = run_program(server, program, "--link", link)
    assert reference.returncode == 0, reference.stderr
    begin.unlink()
    assert wait_until(lambda: server.sessions() == [])
    before, count = server.memory_used(), 0
    with running(server, program, "--link", link) as process:
        (session,) = server.sessions()
        (gpu,) = session["devices"]
        begin.touch()
        while process.poll() is None and count < 4 * least:
            time.sleep(chance.random() * 0.1)
            gpu = 1 - gpu
            try:
                moved(server, session["session"], gpu)
            except GpuvirtError as error:
                over = re.search(OVER, str(error)) or wait_until(lambda: process.poll() is not None)  # what it had not read is under way for ever
                assert over, f"only a session that is over may not move: {error}"
                break
            count += 1
            sessions = ask_pool(resolve({"pool": server.url}), "ps")["sessions"]
            there = [s["session"] for s in sessions if s["devices"] == [gpu]] == [session["session"]]
            assert there or wait_until(lambda: process.poll() is not None), "only a program that is over has no session"
            devices = ask_pool(resolve({"pool": server.url}), "devices")["devices"]
            assert devices[1 - gpu]["memory_used"] == 0
        out, err = process.communicate(timeout=200)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), out + err
    assert wait_until(lambda: server.sessions() == [] and server.memory_used() == before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("link", [pytest.param("shm", marks=pytest.mark.wide), "tcp"])
def test_moves(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Copies, launches and host functions: each is done once."""
    begin = tmp_path / "begin"
    moves_while_running(own_pool(*TWO), build("once"), 300, link, 1, begin, 1)


@pytest.mark.wide
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("link", ["shm", "tcp", "tcp(channels=4)", "tcp(plain)", "delay(rtt=5ms,tcp)", "delay(rtt=5ms,shm)"])
def test_moves_over(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str, seed: int) -> None:
    begin = tmp_path / "begin"
    moves_while_running(own_pool(*TWO, "--plain"), build("once"), 1000, link, 3, begin, seed)


@pytest.mark.slow
@pytest.mark.parametrize("link", [pytest.param("shm", marks=pytest.mark.wide), "tcp"])
def test_what_device_memory_keeps(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, link: str) -> None:
    """Addresses of allocations and globals, function pointers, textures, mappings, events, kernels' attributes mean what they meant."""
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end], "--link", link) as process:
        (session,) = server.sessions()
        for gpu in (1, 0, 1):
            moved(server, session["session"], gpu)
            time.sleep(0.1)
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_moves_beside_many_images(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Images that others have used later, more of them than a worker keeps open, do not take the place of what the session was promised."""
    server, end = own_pool(*TWO, env=clean_environment(GPUVIRT_CACHE=str(tmp_path / "cache"))), tmp_path / "end"
    with running(server, [build("moved"), end], "--link", "shm") as process:
        (session,) = server.sessions()
        (own,) = (tmp_path / "cache" / "tenants").glob("*/images/*.*.*")
        _, meta, key = own.name.split(".")
        for image in (str(number).encode() for number in range(600)):
            (own.parent / f"{hashlib.sha256(image).hexdigest()}.{meta}.{key}").write_bytes(image)
        moved(server, session["session"], 1 - session["devices"][0])
        own.unlink()
        moved(server, session["session"], session["devices"][0])
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_moves_after_a_cut(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A connection that was made again is moved like any other."""
    server, end = own_pool(*TWO), tmp_path / "end"
    cutter = Cutter(server.info["port"])
    try:
        with running(cutter.url, [build("moved"), end], "--link", "tcp", GPUVIRT_TOKEN=server.token()) as process:
            (session,) = server.sessions()
            cutter.cut_all()
            assert wait_until(lambda: "its connection is made again" in server.log.read_text())
            gpu = session["devices"][0]
            for to in (1 - gpu, gpu):
                time.sleep(0.5)  # until the connection that was made again has said what came
                moved(server, session["session"], to)
            end.touch()
            out, err = process.communicate(timeout=100)
    finally:
        cutter.close()
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_half_a_payload_is_waited_for(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A session whose connection is lost in the middle of a copy comes to rest once its client has connected again and sent the rest."""
    server, begin = own_pool(*TWO), tmp_path / "begin"
    begin.touch()
    program: list[str | Path] = [build("once"), "500", begin]
    reference = run_program(server, program, "--link", "tcp")
    begin.unlink()
    cutter = Cutter(server.info["port"])
    try:
        with running(cutter.url, program, "--link", "tcp", GPUVIRT_TOKEN=server.token()) as process, ThreadPoolExecutor(1) as pool:
            (session,) = server.sessions()
            cutter.refuse = True
            cutter.plan[UP].append(cutter.carried[UP] + 500_000)  # the first copy has 1 MiB
            begin.touch()
            assert wait_until(lambda: len(cutter.cuts) == 1)
            moving = pool.submit(moved, server, session["session"], 1 - session["devices"][0])
            time.sleep(0.5)
            assert not moving.done()
            cutter.refuse = False
            moving.result(timeout=100)
            out, err = process.communicate(timeout=100)
    finally:
        cutter.close()
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), out + err


@pytest.mark.slow
def test_a_host_function_is_waited_for(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A session that waits for its host does not move; it goes on, and moves once the host has answered."""
    server, end = own_pool(*TWO), tmp_path / "end"
    with running(server, [build("moved"), end, "host"]) as process:
        (session,) = server.sessions()
        refused(
            server,
            session["session"],
            1,
            "the session stays where it is: the session does not come to rest: a host function has not returned",
            "--limit",
            "5s",
        )
        assert server.sessions()[0]["worker_pid"] == session["worker_pid"]
        assert server.devices()[1]["memory_used"] == 0
        waiting = subprocess.Popen(
            [*GPUVIRT, "move", session["session"], "--gpu", "1", "--pool", server.url, "--limit", "100s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        time.sleep(0.5)
        assert waiting.poll() is None
        end.touch()
        said, _ = waiting.communicate(timeout=100)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
    assert waiting.returncode in (0, 125), said  # it may have ended before it could move


@pytest.mark.slow
def test_what_a_stream_waits_for_comes(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """A stream waits for a value that a later command writes: until it has come, commands are carried out, also before a move."""
    server, file = own_pool(*TWO), tmp_path / "file"
    with running(server, [build("value_waits"), file]) as process:
        (session,) = server.sessions()
        why = "the session stays where it is: the session does not come to rest: its GPU waits for a value that the program does not write"
        refused(server, session["session"], 1, why, "--limit", "5s")
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(moved, server, session["session"], 1)
            time.sleep(0.5)
            assert not moving.done()
            file.touch()
            moving.result()
        for gpu in (0, 1) * 5:
            moved(server, session["session"], gpu)
        file.with_suffix(".over").touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_refusals(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Each says why, and the session goes on where it is."""
    server, end = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m"), tmp_path / "end"
    with running(server, [build("moved"), end]) as process:
        (session,) = server.sessions()
        name = session["session"]
        refused(server, "0123456789abcdef", 1, "there is no session '0123456789abcdef'; `gpuvirt ps` lists them")
        refused(server, name, 0, "the session is on GPU 0 already")
        refused(server, name, 2, "this pool has GPUs 0 to 1")
        refused(server, name, "0,1", "the session has 1 GPU; name as many with --gpu")
        assert move(server, name, "x").returncode == 2
        assert move(server, name, 1, "--limit", "soon").returncode == 2
        with running(server, [build("moved"), end, "holds", "250"]):
            refused(server, name, 1, "the session stays where it is: the GPU has not enough free memory")
        assert wait_until(lambda: len(server.sessions()) == 1)
        (now,) = server.sessions()
        assert now["worker_pid"] == session["worker_pid"] and now["devices"] == [0]
        moved(server, name, 1)
        end.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.slow
def test_no_grace(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    server, end = own_pool(*TWO, "--grace", "0"), tmp_path / "end"
    with running(server, [build("moved"), end]) as process:
        (session,) = server.sessions()
        refused(server, session["session"], 1, "the session cannot move: its client could not connect again (the server was started with --grace 0)")
        end.touch()
        assert process.communicate(timeout=100)[0] == "right\n"


@pytest.mark.slow
def test_others_sessions(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Of another token there is no session to move, unless an admin asks."""
    server, end, name = own_pool(*TWO), tmp_path / "end", f"mover-{secrets.token_hex(4)}"
    made = subprocess.run([*GPUVIRT, "token", "create", name, "--pool", server.url], capture_output=True, text=True, timeout=100, check=True)
    try:
        with running(server, [build("moved"), end]) as process:
            (session,) = server.sessions()
            done = move(server, session["session"], 1, GPUVIRT_TOKEN=made.stdout.split()[-1])
            assert done.returncode == 125 and "there is no session" in done.stderr, done.stderr
            end.touch()
            assert process.communicate(timeout=100)[0] == "right\n"
    finally:
        subprocess.run([*GPUVIRT, "token", "revoke", name, "--pool", server.url], capture_output=True, timeout=100, check=True)


@pytest.mark.wide
def test_moves_under_cuts(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Connections are cut all the while, those on which the moved session comes back among them."""
    server, chance = own_pool(*TWO), random.Random(7)
    lines = ([build("once"), str(1000 << 2 * again), tmp_path / "begin"] for again in range(5))
    assert any(moves_under_cuts(server, line, 8, chance) == 8 for line in lines), "it was over too soon"


def moves_under_cuts(server: Server, program: list[str | Path], most: int, chance: random.Random) -> int:
    """Returns how often the session moved before its program was over."""
    begin, count = Path(program[-1]), 0
    begin.touch()
    reference = run_program(server, program, "--link", "tcp")
    begin.unlink()
    cutter = Cutter(server.info["port"])
    try:
        with running(cutter.url, program, "--link", "tcp", GPUVIRT_TOKEN=server.token()) as process:
            (session,) = server.sessions()
            (gpu,) = session["devices"]
            begin.touch()
            while count < most:
                time.sleep(chance.random() * 0.2)
                cutter.cut_all()
                time.sleep(chance.random() * 0.1)
                gpu = 1 - gpu
                try:
                    moved(server, session["session"], gpu)
                except GpuvirtError as error:
                    assert re.search(OVER, str(error))
                    break
                count += 1
                cutter.cut_all()
            out, err = process.communicate(timeout=200)
    finally:
        cutter.close()
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), out + err
    assert len(cutter.cuts) >= count
    return count
