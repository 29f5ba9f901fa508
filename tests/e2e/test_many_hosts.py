"""A pool of many hosts: daemons of this machine, each with its own state, that are one pool."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e.harness import GPUVIRT, HERE, Server, assert_right, children, clean_environment, read_line, run_program, running, start_server
from prometheus_client.parser import text_string_to_metric_families

from gpuvirt.client.connect import ask
from gpuvirt.cluster.messages import HostEntry
from gpuvirt.cluster.whole_pool import WholePool
from gpuvirt.transport.control import RequestRefused
from gpuvirt.transport.pool import check_pool, parse_pool
from gpuvirt.transport.token import parse_token

STAYS: list[str | Path] = [sys.executable, HERE / "programs" / "stays.py"]
SOON = 120.0  # seconds within which a busy machine does anything

pytestmark = pytest.mark.slow


def wait_until(condition: Callable[[], bool], instead: Callable[[], object] = lambda: None) -> None:
    """instead: what there is in place of what was waited for; a failure says it."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time: {instead()}"
        time.sleep(0.05)


SILENT = re.compile("^gpuvirt: (.*): (?:this host of the pool does|these hosts of the pool do) not answer", re.MULTILINE)


def of_all(ask: Callable[[], subprocess.CompletedProcess[str]], lives: Callable[[str], bool] = lambda host: True) -> subprocess.CompletedProcess[str]:
    """What a verb says of all hosts that live: what a busy one does not tell in time is left out, which is said on stderr; so it is asked again."""
    deadline = time.monotonic() + SOON
    while True:
        done = ask()
        silent = SILENT.search(done.stderr)
        if silent is None or not any(map(lives, silent[1].split(", "))):
            return done
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.05)


