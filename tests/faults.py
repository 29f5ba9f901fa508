"""What makes the workers of a server faulty on purpose: environment variables for the server, which its workers get from it."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "fault"


def fault(name: str) -> dict[str, str]:
    """The variables for one of the faults in fault/sitecustomize.py."""
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"FAULT": name, "PYTHONPATH": os.pathsep.join(paths)}
