"""The options of a daemon."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt.transport.pool import PoolAddress
from gpuvirt.transport.table import NAMES

BOX_MODES = ("auto", "required", "off")  # by what the kernel has, only without holes, none
MAX_GPUS = 16  # GV_MAX_DEVICES
# What a worker takes at most beside its session's device memory: 0.9 GiB of copies, records, objects and threads, the images of modules and what
# is known of them (native/worker/session_limits.h), Python and LLVM; the rest is the compiler's.
HOST_MEMORY = 8 << 30
DISK_PER_TOKEN = 8 << 30  # compiled kernels 2 GiB, images 1 GiB, what a driver compiles 1 to 4 GiB
SESSIONS_PER_TOKEN = 128  # a worker without memory of its session takes some 70 MiB


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``gpuvirt serve``, checked and with their defaults filled in.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        backend: "auto", "cuda" or "soft".
        driver: cuda: absolute path of the driver library, None: search for it.
        gpus: number of devices; soft makes that many, cuda offers the first that many. None: 1 on soft, all on cuda.
        gpu_memory: soft: bytes of one device, None: an equal share of half the machine's memory.
        capability: soft: compute capability times 10, 0: the backend's default (130).
        strict: soft: imitate what a real driver is free to do.
        links: which links are offered, by name (gpuvirt.transport.table).
        plain: clients that ask for it may have links over a network that are not sealed.
        grace: seconds for which a session is kept after its connection was cut, 0: it ends at once.
        overrun: cuda: seconds for which a session's kernels may run on after its turn while others wait.
        idle: seconds after which a session that does nothing is parked, 0: none is, but to make room for another.
        sessions_per_token: sessions that clients with one token may have at the same time.
        box: one of `BOX_MODES`.
        memory_per_session: the most that a session may have on each device, bytes, 0: all of it.
        host_memory_per_session: the most host memory that a worker may take beside its session's memory on the devices, bytes.
        disk_per_token: what sessions of one token may keep on disk together, bytes.
        head: this host has the scheduler of a pool of many.
        join: a host of the pool of many that this one is to join, None: none.
        ray: the Ray cluster whose pool of many hosts this one is of, "": of none.
        rack: the name of this host's rack in its pool, "": none.
        rebalance: of a head, or of a pool of a Ray cluster that begins: how many leases may move to a host that joins.
        announce: it is said in the network that the server is there.
        metrics: where to serve figures for Prometheus, None: nowhere; port 0 takes a free one.
        name: the server's name.
        ready_file: written once the daemon is ready.
        parent_fd: a pipe; the daemon ends when its other end closes.
        private_folder: the folder of a private local pool, which the daemon removes at its end, because the launcher may have been killed.
    """

    host: str = "127.0.0.1"
    port: int = 7070
    backend: str = "auto"
    driver: Path | None = None
    gpus: int | None = None
    gpu_memory: int | None = None
    capability: int = 0
    strict: bool = False
    links: tuple[str, ...] = NAMES
    plain: bool = False
    grace: int = 60
    idle: int = 60
    overrun: int = 60
    sessions_per_token: int = SESSIONS_PER_TOKEN
    box: str = "auto"
    memory_per_session: int = 0
    host_memory_per_session: int = HOST_MEMORY
    disk_per_token: int = DISK_PER_TOKEN
    head: bool = False
    join: PoolAddress | None = None
    ray: str = ""
    rack: str = ""
    rebalance: int = 0
    announce: bool = False
    metrics: tuple[str, int] | None = None
    name: str = field(default_factory=socket.gethostname)
    ready_file: Path | None = None
    parent_fd: int | None = None
    private_folder: Path | None = None
