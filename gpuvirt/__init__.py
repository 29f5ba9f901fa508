"""gpuvirt: remote GPUs for unmodified CUDA programs.

import gpuvirt

with gpuvirt.remote(pool="tcp://gpu-host:7070", gpus=2) as lease:
    import cupy
    ...

lease = gpuvirt.attach(pool="tcp://gpu-host:7070")  # without a block, until lease.release() or the end of the program

for device in gpuvirt.devices(pool="tcp://gpu-host:7070"):
    print(device.name, device.memory)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError

if TYPE_CHECKING:
    from gpuvirt.client.devices import Device, devices
    from gpuvirt.client.lease import Lease, Stats
    from gpuvirt.client.remote import attach, remote

__version__ = "0.1.0"
__all__ = ["Device", "GpuvirtError", "Lease", "Stats", "__version__", "attach", "devices", "remote"]

# Public name: its module. Modules are imported at first use, because the command line and the workers import this package without needing them.
_LAZY = {
    "Device": "gpuvirt.client.devices",
    "Lease": "gpuvirt.client.lease",
    "Stats": "gpuvirt.client.lease",
    "attach": "gpuvirt.client.remote",
    "devices": "gpuvirt.client.devices",
    "remote": "gpuvirt.client.remote",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
