"""What `gpuvirt doctor` and `gpuvirt devices` say of RDMA devices: this host's and the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, start_fake
from transport.fabrics import device, fabric, ib_port, roce_port, write_sysfs

from gpuvirt.client import checks
from gpuvirt.client.fabric_view import port_rows, summary
from gpuvirt.client.settings import Settings
from gpuvirt.transport.fabric import Fabric, Obstacle

from .conftest import Gpuvirt

NOWHERE = {"GPUVIRT_SYSFS": "/nowhere"}
NONE = "no RDMA device: links go over shm or tcp"
TWO = (device("mlx5_0", ib_port(), numa=1), device("mlx5_1", roce_port("10.0.0.1"), roce_port(number=2, state="DOWN", physical="Polling"), numa=None))


@pytest.fixture(scope="module")
def rdma_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """A server whose kernel has RDMA devices, which it cannot use: there is no library."""
    folder = tmp_path_factory.mktemp("rdma")
    variables = [f"GPUVIRT_SYSFS={write_sysfs(folder / 'sys', *TWO)}", "GPUVIRT_IBVERBS=/nowhere/libibverbs.so.1"]
    started = start_fake(folder, gpus=2, gpu_memory=1 << 30, name="rdma", prefix=["env", *variables])
    yield started
    started.stop()


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    started = start_fake(tmp_path_factory.mktemp("plain"), gpus=1, prefix=["env", "GPUVIRT_SYSFS=/nowhere"])
    yield started
    started.stop()


def test_none_is_one_line_and_no_fault(gpuvirt: Gpuvirt, plain_server: FakeServer) -> None:
    shown = gpuvirt("doctor", server=plain_server, **NOWHERE)
    assert shown.returncode == 0 and [line for line in shown.stdout.splitlines() if "RDMA" in line] == [
        f"ok    RDMA: {NONE}",
        f"ok    server's RDMA: {NONE}",
    ]
    listed = gpuvirt("devices", server=plain_server, **NOWHERE).stdout
    assert listed.splitlines()[-1] == NONE
    (gpu,) = json.loads(gpuvirt("devices", "--json", server=plain_server).stdout)
    assert gpu["rdma"] == []


def test_doctor_has_a_table(gpuvirt: Gpuvirt, tmp_path: Path, server: FakeServer) -> None:
    env = {"GPUVIRT_SYSFS": str(write_sysfs(tmp_path / "sys", *TWO)), "GPUVIRT_IBVERBS": "/nowhere/libibverbs.so.1", "COLUMNS": "150"}
    shown = gpuvirt("doctor", server=server, **env)
    assert shown.returncode == 0  # other links lead there
    assert "warn  RDMA: 3 ports, of which links can use 0" in shown.stdout
    assert "warn  RDMA: GPUVIRT_IBVERBS cannot be loaded: " in shown.stdout and "; set it to the path of libibverbs.so.1, or unset it" in shown.stdout
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.stdout.splitlines() if line.startswith("│ mlx5")]
    assert rows == [
        ["mlx5_0/1", "InfiniBand", "ACTIVE", "400", "1", "0: fe80::ba59:9f03:d4:1 (IB)", "no"],
        ["mlx5_1/1", "RoCE", "ACTIVE", "100", "", "1: 10.0.0.1 (RoCE v2)", "no"],
        ["mlx5_1/2", "RoCE", "DOWN, Polling", "100", "", "none", "no"],
    ]
    told = [one for one in json.loads(gpuvirt("doctor", "--json", server=server, **env).stdout) if one["check"] == "RDMA"]
    assert [port["port"] for port in told[0]["ports"]] == ["mlx5_0/1", "mlx5_1/1", "mlx5_1/2"] and "ports" not in told[1]


def test_what_the_server_has(gpuvirt: Gpuvirt, rdma_server: FakeServer) -> None:
    gpus = json.loads(gpuvirt("devices", "--json", server=rdma_server, **NOWHERE).stdout)
    assert len(gpus) == 2 and all([port["port"] for port in gpu["rdma"]] == ["mlx5_0/1", "mlx5_1/1", "mlx5_1/2"] for gpu in gpus)
    listed = gpuvirt("devices", server=rdma_server, COLUMNS="150", **NOWHERE).stdout
    assert "mlx5_1/2" in listed and "GPUVIRT_IBVERBS cannot be loaded" in listed and NONE not in listed
    told: dict[str, list[Any]] = {}
    for one in json.loads(gpuvirt("doctor", "--json", server=rdma_server, **NOWHERE).stdout):
        told.setdefault(one["check"], []).append(one)
    assert told["RDMA"][0]["status"] == "ok" and told["RDMA"][0]["text"] == NONE
    assert [one["status"] for one in told["server's RDMA"]][:2] == ["warn", "warn"] and len(told["server's RDMA"][0]["ports"]) == 3


class Status:
    """As much of a pool's status as the checks read."""

    def __init__(self, possible: list[str]) -> None:
        self.possible = possible

    def links(self) -> tuple[list[str], str]:
        return self.possible, "the server is on another host"


ONE = fabric(device("mlx5_0", ib_port()))


@pytest.mark.parametrize(
    ("link", "here", "there", "said"),
    [
        ("auto", ONE, ONE, "auto takes verbs (plain): the server is on another host; they share InfiniBand subnet fe80::/64: 1 rail"),
        ("auto", ONE, Fabric(), "auto takes tcp (sealed): the server is on another host; the server has no RDMA device"),
        ("auto", ONE, None, "auto takes tcp (sealed): the server is on another host; the server does not tell its RDMA devices"),
        ("tcp", ONE, ONE, "tcp is set (sealed); auto would take verbs: the server is on another host; they share"),
        ("tcp(plain)", ONE, ONE, "tcp(plain) is set (plain); auto would take verbs"),
    ],
)
def test_doctor_says_which_link_and_why(monkeypatch: pytest.MonkeyPatch, link: str, here: Fabric, there: Fabric | None, said: str) -> None:
    monkeypatch.setattr(checks, "_seals", lambda kind, plain: "plain" if plain or kind == "verbs" else "sealed")
    found = checks._link(Status(["verbs", "tcp"]), Settings(link=link), here, there)  # type: ignore[arg-type]
    assert found.status == "ok" and found.text.startswith(said), found.text


def test_doctor_says_what_does_not_lead_there() -> None:
    found = checks._link(Status(["tcp"]), Settings(link="shm"), ONE, ONE)  # type: ignore[arg-type]
    assert (found.status, found.remedy) == ("fail", "use --link auto")
    assert found.text == "shm is set, but the link shm does not lead to this server, only tcp: the server is on another host"


def test_one_port_is_one_line() -> None:
    assert summary(ONE) == "mlx5_0/1: InfiniBand, ACTIVE, 400 Gb/s, NUMA node 0, GID 0: fe80::ba59:9f03:d4:1 (IB)"
    assert summary(fabric(device("siw0", numa=None))) == "its devices have no port" and port_rows(Fabric()) == []
    closed = fabric(device("mlx5_1", roce_port("10.0.0.1"), numa=None), gid_index=7)
    assert summary(closed) == "mlx5_1/1: RoCE, ACTIVE, 100 Gb/s, no GID" and not port_rows(closed)[0]["usable"]


def test_an_obstacle_beside_a_port_that_works_is_a_warning_of_its_own() -> None:
    found = [*checks._rdma("RDMA", fabric(*ONE.devices, obstacles=(Obstacle("mlx5_9: closed", "open it"),)))]
    assert [(one.status, one.text, one.remedy) for one in found[1:]] == [("warn", "mlx5_9: closed", "open it")] and found[0].status == "ok"
