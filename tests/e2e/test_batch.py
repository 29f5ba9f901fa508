"""`gpuvirt batch`: jobs of several ranks, in the background."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, HERE, Server, clean_environment, read_line
from e2e.test_many_hosts import SOON, Pool, of_all, wait_until

pytestmark = pytest.mark.slow

RANKS = [sys.executable, str(HERE / "programs" / "ranks.py")]
FAILS = [sys.executable, "-c", "import os, sys, time; time.sleep(30 if os.environ['RANK'] == '0' else 0.2); sys.exit(7)"]


class Jobs:
    """The jobs of one user of a pool."""

    def __init__(self, folder: Path, url: str, token: str | None = None) -> None:
        self.folder = folder
        more = {"GPUVIRT_TOKEN": token} if token else {}
        self.env = clean_environment(GPUVIRT_STATE=str(folder / "jobs"), GPUVIRT_POOL=url, **more)

    def __call__(self, verb: str, *line: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        line = (*GPUVIRT, "batch", verb, *line)
        done = subprocess.run(line, capture_output=True, text=True, env=self.env, check=False, timeout=SOON, cwd=self.folder)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def submit(self, *line: str) -> str:
        return self("submit", "-q", *line).stdout.strip()

    def job(self, id: str) -> dict[str, Any]:
        (found,) = [job for job in json.loads(self("list", "--json").stdout) if job["id"] == id]
        return dict(found)

    def state(self, id: str) -> str:
        return str(self.job(id)["state"])

    def gpuvirt(self, *line: str) -> str:
        done = of_all(lambda: subprocess.run([*GPUVIRT, *line], capture_output=True, text=True, check=False, env=self.env, timeout=SOON))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ranks(self, file: str = "never") -> list[str]:
        """A command whose ranks do nothing until this file of the folder exists."""
        return [*RANKS, str(self.folder / file)]

    def let(self, file: str) -> None:
        (self.folder / file).touch()

    def leases(self) -> list[dict[str, Any]]:
        """Of the pool."""
        return list(json.loads(self.gpuvirt("ps", "--json")))


@contextlib.contextmanager
def several_hosts(folder: Path, names: tuple[str, ...], gpus: int) -> Iterator[tuple[Pool, Jobs]]:
    pool = Pool(folder)
    try:
        for name in names:
            pool.start(name, gpus, "--link", "tcp", "--grace", "2s")
        wait_until(lambda: pool.are_there(names[0], *names))
        yield pool, Jobs(folder, pool.hosts[names[0]].url, pool.token)
    finally:
        pool.stop()


@pytest.fixture
def jobs(tmp_path: Path, own_pool: Callable[..., Server]) -> Iterator[Jobs]:
    """On a pool of two GPUs."""
    env = clean_environment(GPUVIRT_STATE=str(tmp_path / "jobs"))  # with tokens of its own
    server = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", env=env)
    yield Jobs(tmp_path, server.url)


def test_ranks_begin_together_and_meet(jobs: Jobs) -> None:
    """Each has a GPU of its own, which is GPU 0 to it, and finds the others."""
    submitted = jobs("submit", "--ranks", "2", "--", *RANKS)
    id = submitted.stdout.strip()
    assert f"job {id} (ranks.py): running" in submitted.stderr
    done = jobs("wait", id)
    assert done.returncode == 0 and "done" in done.stderr
    assert sorted(jobs("logs", id).stdout.splitlines()) == ["[0] computed", "[0] rank 0 of 2: 11", "[1] computed", "[1] rank 1 of 2: 11"]
    assert jobs("logs", "ranks.py", "--rank", "1").stdout == "computed\nrank 1 of 2: 11\n"
    shown = " ".join(jobs("list").stdout.split())
    assert f"{id} │ ranks.py │ done │ 2 × 1" in shown
    assert not jobs.leases()


def test_all_ranks_or_none(jobs: Jobs) -> None:
    """Three jobs that each need both GPUs: never two at a time, and none waits for ever for the second GPU of what another has half of."""
    order = jobs.folder / "order"
    lines = [f"echo {n} >> {order}; {' '.join(RANKS)}; sleep 0.5; echo {n} >> {order}" for n in range(3)]
    ids = [jobs.submit("--ranks", "2", "--compute", "1", "--", "sh", "-ec", line) for line in lines]
    while any(jobs.state(id) in ("queued", "running") for id in ids):
        assert [len(lease["devices"]) for lease in jobs.leases() if lease["devices"]] in ([], [2])
        waiting = [job["why"] for job in map(jobs.job, ids) if job["state"] == "queued"]
        assert all("waiting for 2 GPUs" in why or "asks" in why for why in waiting), waiting
    assert [jobs.state(id) for id in ids] == ["done"] * 3
    said = order.read_text().split()  # by each rank when it begins and when it ends: those of another job come before all of them, or after
    assert [len({*said[at : at + 4]}) for at in range(0, len(said), 4)] == [1] * 3, said


@pytest.mark.wide
def test_the_higher_priority_goes_first(jobs: Jobs) -> None:
    jobs.env["GPUVIRT_TOKEN"] = jobs.gpuvirt("token", "create", "important", "--priority", "5", "--pool", jobs.env["GPUVIRT_POOL"]).split()[-1]
    first = jobs.submit("--ranks", "2", "--compute", "1", "--", *jobs.ranks())
    later = jobs.submit("--ranks", "2", "--compute", "1", "--", *RANKS)
    high = jobs.submit("--ranks", "2", "--compute", "1", "--priority", "5", "--", *RANKS)
    assert "place 1 of 2" in jobs.job(high)["why"]
    jobs("cancel", first)
    assert jobs("wait", later).returncode == 0 and jobs.state(high) == "done"
    assert jobs.job(high)["started"] < jobs.job(later)["started"]


@pytest.mark.wide
def test_ranks_over_several_hosts(tmp_path: Path) -> None:
    """Four ranks on hosts of two GPUs: they begin when there is room for all, and each has a GPU that is its GPU 0. Two such jobs take turns."""
    with several_hosts(tmp_path, ("alder", "birch", "cedar"), 2) as (pool, jobs):
        pids = tmp_path / "pids"
        first = jobs.submit("--ranks", "4", "--compute", "1", "--", "sh", "-c", f"echo $$ >> {pids}; exec {' '.join(jobs.ranks())}")
        wait_until(lambda: sorted(pool.placed("alder")) in [[a, a, b, b] for a, b in itertools.combinations(pool.hosts, 2)])
        after = f"for pid in $(cat {pids}); do ! kill -0 $pid || exit 9; done; exec {' '.join(RANKS)}"  # no rank of the first lives
        second = jobs.submit("--ranks", "4", "--compute", "1", "--", "sh", "-c", after)
        wait_until(lambda: "waiting for 4 GPUs" in jobs.job(second)["why"] and "2 of the 4 GPUs" in jobs.job(second)["why"])
        assert len(jobs.job(first)["places"]) == 2 and jobs.state(first) == "running"
        jobs("cancel", first)
        assert jobs("wait", second).returncode == 0
        said = sorted(line for line in jobs("logs", second).stdout.splitlines() if "rank" in line)
        assert said == [f"[{rank}] rank {rank} of 4: 1111" for rank in range(4)]
        assert len(pids.read_text().split()) == 4
        assert not jobs.leases()
        refused = jobs("submit", "--ranks", "7", "--compute", "1", "--", *RANKS, check=False)
        assert refused.returncode == 125 and "7 GPUs were asked for and this pool has 6" in refused.stderr


def gives_way(jobs: Jobs, ranks: int) -> tuple[str, str]:
    """A job that has both hosts, and one of a higher priority that has some of them by now, or both; each waits for the file of its name."""
    grant_priority(jobs)
    low = jobs.submit("--ranks", "2", "--compute", "1", "--preemptible", "--priority", "-1", "--", *jobs.ranks("low"))
    wait_until(lambda: jobs("logs", low).stdout.count("computed") == 2)
    high = jobs.submit("--ranks", str(ranks), "--compute", "1", "--", *jobs.ranks("high"))
    wait_until(lambda: jobs("logs", high).stdout.count("computed") == ranks)
    return low, high


def go_on(jobs: Jobs, low: str, high: str) -> None:
    """The one that gave way has been suspended, both of its leases, and is right."""
    for name, id in (("high", high), ("low", low)):
        jobs.let(name)
        assert jobs("wait", id).returncode == 0
    job = jobs.job(low)
    assert (job["attempt"], job["suspended"], job["preempted"]) == (1, 2, 0) and jobs("logs", low).stdout.count(": 11") == 2


@pytest.mark.wide
def test_a_job_over_several_hosts_gives_way_and_goes_on(tmp_path: Path) -> None:
    """On both of its hosts, to one that needs them both; meanwhile it is not drained."""
    with several_hosts(tmp_path, ("alder", "birch"), 1) as (pool, jobs):
        low, high = gives_way(jobs, 2)
        assert sorted(lease["state"] for lease in jobs.leases()) == ["attached"] * 2 + ["suspended"] * 2
        admin = jobs.env | {"GPUVIRT_TOKEN": pool.token}
        line = [*GPUVIRT, "drain", "--timeout", "1s", "birch"]
        drained = subprocess.run(line, env=admin, capture_output=True, text=True, timeout=SOON, check=False)
        assert drained.returncode == 1 and "given way" in drained.stdout + drained.stderr, drained
        subprocess.run([*GPUVIRT, "drain", "--undo", "birch"], env=admin, check=True, timeout=SOON)
        go_on(jobs, low, high)


def test_a_job_over_several_hosts_gives_way_as_a_whole(tmp_path: Path) -> None:
    """To one that needs one of its GPUs: the other one is free for others meanwhile, as the job could not use it."""
    with several_hosts(tmp_path, ("alder", "birch"), 1) as (_pool, jobs):
        low, high = gives_way(jobs, 1)
        wait_until(lambda: sorted(lease["state"] for lease in jobs.leases()) == ["attached", "suspended", "suspended"])
        go_on(jobs, low, high)


@pytest.mark.wide
def test_ranks_over_several_hosts_of_which_one_is_lost(tmp_path: Path) -> None:
    """All of them begin anew where there is room for all."""
    with several_hosts(tmp_path, ("alder", "birch", "cedar", "dogwood"), 1) as (pool, jobs):
        id = jobs.submit("--ranks", "2", "--compute", "1", "--", *jobs.ranks("lost"))
        wait_until(lambda: len(pool.placed("alder")) == 2)
        lost = next(name for name in pool.placed("alder") if name != "alder")
        wait_until(lambda: jobs("logs", id).stdout.count("computed") == 2)
        workers = [session["worker_pid"] for lease in pool.json("alder", "ps") for session in lease["sessions"] if session["server"] == lost]
        pool.hosts[lost].stop(signal.SIGKILL)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        jobs.let("lost")
        assert jobs("wait", id).returncode == 0
        job = jobs.job(id)
        assert job["attempt"] == 2 and job["lost"] == 1 and jobs("logs", id).stdout.count(": 11") == 2


def run_important(jobs: Jobs, *line: str) -> None:
    """A program of a higher priority than jobs of -1 has both GPUs of the pool, and is right."""
    done = subprocess.run(
        [*GPUVIRT, "run", "--gpus", "2", *line, "--", sys.executable, str(HERE / "programs" / "each_gpu.py")],
        env=jobs.env, capture_output=True, text=True, timeout=SOON, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and " right" in done.stdout, done.stdout + done.stderr


def grant_priority(jobs: Jobs) -> None:
    jobs.env["GPUVIRT_TOKEN"] = jobs.gpuvirt("token", "create", "important", "--priority", "5", "--pool", jobs.env["GPUVIRT_POOL"]).split()[-1]


def test_a_job_gives_way_and_goes_on(jobs: Jobs) -> None:
    """A preemptible one to programs of a higher priority: it is suspended, in the middle of its ranks, which notice nothing; and that twice."""
    grant_priority(jobs)
    low = jobs.submit("--ranks", "2", "--compute", "1", "--preemptible", "--priority", "-1", "--", *jobs.ranks("low"))
    wait_until(lambda: jobs("logs", low).stdout.count("computed") == 2)
    for times in (1, 2):
        run_important(jobs, "--compute", "1")
        wait_until(lambda times=times: itemgetter("suspended", "state")(jobs.job(low)) == (times, "running"))  # type: ignore[misc]
    jobs.let("low")
    assert jobs("wait", low).returncode == 0
    job = jobs.job(low)
    assert (job["attempt"], job["suspended"], job["preempted"], job["lost"]) == (1, 2, 0, 0)
    assert jobs("logs", low).stdout.count("computed") == 2 and jobs("logs", low).stdout.count(": 11") == 2


def test_a_job_that_has_given_way_is_seen(jobs: Jobs) -> None:
    """By `ps`, `top` and `batch list`, with the reason; it can be cancelled then, too."""
    grant_priority(jobs)
    low = jobs.submit("--ranks", "2", "--compute", "1", "--preemptible", "--priority", "-1", "--", *jobs.ranks())
    wait_until(lambda: jobs("logs", low).stdout.count("computed") == 2)
    high = jobs.submit("--ranks", "2", "--compute", "1", "--priority", "5", "--", *jobs.ranks())
    wait_until(lambda: jobs.state(low) == "suspended" and jobs.state(high) == "running")
    assert jobs.job(low)["why"] == "it gives way: a lease of priority 5 waits for its GPUs"
    (lease,) = [lease for lease in jobs.leases() if lease["state"] == "suspended"]
    assert [session["state"] for session in lease["sessions"]] == ["parked"] * 2 and lease["devices"] == [0, 1]
    assert f"{lease['lease'][:8]} gives way: a lease of priority 5 waits for its GPUs" in jobs.gpuvirt("ps")
    assert "1 attached, 0 parked, 1 suspended" in jobs.gpuvirt("top", "--once")
    assert "cancelled" in jobs("cancel", low).stderr and jobs("wait", low, check=False).returncode == 130
    wait_until(lambda: [lease["state"] for lease in jobs.leases()] == ["attached"])
    assert "cancelled" in jobs("cancel", high).stderr


def test_a_job_that_cannot_be_suspended_gives_way_and_begins_anew(jobs: Jobs, own_pool: Callable[..., Server], tmp_path: Path) -> None:
    """A server with --strict parks nothing: the job is ended, which is no retry; when the program has ended it begins anew."""
    env = clean_environment(GPUVIRT_STATE=str(tmp_path / "strict"))
    jobs.env["GPUVIRT_POOL"] = own_pool("--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "256m", env=env).url
    jobs.env["GPUVIRT_STATE"] = str(tmp_path / "strict")
    grant_priority(jobs)
    low = jobs.submit("--ranks", "2", "--memory", "200m", "--preemptible", "--priority", "-1", "--", *jobs.ranks("low"))
    wait_until(lambda: jobs("logs", low).stdout.count("computed") == 2)
    run_important(jobs, "--memory", "200m")
    jobs.let("low")
    assert jobs("wait", low).returncode == 0
    job = jobs.job(low)
    assert (job["attempt"], job["preempted"], job["lost"]) == (2, 1, 0) and jobs("logs", low).stdout.count(": 11") == 2


def test_a_failure_ends_all_ranks_and_is_retried(jobs: Jobs) -> None:
    """The rank that would go on for half a minute does not; the exit code is that of the one that failed."""
    began = time.monotonic()
    id = jobs.submit("--ranks", "2", "--retries", "2", "--name", "fails", "--", *FAILS)
    done = jobs("wait", id, "--json", check=False)
    job = json.loads(done.stdout)
    assert done.returncode == 7 and job["state"] == "failed" and job["attempt"] == 3 and job["why"] == "rank 1 ended with exit code 7"
    assert time.monotonic() - began < 29 * 3
    assert len([*(jobs.folder / "jobs" / "batch" / id).glob("attempt-*")]) == 3
    assert jobs("logs", id, "--attempt", "4", check=False).returncode == 125
    assert "has ranks 0 to 1" in jobs("logs", id, "--rank", "2", check=False).stderr


def test_a_job_waits_for_a_pool_that_is_away(jobs: Jobs, own_pool: Callable[..., Server], tmp_path: Path) -> None:
    """Between two attempts its server ends, and is started anew. A pool that does not answer gets no job."""
    options = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m")
    env = clean_environment(GPUVIRT_STATE=str(tmp_path / "jobs"))
    server = own_pool(*options, env=env)
    jobs.env["GPUVIRT_POOL"] = server.url
    id = jobs.submit("--retries", "99", "--", "sh", "-c", f"test -e {tmp_path}/there")  # it is between two of them for a short time only
    wait_until(lambda: ": rank 0 ended with exit code 1" in jobs.job(id)["why"])
    server.stop()
    wait_until(lambda: "no GPU server" in jobs.job(id)["why"])
    before = jobs.job(id)["attempt"]
    refused = jobs("submit", "-q", "--", "true", check=False)
    assert refused.returncode == 125 and "no GPU server" in refused.stderr
    (tmp_path / "there").touch()
    own_pool(*options, env=env, listen=server.info["address"])
    assert jobs("wait", id, check=False).returncode == 0
    assert jobs.job(id)["attempt"] == before + 1, "waiting is no attempt"


def test_a_job_waits_for_a_pool_that_has_become_too_small(jobs: Jobs, own_pool: Callable[..., Server], tmp_path: Path) -> None:
    """It has had its GPUs; then there are fewer for a while."""
    server = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", env=jobs.env)
    jobs.env["GPUVIRT_POOL"] = server.url
    id = jobs.submit("--ranks", "2", "--retries", "99", "--", "sh", "-c", f"test -e {tmp_path}/there")
    wait_until(lambda: ": rank" in jobs.job(id)["why"])
    server.stop()
    smaller = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", env=jobs.env, listen=server.info["address"])
    wait_until(lambda: "2 GPUs were asked for and this pool has 1" in jobs.job(id)["why"])
    before = jobs.job(id)["attempt"]
    (tmp_path / "there").touch()
    assert jobs.state(id) == "queued"
    smaller.stop()
    own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", env=jobs.env, listen=server.info["address"])
    assert jobs("wait", id, check=False).returncode == 0
    assert jobs.job(id)["attempt"] == before + 1, "waiting is no attempt"


def test_what_can_never_run_is_refused_at_once(jobs: Jobs) -> None:
    refused = jobs("submit", "--ranks", "3", "--", *RANKS, check=False)
    assert refused.returncode == 125 and "3 GPUs were asked for and this pool has 2" in refused.stderr
    refused = jobs("submit", "--ranks", "3", "--nodes", "3", "--", *RANKS, check=False)
    assert refused.returncode == 125 and "3 GPUs were asked for and this pool has 2" in refused.stderr
    assert "18 on one host" in jobs("submit", "--ranks", "9", "--nodes", "1", "--gpus", "2", "--", *RANKS, check=False).stderr
    assert "evenly among 2 nodes" in jobs("submit", "--ranks", "3", "--nodes", "2", "--", *RANKS, check=False).stderr
    assert "no such program" in jobs("submit", "--", "./nothing", check=False).stderr
    del jobs.env["GPUVIRT_POOL"]
    assert "no pool is set" in jobs("submit", "--", *RANKS, check=False).stderr
    assert not json.loads(jobs("list", "--json").stdout)


@pytest.mark.wide
def test_jobs_are_cancelled_and_have_deadlines(jobs: Jobs) -> None:
    """While they run and while they wait; their GPUs are free afterwards."""
    runs = jobs.submit("--ranks", "2", "--compute", "1", "--", *jobs.ranks())
    waits = jobs.submit("--ranks", "2", "--compute", "1", "--", *RANKS)
    late = jobs.submit("--compute", "1", "--deadline", "2s", "--", *RANKS)
    assert jobs("wait", late, check=False).returncode == 124 and jobs.state(late) == "late"
    assert jobs("wait", runs, "--timeout", "100ms", check=False).returncode == 3
    assert "cancelled" in jobs("cancel", waits).stderr and jobs("wait", waits, check=False).returncode == 130
    assert "cancelled" in jobs("cancel", runs).stderr and jobs("wait", runs, check=False).returncode == 130
    assert "is over: cancelled" in jobs("cancel", runs, check=False).stderr
    assert jobs("wait", jobs.submit("--ranks", "2", "--compute", "1", "--", *RANKS)).returncode == 0


@pytest.mark.wide
def test_logs_are_followed(jobs: Jobs) -> None:
    id = jobs.submit("--ranks", "2", "--", *jobs.ranks("end"))
    with subprocess.Popen([*GPUVIRT, "batch", "logs", "-f", id], stdout=subprocess.PIPE, text=True, env=jobs.env) as process:
        first = read_line(process)
        assert first.endswith("computed\n") and jobs.state(id) == "running"
        jobs.let("end")
        rest = process.communicate(timeout=SOON)[0]
        assert sorted([first, *rest.splitlines(keepends=True)])[1] == "[0] rank 0 of 2: 11\n" and process.returncode == 0


def runner_of(jobs: Jobs, id: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"gpuvirt.batch.runner" in line and any(id.encode() in part for part in line):
                return int(entry.name)
    raise AssertionError("the job has no runner")


@pytest.mark.wide
def test_a_runner_that_is_killed_takes_its_ranks_along(jobs: Jobs, own_pool: Callable[..., Server]) -> None:
    """The job is lost, and its GPUs come back when nobody has renewed their lease."""
    server = own_pool("--backend", "soft", "--gpus", "2", "--gpu-memory", "256m", "--grace", "5s")
    jobs.env["GPUVIRT_POOL"] = server.url
    id = jobs.submit("--ranks", "2", "--compute", "1", "--", *jobs.ranks())
    wait_until(lambda: len(server.sessions()) == 2)
    os.kill(runner_of(jobs, id), signal.SIGKILL)
    done = jobs("wait", id, check=False)
    assert done.returncode == 125 and "lost" in done.stderr
    wait_until(lambda: not server.leases())


@pytest.mark.wide
def test_a_job_goes_on_at_another_host(tmp_path: Path) -> None:
    """The host of its GPUs is lost, with its machine: the gang begins anew where there is room, which is no retry."""
    pool = Pool(tmp_path)
    try:
        for name in ("alder", "birch", "cedar"):
            pool.start(name, 2 if name != "alder" else 1, "--link", "tcp", "--grace", "2s")
        wait_until(lambda: pool.are_there("alder", "alder", "birch", "cedar"))
        jobs = Jobs(tmp_path, pool.hosts["alder"].url, pool.token)
        begun = f"{tmp_path}/begun$RANK"  # a line for each attempt, which has a file of its own to wait for
        line = f"echo >> {begun}; exec {' '.join(jobs.ranks('attempt'))}$(wc -l < {begun})"
        id = jobs.submit("--ranks", "2", "--compute", "1", "--", "sh", "-c", line)
        wait_until(lambda: len(pool.placed("alder")) == 2)
        (was,) = set(pool.placed("alder"))
        wait_until(lambda: jobs("logs", id).stdout.count("computed") == 2)
        workers = [session["worker_pid"] for lease in pool.json("alder", "ps") for session in lease["sessions"]]
        pool.hosts[was].stop(signal.SIGKILL)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        other = {"birch": "cedar", "cedar": "birch"}[was]
        jobs.let("attempt1")
        wait_until(lambda: pool.placed("alder") == [other] * 2)
        jobs.let("attempt2")
        assert jobs("wait", id).returncode == 0
        job = jobs.job(id)
        assert job["attempt"] == 2 and job["lost"] == 1 and jobs("logs", id).stdout.count(": 11") == 2
    finally:
        pool.stop()
