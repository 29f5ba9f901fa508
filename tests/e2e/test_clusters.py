"""Programs of other clusters that take GPUs of a pool: the examples for Ray, PySpark and MPI (`make .venv/clusters/.installed` installs those)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, HERE, clean_environment
from e2e.test_many_hosts import Pool, wait_until

ROOT = HERE.parent.parent
CLUSTERS = ROOT / ".venv" / "clusters"
EXAMPLES = ROOT / "examples" / "clusters"
LIMIT = 400.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (CLUSTERS / ".installed").exists(), reason="Ray, PySpark and Open MPI are not installed"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two hosts with one GPU each."""
    pool = Pool(tmp_path_factory.mktemp("clusters"))
    for name in ("oak", "elm"):
        pool.start(name, 1)
    wait_until(lambda: pool.are_there("oak", "oak", "elm"))
    yield pool
    pool.stop()


def run(hosts: Pool, *line: str | Path) -> tuple[str, int]:
    """An example's stdout, and the most sessions that were seen at a time; at its end the pool has none."""
    (packages,) = CLUSTERS.glob("lib/python3*/site-packages")
    env = clean_environment(GPUVIRT_TOKEN=hosts.token, GPUVIRT_POOL=hosts.hosts["oak"].url, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(packages))
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.2):
            most = max(most, len(hosts.placed("oak")))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        done = subprocess.run([*map(str, line)], capture_output=True, text=True, env=env, timeout=LIMIT, check=False)
    finally:
        over.set()
        watch.join()
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: not hosts.json("oak", "ps"))
    return done.stdout, most


def test_tasks_of_ray(hosts: Pool) -> None:
    out, _ = run(hosts, sys.executable, EXAMPLES / "ray_tasks.py", "4")
    lines = out.splitlines()
    assert lines[-1] == "right" and len(lines) == 5, out
    assert {line.rpartition(" ")[2] for line in lines[:-1]} == {"oak", "elm"}


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java is installed, which PySpark needs")
def test_executors_of_pyspark(hosts: Pool) -> None:
    out, _ = run(hosts, sys.executable, EXAMPLES / "spark_executors.py", "4")
    lines = [line for line in out.splitlines() if " on GPU " in line or line == "right"]
    assert lines[-1:] == ["right"] and len(lines) == 5, out
    assert {line.rpartition(" ")[2] for line in lines[:-1]} == {"oak", "elm"}


def test_ranks_of_mpi(hosts: Pool) -> None:
    """Two ranks, a launch each, have the two GPUs."""
    mpirun = [CLUSTERS / "bin" / "mpirun", "-n", "2", "--oversubscribe"]
    out, most = run(hosts, *mpirun, *GPUVIRT, "run", "-q", "--compute", "1", "--", sys.executable, EXAMPLES / "mpi_ranks.py")
    assert out == "2 ranks\nright\n" and most == 2
