"""Seeded schedules (GPUVIRT_SOFT_SCHEDULE, native/backend/soft/engine/schedule.h): code in which a warp may be preempted before each access to memory
that others see."""

from __future__ import annotations

import os
import re

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.codegen.context import Context

SETTING = "GPUVIRT_SOFT_SCHEDULE"


def wanted() -> bool:
    """Whether code is made for seeded schedules.

    Raises:
        GpuvirtError: the setting is neither a number of 64 bits, nor one followed by ",cores".
    """
    text = os.environ.get(SETTING, "")
    found = re.fullmatch(r"(\d+)(,cores)?", text, re.ASCII)
    if text and (found is None or int(found[1]) >> 64):
        raise GpuvirtError(f"{SETTING}={text}: it is a number, or a number and ',cores', or unset")
    return bool(text)


def point(e: Context) -> None:
    """Before the next instruction other warps may run."""
    e.m.declare("soft_preempt", "declare void @soft_preempt(ptr)")
    e.emit("call void @soft_preempt(ptr %w)")
