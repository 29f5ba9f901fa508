"""Memory and events that processes of one lease share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, Server, assert_right, clean_environment, run_line, run_program, running, start_server, wait_until

pytestmark = pytest.mark.slow

CASES = ["memory", "three", "killed", "order", "events", "recorder", "descriptors", "pools"]


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("ipc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tests count what it has."""
    own = start_server(tmp_path_factory.mktemp("ipc"), "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", "--grace", "3s")
    yield own
    own.stop()


@pytest.mark.parametrize("link", ["shm", "tcp"])
@pytest.mark.parametrize("case", CASES)
def test_processes_share(server: Server, program: Path, case: str, link: str) -> None:
    assert_right(run_program(server, [program, case], "--link", link))
    assert wait_until(lambda: server.memory_used() == 0 and server.sessions() == [])


@pytest.mark.parametrize("case", [case for case in CASES if case != "pools"])  # of which `soft --strict` has none
def test_by_the_driver(chained_sharing: Server, program: Path, case: str) -> None:
    assert_right(run_program(chained_sharing, [program, case]))


@pytest.mark.parametrize(("near", "far"), [("parent", "child"), ("child", "parent")])
@pytest.mark.parametrize("case", ["memory", "three", "events"])
def test_links_of_different_delay(server: Server, program: Path, case: str, near: str, far: str) -> None:
    """What one process hears of the other by a pipe is true on the server, though their commands take longer."""
    links = {near: "shm", far: "delay(rtt=5ms,tcp)"}
    assert_right(run_program(server, [program, case], "--link", links["parent"], LINK_OF_CHILD=links["child"]))


def test_memory_of_a_session_that_has_ended_is_counted(server: Server, program: Path) -> None:
    """For whoever still has it. Before, once."""
    with running(server, [program, "survivor"]):
        assert wait_until(lambda: len(server.sessions()) == 1)
        assert wait_until(lambda: server.memory_used() >= 64 << 20)
        (session,) = server.sessions()
        said = subprocess.run([*GPUVIRT, "park", session["session"], "--pool", server.url], capture_output=True, text=True, timeout=100, check=False)
        assert said.returncode != 0 and "it shares memory with other sessions" in said.stderr, said.stderr
    assert wait_until(lambda: server.memory_used() == 0)


def test_another_lease_opens_nothing(server: Server, program: Path) -> None:
    line = [*run_line(server), str(program), "give"]
    giver = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment())
    try:
        assert giver.stdout is not None
        handles = giver.stdout.readline().strip()
        assert len(handles) == 256
        taken = run_program(server, [program, "take", handles])
        assert (taken.returncode, taken.stdout) == (0, "1 1\n"), taken.stdout + taken.stderr
        assert "no such handle in this session's lease" in taken.stderr
    finally:
        giver.communicate(timeout=60)
