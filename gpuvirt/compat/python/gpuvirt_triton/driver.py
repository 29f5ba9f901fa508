"""The driver's half: Triton's own, which names an architecture that Triton's compiler knows."""

from __future__ import annotations

import os
import re
from typing import Any

import triton.backends.nvidia.driver as nvidia

NEWEST_KNOWN = 121
INSTEAD = 80  # mma, ldmatrix and cp.async without what only Hopper or Blackwell have


class Driver(nvidia.CudaDriver):  # type: ignore[misc, name-defined]
    """CudaDriver for a device of a compute capability that no compiler knows."""

    def get_current_target(self) -> Any:
        target = super().get_current_target()
        if target.arch <= NEWEST_KNOWN:
            return target
        chosen = re.fullmatch(r"sm(\d+)", os.environ.get("TRITON_OVERRIDE_ARCH", ""))
        return type(target)(target.backend, int(chosen[1]) if chosen else INSTEAD, target.warp_size)
