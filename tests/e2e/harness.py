"""Servers, programs and the commands that run them, as a user would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpuvirt

HERE = Path(__file__).parent
GPUVIRT = [sys.executable, "-P", "-m", "gpuvirt"]


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything of gpuvirt's."""
    return {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_")} | more


SERVERS: list[Server] = []  # that run, or have ended of themselves


@dataclass
class Server:
    """A `gpuvirt serve` of the test's own."""

    process: subprocess.Popen[bytes]
    url: str
    info: dict[str, Any]
    log: Path
    options: tuple[str, ...] = field(default=())

    def devices(self) -> list[dict[str, Any]]:
        return self.json("devices")

    def leases(self) -> list[dict[str, Any]]:
        return self.json("ps")

    def sessions(self) -> list[dict[str, Any]]:
        return [session for lease in self.leases() for session in lease["sessions"]]

    def json(self, verb: str) -> list[dict[str, Any]]:
        done = subprocess.run([*GPUVIRT, verb, "--pool", self.url, "--json"], capture_output=True, text=True, timeout=120, check=True)
        parsed: list[dict[str, Any]] = json.loads(done.stdout)
        return parsed

    def memory_used(self) -> int:
        """Asked from here: a command takes so long to start that a short program comes and goes meanwhile."""
        return sum(device.memory_used or 0 for device in gpuvirt.devices(self.url))

    def worker_pids(self) -> list[int]:
        return [int(s["worker_pid"]) for s in self.sessions()]

    def token(self) -> str:
        """The default token of this user's servers."""
        done = subprocess.run([*GPUVIRT, "token", "show"], capture_output=True, text=True, timeout=100, check=True, env=clean_environment())
        return done.stdout.strip()

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self in SERVERS:
            SERVERS.remove(self)
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_server(
    folder: Path, *options: str, prefix: list[str] | None = None, env: dict[str, str] | None = None, listen: str = "127.0.0.1:0"
) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    ready, log = folder / "ready.json", folder / "serve.log"
    ready.unlink(missing_ok=True)
    line = [*(prefix or []), *GPUVIRT, "serve", "--listen", listen, "--ready-file", str(ready), *options]
    with log.open("ab") as out:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env or clean_environment())
    deadline = time.monotonic() + 120
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')}")
        time.sleep(0.02)
    info = json.loads(ready.read_text())
    SERVERS.append(Server(process, info["pool"], info, log, options))
    return SERVERS[-1]


def run_line(server: Server | str, *options: str) -> list[str]:
    url = server if isinstance(server, str) else server.url
    return [*GPUVIRT, "run", "--pool", url, *options, "--"]


def run_program(server: Server | str, command: list[str | Path], *options: str, timeout: float = 240, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command through `gpuvirt run` and returns what it did."""
    line = [*run_line(server, *options), *map(str, command)]
    return subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout, env=clean_environment(**env), check=False
    )


def assert_right(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout) == (0, "right\n"), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line of a program's output, and no more of it: what readline() reads ahead is lost to communicate() when that has a deadline."""
    assert isinstance(process.stdout, io.TextIOWrapper)
    process.stdout._CHUNK_SIZE = 1
    return process.stdout.readline()


@contextlib.contextmanager
def running(server: Server | str, command: list[str | Path], *options: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A program under `gpuvirt run` that has said "running"; killed at the end whatever happened."""
    line = [*run_line(server, *options), *map(str, command)]
    process = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(**env)
    )
    try:
        first = read_line(process)
        assert first == "running\n", first + (process.stderr.read() if process.poll() is not None and process.stderr else "")
        yield process
    finally:
        process.terminate()  # which the launcher hands on to the program
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def kill_worker(server: Server, program: str | Path, mode: str, link: str) -> str:
    """Kills the worker of a program at work, whose CUDA calls then fail. Returns the program's stderr."""
    with running(server, [program, mode], "--link", link) as process:
        (worker,) = server.worker_pids()
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3 and "cuda error" in out, out + err
    return err


def kill_client(server: Server, program: str | Path, mode: str, link: str) -> None:
    """Kills a program at work: its worker is gone, long before the grace period is over, and its memory is free."""
    assert wait_until(lambda: server.sessions() == [])
    before = server.memory_used()
    with running(server, [program, mode], "--link", link) as launcher:
        (session,) = server.sessions()
        worker = int(session["worker_pid"])
        assert server.memory_used() > before
        os.kill(int(session["pid"]), signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{worker}").exists(), 30)
        launcher.communicate(timeout=60)
        assert launcher.returncode == 128 + signal.SIGKILL
    assert wait_until(lambda: server.memory_used() == before and server.sessions() == [])


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """The limit is for what never happens: a machine that is busy with other things is given time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def children(pid: int) -> dict[int, str]:
    """Processes that it has started and that live: by their ids, their command lines."""
    found = dict[int, str]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
            if int(parent) == pid and state != "Z":
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def descendants(pid: int) -> dict[int, str]:
    """Its children, theirs, and so on."""
    found = children(pid)
    for child in [*found]:
        found |= descendants(child)
    return found


def can_make_namespaces() -> bool:
    if not shutil.which("ip") or os.geteuid() != 0:
        return False
    name = f"gpuvirt-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made
