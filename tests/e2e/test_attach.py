"""`gpuvirt attach` at a terminal with real programs: they compute on the lease's GPUs, all on the same, and on none when the lease has ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, HERE, Server, clean_environment
from terminal import Terminal

from gpuvirt.transport.control import TIMEOUT

PROGRAM = f"{sys.executable} {HERE / 'programs' / 'each_gpu.py'}"
LINE = " ".join(GPUVIRT)
UUIDS = r"gpus=([0-9a-f]{32}),([0-9a-f]{32}) right"

pytestmark = pytest.mark.slow


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture
def four(own_pool: Callable[..., Server]) -> Server:
    return own_pool("--backend", "soft", "--gpus", "4", "--gpu-memory", "256m", "--grace", "10m")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*options: str) -> Terminal:
        started.append(Terminal([*GPUVIRT, "attach", "--gpus", "2", *options], clean_environment(SHELL="/bin/bash", HOME=str(tmp_path)), tmp_path))
        started[-1].expect(r"\(gpuvirt:2\) ")
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def gpus_of(terminal: Terminal) -> tuple[str, str]:
    found = re.search(UUIDS, terminal.run(PROGRAM))
    assert found, terminal.shown
    return found[1], found[2]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_shell_with_two_gpus(four: Server, shell: Callable[..., Terminal], tmp_path: Path) -> None:
    """Its programs compute on the same two, another shell's on others, and those outside and after detach on none."""
    first, second = shell("--pool", four.url), shell("--pool", four.url)
    same, again, others = gpus_of(first), gpus_of(first), gpus_of(second)
    assert same == again and len({*same, *others}) == 4
    wait_until(lambda: [(lease["state"], lease["devices"]) for lease in four.leases()] == [("idle", [0, 1]), ("idle", [2, 3])])
    outside = subprocess.run(PROGRAM.split(), env=clean_environment(), capture_output=True, text=True, timeout=200, check=False)
    assert outside.returncode == 1 and outside.stdout.startswith("none")
    # Two programs at a time, also by `gpuvirt run`, are two sessions of one lease.
    first.run(f"{{ {PROGRAM} hold > one.txt 2>&1 & }}")
    first.run(f"{{ {LINE} run -q -- {PROGRAM} hold > two.txt 2>&1 & }}")
    wait_until(lambda: len(four.leases()[0]["sessions"]) == 2)
    lease = four.leases()[0]
    assert lease["state"] == "attached" and [s["devices"] for s in lease["sessions"]] == [[0, 1]] * 2
    wait_until(lambda: all("right" in (tmp_path / name).read_text() for name in ("one.txt", "two.txt")))
    assert "programs lost them" in first.run(f"{LINE} detach")
    first.run("wait")
    for said in (first.run("cat one.txt"), first.run("cat two.txt")):
        assert f"gpus={','.join(same)} right" in said and "the GPUs were given back (gpuvirt detach" in said
    after = first.run(PROGRAM)
    assert "EXIT 1" in after and "none: " in after and "the lease of these GPUs has ended" in after
    assert gpus_of(second) == others
    for terminal in (first, second):
        terminal.type("exit 5")
        assert terminal.end() == 5
    wait_until(lambda: four.leases() == [])


