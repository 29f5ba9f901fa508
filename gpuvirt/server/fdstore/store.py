"""The daemon's side of the descriptor store (process.py)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import messages
from gpuvirt.server.sockets import BACKLOG, socket_paths

log = logging.getLogger("gpuvirt.server")

TAKE_LIMIT = 20.0  # seconds for everything that an earlier daemon has left
START_PAUSE = 5.0  # seconds from one start of a store to the next
COMMAND = (sys.executable, "-P", "-m", "gpuvirt.server.fdstore.process")


@dataclass(frozen=True)
class Entry:
    """What was put. descriptors: duplicates, the taker's to close."""

    name: str
    record: bytes = field(repr=False)
    descriptors: list[int]

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)


class DescriptorStore:
    """The store of one listening address: what is put there is what the next daemon on that address takes.

    What cannot be put is logged and no error: sessions run, and do not outlive this daemon.

    Attributes:
        lost: is called when the store has ended and another one runs: everything is to be put once more.
    """

    def __init__(self, host: str, port: int) -> None:
        self._name = f"fdstore-{host.replace('/', '_')}-{port}.sock"
        self.lost: Callable[[], None] = lambda: None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None

    def take(self) -> list[Entry]:
        """What an earlier daemon has left, in the order in which it was put; starts a store where there is none. Once, before anything is put."""
        for path in self._paths():
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(TAKE_LIMIT)
            try:
                sock.connect(str(path))
                found = self._take_all(sock)
            except OSError:
                sock.close()
                continue
            self._use(sock)
            return found
        self._start()
        return []

    def _paths(self) -> list[Path]:
        try:
            return socket_paths(self._name)
        except GpuvirtError as error:
            log.warning("sessions do not outlive this server: %s", error)
            return []

    @staticmethod
    def _take_all(sock: socket.socket) -> list[Entry]:
        """Raises:
        OSError: the store has ended.
        """
        found: list[Entry] = []
        messages.send(sock, {"op": "take"})
        while True:
            try:
                received = messages.receive(sock)
                if received is None:
                    raise ConnectionResetError("the store has ended")
            except OSError:
                for entry in found:
                    entry.close()
                raise
            message, fds = received
            if message["op"] == "end":
                return found
            found.append(Entry(message["name"], message["record"], fds))

    def _start(self) -> None:
        self._started = time.monotonic()
        for path in self._paths():
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with listening, theirs:
                try:
                    path.unlink(missing_ok=True)
                    listening.bind(str(path))
                    listening.listen(BACKLOG)
                    line = [*COMMAND, "--daemon-fd", str(theirs.fileno()), "--listening-fd", str(listening.fileno()), "--path", str(path)]
                    self._process = subprocess.Popen(
                        line,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,  # else whoever reads the daemon's waits for the store's end, too
                        pass_fds=(theirs.fileno(), listening.fileno()),
                        start_new_session=True,
                    )
                except OSError as error:
                    log.warning("sessions do not outlive this server: no descriptor store at %s: %s", path, error.strerror)
                    ours.close()
                    continue
            self._use(ours)
            return

    def _use(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock, self._ended)

    def _ended(self) -> None:
        """It says nothing unless it is asked: it was killed."""
        log.warning("the descriptor store has ended: until there is another, sessions do not outlive this server")
        self.close()
        self._again = asyncio.get_running_loop().call_later(max(0.0, self._started + START_PAUSE - time.monotonic()), self._start_again)

    def _start_again(self) -> None:
        self._start()
        if self._socket is not None:
            self.lost()
            log.info("another descriptor store keeps what the sessions need to outlive this server")

    def put(self, name: str, record: bytes, descriptors: Sequence[int], watched: bool = True, farewell: dict[str, object] | None = None) -> None:
        """Keeps an entry, in the place of what there was of this name; the descriptors stay open here.

        Args:
            watched: it is dropped when the process has ended that its first descriptor, a pidfd, stands for.
            farewell: a message that its second descriptor, a socket of that process, gets when this daemon has gone; it is continued (SIGCONT) then.
        """
        self._say({"op": "put", "name": name, "record": record, "watched": watched, "farewell": farewell}, tuple(descriptors))

    def drop(self, name: str) -> None:
        """Forgets an entry. One that is not there is no error."""
        self._say({"op": "drop", "name": name}, ())

    def _say(self, message: dict[str, object], fds: tuple[int, ...]) -> None:
        if self._socket is None:
            return
        try:
            messages.send(self._socket, message, fds)
        except OSError as error:
            if error.errno != errno.EPIPE:  # else `_ended` comes
                log.warning("sessions do not outlive this server: the descriptor store takes nothing (%s)", error.strerror)

    def close(self) -> None:
        """Lets go of the store, which ends unless there are sessions."""
        if self._again is not None:
            self._again.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0)
