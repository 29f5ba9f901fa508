"""Leases go from one host of a pool to another while their programs run, which notice nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, HERE, clean_environment
from e2e.test_many_hosts import SOON, STAYS, Pool, wait_until

pytestmark = pytest.mark.slow

TCP = ["--link", "tcp"]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path)
    yield pool
    pool.stop()


@pytest.fixture
def pair(hosts: Pool) -> Pool:
    """Two hosts of two GPUs: alder, the head, and birch."""
    for name in ("alder", "birch"):
        hosts.start(name, 2)
    wait_until(lambda: hosts.are_there("alder", "alder", "birch"))
    return hosts


def only_session(pool: Pool) -> tuple[str, str]:
    """Its id, and its host."""
    (session,) = [session for lease in pool.json("alder", "ps") for session in lease["sessions"]]
    return session["session"], session["server"]


def other(name: str) -> str:
    return {"alder": "birch", "birch": "alder"}[name]


def log(pool: Pool, name: str) -> str:
    return (pool.folder / name / "serve.log").read_text()


def test_a_session_goes_there_and_back(pair: Pool, tmp_path: Path) -> None:
    """Whoever is asked; its use is counted once."""
    with pair.running("alder", [*STAYS, tmp_path / "end"], *TCP) as program:
        session, at = only_session(pair)
        for _ in range(3):
            done = json.loads(pair.gpuvirt("birch", "move", session, "--host", other(at), "--json").stdout)
            assert done["from_host"] == at and done["host"] == other(at) and done["sessions"] == 1
            at = other(at)
            assert only_session(pair) == (session, at)
            wait_until(lambda: log(pair, at).count("its connection is made again") > 0)  # noqa: B023 (it is called at once)
        refused = pair.gpuvirt("alder", "move", session, "--host", at, check=False)
        assert refused.returncode == 125 and "it is at that host" in refused.stderr
        refused = pair.gpuvirt("alder", "move", session, "--host", "cedar", check=False)
        assert "has no host called 'cedar'" in refused.stderr
        assert pair.gpuvirt("alder", "move", session, check=False).returncode == 2
        (tmp_path / "end").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n" and program.returncode == 0
    wait_until(lambda: not pair.json("alder", "ps"))
    (row,) = json.loads(pair.shown("alder", "report", "--json"))["users"]
    assert row["sessions"] == 1 and row["launches"] == 0


def test_all_of_a_lease_goes_together_and_who_comes_later_finds_it(pair: Pool, tmp_path: Path) -> None:
    """Two programs of an attached shell; a third is started after the move, with the address of the host that had the lease."""
    env = clean_environment(GPUVIRT_TOKEN=pair.token, GPUVIRT_POOL=pair.hosts["alder"].url, GPUVIRT_LINK="tcp", SHELL="/bin/sh")
    work = " ".join(map(str, STAYS))
    shell = subprocess.Popen(
        [*GPUVIRT, "attach", "--gpus", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert shell.stdin is not None
    try:
        shell.stdin.write("".join(f"{work} {tmp_path}/end{n} > {tmp_path}/out{n} &\n" for n in (1, 2)))
        shell.stdin.flush()
        wait_until(lambda: len(pair.placed("alder")) == 2)
        (lease,) = pair.json("alder", "ps")
        wait_until(lambda: all((tmp_path / f"out{n}").exists() and (tmp_path / f"out{n}").read_text() for n in (1, 2)))
        was = lease["sessions"][0]["server"]
        done = pair.gpuvirt("alder", "move", lease["sessions"][0]["session"], "--host", other(was))
        assert f"from {was} to {other(was)}" in done.stdout and "with 1 more of its lease" in done.stdout
        assert pair.placed("alder") == [other(was)] * 2
        for n in (1, 2, 3):
            (tmp_path / f"end{n}").touch()
        shell.stdin.write(f"wait; {work} {tmp_path}/end3 > {tmp_path}/out3\n{' '.join(GPUVIRT)} ps --json > {tmp_path}/ps\n")
        shell.stdin.write(f"{' '.join(GPUVIRT)} detach\n")
        out, err = shell.communicate(timeout=SOON)
    finally:
        shell.kill()
    assert shell.returncode == 0, out + err
    assert [(tmp_path / f"out{n}").read_text() for n in (1, 2, 3)] == ["running\nright\n"] * 3, err
    (seen,) = json.loads((tmp_path / "ps").read_text())
    assert seen["lease"] == lease["lease"] and seen["server"] == other(was)
    wait_until(lambda: not pair.json("alder", "ps"))


@pytest.mark.wide
def test_a_block_of_python_sees_where_its_gpus_are(pair: Pool) -> None:
    code = f"""
