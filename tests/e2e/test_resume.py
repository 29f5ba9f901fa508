"""Connections that are cut: the program continues, or ends with a clear message."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import c_build
import pytest
from e2e import test_run_configurations
from e2e.cutter import Cutter
from e2e.harness import GPUVIRT, HERE, Server, clean_environment, read_line, run_line, run_program, running, start_server, wait_until
from faults import fault

pytestmark = pytest.mark.slow

ROUNDS = "60"

two_hosts = test_run_configurations.namespaces  # the same fixture


@pytest.fixture
def cutter() -> Iterator[Callable[[Server], Cutter]]:
    made: list[Cutter] = []

    def make(server: Server) -> Cutter:
        made.append(Cutter(int(server.info["port"])))
        return made[-1]

    yield make
    for each in made:
        each.close()


def through(server: Server, cutter: Cutter, command: list[str | Path], link: str = "tcp", **env: str) -> subprocess.CompletedProcess[str]:
    return run_program(cutter.url, command, "--link", link, GPUVIRT_TOKEN=server.token(), **env)


def left_nothing(server: Server, before: int) -> bool:
    return wait_until(lambda: server.sessions() == [] and server.memory_used() == before)


def cut_often(server: Server, cutter: Cutter, program: list[str | Path], link: str, runs: int, seed: int) -> str:
    """Runs the program once uncut, to know its bytes, then several times with cuts; every run must say the same. Returns what it says."""
    generator = random.Random(seed)
    before = server.memory_used()
    reference = through(server, cutter, program, link)
    assert reference.returncode == 0 and not cutter.cuts, reference.stderr
    recorded = list(cutter.carried)
    for run in range(runs):
        cutter.carried = [0, 0]
        cutter.reset = run % 2 == 1
        seen = len(cutter.cuts)
        for direction in (0, 1):
            cutter.plan[direction][:] = sorted(generator.randrange(recorded[direction]) for _ in range(8))
        cutter.reconnect[:] = [generator.randrange(1, 1400) if generator.random() < 0.4 else 1 << 40 for _ in range(12)]
        done = through(server, cutter, program, link)
        assert (done.returncode, done.stdout) == (0, reference.stdout), f"run {run}: {cutter.cuts[-20:]}\n{done.stdout}\n{done.stderr}"
        cut = [c for c in cutter.cuts[seen:] if c.label == "session"]
        assert cutter.url in done.stderr or not cut, "a cut of the main connection is worth a line"
        assert left_nothing(server, before)
    return reference.stdout


@pytest.mark.parametrize("link", ["tcp", *(pytest.param(link, marks=pytest.mark.wide) for link in ("tcp(channels=3)", "delay(rtt=3ms,tcp)"))])
def test_a_hundred_cuts(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter], link: str) -> None:
    """At bytes drawn uniformly over a recorded run, both ways; within payloads, within what makes up for a cut."""
    server = own_pool()
    proxy = cutter(server)
    said = cut_often(server, proxy, [build("once"), ROUNDS], link, 8, seed=len(link))
    assert "counted 38400, called 180," in said
    bulk = [c for c in proxy.cuts if c.label == "channel" and c.carried > 2000]
    coming_back = [c for c in proxy.cuts if c.again and c.carried < 1500]
    print(f"{link}: {len(proxy.cuts)} cuts, {len(bulk)} within payloads, {len(coming_back)} of connections that were coming back")
    assert len(proxy.cuts) >= 100 and len(bulk) >= 20 and len(coming_back) >= 10
    assert {c.direction for c in bulk} == {0, 1}


def test_mapped_memory(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter]) -> None:
    """Cuts between memory's creation, its mapping and its use: nothing of it is lost or done twice."""
    server = own_pool()
    assert cut_often(server, cutter(server), [build("virtual_memory")], "tcp", 2, seed=1) == "right\n"


