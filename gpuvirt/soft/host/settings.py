"""GPUVIRT_SOFT_*: what a server's environment says about its software GPUs (docs/SOFTWARE_GPU.md), looked at before a session comes."""

from __future__ import annotations

import os

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft import pipeline
from gpuvirt.soft.codegen import preemption, target
from gpuvirt.soft.host import compile_time, kernel_log, precompile
from gpuvirt.soft.ptx import block_shape

PREFIX = "GPUVIRT_SOFT_"
NAMES = ("ISA", "LOG", "DUMP", "LANES", "SCHEDULE", "SHAPES", "PRECOMPILE", "COMPILE_LIMIT")


def check_settings() -> None:
    """Whether all of them can be followed.

    Raises:
        GpuvirtError: there is no such setting, or it cannot have this value; the text says what it can be.
    """
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name[len(PREFIX) :] not in NAMES:
            raise GpuvirtError(f"there is no setting {name}; there are {', '.join(PREFIX + known for known in NAMES)}")
    lanes = os.environ.get(f"{PREFIX}LANES", "")
    if lanes not in ("", "always"):
        raise GpuvirtError(f"{PREFIX}LANES={lanes}: it is 'always' or unset")
    preemption.wanted()
    block_shape.exact_wanted()
    target.forced_isa()
    pipeline.shown_passes()
    kernel_log.check()
    compile_time.limit()
    precompile.threads()
