"""`gpuvirt serve` with the stand-in worker: python fake_server.py '{"gpus": 2, ...}'."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import daemon, listener
from gpuvirt.server.daemon import serve
from gpuvirt.server.options import ServeOptions
from gpuvirt.server.refusals import Moved
from gpuvirt.server.session import Session
from gpuvirt.server.sessions import Sessions
from gpuvirt.transport import handshake as hs


class Script(Sessions):
    """Says what the daemon does not say yet, before it attaches: waiting, parked, moved."""

    states: tuple[hs.State, ...] = ()
    moves_to: str | None = None

    async def attach(self, client: socket.socket, hello: Any, secret: bytes, transcript: Any, *rest: Any) -> Session:
        for state in self.states:
            transcript.add(state.pack())
            await asyncio.get_running_loop().sock_sendall(client, state.pack())
            await asyncio.sleep(0.05)
        if self.moves_to:
            raise Moved(self.moves_to)
        return await super().attach(client, hello, secret, transcript, *rest)

    def check_further(self, session: Session, which: int, epoch: int, provides: int) -> None:
        if self.moves_to:
            raise Moved(self.moves_to)
        super().check_further(session, which, epoch, provides)


def main() -> int:
    options = json.loads(sys.argv[1])
    if entrance := options.pop("entrance", None):
        Path(entrance).write_text("0")  # the cgroup.procs of a cgroup
    Script.states = tuple(hs.State(**state) for state in options.pop("states", ()))
    Script.moves_to = options.pop("moves_to", None)
    listener.HELLO_LIMIT = options.pop("hello_limit", listener.HELLO_LIMIT)
    daemon.Sessions = Script  # type: ignore[misc]
    worker = options.pop("worker", [sys.executable, str(Path(__file__).with_name("fake_worker.py")), *options.pop("worker_options", [])])
    options["ready_file"] = Path(options["ready_file"])
    options["links"] = tuple(options.get("links", ("tcp", "shm")))
    try:
        serve(ServeOptions(**{"port": 0, "backend": "soft", **options}), worker)
    except GpuvirtError as error:
        print(error, file=sys.stderr)
        return 125
    return 0


if __name__ == "__main__":
    sys.exit(main())