@dataclass
class Pool:
    """Hosts by their names; the first one is the head. The token is an admin's."""

    folder: Path
    hosts: dict[str, Server] = field(default_factory=dict)
    token: str = ""

    def env(self, name: str) -> dict[str, str]:
        more = {"GPUVIRT_TOKEN": self.token} if self.token else {}
        return clean_environment(GPUVIRT_STATE=str(self.folder / name / "state"), **more)

    def start(self, name: str, gpus: int, *options: str, listen: str = "127.0.0.1:0", prefix: list[str] | None = None) -> Server:
        """A host; the first is the head."""
        line = [*self.part(name), "--name", name, "--backend", "soft", "--gpus", str(gpus), "--gpu-memory", "256m", *options]
        server = self.hosts[name] = start_server(self.folder / name, *line, env=self.env(name), listen=listen, prefix=prefix)
        if not self.token:
            self.token = self.token_of(name)
        return server

    def token_of(self, name: str) -> str:
        """The first one of a host's user, the pool's if that host began it."""
        show = subprocess.run([*GPUVIRT, "token", "show"], capture_output=True, text=True, env=self.env(name), check=True, timeout=SOON)
        return show.stdout.strip()

    def joined(self, name: str) -> Path:
        """Where a host that is not the head has what it knows of the pool."""
        (found,) = (self.folder / name / "state").glob("joined-*")
        return found

    def part(self, name: str) -> list[str]:
        """How a host becomes one of the pool."""
        return ["--join", next(iter(self.hosts.values())).url] if self.hosts and name != next(iter(self.hosts)) else ["--head"]

    def stop_scheduler(self) -> None:
        """Until it is started, there is none."""
        next(iter(self.hosts.values())).stop(signal.SIGKILL)

    def start_scheduler(self) -> None:
        name, head = next(iter(self.hosts.items()))
        self.start(name, 1, listen=head.info["address"])

    def stop(self) -> None:
        for server in self.hosts.values():
            server.stop()

    # ---- as a user ------------------------------------------------------------------------------------------------------

    def gpuvirt(self, at: str, *line: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """A verb, asked of a host."""
        env = clean_environment(GPUVIRT_TOKEN=self.token, GPUVIRT_POOL=self.hosts[at].url) | env
        return subprocess.run([*GPUVIRT, *line], capture_output=True, text=True, env=env, check=check, timeout=SOON)

    def lives(self, name: str) -> bool:
        return name in self.hosts and self.hosts[name].process.poll() is None

    def shown(self, at: str, *line: str, **env: str) -> str:
        """What a verb shows of all hosts that a test has not stopped."""
        return of_all(lambda: self.gpuvirt(at, *line, **env), self.lives).stdout

    def json(self, at: str, verb: str, *line: str) -> list[dict[str, Any]]:
        parsed: list[dict[str, Any]] = json.loads(self.shown(at, verb, *line, "--json"))
        return parsed

    def run(self, at: str, command: list[str | Path], *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_program(self.hosts[at].url, command, *options, GPUVIRT_TOKEN=env.pop("token", self.token), **env)

    def running(self, at: str, command: list[str | Path], *options: str) -> Any:
        return running(self.hosts[at].url, command, *options, GPUVIRT_TOKEN=self.token)

    def placed(self, at: str) -> list[str]:
        """The host of each session, as one of them says."""
        return sorted(session["server"] for lease in self.json(at, "ps") for session in lease["sessions"])

    def programs_at(self, at: str, host: str, programs: list[Any]) -> list[Any]:
        """Those of `running` whose sessions are at a host, as another one says."""
        pids = {session["pid"] for lease in self.json(at, "ps") for session in lease["sessions"] if session["server"] == host}
        return [program for program in programs if pids & children(program.pid).keys()]

    def are_there(self, at: str, *names: str) -> bool:
        """Whether these are the hosts of the pool, as one of them says."""
        status = check_pool(parse_pool(self.hosts[at].url), self.token)
        answer = ask(status, "devices")
        return sorted({device["server"] for device in answer["devices"]} | {*answer["silent"]}) == sorted(names)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One GPU at the head, two and two at others."""
    pool = Pool(tmp_path_factory.mktemp("three"))
    for name, gpus in (("alder", 1), ("birch", 2), ("cedar", 2)):
        pool.start(name, gpus, "--metrics", "127.0.0.1:0")
    wait_until(lambda: pool.are_there("alder", "alder", "birch", "cedar"))
    yield pool
    pool.stop()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Pool]:
    """Hosts that a test starts, and may kill."""
    pool = Pool(tmp_path)
    yield pool
    pool.stop()


def test_any_host_answers_for_all(three: Pool, build: Callable[..., Path], tmp_path: Path) -> None:
    """A program gets the GPUs of whichever host has them, and all hosts show the same."""
    program = build("vector_add")
    for at in three.hosts:
        assert_right(three.run(at, [program], "--gpus", "2"))
    with three.running("alder", [*STAYS, tmp_path / "end"], "--gpus", "2", "--compute", "1") as one:
        seen = [three.placed(at) for at in three.hosts]
        assert seen[0] in (["birch"], ["cedar"]) and seen == [seen[0]] * 3
        shown = three.shown("cedar", "ps")
        assert f"{seen[0][0]}:0,1 × 1" in shown and "pool of 3 hosts" in three.gpuvirt("birch", "top", "--once").stdout
        (tmp_path / "end").touch()
        assert one.communicate(timeout=SOON)[0] == "right\n"


def test_any_host_has_the_metrics_of_all(three: Pool, tmp_path: Path) -> None:
    """Each by its name; a host's own page has its own numbers only."""

    def scraped(at: str, page: str) -> list[Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{three.hosts[at].info['metrics_port']}{page}", timeout=SOON) as answer:
            return [sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples]

    pages: list[list[Any]] = []

    def all_answered(at: str) -> bool:
        """A page of the pool says which hosts have not, as busy ones may."""
        pages.append(scraped(at, "/metrics/pool"))
        return all(s.value for s in pages[-1] if s.name == "gpuvirt_host_up")

    with three.running("alder", [*STAYS, tmp_path / "end"], "--gpus", "2"):
        (where,) = three.placed("alder")
        for at in three.hosts:
            wait_until(lambda: all_answered(at))  # noqa: B023 (it is called at once)
            own = scraped(at, "/metrics")
            attached = {s.labels["server"]: s.value for s in pages[-1] if s.name == "gpuvirt_sessions" and s.labels["state"] == "attached"}
            assert attached == {name: float(name == where) for name in three.hosts}
            assert {s.labels["server"]: s.value for s in pages[-1] if s.name == "gpuvirt_host_up"} == dict.fromkeys(three.hosts, 1.0)
            assert sum(s.name == "gpuvirt_device_sessions" for s in pages[-1]) == 5
            mine = {s.value for s in own if s.name == "gpuvirt_sessions" and s.labels["state"] == "attached"}
            assert mine == {float(at == where)}


def test_who_asks_for_too_much_is_told_what_there_is(three: Pool) -> None:
    for at in three.hosts:
        done = three.run(at, ["true"], "--gpus", "3")
        assert done.returncode != 0 and "no host of this pool has more than 2 GPUs" in done.stderr


def test_the_lowest_limit_of_memory_holds_for_the_pool(hosts: Pool) -> None:
    """Also where the host that is asked, or that has the GPUs, has none."""
    hosts.start("oak", 1)
    hosts.start("elm", 2, "--memory-per-session", "64m")
    wait_until(lambda: hosts.are_there("oak", "oak", "elm"))
    for at in hosts.hosts:
        done = hosts.run(at, [*STAYS, "/dev/null"], "--memory", "128m")
        assert done.returncode != 0 and "64.0 MiB" in done.stderr, done.stdout + done.stderr
        assert hosts.run(at, [*STAYS, "/dev/null"], "--memory", "32m").stdout == "running\nright\n"


def test_leases_that_reserve_fill_the_pool_and_the_next_waits(three: Pool, tmp_path: Path) -> None:
    """Five GPUs for five programs, whoever is asked; a sixth says that it waits, and gets what one of them has had."""
    names, ends = [*three.hosts], [tmp_path / str(number) for number in range(6)]
    programs = [three.running(names[n % 3], [*STAYS, ends[n]], "--compute", "1") for n in range(5)]
    for program in programs:
        program.__enter__()
    try:
        assert three.placed("birch") == ["alder", "birch", "birch", "cedar", "cedar"]
        refused = three.run("cedar", ["true"], "--compute", "1", "--no-wait")
        assert refused.returncode == 0, "a program without CUDA needs no GPU"
        refused = three.run("cedar", [*STAYS, ends[5]], "--compute", "1", "--no-wait")
        assert refused.returncode != 0 and "cannot be had without waiting" in refused.stderr
        line = [*GPUVIRT, "run", "--pool", three.hosts["birch"].url, "--compute", "1", "--", *map(str, [*STAYS, ends[5]])]
        env = clean_environment(GPUVIRT_TOKEN=three.token)
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as sixth:
            wait_until(lambda: [(lease["place"], lease["queued"]) for lease in three.json("birch", "ps") if lease["state"] == "queued"] == [(1, 1)])
            ends[0].touch()
            ends[5].touch()
            out, err = sixth.communicate(timeout=SOON)
            assert out == "running\nright\n" and "waiting for" in err, out + err
    finally:
        for end in ends:
            end.touch()
        for program in programs:
            program.__exit__(None, None, None)


def test_all_processes_of_a_launch_are_on_one_host_and_nothing_is_left(three: Pool, tmp_path: Path) -> None:
    """Also when they begin at the same time; the lease ends with the launch, wherever it was."""
    with three.running("alder", [*STAYS, tmp_path / "end", "3"], "--gpus", "2", "--compute", "1") as program:
        placed = three.placed("alder")
        assert len(placed) == 3 and len(set(placed)) == 1
        (tmp_path / "end").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n"
    began = time.monotonic()
    wait_until(lambda: not three.json("birch", "ps"))
    print(f"the lease was over after {time.monotonic() - began:.1f} s")


def test_attach_and_remote(three: Pool, tmp_path: Path) -> None:
    """A shell's lease and a block's are at the host that has them; what works under it does so there, and it is given back."""
    (tmp_path / "end").touch()
    work = " ".join(map(str, [*STAYS, tmp_path / "end"]))
    line = [*GPUVIRT, "attach", "--gpus", "2", "--compute", "1"]
    env = clean_environment(GPUVIRT_TOKEN=three.token, GPUVIRT_POOL=three.hosts["alder"].url, SHELL="/bin/sh")
    said = f"{work}; env | grep GPUVIRT_POOL; {' '.join(GPUVIRT)} ps --json\n"
    done = subprocess.run(line, input=said, capture_output=True, text=True, env=env, timeout=SOON, check=False)
    assert done.returncode == 0 and done.stdout.startswith("running\nright\nGPUVIRT_POOL="), done.stdout + done.stderr
    (lease,) = json.loads(done.stdout.split("\n", 3)[3])
    assert lease["named"] and lease["server"] in ("birch", "cedar") and three.hosts[lease["server"]].url in done.stdout
    wait_until(lambda: not three.json("alder", "ps"))
    code = f"""
import gpuvirt, runpy, sys
with gpuvirt.remote(gpus=2) as lease:
    assert [d.server for d in lease.devices] in (["birch"] * 2, ["cedar"] * 2), lease.devices
    sys.argv = ["stays.py", {str(tmp_path / "end")!r}]
    runpy.run_path({str(HERE / "programs" / "stays.py")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=SOON, check=False)
    assert done.stdout == "running\nright\n", done.stdout + done.stderr


def test_a_token_of_the_pool_is_good_at_all_hosts_until_it_is_revoked(three: Pool, tmp_path: Path) -> None:
    """Made by asking one that is not the head; revoked, its session at another host is ended."""
    token = three.gpuvirt("cedar", "token", "create", "guest", "--pool", three.hosts["cedar"].url).stdout.strip().splitlines()[-1]
    wait_until(lambda: three.run("birch", [*STAYS, "/dev/null"], token=token).stdout == "running\nright\n")
    shown = three.gpuvirt("birch", "ps", "--json", GPUVIRT_TOKEN=token)
    assert shown.returncode == 0
    join = subprocess.run(
        [*GPUVIRT, "serve", "--join", three.hosts["alder"].url, "--listen", "127.0.0.1:0", "--backend", "soft"],
        capture_output=True,
        text=True,
        env=clean_environment(GPUVIRT_TOKEN=token, GPUVIRT_STATE=str(tmp_path / "state")),
        timeout=SOON,
        check=False,
    )
    assert join.returncode != 0 and "'guest' may use GPUs but not add hosts" in join.stderr
    line = [*GPUVIRT, "run", "--pool", three.hosts["alder"].url, "--gpus", "2", "--", *map(str, [*STAYS, tmp_path / "never"])]
    env = clean_environment(GPUVIRT_TOKEN=token)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as guest:
        assert read_line(guest) == "running\n"
        three.gpuvirt("birch", "token", "revoke", "guest", "--pool", three.hosts["birch"].url)
        out, err = guest.communicate(timeout=SOON)
    assert guest.returncode != 0 and "revoked" in err, out + err


def test_the_scheduler_is_killed_and_comes_back(hosts: Pool, tmp_path: Path) -> None:
    """What works goes on, also where a host is started anew before there is one; what comes waits, and the next scheduler finds everything."""
    hosts.start("oak", 1)
    hosts.start("elm", 2, "--gpus", "2")
    wait_until(lambda: hosts.are_there("oak", "oak", "elm"))
    with hosts.running("elm", [*STAYS, tmp_path / "one"], "--gpus", "2", "--compute", "1") as works:
        hosts.stop_scheduler()
        hosts.hosts["elm"].stop(signal.SIGKILL)
        elm = hosts.start("elm", 2, "--gpus", "2", listen=hosts.hosts["elm"].info["address"])
        assert "goes on with what it has" in elm.log.read_text()
        line = [*GPUVIRT, "run", "--pool", hosts.hosts["elm"].url, "--", *map(str, [*STAYS, tmp_path / "two"])]
        env = clean_environment(GPUVIRT_TOKEN=hosts.token)
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as waits:
            wait_until(lambda: any(lease["state"] == "queued" and "does not answer" in lease["why"] for lease in hosts.json("elm", "ps")))
            hosts.start_scheduler()
            wait_until(lambda: hosts.are_there("oak", "oak", "elm"))
            (tmp_path / "two").touch()
            assert waits.communicate(timeout=SOON)[0] == "running\nright\n"
        (lease,) = [lease for lease in hosts.json("oak", "ps") if lease["sessions"]]
        assert (lease["server"], lease["gpus"]) == ("elm", 2)
        refused = hosts.run("oak", [*STAYS, "/dev/null"], "--gpus", "2", "--compute", "0.5", "--no-wait")
        assert refused.returncode != 0 and "cannot be had without waiting" in refused.stderr, "what elm has was granted twice"
        (tmp_path / "one").touch()
        assert works.communicate(timeout=SOON)[0] == "right\n"


def test_a_host_that_is_killed_is_known_lost(hosts: Pool, tmp_path: Path) -> None:
    """Its GPUs are not there any more, its program hears which server is gone, and others go on."""
    hosts.start("oak", 1)
    elm = hosts.start("elm", 2, "--grace", "2s")
    wait_until(lambda: hosts.are_there("oak", "oak", "elm"))
    with hosts.running("oak", [*STAYS, tmp_path / "end"], "--gpus", "2", "--link", "tcp") as lost:
        pids = [session["worker_pid"] for lease in hosts.json("oak", "ps") for session in lease["sessions"]]
        assert len(pids) == 1
        elm.stop(signal.SIGKILL)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: hosts.are_there("oak", "oak"))
        print(f"known to be lost after {time.monotonic() - killed:.1f} s")
        out, err = lost.communicate(timeout=SOON)
        assert lost.returncode != 0 and elm.url.removeprefix("tcp://") in err, out + err
    assert "this pool has 1 GPU" in hosts.run("oak", ["true"], "--gpus", "2").stderr
    assert hosts.run("oak", [*STAYS, "/dev/null"]).stdout == "running\nright\n"


def test_what_cannot_be_joined_says_why(hosts: Pool, own_pool: Callable[..., Server], tmp_path: Path) -> None:
    alone = own_pool()
    hosts.start("oak", 1)

    def refused(*options: str, **env: str) -> str:
        line = [*GPUVIRT, "serve", "--listen", "127.0.0.1:0", "--backend", "soft", *options]
        env = clean_environment(GPUVIRT_STATE=str(tmp_path / "other"), **env)
        done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=SOON, check=False)
        assert done.returncode != 0
        return done.stderr

    assert "start it with `gpuvirt serve --head`" in refused("--join", alone.url, GPUVIRT_TOKEN=alone.token())
    assert "no GPU server at tcp://127.0.0.1:9" in refused("--join", "tcp://127.0.0.1:9", GPUVIRT_TOKEN=hosts.token)
    assert "the token was not accepted" in refused("--join", hosts.hosts["oak"].url, GPUVIRT_TOKEN=alone.token())
    assert "is not a pool" in refused("--join", "nonsense")
    assert "give one of them" in refused("--join", hosts.hosts["oak"].url, "--head")
    twin = start_server(tmp_path / "twin", "--join", hosts.hosts["oak"].url, "--name", "oak", "--backend", "soft", env=hosts.env("twin"))
    wait_until(lambda: "with another --name" in twin.log.read_text())
    twin.stop()


def test_an_address_that_leads_to_another_host(three: Pool) -> None:
    """What it has is not counted twice: it says that another was meant."""
    birch, token = check_pool(parse_pool(three.hosts["birch"].url), three.token), parse_token(three.token)
    with pytest.raises(RequestRefused, match="another host was meant: this is birch"):
        ask(birch, "devices", alone=True, meant="cedar")
    asker: Any = SimpleNamespace(id=token.id.hex(), key=token.secret)
    entry = HostEntry("cedar", three.hosts["birch"].url, (), control_port=birch.greeting.control_port)

    async def own(message: dict[str, Any]) -> dict[str, Any]:
        return {"server": "alder", "backend": "soft", "devices": []}

    store: Any = SimpleNamespace(public_key=token.server_key)
    answer = asyncio.run(WholePool("alder", store, lambda: [entry]).over({"devices": own})["devices"]({"from": asker}))
    assert answer["silent"] == ["cedar"] and not answer["devices"]


def test_a_server_that_is_no_pool_of_many_loads_nothing_of_it() -> None:
    code = "import sys, gpuvirt.server.daemon; print([m for m in sys.modules if m.startswith(('gpuvirt.cluster', 'numpy', 'ray'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SOON)
    assert done.stdout == "[]\n"


def test_a_lease_that_is_named_by_hand_is_found_from_where_it_was_opened(three: Pool, tmp_path: Path) -> None:
    """`gpuvirt attach --print` asked the head, and another shell has the lease's variables and the head's address."""
    with subprocess.Popen(["sleep", "100"]) as watched:
        printed = three.gpuvirt("alder", "attach", "--print", "--pid", str(watched.pid), "--gpus", "2").stdout
        said = dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines() if line.startswith("export GPUVIRT_"))
        lease = said["GPUVIRT_LEASE"].strip("'\"")
        assert three.hosts["alder"].url not in said["GPUVIRT_POOL"]
        work = [*map(str, STAYS), "/dev/null"]
        assert three.gpuvirt("alder", "run", "--", *work, GPUVIRT_LEASE=lease).stdout == "running\nright\n"
        code = "import gpuvirt\nwith gpuvirt.remote(gpus=2) as lease: print(len(lease.devices), lease.pool)"
        env = clean_environment(GPUVIRT_TOKEN=three.token, GPUVIRT_POOL=three.hosts["alder"].url, GPUVIRT_LEASE=lease)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=SOON, check=False)
        assert done.stdout.startswith("2 tcp://") and three.hosts["alder"].url not in done.stdout, done.stdout + done.stderr
        watched.kill()
    wait_until(lambda: not three.json("alder", "ps"))
