"""Programs over RDMA verbs: both ends on the software libibverbs, the worker in its box. The fabric's counters prove that it went that way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, clean_environment, run_program, running, start_server, wait_until
from e2e.test_move import TWO, moved
from softverbs import build as softverbs
from softverbs.control import Fabric

from gpuvirt.demo import programs

pytestmark = pytest.mark.slow

LINKS = ("verbs", "verbs(rails=1)")
PROGRAMS = ("vector_add", "copies", "threads", "host_functions", "managed", "graphs", "mapped")


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process needs to see two RDMA devices. A worker has opened them before it is in its box, and may have no threads then."""
    folder = tmp_path_factory.mktemp("fabric")
    return {
        "GPUVIRT_IBVERBS": str(softverbs.library(folder)),
        "SOFTVERBS_FABRIC": str(folder / "fabric"),
        "SOFTVERBS_DEVICES": "2",
        "SOFTVERBS_LATE": "1",
    }


@pytest.fixture
def fabric(devices: dict[str, str]) -> Iterator[Fabric]:
    fabric = Fabric(Path(devices["SOFTVERBS_FABRIC"]))
    yield fabric
    for rail in (0, 1):
        fabric.rail(rail).set(drop=0, port_down=0)


@pytest.fixture(scope="module")
def near(devices: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on this host that offers no shared memory."""
    server = start_server(tmp_path_factory.mktemp("verbs"), *TWO, "--link", "verbs,tcp", env=clean_environment(**devices))
    yield server
    server.stop()


def went(fabric: Fabric) -> list[int]:
    return [fabric.rail(rail).bytes for rail in (0, 1)]


def link_of(stats: Path) -> tuple[str, str]:
    figures = json.loads(stats.read_text())
    return figures["transport"], figures["link_reason"]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(near: Server, build: Callable[..., Path], devices: dict[str, str], fabric: Fabric, program: str, link: str) -> None:
    assert wait_until(lambda: near.sessions() == [])  # whose packets would be counted
    bytes_before, packets_before = fabric.rail(0).bytes, fabric.rail(1).packets
    assert_right(run_program(near, [build(program)], "--link", link, "--gpus", "2", **devices))
    assert fabric.rail(0).bytes - bytes_before > 1000
    assert (fabric.rail(1).packets > packets_before) == (link == "verbs")


@pytest.mark.parametrize("link", LINKS)
def test_pinned_memory_is_not_copied(
    near: Server, build: Callable[..., Path], devices: dict[str, str], fabric: Fabric, tmp_path: Path, link: str
) -> None:
    """Devices read page-locked memory where it lies, at both ends: nearly all that is sent, and the 400 MiB that come back to such memory."""
    stats, before = tmp_path / "stats.json", sum(went(fabric))
    assert_right(run_program(near, [build("pinned")], "--link", link, f"--stats={stats}", **devices))
    figures = json.loads(stats.read_text())
    assert figures["bytes_lent"] > 0.98 * figures["bytes_out"] > 100 << 20, figures
    assert figures["bytes_in_place"] == 400 << 20, figures
    assert sum(went(fabric)) - before < 1.02 * (figures["bytes_out"] + figures["bytes_in"])


@pytest.mark.parametrize("name", ["cupy/elementwise.py", "cupy/streams.py", pytest.param("cupy/sorting.py", marks=pytest.mark.wide)])
def test_an_example(near: Server, devices: dict[str, str], fabric: Fabric, tmp_path: Path, name: str) -> None:
    """CuPy's programs as they are, their results checked against NumPy's."""
    (program,) = (p for p in programs.PROGRAMS if p.name == name)
    out, before = tmp_path / programs.output_name(program), sum(went(fabric))
    line = programs.command(program, programs.find_examples(None), tmp_path, 11, out)
    done = run_program(near, list(line), "--link", "verbs", "--gpus", "2", **devices)
    assert done.returncode == 0, done.stderr
    assert programs.check(program, 11, out) == []
    assert sum(went(fabric)) - before > 100000


def test_a_source_that_is_overwritten_early_is_noticed(near: Server, build: Callable[..., Path], devices: dict[str, str]) -> None:
    """It is read late: a program that does not wait for its copy sees that."""
    done = run_program(near, [build("pinned"), "early"], "--link", "verbs", **devices)
    assert (done.returncode, done.stdout) == (0, "noticed\n"), done.stderr


def test_auto_takes_it(near: Server, build: Callable[..., Path], devices: dict[str, str], fabric: Fabric, tmp_path: Path) -> None:
    """Where both hosts have devices, and not where nothing passes between them; the user is told why."""
    stats = tmp_path / "stats.json"
    assert_right(run_program(near, [build("vector_add")], f"--stats={stats}", **devices))
    assert link_of(stats) == ("verbs", "both hosts have devices for it, which reach each other")
    assert_right(run_program(near, [build("vector_add")], f"--stats={stats}", GPUVIRT_IBVERBS="/none"))
    assert link_of(stats)[0] == "tcp"
    assert link_of(stats)[1].startswith("GPUVIRT_IBVERBS: /none")
    assert_right(run_program(near, [build("vector_add")], f"--stats={stats}", "--link", "tcp", **devices))
    assert link_of(stats) == ("tcp", "--link asks for it")
    for rail in (0, 1):
        fabric.rail(rail).set(drop=1)
    done = run_program(near, [build("vector_add")], f"--stats={stats}", **devices)
    assert_right(done)
    assert link_of(stats) == ("tcp", "verbs does not work between these hosts")
    assert "no verbs link with the server at" in done.stderr
    assert "another link is taken" in done.stderr


def test_only_verbs_without_a_device(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no link over verbs: this host has no RDMA device"):
        start_server(tmp_path, "--backend", "soft", "--link", "verbs", env=clean_environment(GPUVIRT_SYSFS=str(tmp_path))).stop()


def test_ports_of_one_network_meet(build: Callable[..., Path], devices: dict[str, str], tmp_path: Path) -> None:
    """Two networks, and hosts that list their ports in another order: rails of both carry payloads, one alone where the other has no peer."""
    mine = devices | {"SOFTVERBS_FABRIC": str(tmp_path / "fabric")}
    fabric = Fabric(tmp_path / "fabric")
    for rail in (1, 3):
        fabric.rail(rail).set(network=1)
    server = start_server(tmp_path, *TWO, "--link", "verbs,tcp", env=clean_environment(**mine | {"SOFTVERBS_DEVICES": "3,0"}))
    try:
        for listed, carry, idle in (("0,1", (0, 1, 3), (2,)), ("2,0", (0, 2), (1, 3))):
            assert wait_until(lambda: server.sessions() == [])
            before = [fabric.rail(rail).bytes for rail in range(4)]
            assert_right(run_program(server, [build("copies")], "--link", "verbs", **mine | {"SOFTVERBS_DEVICES": listed}))
            more = [fabric.rail(rail).bytes - then for rail, then in enumerate(before)]
            assert all(more[rail] > 10000 for rail in carry) and not any(more[rail] for rail in idle), (listed, more)
        fabric.rail(0).set(network=1)
        done = run_program(server, [build("copies")], "--link", "verbs", **mine | {"SOFTVERBS_DEVICES": "2,"})
        assert done.returncode and "none of this host's RDMA ports meets one of the server's" in done.stderr, done.stderr
    finally:
        server.stop()


@pytest.mark.parametrize("both", [0, 1], ids=["client", "server"])
def test_ports_meet_by_the_family_that_both_have(build: Callable[..., Path], devices: dict[str, str], tmp_path: Path, both: int) -> None:
    """One has a GID of IPv4, which it would take, and a link-local one; the other has only the latter."""
    mine = devices | {"SOFTVERBS_FABRIC": str(tmp_path / "fabric")}
    fabric = Fabric(tmp_path / "fabric")
    fabric.rail(both).set(ipv4=1)
    server = start_server(tmp_path, *TWO, "--link", "verbs", env=clean_environment(**mine | {"SOFTVERBS_DEVICES": "1,"}))
    try:
        assert_right(run_program(server, [build("copies")], "--link", "verbs", **mine | {"SOFTVERBS_DEVICES": "0,"}))
        assert all(fabric.rail(rail).bytes > 10000 for rail in (0, 1))
    finally:
        server.stop()


def test_a_session_moves(near: Server, build: Callable[..., Path], devices: dict[str, str], tmp_path: Path) -> None:
    over = tmp_path / "over"
    with running(near, [build("moved"), over], "--link", "verbs", **devices) as process:
        (session,) = near.sessions()
        (gpu,) = session["devices"]
        assert session["link"] == "verbs"
        for _ in range(4):
            gpu = 1 - gpu
            moved(near, session["session"], gpu)
        over.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err


@pytest.mark.parametrize("fail", [(0,), (1,), (0, 1)])
def test_rails_fail(
    near: Server, build: Callable[..., Path], devices: dict[str, str], fabric: Fabric, tmp_path: Path, fail: tuple[int, ...]
) -> None:
    """While a program runs. It goes on over the other one, or over the TCP connection."""
    over = tmp_path / "over"
    with running(near, [build("moved"), over], "--link", "verbs", **devices) as process:
        time.sleep(0.5)
        for rail in fail:
            fabric.rail(rail).set(drop=1)
        rest = [rail for rail in (0, 1) if rail not in fail]
        assert wait_until(lambda: "made again" in near.log.read_text().rsplit("over verbs", 1)[1])
        before = went(fabric)
        assert wait_until(lambda: all(went(fabric)[rail] > before[rail] + 10000 for rail in rest))
        over.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), out + err