import json, os, gpuvirt, runpy, subprocess, sys
with gpuvirt.remote(gpus=2) as lease:
    was = {{d.server for d in lease.devices}}.pop()
    import ctypes
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    other = "birch" if was == "alder" else "alder"
    line = [{", ".join(repr(str(part)) for part in GPUVIRT)}, "ps", "--json"]
    shown = subprocess.run(line, capture_output=True, check=True, env={{**os.environ, "LD_PRELOAD": ""}}).stdout
    session = json.loads(shown)[0]["sessions"][0]["session"]
    subprocess.run([*line[:-2], "move", session, "--host", other], check=True, capture_output=True)
    assert [d.server for d in lease.devices] == [other] * 2, lease.devices
    sys.argv = ["stays.py", "/dev/null"]
    runpy.run_path({str(HERE / "programs" / "stays.py")!r})
"""
    env = clean_environment(GPUVIRT_TOKEN=pair.token, GPUVIRT_POOL=pair.hosts["alder"].url, GPUVIRT_LINK="tcp")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=SOON, check=False)
    assert done.stdout == "running\nright\n", done.stdout + done.stderr
    wait_until(lambda: not pair.json("alder", "ps"))


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """At the end, also when a test has failed that the process waits for."""
    try:
        yield
    finally:
        process.kill()


def test_a_host_is_drained_and_stopped(pair: Pool, tmp_path: Path) -> None:
    """What it has goes on at the other; what does not fit waits until it does. Its server can be stopped then."""
    with (
        pair.running("alder", [*STAYS, tmp_path / "end1"], *TCP, "--compute", "1") as first,
        pair.running("alder", [*STAYS, tmp_path / "end2"], *TCP, "--compute", "1") as second,
        pair.running("alder", [*STAYS, tmp_path / "end3"], *TCP, "--compute", "1") as third,
    ):
        programs = [first, second, third]
        stays = pair.programs_at("alder", "alder", programs)[0]
        assert len(pair.programs_at("alder", "birch", programs)) in (1, 2)
        drain = [*GPUVIRT, "drain", "birch", "--json"]
        env = clean_environment(GPUVIRT_TOKEN=pair.token, GPUVIRT_POOL=pair.hosts["alder"].url)
        with subprocess.Popen(drain, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process, ended(process):
            wait_until(lambda: {gpu["server"] for gpu in pair.json("alder", "devices") if gpu["drained"]} == {"birch"})
            wait_until(lambda: pair.placed("alder").count("birch") == 1)  # alder has two
            full = pair.run("birch", [*STAYS, "/dev/null"], *TCP, "--compute", "1", "--no-wait")
            assert full.returncode and "cannot be had without waiting" in full.stderr
            (tmp_path / f"end{1 + programs.index(stays)}").touch()  # which makes room for the last one
            assert stays.communicate(timeout=SOON)[0] == "right\n"
            out, err = process.communicate(timeout=SOON)
            assert process.returncode == 0, out + err
            status: dict[str, Any] = json.loads(out)
            assert not status["leases"] and not status["following"] and status["left"] >= 1
        assert "birch" not in pair.placed("alder")
        pair.hosts["birch"].stop(signal.SIGTERM)
        for n, program in enumerate(programs):
            if program is not stays:
                (tmp_path / f"end{1 + n}").touch()
                assert program.communicate(timeout=SOON)[0] == "right\n"
    pair.start("birch", 2)  # started anew it takes programs
    wait_until(lambda: pair.are_there("alder", "alder", "birch"))
    done = pair.run("alder", [*STAYS, "/dev/null"], "--gpus", "2", "--compute", "1", "--no-wait")
    assert done.stdout == "running\nright\n", done.stderr


def leaves_without_sessions(pair: Pool, folder: Path) -> bool:
    """A launch between two of its processes, whose host is drained meanwhile. Whether it went in time: it has its GPUs for some seconds only."""
    folder.mkdir()
    script = f"{' '.join(map(str, STAYS))} {folder}/end; while [ ! -e {folder}/over ]; do sleep 0.1; done"
    with pair.running("alder", ["sh", "-c", script], *TCP) as program:
        _, at = only_session(pair)
        (folder / "end").touch()
        wait_until(lambda: not pair.placed("alder"))
        assert pair.gpuvirt("alder", "drain", at).returncode == 0
        wait_until(lambda: not pair.json("alder", "ps"))
        assert pair.gpuvirt("alder", "drain", at, "--undo").returncode == 0
        (folder / "over").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n" and program.returncode == 0
    return "with 0 sessions" in log(pair, other(at))


def test_a_launch_without_sessions_is_drained_and_ends(pair: Pool, tmp_path: Path) -> None:
    """Wherever its GPUs are: the destination counts the seconds, too. On a busy machine it may have ended before it has gone."""
    assert any(leaves_without_sessions(pair, tmp_path / str(n)) for n in range(5))


@pytest.mark.wide
def test_what_cannot_leave_says_why_and_a_drain_is_undone(pair: Pool, tmp_path: Path) -> None:
    """A session over shared memory; a token that is no admin's; a host that there is not."""
    with pair.running("birch", [*STAYS, tmp_path / "end"], "--link", "shm") as program:
        session, at = only_session(pair)
        refused = pair.gpuvirt("alder", "move", session, "--host", other(at), check=False)
        assert refused.returncode == 125 and "its link is shm, which does not leave the host" in refused.stderr
        left = pair.gpuvirt(other(at), "drain", at, "--timeout", "3s", check=False)
        assert left.returncode == 1 and "python of" in left.stdout and "its link is shm" in left.stdout
        assert {d["server"]: d["drained"] for d in pair.json(at, "devices")} == {at: True, other(at): False}
        assert f"{at} (soft, drained)" in " ".join(pair.shown("alder", "devices", COLUMNS="200").split())
        placed = pair.run(at, [*STAYS, "/dev/null"])
        assert placed.stdout == "running\nright\n" and pair.placed("alder") == [at]
        assert "takes programs again" in pair.gpuvirt("alder", "drain", at, "--undo").stdout
        token = pair.gpuvirt("alder", "token", "create", "guest", "--pool", pair.hosts["alder"].url).stdout.strip().splitlines()[-1]
        refused = pair.gpuvirt("alder", "drain", at, check=False, GPUVIRT_TOKEN=token)
        assert refused.returncode == 125 and "not drain hosts" in refused.stderr
        refused = pair.gpuvirt("alder", "drain", "cedar", check=False)
        assert "no host called 'cedar'; it has alder, birch" in refused.stderr
        (tmp_path / "end").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n"