def test_the_server_is_killed_and_started_anew(own_pool: Callable[..., Server], four: Server, shell: Callable[..., Terminal]) -> None:
    """The shell keeps its GPUs, with their memory: its programs compute on them as before, others cannot reserve them, the shell's end frees them.

    Others have taken the control port of the server that was killed; the next one's is another.
    """
    first, second = shell("--pool", four.url), shell("--pool", four.url, "--memory", "256m")
    gpus_of(second)
    wait_until(lambda: [lease["state"] for lease in four.leases()] == ["idle", "idle"])
    before = four.leases()
    first.type("exit")
    first.end()
    wait_until(lambda: len(four.leases()) == 1)
    four.stop(signal.SIGKILL)
    with taken(four.info["control_port"]):
        again = own_pool(*four.options, listen=four.info["address"])
        ends_with_its_shell(again, second, before[1])


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """By us, unless others have it already."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def ends_with_its_shell(again: Server, second: Terminal, lease: dict[str, Any]) -> None:
    assert again.leases() == [lease] and lease["devices"] == [2, 3]
    gpus_of(second)
    refused = subprocess.run(
        [*GPUVIRT, "run", "--pool", again.url, "--gpus", "3", "--memory", "1m", "--no-wait", "--", *PROGRAM.split()],
        env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert refused.returncode != 0 and "2 of the 3 GPUs" in refused.stderr, refused.stdout + refused.stderr
    second.type("exit 5")
    assert second.end() == 5
    wait_until(lambda: again.leases() == [])


def test_a_shell_ends_while_the_server_is_away(own_pool: Callable[..., Server], four: Server, shell: Callable[..., Terminal]) -> None:
    """Its GPUs go back when the next server is there, not when its lease, that lasts ten minutes, is over."""
    only = shell("--pool", four.url)
    gpus_of(only)
    four.stop(signal.SIGKILL)
    only.type("exit 5")
    assert only.end() == 5
    time.sleep(TIMEOUT + 2)  # for longer than one request waits for its answer
    again = own_pool(*four.options, listen=four.info["address"])
    wait_until(lambda: again.leases() == [])


def test_the_server_is_killed_while_a_shell_waits(own_pool: Callable[..., Server], four: Server, shell: Callable[..., Terminal]) -> None:
    """It asks the next server, and has its GPUs when the others are given back."""
    first = shell("--pool", four.url, "--memory", "256m")
    line = [*GPUVIRT, "attach", "--pool", four.url, "--gpus", "3", "--memory", "256m", "--print", "--pid", str(os.getpid())]
    with subprocess.Popen(line, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        wait_until(lambda: [lease["state"] for lease in four.leases()] == ["idle", "queued"])
        four.process.kill()
        four.process.wait()
        time.sleep(2)
        again = own_pool(*four.options, listen=four.info["address"])
        wait_until(lambda: sorted(lease["state"] for lease in again.leases()) == ["idle", "queued"])
        first.type("exit 3")
        assert first.end() == 3
        out, err = waits.communicate(timeout=200)
        assert waits.returncode == 0 and "export GPUVIRT_LEASE=" in out and err.count("waiting for 3 GPUs") == 2, out + err
    (lease,) = again.leases()
    assert lease["devices"] == [0, 1, 2]


def test_what_is_killed_leaves_nothing(four: Server, shell: Callable[..., Terminal]) -> None:
    """A program, then the shell over another; the first is a session less, the second the end of the lease and of what runs under it."""
    terminal = shell("--pool", four.url)
    terminal.run(f"{{ {PROGRAM} hold > one.txt 2>&1 & }}")
    wait_until(lambda: four.leases()[0]["state"] == "attached")
    (program,) = children_of(terminal.pid)
    os.kill(program, signal.SIGKILL)
    wait_until(lambda: four.leases()[0]["state"] == "idle")
    terminal.run(f"{{ {PROGRAM} hold > two.txt 2>&1 & }}")
    wait_until(lambda: four.leases()[0]["state"] == "attached")
    folder = Path(os.readlink(f"/proc/{terminal.pid}/cwd"))
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    wait_until(lambda: four.leases() == [])
    wait_until(lambda: "the GPUs were given back" in (folder / "two.txt").read_text())
    assert four.memory_used() == 0


def test_a_server_that_is_killed(four: Server, shell: Callable[..., Terminal]) -> None:
    """Programs are told; the shell goes on, and its end is the agent's."""
    terminal = shell("--pool", four.url)
    gpus_of(terminal)
    agents = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_agent(pid, terminal)]
    assert len(agents) == 1
    four.process.kill()
    four.process.wait()
    shown = terminal.run(PROGRAM)
    assert "EXIT 1" in shown and "none: no gpuvirt server answers at" in shown
    terminal.type("exit 6")
    assert terminal.end() == 6
    wait_until(lambda: not is_agent(agents[0], terminal))


def is_agent(pid: int, terminal: Terminal) -> bool:
    """Whether this process is the agent of the terminal's shell; they have the same HOME, a folder of the test's own."""
    try:
        line, has = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"gpuvirt.client.agent" in line and f"HOME={terminal.cwd}".encode() in has


def test_a_lease_that_is_none(four: Server) -> None:
    """What the client library says of GPUVIRT_LEASE."""
    env = dict(os.environ)
    exported = subprocess.run([*GPUVIRT, "env", "--pool", four.url], env=clean_environment(), capture_output=True, text=True, check=True).stdout
    for lease, text in (("12", "is no lease: 32 hexadecimal digits"), ("12" * 16, "the lease of these GPUs has ended")):
        script = f"{exported}\nexport GPUVIRT_LEASE={lease}\nexec {PROGRAM}"
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 1 and text in done.stdout and text in done.stderr
