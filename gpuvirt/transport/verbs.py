"""The verbs transport's row: the connection of the handshake connects queue pairs of RDMA devices, which carry records and payloads."""

from __future__ import annotations

import os
from pathlib import Path

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.transport import ServerEnd, Transport

LIBRARY_VARIABLE = "GPUVIRT_IBVERBS"  # verbs_library.h
DEVICES = Path("/sys/class/infiniband")


def missing() -> str:
    """Why this host has no RDMA, as far as its files say; a library that the user names is believed."""
    if os.environ.get(LIBRARY_VARIABLE):
        return ""
    try:
        return "" if any(DEVICES.iterdir()) else "this host has no RDMA device"
    except OSError:
        return "this host has no RDMA device"


VERBS = Transport("verbs", needs=hs.NEEDS_NETWORK, connections=0, seals=False, resumes=True, one_way_target=1.0, open=ServerEnd, missing=missing)
