"""The control channel: requests and answers in msgpack over ZeroMQ with CURVE.

It carries rare requests (devices, sessions, tokens), never commands or payloads.

A request is a map ``{"v": 1, "op": NAME, ...}``, its answer ``{"ok": True, ...}`` or ``{"ok": False, "error": ONE LINE}``. The client's key
pair is derived from its token (`token.control_secret`), so the server lets in token holders only; the server proves itself by the public key
inside the token.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.printable import all_printable
from gpuvirt.transport.packing import pack, unpack
from gpuvirt.transport.token import Token, control_secret

if TYPE_CHECKING:
    import zmq

VERSION = 1
TIMEOUT = 5.0
HEARTBEAT = 10_000  # ms between two signs of life of a connection
MAX_MESSAGE = 1 << 20


class ControlError(GpuvirtError):
    """The server refused a request, or did not answer."""


class RequestRefused(ControlError):
    """It answered, and refused."""


def request(host: str, port: int, token: Token, op: str, /, limit: float = TIMEOUT, **arguments: Any) -> dict[str, Any]:
    """Sends one request and returns the fields of its answer, each text printable: it ends up in terminals, and a server need not be honest.

    Raises:
        RequestRefused: the server refused.
        ControlError: no answer within `limit` seconds, or the server is gone.
    """
    import zmq  # a tenth of what `gpuvirt run` would take to start, which asks nothing
    from zmq.utils import z85

    secret = z85.encode(control_secret(token.secret))
    where = f"[{host}]" if ":" in host else host
    context = zmq.Context()
    try:
        with context.socket(zmq.REQ) as sock:
            sock.linger = 0
            sock.ipv6 = ":" in host
            sock.maxmsgsize = MAX_MESSAGE
            sock.curve_serverkey = z85.encode(token.server_key)
            sock.curve_secretkey = secret
            sock.curve_publickey = zmq.curve_public(secret)
            sock.heartbeat_ivl, sock.heartbeat_timeout = HEARTBEAT, 2 * HEARTBEAT
            with sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) as monitor:
                sock.connect(f"tcp://{where}:{port}")
                sock.send(pack({"v": VERSION, "op": op, **arguments}))
                if not _answers(sock, monitor, limit):
                    what = f"the control channel of {host} (port {port}) does not answer"
                    raise ControlError(f"{what}; is that port open, and the token this server's?")
                answer: dict[str, Any] = all_printable(unpack(sock.recv()))
                sock.disable_monitor()
    except (zmq.ZMQError, ValueError) as error:
        raise ControlError(f"the control channel of {host} (port {port}) failed: {error}") from None
    finally:
        context.term()
    if not answer.pop("ok", False):
        raise RequestRefused(str(answer.get("error", "the server gave no reason")))
    return answer


def _answers(sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes], limit: float) -> bool:
    """Whether an answer comes within `limit` seconds. A server that is not there yet, or does not let us in, is waited for.

    Raises:
        ControlError: the server that had let us in is gone. ZeroMQ would connect anew, and wait for the answer to a question that nobody has heard.
    """
    import zmq

    poller, until, heard = zmq.Poller(), time.monotonic() + limit, False
    poller.register(sock, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = dict(poller.poll(int(left * 1000) + 1))
        if sock in ready:
            return True
        if monitor in ready:
            # By hand: zmq.utils.monitor imports asyncio, an eighth of what `gpuvirt run` takes to start.
            event, _ = struct.unpack("=HI", monitor.recv_multipart()[0])
            if event == zmq.EVENT_DISCONNECTED and heard:
                if sock.poll(0):
                    return True
                raise ControlError("the server was gone before it had answered; its log may say why")
            heard = heard or event == zmq.EVENT_HANDSHAKE_SUCCEEDED
    return False
