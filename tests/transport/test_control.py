"""Requests of the control channel, at stand-ins for a daemon that answers, is gone before it has answered, or is not there yet."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable

import pytest
import zmq
from zmq.utils import z85

from gpuvirt.transport import control
from gpuvirt.transport.control import ControlError, request
from gpuvirt.transport.packing import pack, unpack
from gpuvirt.transport.token import Token

LONG = 300.0  # seconds; as `gpuvirt move` waits


def at_daemon(do: Callable[[zmq.Socket[bytes]], None], later: float = 0.0) -> tuple[int, Token, threading.Thread]:
    """A socket as a daemon's, which `do` has until it returns; then it is closed. later: seconds until it is there."""
    public, secret = zmq.curve_keypair()
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))  # nobody else's meanwhile
    port = int(taken.getsockname()[1])

    def serve() -> None:
        time.sleep(later)
        context = zmq.Context()
        with context.socket(zmq.ROUTER) as sock:
            sock.curve_server, sock.curve_secretkey, sock.linger = True, secret, 1000
            taken.close()
            sock.bind(f"tcp://127.0.0.1:{port}")
            do(sock)
        context.term()

    thread = threading.Thread(target=serve)
    thread.start()
    return port, Token(secrets.token_bytes(8), secrets.token_bytes(32), z85.decode(public)), thread


def answers(sock: zmq.Socket[bytes]) -> None:
    route, empty, body = sock.recv_multipart()
    sock.send_multipart([route, empty, pack({"ok": True, "said": unpack(body)["op"]})])


def gone_before_it_answers() -> float:
    """Seconds until that is known."""
    port, token, thread = at_daemon(lambda sock: sock.recv_multipart() and None)
    began = time.monotonic()
    with pytest.raises(ControlError, match=r"was gone before it had answered|does not answer"):
        request("127.0.0.1", port, token, "move", limit=LONG)
    thread.join()
    return time.monotonic() - began


def test_a_server_that_is_gone_is_not_waited_for() -> None:
    assert gone_before_it_answers() < LONG / 2


def test_one_that_is_waited_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberate fault: the end of the connection is not noticed."""
    monkeypatch.setattr(control, "_answers", lambda sock, monitor, limit: sock.poll(int(limit * 1000)))
    monkeypatch.setitem(globals(), "LONG", 4.0)
    assert gone_before_it_answers() >= 4.0


def test_the_last_answer_is_had() -> None:
    """Of a server that ends with it."""
    for _ in range(5):
        port, token, thread = at_daemon(answers)
        assert request("127.0.0.1", port, token, "info", limit=LONG) == {"said": "info"}
        thread.join()


def test_one_that_is_not_there_yet_is_waited_for() -> None:
    port, token, thread = at_daemon(answers, later=1.0)
    assert request("127.0.0.1", port, token, "info", limit=LONG) == {"said": "info"}
    thread.join()


def test_who_is_not_let_in_hears_nothing() -> None:
    port, token, thread = at_daemon(lambda sock: sock.poll(3000) and None)
    other = Token(token.id, token.secret, secrets.token_bytes(32))
    with pytest.raises(ControlError, match="does not answer"):
        request("127.0.0.1", port, other, "info", limit=0.5)
    thread.join()
