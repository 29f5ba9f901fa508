"""Messages between a daemon and its worker when an end is closed early."""

from __future__ import annotations

import socket

from gpuvirt.server import messages


def test_what_was_said_comes_though_the_other_end_was_closed_with_unread_messages() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        messages.send(ours, {"op": "ready"})  # which nobody reads
        messages.send(theirs, {"op": "alone"})
        theirs.close()
        assert messages.receive(ours) == ({"op": "alone"}, [])
        assert messages.receive(ours) is None


def test_an_end_that_was_closed_with_unread_messages_and_said_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        messages.send(ours, {"op": "ready"})
        theirs.close()
        assert messages.receive(ours) is None
