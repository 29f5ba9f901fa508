"""rdma-core's programs, libraries and headers as Debian has them: taken from the distribution's packages, unpacked and not installed."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import c_build
import pytest

PROGRAMS = ("ibverbs-utils", "perftest", "python3-pyverbs")
LIBRARIES = ("libibverbs1", "ibverbs-providers", "librdmacm1", "libibumad3", "libpci3", "libnl-3-200", "libnl-route-3-200", "libibverbs-dev")
UNPACKED = c_build.STORE / "rdma-core"


def unpacked() -> Path:
    """The folder in which they are as below /. Skips the test where Debian's packages cannot be had."""
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with (UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test processes one unpacks
        if not (UNPACKED / "done").exists():
            try:
                subprocess.run(["apt-get", "download", *PROGRAMS, *LIBRARIES], cwd=UNPACKED, check=True, capture_output=True, timeout=200)
            except (OSError, subprocess.SubprocessError):
                pytest.skip("apt-get cannot download Debian's packages")
            for package in UNPACKED.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, UNPACKED], check=True, timeout=60)
            (UNPACKED / "done").touch()
    return UNPACKED