def test_lost_launches_show(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """The same check with a worker that loses launches: it must not pass."""
    server = own_pool()
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    program = [build("once"), "6"]
    right, wrong = (run_program(s, program, "--link", "tcp") for s in (server, broken))
    assert right.returncode == 0 and right.stdout != wrong.stdout


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["-DGV_BREAK_RESUME", "-DTEST_PATIENCE_NS=5000000000LL"], 1)], ids=["whole", "broken"])
def test_nothing_sent_again_shows(tmp_path: Path, flags: list[str], code: int) -> None:
    """A link that comes back but sends nothing again (GV_BREAK_RESUME) is noticed by the transport's own test of cuts."""
    native, tests = HERE.parents[1] / "native", HERE.parent / "native/transport"
    sources = [*native.glob("wire/*.c"), *native.glob("transport/**/*.c")]
    sources += [tests / f"{name}.c" for name in ("pair", "mini_server", "cutter", "resume/test_resume")]
    program = tmp_path / "test_resume"
    limits = ["-DOPEN_NS=700000000LL", "-DUNACKED_LIMIT=4194304u", "-DCOPIES_LIMIT=8388608ull"]  # as all its tests have them
    c_build.program(program, sources, flags=[*limits, *flags])
    done = subprocess.run([str(program), "records_cut"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == code, done.stdout + done.stderr


def test_nobody_there_for_a_while(
    own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter], tmp_path: Path
) -> None:
    """An outage of some seconds costs these seconds and one line."""
    server = own_pool()
    proxy, begin = cutter(server), tmp_path / "begin"
    program = [build("once"), "400", begin]
    begin.touch()
    reference = run_program(server, program, "--link", "tcp")
    begin.unlink()
    environment = {"GPUVIRT_TOKEN": server.token(), "GPUVIRT_POOL": proxy.url}
    line = [*GPUVIRT, "run", "--pool", proxy.url, "--link", "tcp", "--", *map(str, program)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(**environment))
    assert read_line(process) == "running\n"
    begin.touch()
    proxy.refuse = True
    proxy.cut_all()
    time.sleep(3)
    proxy.refuse = False
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), err
    lines = [line for line in err.splitlines() if line.startswith("gpuvirt") and "software GPUs" not in line]
    assert len(lines) == 1 and proxy.url in lines[0] and "trying again for up to 60 s" in lines[0], err


def test_longer_than_the_grace_period(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter]) -> None:
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "2s")
    proxy = cutter(server)
    before = server.memory_used()
    with running_through(proxy, server, [build("busy"), "wait"]) as process:
        proxy.refuse = True
        proxy.cut_all()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3 and "cuda error" in out, out + err
    assert "grace period of 2 s" in err and proxy.url in err, err
    assert left_nothing(server, before)


def test_a_refused_port_is_final(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter]) -> None:
    server = own_pool()
    proxy = cutter(server)
    with running_through(proxy, server, [build("busy"), "wait"]) as process:
        proxy.close()
        out, err = process.communicate(timeout=30)  # the grace period is a minute
    assert process.returncode == 3 and "cuda error" in out, out + err
    assert f"start one there with: gpuvirt serve --listen HOST:{proxy.own_port}" in err, f"advice that ends in the middle helps nobody: {err}"


def test_an_unknown_session_is_final(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter]) -> None:
    """The worker has died while nobody could reach it."""
    server = own_pool()
    proxy = cutter(server)
    with running_through(proxy, server, [build("busy"), "wait"]) as process:
        (worker,) = server.worker_pids()
        proxy.refuse = True
        proxy.cut_all()
        os.kill(worker, signal.SIGKILL)
        assert wait_until(lambda: server.sessions() == [])
        proxy.refuse = False
        out, err = process.communicate(timeout=30)
    assert process.returncode == 3 and "no such session" in err, out + err


@pytest.mark.parametrize("away", [False, True])
def test_killed(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter], away: bool) -> None:
    """A killed program's connection looks like one that was cut, or was cut before: the launcher tells the server, which cannot know otherwise."""
    server = own_pool()
    proxy = cutter(server)
    before = server.memory_used()
    with running_through(proxy, server, [build("busy"), "wait"]) as process:
        (session,) = server.sessions()
        if away:
            os.kill(int(session["pid"]), signal.SIGSTOP)  # so that it does not come back
            proxy.cut_all()
            time.sleep(1.5)
            assert Path(f"/proc/{session['worker_pid']}").exists(), "it waits for its client"
        os.kill(int(session["pid"]), signal.SIGKILL)
        process.communicate(timeout=60)
        assert wait_until(lambda: not Path(f"/proc/{session['worker_pid']}").exists(), 30)
    assert left_nothing(server, before)


