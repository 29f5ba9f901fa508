"""The tests of pools of many hosts, of pools whose scheduler is an actor of a Ray cluster; and what only those have.

What holds with the scheduler in the daemon of a head holds with one in Ray: the same tests, with another kind of pool.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e import test_batch, test_many_hosts, test_migration, test_rebalancing
from e2e.harness import children, clean_environment, start_server
from e2e.ray_cluster import INSTALLED, RayCluster, RayPool, wait_for_scheduler
from e2e.test_hosts_in_namespaces import GPUS, Network, network  # noqa: F401 (a fixture)
from e2e.test_many_hosts import SOON, STAYS, hosts, three, wait_until  # noqa: F401 (fixtures)
from e2e.test_migration import pair  # noqa: F401 (a fixture)
from e2e.test_rebalancing import pool as pool  # a fixture

pytestmark = [pytest.mark.long, pytest.mark.skipif(not INSTALLED, reason="Ray is not installed")]

SUITES = (test_many_hosts, test_migration, test_rebalancing, test_batch)
POOLS = {"three", "hosts", "pair", "pool"}  # fixtures
WAITED = r"was at place 1 of 1|0 of the 1 GPU that it needs are free"  # a scheduler has said so
OF_HEADS = {"test_what_cannot_be_joined_says_why"}  # their subject is how a host joins another


def is_of_pools(name: str, test: Any) -> bool:
    """Whether a test has a pool of many hosts: as a fixture, or, of jobs, without the fixture of one host."""
    asked = inspect.signature(test).parameters.keys()
    return name not in OF_HEADS and ("jobs" not in asked if test.__module__ == test_batch.__name__ else bool(POOLS & asked))


def of_pools() -> dict[str, Any]:
    every = [member for suite in SUITES for member in inspect.getmembers(suite, inspect.isfunction)]
    return {name: test for name, test in every if name.startswith("test_") and is_of_pools(name, test)}


globals().update(of_pools())


@pytest.fixture(scope="module", autouse=True)
def pools_are_of_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for suite in SUITES:
            patch.setattr(suite, "Pool", RayPool)
        yield


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[RayPool]:
    pool = RayPool(tmp_path)
    yield pool
    pool.stop()


def test_the_pools_tests_are_here() -> None:
    """Two of a name would be one; and none of them has the pool of a head."""
    every = [name for suite in SUITES for name, test in inspect.getmembers(suite, inspect.isfunction) if name in of_pools()]
    assert len(every) == len(set(every)) >= 28 and {suite.Pool for suite in SUITES} == {RayPool}


def test_hosts_that_are_started_together_are_one_pool(ray: RayPool) -> None:
    """Whichever of them begins it."""
    names = ("oak", "elm", "ash")
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda name: ray.start(name, 1), names))
    keys = {(ray.joined(name) / "server.key").read_text() for name in names}
    (begun,) = (name for name in names if (ray.folder / name / "state" / "server.key").read_text() in keys)
    assert len(keys) == 1
    ray.token = ray.token_of(begun)
    for name in names:
        wait_until(lambda: ray.are_there(name, *names))  # noqa: B023 (it is called at once)
    assert ray.run("ash", [*STAYS, "/dev/null"]).stdout == "running\nright\n"


def test_ray_starts_the_scheduler_again(ray: RayPool, tmp_path: Path) -> None:
    """Whatever runs goes on, and has its GPUs in the next one's books."""
    ray.start("oak", 1)
    ray.start("elm", 1)
    wait_until(lambda: ray.are_there("oak", "oak", "elm"))
    stays = [*STAYS, tmp_path / "end"]
    with ray.running("oak", stays, "--compute", "1") as one, ray.running("elm", stays, "--compute", "1") as two:
        assert ray.placed("elm") == ["elm", "oak"]
        for _ in range(2):
            (killed,) = ray.cluster.schedulers()
            os.kill(killed, signal.SIGKILL)
            print(f"started again after {wait_for_scheduler(ray.cluster, killed):.1f} s")
            refused = ray.run("oak", [*STAYS, "/dev/null"], "--compute", "1", "--wait", "40s")
            assert refused.returncode != 0 and re.search(WAITED, refused.stderr), "what others have was granted"
        (tmp_path / "end").touch()
        for program in (one, two):
            assert program.communicate(timeout=SOON)[0] == "right\n"
    assert ray.run("oak", [*STAYS, "/dev/null"], "--compute", "1").stdout == "running\nright\n"


