"""Programs that others have written run on the software libibverbs: ibverbs-utils, perftest and pyverbs, as Debian has them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from softverbs import build, debian
from softverbs.control import Fabric

pytestmark = pytest.mark.wide


@pytest.fixture(scope="session")
def root() -> Path:
    return debian.unpacked()


class Stock:
    def __init__(self, root: Path, folder: Path, fabric: Fabric) -> None:
        self.root, self.fabric = root, fabric
        self.environment = {
            **os.environ,
            **self.fabric.environment(devices=2),
            "LD_PRELOAD": str(build.library(folder)),
            "LD_LIBRARY_PATH": ":".join(str(root / folder / "x86_64-linux-gnu") for folder in ("usr/lib", "lib")),
            "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        }

    def start(self, *line: str) -> subprocess.Popen[str]:
        program = self.root / "usr/bin" / line[0]
        command = [str(program) if program.exists() else line[0], *line[1:]]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *line: str) -> str:
        with self.start(*line) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return said

    def pair(self, *line: str) -> str:
        """The program as a server and as a client of it; what the client says."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        server = self.start(*line, "-p", port)
        try:
            wait_for_listener(int(port), server)
            said = self.run(*line, "-p", port, "127.0.0.1")
            assert server.wait(60) == 0, server.communicate()[0]
        finally:
            server.kill()
            server.communicate()
        return said


def wait_for_listener(port: int, server: subprocess.Popen[str]) -> None:
    """Without connecting: the server takes one client only."""
    until = time.monotonic() + 30
    while time.monotonic() < until and server.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if local.endswith(f":{port:04X}") and state == "0A":
                    return
        time.sleep(0.02)
    raise AssertionError("the server does not listen")


@pytest.fixture
def stock(root: Path, tmp_path: Path) -> Iterator[Stock]:
    with Fabric.in_memory() as fabric:
        yield Stock(root, tmp_path, fabric)


def test_devices_are_listed(stock: Stock) -> None:
    assert [line.split()[0] for line in stock.run("ibv_devices").splitlines()[2:]] == ["softverbs0", "softverbs1"]
    assert "PORT_ACTIVE" in stock.run("ibv_devinfo", "-d", "softverbs1")
    stock.fabric.rail(1).set(port_down=1)
    assert "PORT_DOWN" in stock.run("ibv_devinfo", "-d", "softverbs1")


@pytest.mark.parametrize("options", [(), ("-e",), ("-s", "1000000", "-n", "50")])
def test_rc_pingpong(stock: Stock, options: tuple[str, ...]) -> None:
    assert "iters in" in stock.pair("ibv_rc_pingpong", "-g", "0", "-c", *options)
    assert stock.fabric.rail(0).send_requests > 0
    assert (stock.fabric.rail(0).notifications > 0) == (options == ("-e",))


# Not with -e: perftest polls once after it has asked for an event, and so waits for ever where what comes before the question makes none.
@pytest.mark.parametrize(
    "line",
    [
        ("ib_write_bw",),
        ("ib_write_bw", "-q", "4", "-n", "500"),
        ("ib_write_bw", "-b", "-n", "500"),
        ("ib_write_bw", "-l", "8", "-s", "1024"),
        ("ib_write_bw", "-a", "-n", "64"),
        ("ib_write_lat", "-n", "500"),
        ("ib_write_lat", "-I", "64", "-s", "32", "-n", "500"),
        ("ib_read_bw",),
        ("ib_read_bw", "-o", "1", "-n", "200"),
        ("ib_read_lat", "-n", "200"),
        ("ib_send_bw", "-n", "500"),
        ("ib_send_bw", "-q", "4", "-n", "500"),
        ("ib_send_lat", "-n", "500"),
    ],
    ids=" ".join,
)
def test_perftest(stock: Stock, line: tuple[str, ...]) -> None:
    said = stock.pair(*line, "-F")
    assert "#bytes" in said and stock.fabric.rail(0).send_requests > 0


def test_perftest_says_what_went_wrong(stock: Stock) -> None:
    """A wrong key in the middle: the program stops with the status that an adapter gives."""
    stock.fabric.rail(0).set(bad_rkey_at=100)
    with pytest.raises(AssertionError, match=r"remote access error|status 10|vendor"):
        stock.pair("ib_write_bw", "-n", "500", "-F")


def test_pyverbs(stock: Stock) -> None:
    said = stock.run("/usr/bin/python3", str(Path(__file__).with_name("pyverbs_program.py")))
    assert said.splitlines()[-1] == "all as expected", said
