"""A pool of five hosts in network namespaces of this machine, which are cut off, killed, drained and started anew while programs come, go
and move from one to another, and jobs give way to them. Seeded."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
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
        self._subnet = f"10.{200 + os.getpid() // 250 % 40}.{os.getpid() % 250}"  # of several such tests on a machine each has another
        self.bridge = f"{self._mark}b"
        ip(f"link add {self.bridge} type bridge")
        ip(f"addr add {self._subnet}.1/24 dev {self.bridge}")
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

    def address(self, name: str) -> str:
        return f"{self._subnet}.{10 + [*GPUS].index(name)}"

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
    """One at work. host, session: of its GPUs, its session's id, once they are known."""

    process: subprocess.Popen[str]
    end: Path
    until: float
    host: str = ""
    session: str = ""
    excused: str = ""  # why it may be lost: its host was, with all that it had


@dataclass
class Move:
    """One that was asked for. ends: the hosts between which it is."""

    process: subprocess.Popen[str]
    program: Program
    ends: tuple[str, str]


@dataclass
class Play:
    """What happens, by chance."""

    pool: Pool
    network: Network
    seed: int
    programs: list[Program] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why leases stayed
    moves: list[Move] = field(default_factory=list)
    jobs: dict[str, tuple[Path, float]] = field(default_factory=dict)  # by id: the file that ends it, and when that is made
    drains: dict[str, tuple[subprocess.Popen[str], float]] = field(default_factory=dict)
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

    def job(self) -> None:
        """One that gives way to all programs, and begins anew when something of it is lost."""
        self.number += 1
        end = self.pool.folder / f"end{self.number}"
        wanted = ["--ranks", self.chance.choice(["1", "2"]), "--compute", "1", "--priority", "-1", "--preemptible", "--retries", "9"]
        submitted = self.verb("batch", "submit", "-q", *wanted, "--", *map(str, [*STAYS, end]))
        id = submitted.communicate(timeout=SOON)[0].strip()
        if submitted.returncode:  # the head does not answer at the moment
            self.outcomes["jobs not submitted"] += 1
            return
        self.jobs[id] = end, time.monotonic() + self.chance.uniform(15.0, 30.0)

    def finish_jobs(self) -> None:
        """Whatever was lost of them, and however often they gave way: they are right."""
        for end, _ in self.jobs.values():
            end.touch()
        for id in self.jobs:
            waits = self.verb("batch", "wait", id)
            out, err = waits.communicate(timeout=200)
            assert waits.returncode == 0, f"job {id}: {out}{err}"
            assert self.verb("batch", "logs", id).communicate(timeout=SOON)[0].count("right") >= 1
        for job in json.loads(self.verb("batch", "list", "--json").communicate(timeout=SOON)[0]):
            self.outcomes["jobs done"] += 1
            self.outcomes.update({f"jobs {what}": job[what] for what in ("suspended", "preempted", "lost")})

    def verb(self, *line: str) -> subprocess.Popen[str]:
        """Asked of the head."""
        own = {"GPUVIRT_STATE": str(self.pool.folder / "jobs")} if line[0] == "batch" else {}
        env = clean_environment(GPUVIRT_TOKEN=self.pool.token, GPUVIRT_POOL=self.pool.hosts["ash"].url, **own)
        return subprocess.Popen([*GPUVIRT, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def move(self) -> None:
        """Some program's lease is to go to some host."""
        self.find_hosts()
        able = [p for p in self.programs if p.session and p.host not in self.off and p.host not in self.dead]
        if able:
            program = self.chance.choice(able)
            to = self.chance.choice([name for name in GPUS if name != program.host])
            self.moves.append(Move(self.verb("move", program.session, "--host", to, "--limit", "5s"), program, (program.host, to)))

    def drain(self) -> None:
        name = self.chance.choice([name for name in GPUS if name not in self.off and name not in self.dead])
        if not self.drains:
            self.events["drain"] += 1
            self.drains[name] = self.verb("drain", name, "--timeout", "5s"), time.monotonic() + 6.0

    def look_at_moves(self) -> None:
        for move in [move for move in self.moves if move.process.poll() is not None]:
            err = move.process.communicate()[1]
            self.moves.remove(move)
            self.outcomes["moves"] += move.process.returncode == 0
            if move.process.returncode:
                self.outcomes["stayed"] += 1
                self.reasons[re.sub(r"'.*?'", "…", err.rpartition(": ")[2].strip())[:60]] += 1
            assert "Traceback" not in err, err
        for name, (process, until) in list(self.drains.items()):
            if time.monotonic() >= until and process.poll() is not None and name not in self.off and name not in self.dead:
                err = process.communicate()[1]
                assert "Traceback" not in err, err
                self.outcomes["drained"] += process.returncode == 0
                undo = self.verb("drain", name, "--undo")
                undo.communicate(timeout=SOON)  # the head may not know of it at the moment
                if undo.returncode == 0:
                    del self.drains[name]

    def excuse_what_moves(self, name: str) -> None:
        """What is between two hosts when one of them, or the network between them, is lost in the moment of the handover is lost with it."""
        self.look_at_moves()
        for move in self.moves:
            if name in move.ends:
                move.program.excused = move.program.excused or "lost in a move"
        if self.drains:  # which moves it does not say
            for program in self.programs:
                if name == program.host or program.host in self.drains:
                    program.excused = program.excused or "lost in a move"

    def trouble(self) -> None:
        others = [name for name in GPUS if name not in self.off and name not in self.dead]
        if len(others) < 4:
            return
        kind = self.chance.choice(["cut", "cut", "daemon", "head", "machine"])
        name = "ash" if kind == "head" else self.chance.choice([other for other in others if other != "ash"])
        self.events[kind] += 1
        self.excuse_what_moves(name)
        if kind == "cut":
            self.network.connect(name, False)
            self.off[name] = time.monotonic() + self.chance.uniform(1.0, 8.0)
        elif kind in ("daemon", "head"):
            self.pool.hosts[name].stop(signal.SIGKILL)
            self.start(name)
        else:
            self.find_hosts()
            for program in self.programs:
                if program.host in (name, ""):
                    program.excused = "lost with its host"
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

    def left(self) -> dict[str, Any]:
        """The hosts that still have leases, with these, or that do not answer."""
        has = {name: self.seen(name) for name in GPUS}
        return {name: answer if answer is None else answer["leases"] for name, answer in has.items() if answer is None or answer["leases"]}

    def find_hosts(self) -> None:
        """Where each program works; and that no GPU has been promised to more than it holds."""
        at: dict[int, tuple[str, str]] = {}
        for name in GPUS:
            answer = self.seen(name)
            if answer is None:
                continue
            had = [0.0] * GPUS[name]
            for lease in [lease for lease in answer["leases"] if lease["state"] != "suspended"]:
                for device in lease["devices"]:
                    had[device] += lease["compute"]
            assert max(had) <= 1.0, f"a GPU of {name} is granted twice: {answer['leases']}"
            at |= {session["pid"]: (name, session["session"]) for session in answer["sessions"]}
        self.most = max(self.most, len(at))
        for program in self.programs:
            children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
            with contextlib.suppress(OSError):
                for child in children.read_text().split():
                    program.host, program.session = at.get(int(child), (program.host, program.session))

    def finish(self, program: Program) -> None:
        out, err = program.process.communicate(timeout=SOON)
        self.programs.remove(program)
        if out == "running\nright\n" and program.process.returncode == 0:
            self.outcomes["right"] += 1
        elif out.startswith("running"):
            assert program.excused, f"a program at {program.host or 'an unknown host'} ended with {program.process.returncode}: {out}{err}"
            self.outcomes[program.excused] += 1
        else:
            assert program.process.returncode, out + err
            self.outcomes["had no GPU"] += 1

    def end_some(self) -> None:
        for program in list(self.programs):
            if time.monotonic() >= program.until:
                program.end.touch()
            if program.process.poll() is not None:
                self.finish(program)
        for end, until in self.jobs.values():
            if time.monotonic() >= until:
                end.touch()


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


def test_hosts_that_listen_at_all_their_addresses(network: Network, tmp_path: Path) -> None:
    """In a network that leads nowhere else they tell each other, and clients, the addresses that they have in it."""
    pool = Pool(tmp_path)
    inside = {name: ["ip", "netns", "exec", network.namespace(name)] for name in ("ash", "birch")}
    try:
        head = pool.start("ash", 1, listen="0.0.0.0:7070", prefix=inside["ash"])
        head.url = f"tcp://{network.address('ash')}:7070"  # as a client types it
        pool.start("birch", 2, listen="0.0.0.0:7070", prefix=inside["birch"]).url = f"tcp://{network.address('birch')}:7070"
        wait_until(lambda: pool.are_there("ash", "ash", "birch"))
        assert Counter(device["server"] for device in pool.json("birch", "devices")) == {"ash": 1, "birch": 2}
        done = pool.run("ash", [*STAYS, "/dev/null"], "--gpus", "2")
        assert done.stdout == "running\nright\n", done.stderr
        assert f"gpuvirt serve --join {head.url} " in (tmp_path / "ash" / "serve.log").read_text()
    finally:
        pool.stop()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 30))])