def test_the_machine_of_the_scheduler_is_lost(network: Network, tmp_path: Path) -> None:  # noqa: F811 (the fixture)
    """With its host: Ray starts the scheduler on another one, which knows what the others have and which tokens have been revoked.

    Ray finds the node that a process is on by looking at all processes, so each machine has processes of its own, too.
    """
    alone = {name: ["ip", "netns", "exec", network.namespace(name), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] for name in GPUS}
    pool = RayPool(tmp_path, cluster=RayCluster(network.address("ash"), alone["ash"]))
    nodes = {name: pool.cluster.start(network.address(name), prefix=alone[name]) for name in ("birch", "cedar")}

    def start(name: str) -> None:
        (first,) = children(nodes[name].pid)
        inside = ["nsenter", "--target", str(first), "--pid", "--mount", "--net", "--"]
        pool.start(name, 1, "--box", "off", "--link", "tcp", prefix=inside, listen=f"{network.address(name)}:7070")

    try:
        start("birch")
        start("cedar")
        be_on(pool.cluster, nodes["birch"])
        wait_until(lambda: pool.are_there("cedar", "birch", "cedar"))
        for name in ("guest", "other"):
            pool.gpuvirt("cedar", "token", "create", name, "--pool", pool.hosts["cedar"].url)
        pool.gpuvirt("cedar", "token", "revoke", "guest", "--pool", pool.hosts["cedar"].url)
        tokens = pool.joined("cedar") / "tokens.json"
        wait_until(lambda: "other" in tokens.read_text() and "guest" not in tokens.read_text())
        stays = [*STAYS, tmp_path / "end"]
        with pool.running("cedar", stays, "--compute", "1") as one, pool.running("cedar", stays, "--compute", "1") as two:
            (here,) = pool.programs_at("cedar", "cedar", [one, two])
            network.kill_all_of("birch")
            lost = time.monotonic()
            wait_until(lambda: pool.cluster.schedulers() != [] and pool.are_there("cedar", "cedar"))
            print(f"another scheduler had its host after {time.monotonic() - lost:.1f} s")
            refused = pool.run("cedar", [*STAYS, "/dev/null"], "--compute", "1", "--wait", "30s")
            assert refused.returncode != 0 and re.search(WAITED, refused.stderr), "what cedar has was granted"
            (tmp_path / "end").touch()
            assert here.communicate(timeout=SOON)[0] == "right\n"
        assert pool.run("cedar", [*STAYS, "/dev/null"], "--compute", "1").stdout == "running\nright\n"
        assert "guest" not in tokens.read_text()
    finally:
        pool.stop()


def test_a_host_without_ray_joins_one_that_has_it(ray: RayPool) -> None:
    """With a token of the pool, which it may make at any host."""
    ray.start("oak", 1)
    env = clean_environment(GPUVIRT_STATE=str(ray.folder / "elm" / "state"), GPUVIRT_TOKEN=ray.token)
    line = ("--join", ray.hosts["oak"].url, "--name", "elm", "--backend", "soft", "--gpus", "2", "--gpu-memory", "256m")
    ray.hosts["elm"] = start_server(ray.folder / "elm", *line, env=env)
    wait_until(lambda: ray.are_there("elm", "oak", "elm"))
    guest = ray.gpuvirt("elm", "token", "create", "guest", "--pool", ray.hosts["elm"].url).stdout.split()[-1]
    wait_until(lambda: ray.run("oak", [*STAYS, "/dev/null"], "--gpus", "2", token=guest).stdout == "running\nright\n")


def test_what_runs_does_not_need_ray(ray: RayPool, tmp_path: Path) -> None:
    """The whole cluster is gone: sessions go on, also those of a daemon that is started anew; what comes waits."""
    ray.start("oak", 1)
    with ray.running("oak", [*STAYS, tmp_path / "end"]) as program:
        ray.cluster.stop()
        ray.hosts["oak"].stop(signal.SIGKILL)
        oak = ray.start("oak", 1, listen=ray.hosts["oak"].info["address"])
        assert "goes on with what it has until it answers" in oak.log.read_text()
        done = ray.run("oak", [*STAYS, "/dev/null"], "--wait", "2s")
        assert done.returncode != 0 and "scheduler" in done.stderr, done.stderr
        (tmp_path / "end").touch()
        assert program.communicate(timeout=SOON)[0] == "right\n"


def test_nothing_is_left_in_ray_and_the_pool_is_the_same_again(ray: RayPool) -> None:
    """The actor ends when there has been no host for a minute; the next host begins with what it has kept: the tokens are good, and no others."""
    address = ray.start("oak", 1).info["address"]
    guest = ray.gpuvirt("oak", "token", "create", "guest", "--pool", ray.hosts["oak"].url).stdout.split()[-1]
    wait_until(lambda: "guest" in (ray.joined("oak") / "tokens.json").read_text())
    (scheduler,) = ray.cluster.schedulers()
    ray.hosts["oak"].stop()
    stopped = time.monotonic()
    wait_until(lambda: not ray.cluster.schedulers())
    assert time.monotonic() - stopped > 30
    ray.start("oak", 1, listen=address)
    assert ray.cluster.schedulers() not in ([], [scheduler])
    wait_until(lambda: ray.run("oak", [*STAYS, "/dev/null"], token=guest).stdout == "running\nright\n")


def be_on(cluster: RayCluster, node: subprocess.Popen[bytes], tries: int = 5) -> None:
    """Has the scheduler be on the node of the host that began the pool, which is a wish: on a busy machine Ray may take another one."""
    while True:
        wait_until(lambda: cluster.schedulers() != [])
        if cluster.schedulers_on(node):
            return
        assert tries, "Ray never has it where the first host is"
        tries -= 1
        for pid in cluster.schedulers():
            os.kill(pid, signal.SIGKILL)
            wait_for_scheduler(cluster, pid)
