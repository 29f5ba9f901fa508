"""What the processes of a launched program say of their use of GPUs: a file of lines, written by native/shim/session/log/launch_record.c.

A framework that does not find one of its libraries computes on the CPU, and says so among many lines or not at all. The launcher tells the user of a
program that has had GPUs and launched nothing on them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "GPUVIRT_LAUNCH_RECORD"
IDLE = "the program was given GPUs and launched nothing on them; if it was to, its output may name a library that it did not find"


class LaunchRecord:
    """The file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def idle(self) -> bool:
        """Whether processes have had GPUs, all of these have ended in order, and none launched a kernel."""
        try:
            lines = self.path.read_text().split("\n")
        except (OSError, UnicodeDecodeError):
            return False
        left = [line.removeprefix("left ") for line in lines if line.startswith("left ")]
        return len(left) == lines.count("attached") > 0 and all(launches == "0" for launches in left)


@contextlib.contextmanager
def launch_record() -> Iterator[LaunchRecord | None]:
    """A new one, which is removed at the end; None: it cannot be made, and nothing is told."""
    try:
        file, name = tempfile.mkstemp(prefix="gpuvirt-launch-")
    except OSError:
        yield None
        return
    os.close(file)
    try:
        yield LaunchRecord(Path(name))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
