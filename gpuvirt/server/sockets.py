"""Listening sockets: TCP ports, and unix sockets in folders that only this user can enter."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError

BACKLOG = 4096  # a full one drops the first packets of honest clients, who try again after seconds


def listen_tcp(host: str, port: int, option: str = "--listen") -> socket.socket:
    """A listening TCP socket. option: by which the user chooses another.

    Raises:
        GpuvirtError: the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise GpuvirtError(f"cannot listen on {host}: {error.strerror}") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise GpuvirtError(f"port {port} is taken on {host}; choose another with {option} {host}:PORT (port 0 takes a free one)") from None
        raise GpuvirtError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def listen_unix(port: int) -> tuple[socket.socket, Path]:
    """A listening unix socket in the first runtime folder that can be used, and its path (clients learn it from the greeting).

    One that a dead server left is replaced. Beside a server that has the same port on another address it has a name of its own.

    Raises:
        GpuvirtError: there is no place for it.
    """
    problem: Exception | None = None
    for path in socket_paths(f"{port}.sock") + socket_paths(f"{port}.{os.getpid()}.sock"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if _listens(path):
                sock.close()
                continue
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
            sock.bind(str(path))
            sock.listen(BACKLOG)
        except OSError as error:
            problem = error
            sock.close()
            continue
        sock.setblocking(False)
        return sock, path
    raise GpuvirtError(f"no place for the unix socket: {problem}")


def _listens(path: Path) -> bool:
    """Whether a server that lives has this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:
            return True  # its backlog is full
        except OSError:
            return False
        return True


def socket_paths(name: str) -> list[Path]:
    """Where a unix socket of this name can be, best first: in folders that only this user can enter.

    Raises:
        GpuvirtError: nowhere.
    """
    found: list[Path] = []
    problem: Exception | None = None
    for folder in paths.runtime_dirs():
        path = folder / name
        if len(str(path).encode()) > 107:
            problem = GpuvirtError(f"{path} is too long for a unix socket")
            continue
        try:
            paths.private_dir(folder)
        except GpuvirtError as error:
            problem = error
            continue
        found.append(path)
    if not found:
        raise GpuvirtError(f"no place for a unix socket: {problem}")
    return found


def remove_files(files: list[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
