"""In-process activation: `gpuvirt.remote()` and `gpuvirt.attach()`."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuvirt import paths
from gpuvirt.client import settings as client_settings
from gpuvirt.client.connect import at_lease, connect
from gpuvirt.client.environment import apply, variables
from gpuvirt.client.lease import Lease
from gpuvirt.client.named_lease import NamedLease, find_lease, open_lease, say_waiting
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError

_active: _Activation | None = None
_activating = threading.Lock()

# The client library reads its settings once, when it is loaded. Without these it takes what the lease has, which may still change before CUDA begins.
OF_THE_LEASE = ("GPUVIRT_GPUS", "GPUVIRT_MEMORY", "GPUVIRT_COMPUTE")


class _Activation:
    """The one activation of this process: what it was asked for, the present lease, and what it keeps alive."""

    def __init__(self, settings: Settings, joined: bool) -> None:
        self.environment = dict(os.environ)  # before it was changed below
        self.depth = 0  # blocks that this process is in, one in the other
        self.settings = settings
        # A private pool ends when the kernel closes our end of its pipe, and not before: CUDA libraries still talk to it while the process exits.
        found = self.connected = connect(settings)
        try:
            # A lease that this process inherited, of an attached shell or of a parent's block, stays theirs.
            named = self._inherited() if settings.lease else open_lease(found.status, settings, told=say_waiting(settings))
            self.connected = at_lease(found, named.status)
            self.id = named.id
            self.driver = self._load() if joined else self._activate()
            self.lease = Lease(named, self.driver, joined=settings.lease is not None)
            atexit.register(lambda: self.lease.at_exit())
        except BaseException:
            if found.private is not None:
                found.private.close()
            raise

    def _inherited(self) -> NamedLease:
        assert self.settings.lease is not None
        return find_lease(self.connected.status, self.settings.lease)

    def _variables(self) -> dict[str, str]:
        """All variables of a program on this lease; not the loader's, which has read its own already: what they would load is loaded below."""
        own = self.settings
        settings = replace(self.connected.settings, lease=self.id, gpus=own.gpus, memory=own.memory, compute=own.compute)
        return apply([v for v in variables(settings, self.connected.status) if not v.name.startswith("LD_")])

    def _activate(self) -> ctypes.CDLL:
        env = self._variables()
        for name, value in env.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        for name in OF_THE_LEASE:
            os.environ.pop(name, None)
        if self.connected.status.software and str(paths.PYTHON_COMPAT) not in sys.path:
            sys.path.append(str(paths.PYTHON_COMPAT))  # what PYTHONPATH is for in programs that start later
        driver = self._load()
        self._tell_children()
        return driver

    def _tell_children(self) -> None:
        """Programs that this process starts by `gpuvirt run` work under its lease."""
        env = self._variables()
        for name in OF_THE_LEASE:
            if name in env:
                os.environ[name] = env[name]
            else:
                os.environ.pop(name, None)

    def _load(self) -> ctypes.CDLL:
        # A library of this soname that is loaded already satisfies every later dlopen("libcuda.so.1").
        software = self.connected.status.software
        files = [paths.library(paths.CUDA), paths.library(paths.NVML), *([paths.program(paths.COMPAT)] if software else [])]
        self.libraries = [ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL) for file in files]
        return self.libraries[0]

    def enter(self, settings: Settings) -> Lease:
        """A block begins.

        Raises:
            GpuvirtError: with other settings than the process can have now.
        """
        if self.lease.released:
            self.depth = 0  # whatever blocks had it
        if self.depth or self.lease.begun:
            if settings != self.settings:
                raise GpuvirtError(self._other(settings))
            if self.lease.released:
                raise GpuvirtError("this process gave its GPUs back with release(), and what it had on them is gone; start it again")
        elif self.lease.released:
            self._anew(settings)
        elif settings != self.settings:
            if self.lease.joined:
                raise GpuvirtError(self._other(settings))
            self.lease.release()
            self._anew(settings)
        self.driver.gpuvirt_block(1)
        self.depth += 1
        return self.lease

    def _anew(self, settings: Settings) -> None:
        """Another lease under the same id, which the client library has read."""
        if _kind(settings) != _kind(self.settings):
            raise GpuvirtError(self._other(settings))
        named = open_lease(self.connected.status, settings, self.id, told=say_waiting(settings))
        self.settings, self.connected = settings, at_lease(self.connected, named.status)
        self.lease = Lease(named, self.driver, joined=False)
        self._tell_children()

    def _other(self, settings: Settings) -> str:
        url, have = self.connected.status.address.url, "1 GPU" if self.settings.gpus == 1 else f"{self.settings.gpus} GPUs"
        why = "its CUDA library was loaded for that server and link"
        if self.lease.begun:
            why = "CUDA has begun, and a process cannot change its GPUs after that"
        elif self.depth:
            why = "a block inside of another has the same GPUs"
        return f"this process is attached to {have} of {url} already, with other settings; {why}: ask for the same, or start another process"

    def leave(self) -> None:
        """A block is over. Before CUDA has begun the GPUs are given back; after that what is on them is parked, and calls are refused."""
        self.depth -= 1
        if self.depth:
            return
        begun = self.driver.gpuvirt_block(0)
        if self.lease.joined or self.lease.released:
            return
        if begun:
            self.lease.park()
        else:
            with contextlib.suppress(GpuvirtError):  # then it ends because nobody renews it any more
                self.lease.release()


def _kind(settings: Settings) -> Settings:
    """What cannot change once the client library is loaded."""
    return replace(settings, gpus=1, memory=None, compute=None, no_wait=False, wait=None, priority=0)


