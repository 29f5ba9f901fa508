"""Programs that wait for memory which others have reserved: refused at once, after a time, served at last."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from e2e.harness import HERE, Server, clean_environment, read_line, run_line, wait_until

PROGRAM = [sys.executable, str(HERE / "programs" / "each_gpu.py")]

pytestmark = pytest.mark.slow


def begin(server: Server, *options: str, hold: bool = False) -> subprocess.Popen[str]:
    line = [*run_line(server, "-q", "--memory", "256m", *options), *PROGRAM, *(["hold"] if hold else [])]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_environment())


def test_waiting(own_pool: Callable[..., Server]) -> None:
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", "--grace", "0")
    having = begin(server, hold=True)
    assert "right" in read_line(having)
    said, _ = begin(server, "--no-wait").communicate(timeout=200)
    assert "cannot be had without waiting" in said and "it would be at place 1 of 1" in said, said
    said, _ = begin(server, "--wait", "1500ms").communicate(timeout=200)
    assert "place 1 of 1 in the queue" in said and "as long as it wanted to" in said, said
    refused = begin(server, "--priority", "1")
    assert "may ask for 0 at most" in refused.communicate(timeout=200)[0] and refused.returncode == 125
    patient = begin(server)
    wait_until(lambda: any(lease["state"] == "queued" for lease in server.leases()))
    having.terminate()
    having.communicate(timeout=200)
    said, _ = patient.communicate(timeout=200)
    assert patient.returncode == 0 and "right" in said, said


def test_the_server_is_killed_meanwhile(own_pool: Callable[..., Server]) -> None:
    """Who has memory keeps it; who waits for it asks the next server again, and has it at last."""
    options = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", "--grace", "0")
    server = own_pool(*options)
    having = begin(server, hold=True)
    assert "right" in read_line(having)
    patient = begin(server)
    assert wait_until(lambda: any(lease["state"] == "queued" for lease in server.leases()))
    server.stop(signal.SIGKILL)
    time.sleep(2)  # longer than a connection that was cut in its handshake is tried again
    again = own_pool(*options, listen=server.info["address"])
    assert wait_until(lambda: sorted(lease["state"] for lease in again.leases()) in (["attached", "queued"], ["idle", "queued"]))
    having.terminate()
    having.communicate(timeout=200)
    said, _ = patient.communicate(timeout=200)
    assert patient.returncode == 0 and "right" in said, said
    assert said.count("waiting for a GPU") == 2, said
