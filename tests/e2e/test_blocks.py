"""gpuvirt.remote() and attach() in a Python program on a real server: blocks one after the other, and the shell's GPUs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from e2e.harness import HERE, Server, assert_right, clean_environment, wait_until

pytestmark = pytest.mark.slow


def test_leaving_gives_the_memory_back(own_pool: Callable[..., Server]) -> None:
    """Though nobody waits for it, and no session is ever idle for long enough; what was on the GPU is there in the next block."""
    server = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", "--idle", "0")
    line = [sys.executable, str(HERE / "programs" / "leaves.py"), server.url]
    with subprocess.Popen(line, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        for _ in range(2):
            assert program.stdout.readline() == "left\n"
            # Both: the daemon may not have heard yet that the session had its memory in between.
            assert wait_until(lambda: server.memory_used() == 0 and server.sessions()[0]["parked"] is not None)
            program.stdin.write("on\n")
            program.stdin.flush()
        out, _ = program.communicate(timeout=100)
    assert (program.returncode, out) == (0, "right\n")


@pytest.mark.parametrize("how", [[], ["release"]])
def test_blocks(pool: Server, how: list[str]) -> None:
    line = [sys.executable, str(HERE / "programs" / "blocks.py"), pool.url, *how]
    done = subprocess.run(line, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False)
    assert_right(done)
    assert done.stderr.count("a CUDA call was refused") in (2, 3)  # once each time that a block was left
    deadline = time.monotonic() + 100
    while pool.leases():
        assert time.monotonic() < deadline, pool.leases()
        time.sleep(0.1)
