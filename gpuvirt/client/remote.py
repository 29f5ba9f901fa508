"""In-process activation: `gpuvirt.remote()`, and `gpuvirt.devices()`."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuvirt import paths
from gpuvirt.client import settings as client_settings
from gpuvirt.client.connect import connect, named_pool
from gpuvirt.client.environment import apply, variables
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import request
from gpuvirt.transport.pool import check_pool

_active: _Activation | None = None


class _Activation:
    """The one activation of this process: what it was asked for, and what it keeps alive."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.environment = dict(os.environ)  # before it was changed below
        # A private pool ends when the kernel closes our end of its pipe, and not before: CUDA libraries still talk to it while the process exits.
        found = self.connected = connect(settings)
        try:
            # The loader has read its own variables already; what they would load is loaded below.
            env = apply([v for v in variables(found.settings, found.status) if not v.name.startswith("LD_")])
            for name, value in env.items():
                if os.environ.get(name) != value:
                    os.environ[name] = value
            if found.status.software and str(paths.PYTHON_COMPAT) not in sys.path:
                sys.path.append(str(paths.PYTHON_COMPAT))  # what PYTHONPATH is for in programs that start later
            # A library of this soname that is loaded already satisfies every later dlopen("libcuda.so.1").
            files = [paths.library(paths.CUDA), paths.library(paths.NVML), *([paths.program(paths.COMPAT)] if found.status.software else [])]
            self.libraries = [ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL) for file in files]
        except BaseException:
            if found.private is not None:
                found.private.close()
            raise


class remote:
    """Remote GPUs for this process: ``with gpuvirt.remote(gpus=2): import cupy; ...``

    Must be entered before the first import or call that loads CUDA: the CUDA driver is loaded once in a process and cannot be changed
    afterwards. For the same reason leaving the context does not yet give the GPUs back: in this version the session ends with the process, and
    entering again (with the same arguments) continues it. Programs that this process starts are not affected; use ``gpuvirt run`` for those.

    Args:
        gpus: how many GPUs.
        pool: ``tcp://HOST:PORT``; None takes GPUVIRT_POOL or the configuration file, and without those a private local pool that ends with
            the process.
        memory: per GPU, bytes or text such as ``4g``.
        link: ``auto``, ``shm``, ``tcp``, ``tcp(channels=4)`` or one of them as from afar: ``delay(rtt=30ms,rate=10gbit,tcp)``.
        no_wait: fail at once when there are not enough GPUs.
        local: a private local pool, whatever is configured.
        capability: compute capability that software GPUs tell the program, such as ``8.0``; None takes the server's.

    Raises:
        GpuvirtError: no such server, no token, CUDA is loaded already, or other arguments than before.
    """

    def __init__(
        self,
        gpus: int | None = None,
        pool: str | None = None,
        *,
        memory: int | str | None = None,
        link: str | None = None,
        no_wait: bool | None = None,
        local: bool | None = None,
        capability: str | None = None,
    ) -> None:
        self._settings = client_settings.resolve(
            {"gpus": gpus, "pool": pool, "memory": memory, "link": link, "no_wait": no_wait, "local": local or None, "capability": capability},
            _active.environment if _active else None,
        )

    def __enter__(self) -> remote:
        global _active
        if _active is None:
            loaded = loaded_cuda()
            if loaded is not None:
                raise GpuvirtError(f"CUDA is loaded in this process already ({loaded}); enter gpuvirt.remote() before the first import that uses it")
            _active = _Activation(self._settings)
        elif _active.settings != self._settings:
            raise GpuvirtError(
                f"this process is attached to {_active.connected.status.address.url} already, with other settings; a process has one session so far"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The session stays until the process ends; see the class."""

    @property
    def pool(self) -> str:
        """The server's URL."""
        if _active is None:
            raise GpuvirtError("gpuvirt.remote() has not been entered")
        return _active.connected.status.address.url


def loaded_cuda() -> str | None:
    """The path of a CUDA driver or runtime library that is mapped into this process, None when there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        name = os.path.basename(path[0]) if path else ""
        if name.startswith(("libcuda.so", "libcudart.so", "libcudart-", "libnvidia-ml.so")):
            return path[0]
    return None


def devices(pool: str | None = None) -> list[dict[str, Any]]:
    """The GPUs of a pool.

    Args:
        pool: ``tcp://HOST:PORT``; None takes GPUVIRT_POOL or the configuration file.

    Returns:
        One dict a GPU: ``ordinal``, ``name``, ``memory`` (bytes), ``memory_used`` (bytes, None where only the driver knows), ``sessions``,
        ``server``, ``backend``.

    Raises:
        GpuvirtError: no pool is set, or it does not answer.
    """
    settings = client_settings.resolve({"pool": pool})
    status = check_pool(named_pool(settings), settings.token)
    answer = request(status.peer, status.greeting.control_port, status.token, "devices")
    return [{**device, "server": answer["server"], "backend": answer["backend"]} for device in answer["devices"]]
