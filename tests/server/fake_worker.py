"""A worker without the library: it is forked as the real one is, answers the daemon as that does, and echoes what the client sends."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import struct
import sys
import threading
import time

from gpuvirt.server import messages
from gpuvirt.server.memory_usage import PAGE, ROWS
from gpuvirt.server.workers import fork_server
from gpuvirt.transport.packing import pack

# What a worker must not be able to do harm with, by what the client asks for.
NONSENSE = {
    b"ended": pack({"op": "ended", "code": [1], "text": "\x1b[2Jowned"}),
    b"no message": b"\xc1\xc1",
    b"no map": b"\x01",
    b"chatter": pack({"op": "figures", "id": 1}),
    b"no op": pack({"op": ["ready"]}),
}

FIGURES = {"answers": 2, "cut_ns": 0, "rtt_ns": 1000, "commands": 5, "launches": 3, "bytes_in": 1, "bytes_out": 2, "memory_used": 7}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--backend")
    parser.add_argument("--die", action="store_true", help="fail before being ready")
    parser.add_argument("--starts", default=os.devnull, help="append + at the start and - when ready, a while later")
    parser.add_argument("--fail-if", metavar="FILE", help="end before being ready where there is this file")
    parser.add_argument("--slow", type=float, default=0, metavar="SECONDS", help="until it is ready")
    parser.add_argument("--hold", metavar="FILE", default="", help="not be ready as long as there is this file")
    args, _ = parser.parse_known_args()
    daemon = socket.socket(fileno=args.fd)
    daemon.set_inheritable(False)
    if args.die:
        messages.send(daemon, {"op": "failed", "text": "this worker was told to fail"})
        sys.exit(1)
    fork_server.serve(daemon, lambda own: work(own, args))


def work(daemon: socket.socket, args: argparse.Namespace) -> int:
    if args.fail_if and os.path.exists(args.fail_if):
        return 3
    with open(args.starts, "a") as starts:
        starts.write("+")
        starts.flush()
        time.sleep(0.3 if args.starts != os.devnull else 0)
        starts.write("-")
    time.sleep(args.slow)
    while os.path.exists(args.hold):
        time.sleep(0.01)
    with contextlib.suppress(BrokenPipeError):
        messages.send(daemon, {"op": "ready"})
    while True:
        received = messages.receive(daemon)
        if received is None:
            return 0
        config, fds = received
        if config["op"] == "session":
            break
        os.close(fds[0])  # whose session may come
    client = socket.socket(fileno=fds[0])
    memory_row = fds[1 + config["descriptors"] + config["passed"].index("memory_row")]
    messages.send(daemon, {"op": "opened"})
    channels: list[socket.socket] = []
    threading.Thread(target=listen, args=(daemon, channels), daemon=True).start()
    # 1000 bytes on the first granted device, as soft workers count them (native/backend/memory_usage.h).
    os.pwrite(memory_row, struct.pack("<Q", 1000), ROWS + PAGE * config["slot"] + 8 * config["devices"][0])
    while data := client.recv(4096):
        if data == b"crash":
            os.abort()
        if data in NONSENSE:
            daemon.send(NONSENSE[data])
            if data != b"ended":
                time.sleep(100)  # the daemon is to end it
            return 0
        if data == b"channels":
            data = str(len(channels)).encode()
        if data == b"config":
            data = repr(config).encode()
        client.sendall(data)
    messages.send(daemon, {"op": "ended", "code": 1, "text": "end of file", **FIGURES, "launches": 4})  # one more than it has said before
    return 0


def listen(daemon: socket.socket, channels: list[socket.socket]) -> None:
    while received := messages.receive(daemon):
        message, fds = received
        if message["op"] == "connection":
            channels.append(socket.socket(fileno=fds[0]))
            channels[-1].sendall(f"{message['which']:2d}{message['epoch']:3d}".encode())
        elif message["op"] == "gone":
            os._exit(0)  # as if it had been cut before
        else:
            messages.send(daemon, {"op": "figures", "id": message["id"], **FIGURES})


if __name__ == "__main__":
    main()
