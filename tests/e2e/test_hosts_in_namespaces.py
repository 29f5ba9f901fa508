"""A pool of five hosts in network namespaces of this machine, which are cut off, killed and started anew while programs come and go. Seeded."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment
from e2e.test_many_hosts import SOON, STAYS, Pool, wait_until

from gpuvirt.client.connect import ask
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.pool import check_pool, parse_pool

GPUS = {"ash": 1, "birch": 2, "cedar": 2, "elm": 2, "fir": 2}  # the first is the head
SECONDS = 40.0
GRACE = "60s"

pytestmark = pytest.mark.wide


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


class Network:
    """A bridge, and a namespace for each host with one end at it. The test itself is on the bridge's host."""

    def __init__(self) -> None:
        self._mark = f"gv{os.getpid() % 10000}"
        self.bridge = f"{self._mark}b"
        ip(f"link add {self.bridge} type bridge")
        ip(f"addr add 10.199.9.1/24 dev {self.bridge}")
        ip(f"link set {self.bridge} up")
        for number, name in enumerate(GPUS):
            ip(f"netns add {self.namespace(name)}")
            ip(f"link add {self._mark}{number} type veth peer name eth0 netns {self.namespace(name)}")
            ip(f"link set {self._mark}{number} master {self.bridge} up")
            ip(f"-n {self.namespace(name)} addr add {self.address(name)}/24 dev eth0")
            ip(f"-n {self.namespace(name)} link set eth0 up")
            ip(f"-n {self.namespace(name)} link set lo up")

    def namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"

    @staticmethod
    def address(name: str) -> str:
        return f"10.199.9.{10 + [*GPUS].index(name)}"

    def connect(self, name: str, up: bool) -> None:
        """Whether a host is on the network."""
        ip(f"link set {self._mark}{[*GPUS].index(name)} {'up' if up else 'down'}")

    def kill_all_of(self, name: str) -> None:
        """As if its machine had lost its power."""
        pids = subprocess.run(["ip", "netns", "pids", self.namespace(name)], capture_output=True, text=True, check=True).stdout.split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for name in GPUS:
            self.kill_all_of(name)
            subprocess.run(["ip", "netns", "del", self.namespace(name)], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


@dataclass
class Program:
    """One at work. host: of its GPUs, once that is known."""

    process: subprocess.Popen[str]
    end: Path
    until: float
    host: str = ""
    excused: bool = False  # its host was lost with all that it had


@dataclass
class Play:
    """What happens, by chance."""

    pool: Pool
    network: Network
    seed: int
    programs: list[Program] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    off: dict[str, float] = field(default_factory=dict)  # hosts that are cut off, and until when
    dead: dict[str, float] = field(default_factory=dict)
    most: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.number = 0

    def start(self, name: str) -> Server:
        return self.pool.start(
            name,
            GPUS[name],
            *("--grace", GRACE, "--link", "tcp", "--box", "off"),
            prefix=["ip", "netns", "exec", self.network.namespace(name)],
            listen=f"{self.network.address(name)}:7070",
        )

    def someone(self) -> None:
        """A program asks a host that can be reached."""
        self.number += 1
        reachable = [name for name in GPUS if name not in self.off and name not in self.dead]
        end = self.pool.folder / f"end{self.number}"
        wanted = ["--gpus", str(self.chance.choice([1, 1, 2])), "--compute", self.chance.choice(["1", "0.5"]), "--wait", "60s"]
        line = [*GPUVIRT, "run", "-q", "--pool", self.pool.hosts[self.chance.choice(reachable)].url, *wanted, "--", *map(str, [*STAYS, end])]
        env = clean_environment(GPUVIRT_TOKEN=self.pool.token)
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.programs.append(Program(process, end, time.monotonic() + self.chance.uniform(1.0, 12.0)))

    def trouble(self) -> None:
        others = [name for name in GPUS if name not in self.off and name not in self.dead]
        if len(others) < 4:
            return
        kind = self.chance.choice(["cut", "cut", "daemon", "head", "machine"])
        name = "ash" if kind == "head" else self.chance.choice([other for other in others if other != "ash"])
        self.events[kind] += 1
        if kind == "cut":
            self.network.connect(name, False)
            self.off[name] = time.monotonic() + self.chance.uniform(1.0, 8.0)
        elif kind in ("daemon", "head"):
            self.pool.hosts[name].stop(signal.SIGKILL)
            self.start(name)
        else:
            self.find_hosts()
            for program in self.programs:
                program.excused |= program.host in (name, "")
            self.network.kill_all_of(name)
            self.pool.hosts[name].stop(signal.SIGKILL)
            self.dead[name] = time.monotonic() + self.chance.uniform(5.0, 9.0)

    def heal(self, all_of_it: bool = False) -> None:
        now = time.monotonic()
        for name, until in list(self.off.items()):
            if all_of_it or now >= until:
                self.network.connect(name, True)
                del self.off[name]
        for name, until in list(self.dead.items()):
            if all_of_it or now >= until:
                shutil.rmtree(self.pool.folder / name / "state" / "sessions", ignore_errors=True)
                self.start(name)
                del self.dead[name]

    def seen(self, name: str) -> dict[str, Any] | None:
        """What a host has, by itself; None: it does not answer."""
        if name in self.off or name in self.dead:
            return None
        try:
            return ask(check_pool(parse_pool(self.pool.hosts[name].url), self.pool.token), "ps", alone=True, limit=2.0)
        except GpuvirtError:
            return None

    def find_hosts(self) -> None:
        """Where each program works; and that no GPU has been promised to more than it holds."""
        at: dict[int, str] = {}
        for name in GPUS:
            answer = self.seen(name)
            if answer is None:
                continue
            had = [0.0] * GPUS[name]
            for lease in answer["leases"]:
                for device in lease["devices"]:
                    had[device] += lease["compute"]
            assert max(had) <= 1.0, f"a GPU of {name} is granted twice: {answer['leases']}"
            at |= {session["pid"]: name for session in answer["sessions"]}
        self.most = max(self.most, len(at))
        for program in self.programs:
            children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
            with contextlib.suppress(OSError):
                for child in children.read_text().split():
                    program.host = at.get(int(child), program.host)

    def finish(self, program: Program) -> None:
        out, err = program.process.communicate(timeout=SOON)
        self.programs.remove(program)
        if out == "running\nright\n" and program.process.returncode == 0:
            self.outcomes["right"] += 1
        elif out.startswith("running"):
            assert program.excused, f"a program at {program.host or 'an unknown host'} ended with {program.process.returncode}: {out}{err}"
            self.outcomes["lost with its host"] += 1
        else:
            assert program.process.returncode, out + err
            self.outcomes["had no GPU"] += 1

    def end_some(self) -> None:
        for program in list(self.programs):
            if time.monotonic() >= program.until:
                program.end.touch()
            if program.process.poll() is not None:
                self.finish(program)


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 30))])
def test_whatever_happens_to_hosts(network: Network, tmp_path: Path, seed: int) -> None:
    """Nothing is granted twice, nothing is left, and what works on a host that was not lost is right."""
    play = Play(Pool(tmp_path), network, seed)
    try:
        for name in GPUS:
            play.start(name)
        wait_until(lambda: play.pool.are_there("ash", *GPUS))
        begun = time.monotonic()
        happens: list[tuple[Callable[[], None], float]] = [(play.someone, 1.2), (play.trouble, 4.0), (play.find_hosts, 1.0)]
        due = {do: begun + every for do, every in happens}
        while time.monotonic() < begun + SECONDS:
            for do, every in happens:
                if time.monotonic() >= due[do]:
                    do()
                    due[do] = time.monotonic() + every * play.chance.uniform(0.7, 1.3)
            play.heal()
            play.end_some()
            time.sleep(0.05)
        play.heal(all_of_it=True)
        for program in list(play.programs):
            program.end.touch()
            play.finish(program)
        print(f"{dict(play.outcomes)}, at most {play.most} at once; {dict(play.events)}")
        wait_until(lambda: play.pool.are_there("ash", *GPUS))
        wait_until(lambda: all(play.seen(name) is not None and not play.seen(name)["leases"] for name in GPUS))
        for name in GPUS:
            done = play.pool.run(name, [*STAYS, "/dev/null"], "--gpus", str(GPUS[name]), "--compute", "1", "--no-wait")
            assert done.stdout == "running\nright\n", done.stderr
        assert play.outcomes["right"] >= 8 and sum(play.events.values()) >= 4
    finally:
        for program in play.programs:
            program.process.kill()
        play.pool.stop()