@pytest.mark.wide
def test_a_host_that_does_not_answer_gets_nothing(pair: Pool, tmp_path: Path) -> None:
    """The destination stands still: the session stays, and goes on. When it goes on, it has nothing of it."""
    with pair.running("alder", [*STAYS, tmp_path / "end"], *TCP) as program:
        session, at = only_session(pair)
        daemon = pair.hosts[other(at)].process
        if other(at) == "alder":  # the scheduler: it must decide before it stands still
            pair.gpuvirt("alder", "move", session, "--host", "alder")
            at = "alder"
            daemon = pair.hosts["birch"].process
        # It takes part until the lease is placed there, which its log does not say: so it is stopped at its first word of it.
        moving = subprocess.Popen(
            [*GPUVIRT, "move", session, "--host", "birch"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(GPUVIRT_TOKEN=pair.token, GPUVIRT_POOL=pair.hosts["alder"].url),
        )
        daemon.send_signal(signal.SIGSTOP)
        try:
            out, err = moving.communicate(timeout=SOON)
        finally:
            daemon.send_signal(signal.SIGCONT)
        moved = moving.returncode == 0
        assert moved or "the session cannot move" in err, out + err
        wait_until(lambda: only_session(pair) == (session, "birch" if moved else "alder"))
        wait_until(lambda: pair.are_there("alder", "alder", "birch"))
        time.sleep(1.0)
        assert only_session(pair)[0] == session
        (tmp_path / "end").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n"
    wait_until(lambda: not pair.json("alder", "ps"))
    done = pair.run("alder", [*STAYS, "/dev/null"], "--gpus", "2", "--compute", "1", "--no-wait")
    assert done.stdout == "running\nright\n", done.stderr


def moves_while_it_stands_still(pair: Pool, pid: int, session: str) -> bool:
    """To alder. Not if the program was stopped while it was to take something: the session does not come to rest then, and the program goes on."""
    os.kill(pid, signal.SIGSTOP)
    done = pair.gpuvirt("alder", "move", session, "--host", "alder", "--limit", "1s", check=False)
    if done.returncode:
        assert "come to rest" in done.stderr, done.stderr
        os.kill(pid, signal.SIGCONT)
    return done.returncode == 0


def leaves_a_host_that_is_killed(pair: Pool, folder: Path, before_it_starts: Callable[[Path], None]) -> tuple[str, str]:
    """A session goes from birch to alder while its program stands still; birch is killed, and started anew; then the program goes on."""
    with pair.running("alder", [*STAYS, folder / "end"], *TCP) as program:
        session, at = only_session(pair)
        if at == "alder":
            pair.gpuvirt("alder", "move", session, "--host", "birch")
            wait_until(lambda: log(pair, "birch").count("its connection is made again") > 0)
        (pid,) = (one["pid"] for lease in pair.json("alder", "ps") for one in lease["sessions"])
        try:
            wait_until(lambda: moves_while_it_stands_still(pair, pid, session))
            address = pair.hosts["birch"].url.removeprefix("tcp://")
            pair.hosts["birch"].stop(signal.SIGKILL)
            (file,) = pair.joined("birch").glob("departed-*.json")
            assert len(json.loads(file.read_text())) == 1
            before_it_starts(file)
            pair.start("birch", 2, listen=address)
            (folder / "end").touch()
        finally:
            os.kill(pid, signal.SIGCONT)
        return program.communicate(timeout=SOON)


def test_a_client_is_sent_on_by_a_host_that_was_started_anew(pair: Pool, tmp_path: Path) -> None:
    out, err = leaves_a_host_that_is_killed(pair, tmp_path, lambda file: None)
    assert out == "right\n", err


@pytest.mark.wide
def test_one_that_is_not_is_lost(pair: Pool, tmp_path: Path) -> None:
    """Deliberate fault: the host does not know any more where it went."""
    out, err = leaves_a_host_that_is_killed(pair, tmp_path, lambda file: file.unlink())
    assert "right" not in out and "refused: this server has no such session" in err
