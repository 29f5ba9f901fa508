"""What a daemon is started with."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

MAX_GPUS = 16  # GV_MAX_DEVICES


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``gpuvirt serve``, checked and with their defaults filled in.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        backend: "auto", "cuda" or "soft".
        driver: cuda: absolute path of the driver library, None: look for it.
        gpus: how many devices; soft makes that many, cuda offers the first so many. None: 1 on soft, all on cuda.
        gpu_memory: soft: bytes of one device, None: an equal share of half the machine's memory.
        capability: soft: compute capability times 10, 0: the backend's own choice.
        links: which links are offered, of "tcp", "shm".
        grace: seconds that a session outlives a cut of its tcp connection, 0: it ends with it.
        ready_file: written once the daemon is ready.
        parent_fd: a pipe; the daemon ends when its other end closes.
        private_folder: a private pool's own folder, removed at the end: its launcher may be dead by then.
    """

    host: str = "127.0.0.1"
    port: int = 7070
    backend: str = "auto"
    driver: Path | None = None
    gpus: int | None = None
    gpu_memory: int | None = None
    capability: int = 0
    strict: bool = False
    links: tuple[str, ...] = ("tcp", "shm")
    grace: int = 60
    name: str = field(default_factory=socket.gethostname)
    ready_file: Path | None = None
    drop_launches: bool = False
    parent_fd: int | None = None
    private_folder: Path | None = None
