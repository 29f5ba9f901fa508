"""Ray clusters of the tests' own, and pools whose scheduler is an actor in one (`make .venv/clusters/.installed` installs Ray)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import HERE, clean_environment, descendants
from e2e.test_many_hosts import Pool, wait_until

CLUSTERS = HERE.parent.parent / ".venv" / "clusters"
INSTALLED = (CLUSTERS / ".installed").exists()
NODE = ["--num-cpus", "1", "--object-store-memory", "80000000", "--disable-usage-stats", "--block"]
PORTS = ["--min-worker-port", "0", "--max-worker-port", "0"]  # such as several clusters of one machine do not share
SOON = 120.0  # seconds


class RayCluster:
    """A head, and further nodes if they are started.

    Args:
        address: of the head.
        prefix: of the command that starts it.
    """

    def __init__(self, address: str = "127.0.0.1", prefix: list[str] | None = None) -> None:
        (packages,) = CLUSTERS.glob("lib/python3*/site-packages")
        self._folder = Path(tempfile.mkdtemp(prefix="gv-ray-"))  # sockets lie in it, whose paths are to be short
        token = secrets.token_hex(32)
        self.more = {"PYTHONPATH": str(packages), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"{address}:{port}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.start(address, "--head", "--port", str(port), "--include-dashboard=false", "--temp-dir", str(self._folder / "head"), prefix=prefix)

    def start(self, address: str, *options: str, prefix: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Another node."""
        part = options or ("--address", self.address)
        line = [*(prefix or []), sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--node-ip-address", address, *part, *NODE, *PORTS]
        log = self._folder / f"node{len(self.nodes)}.log"
        env = clean_environment(GPUVIRT_STATE=str(self._folder / f"state{len(self.nodes)}"), **self.more)
        with log.open("wb") as out:
            node = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
        self.nodes.append(node)
        wait_until(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None, log.read_text)
        assert node.poll() is None, log.read_text()
        return node

    def schedulers(self) -> list[int]:
        """The processes of the actor; it is one, or none at the moment."""
        return [pid for node in self.nodes for pid in self.schedulers_on(node)]

    @staticmethod
    def schedulers_on(node: subprocess.Popen[bytes]) -> list[int]:
        return [pid for pid, line in descendants(node.pid).items() if "SchedulerActor" in line]

    @staticmethod
    def kill(node: subprocess.Popen[bytes]) -> None:
        """With all that runs on it."""
        for pid in (node.pid, *descendants(node.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def stop(self) -> None:
        for node in reversed(self.nodes):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class RayPool(Pool):
    """Hosts that find each other by a Ray cluster, on whose one node the scheduler is. No host is the head; the token is one of the first host's."""

    cluster: RayCluster = field(kw_only=True, default_factory=RayCluster)

    def env(self, name: str) -> dict[str, str]:
        return super().env(name) | self.cluster.more

    def part(self, name: str) -> list[str]:
        return ["--ray", self.cluster.address]

    def joined(self, name: str) -> Path:
        (found,) = (self.folder / name / "state").glob("ray-*")
        return found

    def stop_scheduler(self) -> None:
        """It stands still: whoever asks waits in vain, and Ray does not see it."""
        os.kill(self.cluster.schedulers()[0], signal.SIGSTOP)

    def start_scheduler(self) -> None:
        """Ray starts another one."""
        os.kill(self.cluster.schedulers()[0], signal.SIGKILL)

    def stop(self) -> None:
        super().stop()
        self.cluster.stop()


def wait_for_scheduler(cluster: RayCluster, other_than: int) -> float:
    """Until another process is the actor. Returns the seconds that it took."""
    began = time.monotonic()
    wait_until(lambda: any(pid != other_than for pid in cluster.schedulers()))
    return time.monotonic() - began
