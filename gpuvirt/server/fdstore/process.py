"""The store's process: `python -m gpuvirt.server.fdstore.process`, started by a daemon.

Messages are those of gpuvirt.server.messages. From the daemon: ``put`` (name, record, watched, farewell; descriptors): an entry, in the place of what
there was of this name; ``drop`` (name); ``take``: all entries are to be said. To the daemon: ``entry`` (name, record; its descriptors), and ``end``
behind the last. An entry that is `watched` goes with the process that its first descriptor, a pidfd, stands for. A `farewell` is a message for that
process, which its second descriptor, a socket, gets when the daemon has gone; the process is continued then, should the daemon have stopped it.

One daemon at a time: the one that came last. It connects to the listening socket, whose folder only this user can enter. The store ends when it has
neither a daemon nor a watched entry.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuvirt.server import descriptors, messages
from gpuvirt.transport.packing import pack

PR_SET_DUMPABLE = 4
SEND_LIMIT = 10.0  # seconds that a daemon has to take an entry
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class _Entry:
    record: bytes
    descriptors: list[int]
    watched: bool
    farewell: dict[str, Any] | None

    def take_leave(self) -> None:
        if self.farewell is None:
            return
        with contextlib.suppress(OSError):  # it has ended, or takes nothing
            signal.pidfd_send_signal(self.descriptors[0], signal.SIGCONT)
        sock = socket.socket(fileno=os.dup(self.descriptors[1]))
        with sock, contextlib.suppress(OSError):
            sock.send(pack(self.farewell), socket.MSG_DONTWAIT)

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)


class _Store:
    """Args:
    listening: where daemons come to.
    path: of its file.
    """

    def __init__(self, listening: socket.socket, path: Path, daemon: socket.socket) -> None:
        self._entries: dict[str, _Entry] = {}
        self._daemon: socket.socket | None = None
        self._listening, self._path = listening, path
        self._inode = os.lstat(path).st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._serve(daemon)

    def run(self) -> None:
        while self._daemon is not None or any(entry.watched for entry in self._entries.values()):
            for key, _ in self._selector.select():
                key.data()
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:
                self._path.unlink()

    def _serve(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._selector.register(daemon, selectors.EVENT_READ, self._hear)

    def _accept(self) -> None:
        fresh, _ = self._listening.accept()
        _, user, _ = _CREDENTIALS.unpack(fresh.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user not in (0, os.geteuid()):
            fresh.close()
            return
        while self._hear():  # what the former daemon said last
            pass
        # Its end may not come yet: a process that it was starting when it was killed has its descriptors until it has begun.
        self._leave()
        self._serve(fresh)

    def _leave(self) -> None:
        if self._daemon is not None:
            self._selector.unregister(self._daemon)
            self._daemon.close()
            self._daemon = None

    def _hear(self) -> bool:
        """Does what the daemon says next; False: it says nothing."""
        if self._daemon is None:
            return False
        try:
            self._daemon.setblocking(False)
            received = messages.receive(self._daemon)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            received = None
        if received is None:
            self._leave()
            for entry in self._entries.values():
                entry.take_leave()
            return False
        self._do(*received)
        return True

    def _do(self, message: dict[str, Any], fds: list[int]) -> None:
        match message["op"]:
            case "put":
                self._drop(message["name"])
                self._entries[message["name"]] = entry = _Entry(message["record"], fds, message["watched"], message.get("farewell"))
                if entry.watched:
                    self._selector.register(fds[0], selectors.EVENT_READ, lambda: self._ended(message["name"], entry))
            case "drop":
                self._drop(message["name"])
            case "take":
                self._tell_all()

    def _ended(self, name: str, entry: _Entry) -> None:
        if self._entries.get(name) is entry:  # else another has taken its place, in the same round of events
            self._drop(name)

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        if entry.watched:
            self._selector.unregister(entry.descriptors[0])
        entry.close()

    def _tell_all(self) -> None:
        assert self._daemon is not None
        self._daemon.settimeout(SEND_LIMIT)
        with contextlib.suppress(OSError):  # it has gone: that is read next
            for name, entry in self._entries.items():
                messages.send(self._daemon, {"op": "entry", "name": name, "record": entry.record}, tuple(entry.descriptors))
            messages.send(self._daemon, {"op": "end"})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--daemon-fd", type=int, required=True)
    parser.add_argument("--listening-fd", type=int, required=True)
    parser.add_argument("--path", type=Path, required=True, help="of the listening socket")
    args = parser.parse_args()
    for sig in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # it holds sessions' keys
    descriptors.raise_limit()
    os.chdir("/")
    _Store(socket.socket(fileno=args.listening_fd), args.path, socket.socket(fileno=args.daemon_fd)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
