"""Forks a process for each attempt, puts it into a box with parts left out, and says what the attempt came to: JSON on stdin and stdout."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from gpuvirt.server.box import files
from gpuvirt.server.box.box import Box

EXECUTED = 77  # the exit code of what the attempt to start a program starts
UNSAID = 255
NOBODY = 65534
DATA = 8 << 30  # bytes of writable addresses


def run(lib: ctypes.CDLL, folder: str, backend: str, leave_out: list[str] | None, name: str, argument: str) -> int:
    """The errno of one attempt in a fresh process, 0 when it succeeded. leave_out None: no box."""
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(100)
            if argument.startswith(("CONNECTED:", "FRESH:")):  # a socket that the worker has been given
                kind, port = argument.split(":")
                given = socket.create_connection(("127.0.0.1", int(port))) if kind == "CONNECTED" else socket.socket()
                argument = f"{given.fileno()}:{port}"
            if leave_out is not None:
                fd = os.open(folder, os.O_PATH)
                data = DATA if backend == "soft" else 0
                Box(backend, driver=Path("/nowhere/libcuda.so.1"), folder=fd, data=data, leave_out=frozenset(leave_out)).close()
            os._exit(lib.attempt(name.encode(), argument.encode()))
        finally:
            os._exit(UNSAID)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    code = os.waitstatus_to_exitcode(status)
    return 0 if code == EXECUTED else code


def spied_on(lib: ctypes.CDLL, leave_out: list[str], name: str) -> int:
    """The errno of an attempt at a worker in its box by an ordinary process of the same user, which has no box and no capabilities."""
    ready, said = os.pipe()
    worker = os.fork()
    if not worker:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            Box("soft", leave_out=frozenset(leave_out)).close()
            os.write(said, b"!")
            signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(UNSAID)
    os.close(said)
    assert os.read(ready, 1)
    spy = os.fork()
    if not spy:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            argument = f"/proc/{worker}/environ" if name == "read" else str(worker)
            os._exit(lib.attempt(name.encode(), argument.encode()))
        finally:
            os._exit(UNSAID)
    code = os.waitstatus_to_exitcode(os.waitpid(spy, 0)[1])
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    return code


def main() -> None:
    asked = json.load(sys.stdin)
    lib = ctypes.CDLL(asked["library"])
    files.code()  # another user may be unable to import what that needs
    if "spy" in asked:
        print(json.dumps([spied_on(lib, *one) for one in asked["spy"]]))
        return
    print(json.dumps([run(lib, asked["folder"], *one) for one in asked["attempts"]]))


if __name__ == "__main__":
    main()
