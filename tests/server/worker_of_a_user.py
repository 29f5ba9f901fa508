"""The worker, with a box that is nothing but a user of its own: `python worker_of_a_user.py ...` as `python -m gpuvirt.server.worker ...`."""

from __future__ import annotations

import functools
import sys

from gpuvirt.server import worker
from gpuvirt.server.box import box

if __name__ == "__main__":
    box.Box = functools.partial(box.Box, leave_out=box.PARTS - {"user"})  # type: ignore[assignment, misc]
    sys.exit(worker.main())
