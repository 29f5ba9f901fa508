"""What lies in a job's folder, and what is made of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuvirt.batch import job as jobs
from gpuvirt.batch.job import Job, JobFolder, State
from gpuvirt.batch.ranks import nodes_for, rank_variables
from gpuvirt.errors import GpuvirtError


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUVIRT_STATE", str(tmp_path / "state"))


def made(name: str = "train.py", submitted: float = 100.0, **more: object) -> tuple[Job, JobFolder]:
    job = replace(Job(jobs.new_id(), name, ("python", name), "/", 2, 1, {"gpus": 2}, submitted=submitted), **more)  # type: ignore[arg-type]
    return job, jobs.make(job)


def test_it_comes_back_as_it_was_written() -> None:
    job, folder = made(state=State.DONE, places=(("tcp://a:1", (1, 2)),), exit_code=0)
    assert folder.read() == job and jobs.find(job.id).path == folder.path


def test_one_whose_runner_is_gone_is_lost() -> None:
    """With the last line of its log, if there is one; while the runner lives it is what it says."""
    job, folder = made(state=State.RUNNING)
    lock = folder.hold()
    assert folder.read() == job
    with pytest.raises(GpuvirtError, match="has a runner"):
        folder.hold()
    os.close(lock)
    assert folder.read().state is State.LOST and "was killed" in folder.read().why
    (folder.path / "runner.log").write_text("Traceback\nMemoryError\n")
    assert folder.read().why == "MemoryError"


def test_jobs_are_found_by_id_and_by_name() -> None:
    first, _ = made(submitted=1.0)
    last, _ = made(submitted=2.0)
    assert jobs.find("train.py").id == last.id and jobs.find(first.id[:6]).id == first.id
    for name in ("nothing", "", "/"):
        with pytest.raises(GpuvirtError, match="there is no job"):
            jobs.find(name)
    for digit in "0123456789abcdef":  # of more than 16 jobs two begin alike
        made(name=digit * 20)
    with pytest.raises(GpuvirtError, match="beginning of several"):
        for digit in "0123456789abcdef":
            if sum(folder.id.startswith(digit) for folder in jobs.jobs()) > 1:
                jobs.find(digit)


def test_what_ended_long_ago_is_removed() -> None:
    _, there = made(state=State.DONE, ended=1.0)
    _, still = made(state=State.RUNNING)
    made()
    assert not there.path.exists() and still.path.exists()


def test_a_damaged_one_is_said_to_be() -> None:
    _, folder = made()
    for text in ("", "[]", json.dumps({"state": "else"})):
        (folder.path / "job.json").write_text(text)
        with pytest.raises(GpuvirtError, match="cannot be read"):
            folder.read()


def test_ranks_have_gpus_of_their_own() -> None:
    each = [rank_variables(rank, 3, 2, 4711, "1f") for rank in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in each] == ["0,1", "2,3", "4,5"]
    for rank, size in (("RANK", "WORLD_SIZE"), *((f"{whose}_RANK", f"{whose}_SIZE") for whose in ("OMPI_COMM_WORLD", "PMI", "HOROVOD"))):
        assert [(one[rank], one[size]) for one in each] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert [rank_variables(rank, 4, 2, 4711, "1f", nodes=2)["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == ["0,1", "2,3"] * 2
    assert {one["MASTER_PORT"] for one in each} == {"4711"} and {one["LOCAL_RANK"] for one in each} == {"0"}


@pytest.mark.parametrize(
    ("ranks", "gpus", "hosts", "nodes"),
    [
        (4, 1, [4], 1),
        (4, 1, [3, 3], 2),
        (4, 1, [1] * 4, 4),
        (6, 1, [4, 4], 2),
        (6, 1, [2, 4], 3),  # three together has only one of them
        (7, 1, [4, 4], 7),
        (8, 2, [4] * 4, 4),
        (8, 2, [4, 4, 8], 4),
        (4, 3, [4] * 4, 4),
        (6, 1, [4], 2),  # what no hosts have is left to the pool to refuse
    ],
)
def test_ranks_are_on_as_few_hosts_as_can_be(ranks: int, gpus: int, hosts: list[int], nodes: int) -> None:
    assert nodes_for(ranks, gpus, hosts) == nodes


def test_what_no_host_can_have_is_left_to_the_pool_to_refuse() -> None:
    assert nodes_for(2, 8, [4]) == 2
