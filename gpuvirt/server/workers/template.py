"""A template, seen by the daemon: a process that has loaded what all workers need, and forks each of them in some milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.printable import printable
from gpuvirt.server import descriptors, messages
from gpuvirt.server.limits.cgroups import WorkerCgroup
from gpuvirt.server.workers.worker_process import Process

FORK_LIMIT = 30.0  # seconds, of which the first worker's are for loading
EXIT_LIMIT = 1.0  # seconds in which a process ends that has closed its socket
SECRETS = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|(API|ACCESS|PRIVATE|AUTH).*KEY|AUTH_SOCK", re.I)  # in names of variables
WORKER_COMMAND = (sys.executable, "-P", "-m", "gpuvirt.server.worker")


_Forked = tuple[int, int, asyncio.Future[int | None]]  # pid, pidfd, exit code


class TemplateEnded(GpuvirtError):
    """It has ended, not of itself: another one can fork."""


class Template:
    """Starts the process, which `close` ends. Workers do not end with it; how they end then nobody can tell.

    Args:
        command: what starts it, with its options; tests pass their own.
        client: whether the workers' driver is gpuvirt's own client library.
    """

    def __init__(self, command: Sequence[str], backend: str, client: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # In a new session: signals from the daemon's terminal go to the daemon only, which then ends its workers.
            self._process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--backend", backend],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(client),
            )
        self._forks: deque[asyncio.Future[_Forked]] = deque()  # in the order in which they are asked for and answered
        self._exit_codes: dict[int, asyncio.Future[int | None]] = {}  # by worker
        self._why = ""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)

    @property
    def ended(self) -> bool:
        return self._socket.fileno() < 0

    async def fork(self, cgroup: WorkerCgroup | None = None) -> Process:
        """A worker, which says itself when it is ready.

        Args:
            cgroup: which it enters, None: there is none.

        Raises:
            TemplateEnded: there is none to be had from this one.
            GpuvirtError: there is none to be had, and why.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        forked: asyncio.Future[_Forked] = self._loop.create_future()
        try:
            with theirs, contextlib.ExitStack() as passed:
                fds = [theirs.fileno()]
                if cgroup is not None:
                    fds.append(cgroup.open_entrance())
                    passed.callback(os.close, fds[-1])
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: _readable says why
                    messages.send(self._socket, {"op": "fork"}, tuple(fds))
            self._forks.append(forked)
            async with asyncio.timeout(FORK_LIMIT):
                pid, pidfd, exit_code = await forked
        except OSError as error:
            ours.close()
            if isinstance(error, TimeoutError):
                self._process.kill()  # it hangs
                raise GpuvirtError(f"a worker did not start within {FORK_LIMIT:.0f} s") from None
            raise GpuvirtError(f"a worker did not start: {error.strerror}") from None
        except BaseException:
            ours.close()
            raise
        descriptors.take_from(ours, False)
        return Process(pid, pidfd, ours, exit_code)

    def _readable(self) -> None:
        try:
            received = messages.receive(self._socket)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            received = None
        if received is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its exit code, where it is on its way out
                self._process.wait(EXIT_LIMIT)
            self._over()
            return
        message, fds = received
        match message["op"]:
            case "forked" if fds:
                exit_code = self._exit_codes[message["pid"]] = self._loop.create_future()
                forked = self._forks.popleft()
                if forked.done():  # nobody wants it any more
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(fds[0], signal.SIGKILL)
                    os.close(fds[0])
                else:
                    forked.set_result((message["pid"], fds[0], exit_code))
            case "forked":
                forked = self._forks.popleft()
                if not forked.done():
                    forked.set_exception(GpuvirtError(f"a worker did not start: {message['text']}"))
            case "exited":
                if exited := self._exit_codes.pop(message["pid"], None):  # None: it could not be handed over
                    exited.set_result(message["code"])
            case "failed":
                self._why = printable(message["text"])

    def _over(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()
        code = self._process.wait()
        if self._why:
            error = GpuvirtError(self._why)
        elif code < 0:
            error = TemplateEnded(f"a worker did not start: the process that forks them was killed by {signal.Signals(-code).name}")
        else:
            error = GpuvirtError(f"a worker did not start: the process that forks them ended with exit code {code}")
        for forked in self._forks:
            if not forked.done():
                forked.set_exception(error)
        for exit_code in self._exit_codes.values():
            exit_code.set_result(None)
        self._forks.clear()
        self._exit_codes.clear()

    def close(self) -> None:
        """Ends it. It holds nothing that would have to be kept."""
        if not self.ended:
            self._over()


def _environment(client: bool = False) -> dict[str, str]:
    """The daemon's environment for a worker: without gpuvirt's client libraries, which it must not load in place of the real driver, and without
    variables whose names speak of secrets, because whoever runs code in a worker can read them.

    Args:
        client: whether the worker's driver is gpuvirt's own, which needs a token.
    """
    env = {name: value for name, value in os.environ.items() if not SECRETS.search(name) or (client and name == "GPUVIRT_TOKEN")}
    ours = {str(paths.library_dir() / name) for name in (paths.CUDA, paths.NVML)}
    kept = [p for p in env.get("LD_PRELOAD", "").replace(" ", ":").split(":") if p and p not in ours]
    env.pop("LD_PRELOAD", None)
    if kept:
        env["LD_PRELOAD"] = ":".join(kept)
    return env