def test_stopped_and_continued(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Ctrl-Z for longer than a dead host takes to be noticed: the kernel still answers for the program, so its session stays."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "2s")
    begin = tmp_path / "begin"
    program: list[str | Path] = [build("once"), "1500", begin]
    begin.touch()
    reference = run_program(server, program, "--link", "tcp")
    begin.unlink()
    with running(server, program, "--link", "tcp") as process:
        (session,) = server.sessions()
        begin.touch()
        os.kill(int(session["pid"]), signal.SIGSTOP)
        time.sleep(7)
        assert len(server.sessions()) == 1
        os.kill(int(session["pid"]), signal.SIGCONT)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), err


@pytest.mark.parametrize("link", ["tcp", "tcp(plain)"])
def test_stopped_with_full_buffers(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    """The same while 192 MiB are on their way to the program: its host closes the window, and still answers for it."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--grace", "2s", "--plain")
    with running(server, [build("pressure"), "results", "10"], "--link", link) as process:
        (session,) = server.sessions()
        time.sleep(0.6)  # it copies after 0.3
        os.kill(int(session["pid"]), signal.SIGSTOP)
        time.sleep(12)
        assert len(server.sessions()) == 1
        os.kill(int(session["pid"]), signal.SIGCONT)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and out.endswith("right\n"), out + err
    assert "lost" not in err, err


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("route add blackhole 10.199.7.2", "route del blackhole 10.199.7.2"),
        pytest.param("link set veth0 down", "link set veth0 up", marks=pytest.mark.wide),
    ],
    ids=["silent", "unreachable"],
)
def test_nothing_arrives(two_hosts: tuple[str, str], build: Callable[..., Path], tmp_path: Path, away: str, back: str) -> None:
    """No end of file and no reset, but silence, for longer than a dead host takes to be noticed: tried again until somebody answers."""
    here, there = two_hosts
    server = start_server(tmp_path / "server", "--backend", "soft", "--link", "tcp", prefix=["ip", "netns", "exec", here], listen="10.199.7.1:0")
    begin = tmp_path / "begin"
    line = ["ip", "netns", "exec", there, *run_line(server), str(build("once")), "300", str(begin)]
    begin.touch()
    try:
        reference = subprocess.run(line, capture_output=True, text=True, env=clean_environment(), timeout=100, check=True)
        begin.unlink()
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()) as process:
            try:
                assert read_line(process) == "running\n"
                subprocess.run(["ip", "-n", here, *away.split()], check=True)
                begin.touch()  # not before: it might be over by then
                time.sleep(12)
                assert process.poll() is None
                subprocess.run(["ip", "-n", here, *back.split()], check=True)
                out, err = process.communicate(timeout=100)
            finally:
                process.kill()
        assert (process.returncode, "running\n" + out) == (0, reference.stdout), err
        (said,) = [line for line in err.splitlines() if line.startswith("gpuvirt") and "software GPUs" not in line]
        assert server.url in said and "lost" in said, err
    finally:
        server.stop()


@pytest.mark.long
def test_thirty_seconds(own_pool: Callable[..., Server], build: Callable[..., Path], cutter: Callable[[Server], Cutter]) -> None:
    server = own_pool()
    proxy = cutter(server)
    program = [build("once"), "400"]
    reference = run_program(server, program, "--link", "tcp")
    with running_through(proxy, server, program) as process:
        proxy.refuse = True
        proxy.cut_all()
        time.sleep(30)
        proxy.refuse = False
        out, err = process.communicate(timeout=60)
    assert (process.returncode, "running\n" + out) == (0, reference.stdout), err


class running_through:
    """A program under `gpuvirt run` over a proxy, once it has said "running"."""

    def __init__(self, proxy: Cutter, server: Server, command: list[str | Path]) -> None:
        line = [*GPUVIRT, "run", "--pool", proxy.url, "--link", "tcp", "--", *map(str, command)]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(GPUVIRT_TOKEN=server.token()),
        )

    def __enter__(self) -> subprocess.Popen[str]:
        assert read_line(self.process) == "running\n"
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=5)
        except (subprocess.TimeoutExpired, ValueError):
            self.process.kill()
            self.process.wait()
