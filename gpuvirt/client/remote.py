"""In-process activation: `gpuvirt.remote()`."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from types import TracebackType

from gpuvirt import paths
from gpuvirt.client import settings as client_settings
from gpuvirt.client.connect import connect
from gpuvirt.client.environment import apply, variables
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError

_active: _Activation | None = None
_activating = threading.Lock()


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

    Enter it before the first import or call that loads CUDA: the CUDA driver is loaded once in a process and cannot be changed afterwards. For the
    same reason leaving the context does not give the GPUs back: the session ends with the process, and entering again (with the same arguments)
    continues it. A server that has too few GPUs refuses at once; nothing waits for GPUs to become free.

    Threads: all threads of the process share the session. Entering is serialised by a lock; enter before other threads use CUDA.

    Processes: a child made by ``fork()`` after the first CUDA call gets CUDA_ERROR_NOT_INITIALIZED, as with a real driver; one made before may use
    CUDA and gets a session of its own. Programs that this process starts are not affected: LD_PRELOAD is not set; start them with ``gpuvirt run``.

    Args:
        gpus: how many GPUs, 1 to 16; None takes GPUVIRT_GPUS or the configuration file, and without those 1.
        pool: ``tcp://HOST:PORT``; None takes GPUVIRT_POOL or the configuration file, and without those a private local pool that ends with
            the process.
        memory: per GPU: bytes, or text in powers of 1024 such as ``512m`` (MiB) or ``4g`` (GiB); None: all that the GPU has.
        link: ``auto``, ``shm``, ``tcp``, ``tcp(channels=4)``, or one of them delayed, ``delay(rtt=30ms,rate=10gbit,tcp)``; None: ``auto``.
        local: True: a private local pool, even if a pool is configured.
        capability: compute capability that software GPUs report to the program, such as ``8.0``; None: the server's.

    Raises:
        GpuvirtError: an argument is not valid (when constructed); no such server, no token, CUDA is loaded already, or entered before with other
            arguments (when entered).
    """

    def __init__(
        self,
        gpus: int | None = None,
        pool: str | None = None,
        *,
        memory: int | str | None = None,
        link: str | None = None,
        local: bool | None = None,
        capability: str | None = None,
    ) -> None:
        self._settings = client_settings.resolve(
            {"gpus": gpus, "pool": pool, "memory": memory, "link": link, "local": local or None, "capability": capability},
            _active.environment if _active else None,
        )

    def __enter__(self) -> remote:
        global _active
        with _activating:
            if _active is None:
                loaded = loaded_cuda()
                if loaded is not None:
                    raise GpuvirtError(f"CUDA is already loaded ({loaded}); enter gpuvirt.remote() before the first import that uses it")
                _active = _Activation(self._settings)
            elif _active.settings != self._settings:
                url = _active.connected.status.address.url
                raise GpuvirtError(f"this process is already attached to {url} with other settings; a process has one session")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The session stays until the process ends; see the class."""

    @property
    def pool(self) -> str:
        """The server's URL, ``tcp://HOST:PORT``.

        Raises:
            GpuvirtError: no `remote` has been entered in this process.
        """
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