def _enter(settings: Settings) -> Lease:
    global _active
    with _activating:
        if _active is None:
            loaded = loaded_cuda()
            # In an attached shell the client library is there already.
            joined = loaded is not None and settings.lease is not None and os.path.realpath(loaded) == os.path.realpath(paths.library(paths.CUDA))
            if loaded is not None and not joined:
                raise GpuvirtError(f"CUDA is already loaded ({loaded}); enter gpuvirt.remote() before the first import that uses it")
            _active = _Activation(settings, joined)
        return _active.enter(settings)


def _leave() -> None:
    with _activating:
        if _active is not None and _active.depth:
            _active.leave()


class remote:
    """Remote GPUs for this process: ``with gpuvirt.remote(gpus=2) as lease: import cupy; ...``

    Enter it before the first import or call that loads CUDA: the CUDA driver is loaded once in a process and cannot be changed afterwards. Where
    others have the GPUs, entering waits until they are free, and says its place on stderr.

    Blocks: several may follow one another, and be entered inside of one another. Between them frees, destroys, queries and waits succeed; every
    other CUDA call fails with CUDA_ERROR_NOT_PERMITTED, whose text says why, and nothing of that sticks. Arrays are valid again in the next block.
    Once CUDA has begun, all blocks have the same arguments; before, they may ask for another number of GPUs and other memory.

    Leaving the last block gives the GPUs' memory back once the process has called nothing for half a second: its content goes to a file of the
    server's, and is back at the first call of the next block, which waits until there is room. A free in between brings it back, too, until the
    session is idle (`serve --idle`). The lease stays, with what it reserves; ``lease.release()`` gives all of it back for good. On a real GPU the
    memory stays where it is until then. Where CUDA has not begun, leaving gives the GPUs back.

    Under a lease that the process has inherited (an attached shell's, GPUVIRT_LEASE) blocks use those GPUs, and leaving them changes nothing of it.

    Threads: all threads of the process share the session and its blocks: CUDA is refused when the last block has been left. Entering and leaving are
    serialised by a lock; enter before other threads use CUDA. ``async with`` works, too, and keeps the event loop running while it connects.

    Processes: a child made by ``fork()`` after the first CUDA call gets CUDA_ERROR_NOT_INITIALIZED, as with a real driver; one made before may use
    CUDA, on the same GPUs, and gets a session of its own. Programs that this process starts are not affected: LD_PRELOAD is not set; start them with
    ``gpuvirt run``, which puts them on the same GPUs.

    Args:
        gpus: how many GPUs, 1 to 16; None takes GPUVIRT_GPUS or the configuration file, and without those 1.
        pool: ``tcp://HOST:PORT``; None takes GPUVIRT_POOL or the configuration file, and without those a private local pool that ends with
            the process.
        memory: per GPU: bytes, or text in powers of 1024 such as ``512m`` (MiB) or ``4g`` (GiB); None: all that the GPU has.
        compute: part of each GPU's compute that is reserved, such as 0.25: at least so much of its time while others compute; None: none.
        link: ``auto``, ``shm``, ``tcp``, ``tcp(channels=4)``, or one of them delayed, ``delay(rtt=30ms,rate=10gbit,tcp)``; None: ``auto``.
        local: True: a private local pool, even if a pool is configured.
        capability: compute capability that software GPUs report to the program, such as ``8.0``; None: the server's.
        no_wait: True: an error instead of waiting for GPUs that others have.
        wait: the longest to wait for them: seconds, or text such as ``90s`` or ``2m``; None: without a limit.
        priority: among those that wait, -100 to 100, higher ones first; the token says up to which.

    Raises:
        GpuvirtError: an argument is not valid (when constructed); no such server, no token, CUDA is loaded already, or entered with arguments that
            this process cannot have any more (when entered).
    """

    def __init__(
        self,
        gpus: int | None = None,
        pool: str | None = None,
        *,
        memory: int | str | None = None,
        compute: float | str | None = None,
        link: str | None = None,
        local: bool | None = None,
        capability: str | None = None,
        no_wait: bool | None = None,
        wait: float | str | None = None,
        priority: int | None = None,
    ) -> None:
        given: dict[str, Any] = {"gpus": gpus, "pool": pool, "memory": memory, "link": link, "local": local or None, "capability": capability}
        given |= {"compute": compute, "no_wait": no_wait, "wait": wait, "priority": priority}
        self._settings = client_settings.resolve(given, _active.environment if _active else None)

    def __enter__(self) -> Lease:
        return _enter(self._settings)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _leave()

    @property
    def pool(self) -> str:
        """The server's URL, ``tcp://HOST:PORT``.

        Raises:
            GpuvirtError: no `remote` has been entered in this process.
        """
        if _active is None:
            raise GpuvirtError("gpuvirt.remote() has not been entered")
        return _active.lease.pool

    async def __aenter__(self) -> Lease:
        return await asyncio.to_thread(_enter, self._settings)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(_leave)


def attach(gpus: int | None = None, pool: str | None = None, **options: Any) -> Lease:
    """Remote GPUs for this process until ``release()`` of the lease, or its end: for notebooks and for programs that are no single block.

    Args:
        gpus, pool, options: as for `remote`.

    Returns:
        The lease: its ``devices``, ``stats()``, ``release()``.

    Raises:
        GpuvirtError: as for `remote`.
    """
    return remote(gpus, pool, **options).__enter__()


def loaded_cuda() -> str | None:
    """The path of a CUDA driver or runtime library that is mapped into this process, None when there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        name = os.path.basename(path[0]) if path else ""
        if name.startswith(("libcuda.so", "libcudart.so", "libcudart-", "libnvidia-ml.so")):
            return path[0]
    return None
