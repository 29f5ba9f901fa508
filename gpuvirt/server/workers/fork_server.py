"""What a template's process does once it has loaded what all workers need: forks a worker whenever its daemon (template.py) asks for one.

Messages are those of gpuvirt.server.messages. From the daemon: ``fork`` (the worker's socket; the entrance of its cgroup, if there is one). To the
daemon: ``forked`` (pid; its pidfd), or (text) why that was not possible; ``exited`` (pid, code), as subprocess has it.

It has one thread, so that a fork has everything, and has seen nothing of any session.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import messages
from gpuvirt.server.box import kernel


def serve(daemon: socket.socket, work: Callable[[socket.socket], int]) -> None:
    """Returns when the daemon is gone.

    Args:
        work: what a worker does, with its own socket to the daemon; its result is the process's exit code.

    Raises:
        GpuvirtError: this process has several threads.
    """
    if kernel.threads() != 1:
        raise GpuvirtError("workers cannot be forked: something in the server's environment (LD_PRELOAD, sitecustomize) starts threads")
    gc.collect()
    gc.freeze()  # so that no worker's collections write to pages that all share
    wake, wakes = socket.socketpair()
    for sock in (wake, wakes):
        sock.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with contextlib.suppress(ConnectionError):  # the daemon was killed: it has not read everything, or what it is told now comes too late
        while True:
            readable, _, _ = select.select([daemon, wake], [], [])
            if wake in readable:
                wake.recv(4096)
                _tell_exits(daemon)
            if daemon in readable:
                received = messages.receive(daemon)
                if received is None:
                    return
                _fork(received[1], daemon, work, (daemon, wake, wakes))


def _fork(fds: list[int], daemon: socket.socket, work: Callable[[socket.socket], int], own: tuple[socket.socket, ...]) -> None:
    """Args:
    own: what a worker closes.
    """
    try:
        pid = os.fork()
        if pid == 0:
            _be_worker(fds, work, own)
        pidfd = os.pidfd_open(pid)  # nobody else can have its number: only `_tell_exits` reaps it
    except OSError as error:
        messages.send(daemon, {"op": "forked", "text": str(error.strerror)})
    else:
        messages.send(daemon, {"op": "forked", "pid": pid}, (pidfd,))
        os.close(pidfd)
    finally:
        for fd in fds:
            os.close(fd)


def _be_worker(fds: list[int], work: Callable[[socket.socket], int], own: tuple[socket.socket, ...]) -> None:
    """Does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sock in own:
            sock.close()
        os.setsid()
        if len(fds) > 1:
            _enter_cgroup(fds[1])
        code = work(socket.socket(fileno=fds[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _enter_cgroup(entrance: int) -> None:
    """Before anything is forked, which is in it then as well."""
    os.write(entrance, b"0")
    os.close(entrance)


def _tell_exits(daemon: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        messages.send(daemon, {"op": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)})
