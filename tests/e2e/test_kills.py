"""Whatever is killed, whenever: no GPU is lost, no lease stays, no process is left behind, and a program that ends well has computed right."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, run_program, wait_until
from e2e.test_adoption import after_kill, children, lives, stores

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.errors import GpuvirtError

KILLS = 220
MARK = "CAMPAIGN"  # a variable of all that belongs to the test; not a GPUVIRT_ one, which would not be handed on
VICTIMS = ("daemon", "template", "worker", "idle worker", "program", "launcher", "agent", "shell")
OPTIONS = ("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--idle", "1s", "--grace", "20s")


def left(mark: str) -> list[int]:
    """Processes that belong to the test and have not ended. Of those that are not dumpable only root can tell."""
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes() and lives(pid):
                found.append(pid)
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Campaign:
    """Programs that come and go by themselves, under launchers and in attached shells, move and are parked."""

    def __init__(self, server: Server, program: list[str], mark: str, chance: random.Random) -> None:
        self.server, self._program, self._mark, self._chance = server, program, mark, chance
        self._pool = resolve({"pool": server.url})
        self._over = threading.Event()
        self._launchers: dict[str, subprocess.Popen[str]] = {}
        self._shells: dict[str, subprocess.Popen[str]] = {}
        self.done: list[tuple[int, str, str]] = []
        self._threads = [threading.Thread(target=self._launch, args=(link,)) for link in ("shm", "tcp", "tcp(channels=2)")]
        self._threads += [threading.Thread(target=self._attach), threading.Thread(target=self._disturb)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, line: list[str], where: dict[str, subprocess.Popen[str]], name: str) -> None:
        while not self._over.is_set():
            with subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=clean_environment()
            ) as process:
                where[name] = process
                try:
                    out, err = process.communicate(timeout=120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    out, err = "hangs", process.communicate()[1]
            self.done.append((process.returncode, out, err))
            self._over.wait(process.returncode != 0)

    def _launch(self, link: str) -> None:
        self._run([*GPUVIRT, "run", "--pool", self.server.url, "--link", link, "--", *self._program], self._launchers, link)

    def _attach(self) -> None:
        attach = f"{shlex.join(GPUVIRT)} attach --pool {self.server.url} --gpus 1 --print --pid $$"
        self._run(["bash", "-c", f'set -e; eval "$({attach})"; {shlex.join(self._program)}'], self._shells, "shell")

    def _disturb(self) -> None:
        while not self._over.wait(self._chance.random()):
            with contextlib.suppress(GpuvirtError, IndexError, ValueError):
                session = self._chance.choice(ask_pool(self._pool, "ps", limit=5)["sessions"])
                if self._chance.random() < 0.3:
                    ask_pool(self._pool, "park", session=session["session"], limit=10)
                else:
                    ask_pool(self._pool, "move", session=session["session"], devices=[1 - session["devices"][0]], rest=5, limit=10)

    def victim(self, kind: str) -> int | None:
        """A process of that kind; None: there is none at the moment."""
        templates = [pid for pid in children(self.server.process.pid) if b"server.worker" in command(pid)]
        sessions = ask_pool(self._pool, "ps")["sessions"]
        workers = [session["worker_pid"] for session in sessions]
        found: list[int] = {
            "template": lambda: templates,
            "worker": lambda: workers,
            "idle worker": lambda: [pid for template in templates for pid in children(template) if pid not in workers],
            "program": lambda: [session["pid"] for session in sessions],
            "launcher": lambda: [process.pid for process in self._launchers.values() if process.poll() is None],
            "agent": lambda: [pid for pid in left(self._mark) if b"gpuvirt.client.agent" in command(pid)],
            "shell": lambda: [process.pid for process in self._shells.values() if process.poll() is None],
        }[kind]()
        return self._chance.choice(found) if found else None


@pytest.mark.long
def test_kills(own_pool: Callable[..., Server], build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    mark, chance = uuid.uuid4().hex, random.Random(23)
    monkeypatch.setenv(MARK, mark)
    server, program = own_pool(*OPTIONS), [str(build("once")), "400"]
    reference = run_program(server, list(program))
    assert reference.returncode == 0, reference.stderr
    campaign, killed = Campaign(server, program, mark, chance), Counter[str]()
    try:
        while killed.total() < KILLS:
            time.sleep(chance.random())
            kind = chance.choice(VICTIMS)
            if kind == "daemon":
                campaign.server = after_kill(own_pool, campaign.server)
            else:
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    if (pid := campaign.victim(kind)) is None:
                        continue
                    os.kill(pid, signal.SIGKILL)
            killed[kind] += 1
    finally:
        campaign.end()
    present = campaign.server
    assert not (wrong := [one for one in campaign.done if (one[0] == 0 and one[1] != reference.stdout) or one[1] == "hangs"]), wrong
    right = sum(code == 0 for code, _, _ in campaign.done)
    print(f"{dict(killed)}; {right} programs that were right, {len(campaign.done) - right} that failed")
    assert min(killed[kind] for kind in VICTIMS) > 5 and right > 20
    assert wait_until(lambda: present.sessions() == [] and present.leases() == [] and present.memory_used() == 0, 120)
    again = after_kill(own_pool, present)
    assert again.leases() == []
    done = run_program(again, list(program), "--gpus", "2", "--memory", "256m", "--no-wait")
    assert (done.returncode, done.stdout) == (0, reference.stdout), done.stderr
    again.stop()
    assert wait_until(lambda: stores(again) == [] and left(mark) == []), [command(pid) for pid in left(mark)]