def test_whatever_happens_to_hosts(network: Network, tmp_path: Path, seed: int) -> None:
    """Nothing is granted twice, nothing is left, and what works on a host that was not lost is right."""

    def enough(play: Play) -> bool:
        return play.outcomes["right"] >= 8 and sum(play.events.values()) >= 4 and play.outcomes["moves"] >= 3

    assert enough(whatever_happens(network, tmp_path, seed, SECONDS, enough))


@pytest.mark.long
@pytest.mark.timeout(6000)
def test_that_for_an_hour(network: Network, tmp_path: Path) -> None:
    """A thousand programs, a hundred moves, and jobs that give way."""
    play = whatever_happens(network, tmp_path, 40, 3600.0)
    assert play.number >= 1000 and play.outcomes["moves"] >= 100 and play.outcomes["jobs suspended"] >= 20


def whatever_happens(network: Network, folder: Path, seed: int, seconds: float, enough: Callable[[Play], bool] = lambda _: True) -> Play:
    """For so many seconds, or up to five times as many until enough has happened (a busy machine is slow); then everything is mended, ended and
    looked at."""
    play = Play(Pool(folder), network, seed)
    try:
        for name in GPUS:
            play.start(name)
        wait_until(lambda: play.pool.are_there("ash", *GPUS))
        begun = time.monotonic()
        happens: list[tuple[Callable[[], None], float]] = [
            (play.someone, 1.2),
            (play.trouble, 4.0),
            (play.find_hosts, 1.0),
            (play.move, 1.0),
            (play.drain, 9.0),
        ]
        if seconds > SECONDS:  # what waits for less gives nobody reason to give way
            happens.append((play.job, 8.0))
        due = {do: begun + every for do, every in happens}
        while time.monotonic() < begun + seconds or (time.monotonic() < begun + 5 * seconds and not enough(play)):
            for do, every in happens:
                if time.monotonic() >= due[do]:
                    do()
                    due[do] = time.monotonic() + every * play.chance.uniform(0.7, 1.3)
            play.heal()
            play.end_some()
            play.look_at_moves()
            time.sleep(0.05)
        play.heal(all_of_it=True)
        wait_until(lambda: play.pool.are_there("ash", *GPUS))
        asked = time.monotonic()
        while play.moves or play.drains:
            play.look_at_moves()
            if time.monotonic() > asked + 30.0:  # whoever was asked has been killed meanwhile, and the asker would wait for ten minutes
                for process in [*(move.process for move in play.moves), *(process for process, _ in play.drains.values())]:
                    process.kill()
            time.sleep(0.2)
        for program in list(play.programs):
            program.end.touch()
            play.finish(program)
        play.finish_jobs()
        print(f"{dict(play.outcomes)}, at most {play.most} at once; {dict(play.events)}; stayed: {dict(play.reasons)}")
        wait_until(lambda: play.pool.are_there("ash", *GPUS))
        wait_until(lambda: play.left() == {}, play.left)
        for name in GPUS:
            done = play.pool.run(name, [*STAYS, "/dev/null"], "--gpus", str(GPUS[name]), "--compute", "1", "--no-wait")
            assert done.stdout == "running\nright\n", done.stderr
        return play
    finally:
        for process in [*(p.process for p in play.programs), *(m.process for m in play.moves), *(process for process, _ in play.drains.values())]:
            process.kill()
        play.pool.stop()
