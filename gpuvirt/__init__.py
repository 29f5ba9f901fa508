"""gpuvirt: remote GPUs for unmodified CUDA programs.

import gpuvirt

with gpuvirt.remote(pool="tcp://gpu-host:7070"):
    import cupy
    ...

for device in gpuvirt.devices(pool="tcp://gpu-host:7070"):
    print(device.name, device.memory)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError

if TYPE_CHECKING:
    from gpuvirt.client.devices import Device, devices
    from gpuvirt.client.remote import remote

__version__ = "0.1.0"
__all__ = ["Device", "GpuvirtError", "__version__", "devices", "remote"]

# Public name: its module. Modules are imported at first use, because the command line and the workers import this package without needing them.
_LAZY = {"Device": "gpuvirt.client.devices", "devices": "gpuvirt.client.devices", "remote": "gpuvirt.client.remote"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
