"""gpuvirt.remote() and attach() in a Python program on a real server: blocks one after the other, and the shell's GPUs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from e2e.harness import HERE, Server, assert_right, clean_environment

pytestmark = pytest.mark.slow


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
