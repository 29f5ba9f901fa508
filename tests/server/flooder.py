"""Strangers who flood a server from loopback addresses of their own: python flooder.py DATA_PORT CONTROL_PORT SHARE BEGUN.

Four kinds in turn: silent connections to the data port, garbage there, hellos with a wrong proof, silent connections to the control port. Ends when
its stdin closes, and prints how many connections it made.

Args:
    SHARE: of one processor that it uses at most.
    BEGUN: a file that it makes when it has made its first connection.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time
from pathlib import Path

from gpuvirt.transport import handshake as hs

ADDRESSES = 8
KEPT = 3000  # connections held open, the oldest closed first
PAUSE = 0.005


def main() -> None:
    data, control, share, begun = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    wrong = hs.Hello(b"n" * 32, token_id=b"?" * 16).pack()
    kinds = [(data, b""), (data, b"GET / HTTP/1.1\r\n\r\n"), (data, wrong), (control, b"")]
    held: collections.deque[socket.socket] = collections.deque()
    made = 0
    began, used = time.monotonic(), time.process_time()
    while not select.select([sys.stdin], [], [], 0)[0]:
        if time.process_time() - used > share * (time.monotonic() - began):
            time.sleep(PAUSE)
            continue
        port, text = kinds[made % len(kinds)]
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((f"127.0.0.{2 + made // len(kinds) % ADDRESSES}", 0))
        with contextlib.suppress(OSError):
            sock.connect(("127.0.0.1", port))
        if text:
            with contextlib.suppress(OSError):
                sock.send(text)
        made += 1
        if made == 1:
            begun.touch()
        held.append(sock)
        if len(held) > KEPT:
            held.popleft().close()
    print(made)


if __name__ == "__main__":
    main()
