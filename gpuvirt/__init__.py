"""gpuvirt: GPUs the machine does not have.

import gpuvirt

with gpuvirt.remote(pool="tcp://gpu-host:7070"):
    import cupy
    ...

for device in gpuvirt.devices(pool="tcp://gpu-host:7070"):
    print(device["name"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError

if TYPE_CHECKING:
    from gpuvirt.client.remote import devices, remote

__version__ = "0.1.0"
__all__ = ["GpuvirtError", "__version__", "devices", "remote"]


def __getattr__(name: str) -> Any:
    # The command line and the workers import this package too and need neither.
    if name in ("devices", "remote"):
        from gpuvirt.client import remote as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
