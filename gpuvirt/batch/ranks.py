"""The ranks of a job: how they are shared out among hosts, their environment, and the processes from their begin to their end.

Each rank is as if it were alone on a node with the GPUs that are its own, which it numbers from 0: whoever takes GPU LOCAL_RANK gets one of them, and
so does a program that knows nothing of ranks. Variables have the names that torchrun, Open MPI, PMI and Horovod give them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gpuvirt.client.launcher import NOT_EXECUTABLE, NOT_FOUND

PR_SET_PDEATHSIG = 1
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
LOOK = 0.1  # seconds


def nodes_for(ranks: int, gpus: int, hosts: Collection[int]) -> int:
    """Among how many leases ranks are shared out evenly, if each is to be on one host: as few as all hosts have room for when they are
    empty. If they never have, as few as the largest has room for one of.

    Args:
        gpus: of each rank. hosts: how many GPUs each has.
    """
    even = [(nodes, ranks // nodes * gpus) for nodes in range(1, ranks + 1) if ranks % nodes == 0]  # how many, and the GPUs of each
    able = [nodes for nodes, each in even if sum(host // each for host in hosts) >= nodes]
    return next(iter(able or [nodes for nodes, each in even if each <= max(hosts)]), ranks)


def rank_variables(rank: int, ranks: int, gpus: int, port: int, job: str, nodes: int = 1) -> dict[str, str]:
    """What a rank finds in its environment.

    Args:
        gpus: of each rank. port: at which rank 0 may listen. nodes: leases that the ranks are shared out among, one after the other.
    """
    first = rank % (ranks // nodes) * gpus
    own = ",".join(str(first + number) for number in range(gpus))
    return {
        "CUDA_VISIBLE_DEVICES": own,
        "GPUVIRT_BATCH_JOB": job,
        # torch.distributed, as torchrun sets them
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Open MPI's and PMI's
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(ranks),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(ranks),
        # Horovod's
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(ranks),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": str(ranks),
    }


def free_port() -> int:
    """One at which nobody listens now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ends_with(parent: int) -> Callable[[], None]:
    """For a child, before its program begins: it is ended when the process that has started it ends, however that ends."""
    libc = ctypes.CDLL(None)

    def before() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return before


class Gang:
    """The processes of all ranks, each in a group of its own, with its output in a file.

    Args:
        command: of each rank.
        environment: of all of them; `rank_variables` are added.
        logs: by rank.
    """

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], logs: Sequence[Path]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.failed: tuple[int, int] | None = None  # the first rank that has, and its exit code
        before = _ends_with(os.getpid())
        for rank, (environment, log) in enumerate(zip(environments, logs, strict=True)):
            log.parent.mkdir(mode=0o700, exist_ok=True)
            with log.open("wb") as out:
                try:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True, preexec_fn=before
                    )
                except OSError as error:
                    out.write(f"gpuvirt: {command[0]}: {error.strerror}\n".encode())
                    self.failed = rank, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
                    return
            self._processes.append(process)

    def look(self) -> bool:
        """Whether nothing more is to come: all have ended well, or one has not."""
        codes = [process.poll() for process in self._processes]
        for rank, code in enumerate(codes):
            if code and self.failed is None:
                self.failed = rank, code if code > 0 else 128 - code
        return self.failed is not None or all(code == 0 for code in codes)

    def end(self) -> None:
        """Ends what still runs: asks it to, and kills it after a while."""
        for sig, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sig)
            until = time.monotonic() + patience
            while time.monotonic() < until and any(process.poll() is None for process in running):
                time.sleep(LOOK)
        for process in self._processes:  # what a rank has left behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
