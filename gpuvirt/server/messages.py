"""Messages between a daemon and its worker: msgpack maps over a SOCK_SEQPACKET socket pair, with file descriptors attached.

To the worker:  ``expect`` (tenant; its folder): whose session probably comes; ``session`` (a `SessionConfig`; descriptors: the connection, those
of its transport, those that `SessionConfig.passed` names), ``connection`` (which, epoch; its socket), ``gone``, ``figures`` (id); of a session
that moves ``save`` (limit; where to) and ``go_on``, and to the worker that takes it over ``begin``; ``park`` (seconds to finish; its file) and
``room`` (whether it is granted); ``turn`` (device, whether its kernels may run there, number of this word); ``alone``: there is no daemon any
more, so that kernels may run everywhere; ``export`` (what, its descriptors): what it has asked for by ``file`` or ``open``; ``give`` (id, name):
another session wants to open what it has exported; ``exporter_gone`` (session); ``adopted``: there is another daemon, which has not heard what the
former one was asked for and told.

To the daemon: ``ready``, ``opened``, ``failed`` (text), ``figures`` (id and the figures), ``rests``, ``saved`` (text), ``parked`` (text),
``wants``, ``room`` (device, bytes), ``turn`` (device, what, number of the word that it answers), ``back``, ``file`` (bytes), ``file_over`` (file),
``open`` (session, name), ``given`` (id, what, files; descriptors of those whose number is 0), ``ended`` (code, text and the last figures).
"""

from __future__ import annotations

import array
import socket
from typing import Any

from gpuvirt.server import descriptors
from gpuvirt.transport.packing import pack, unpack

MAX_MESSAGE = 65536
MAX_FDS = 8


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Sends one message; the receiver gets duplicates of the descriptors."""
    raw = pack(message)
    if fds:
        socket.send_fds(sock, [raw], list(fds))
    else:
        sock.send(raw)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors (close-on-exec); None when the other end was closed.

    Raises:
        BlockingIOError: no message has arrived, on a non-blocking socket.
        ValueError: it is no message.
    """
    room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    try:
        raw, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # told once: the other end was closed before it had read everything; what it has said comes after that
        raw, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        if raw and flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise OSError("a message between daemon and worker was cut off")
        message = unpack(raw) if raw else None
    except BaseException:
        descriptors.discard(fds)
        raise
    if message is None:
        descriptors.discard(fds)
        return None
    return message, list(fds)
