"""A session with the hostile worker (workers/hostile.c), held open by the test."""

from __future__ import annotations

import contextlib
import os

from server.harness import FakeServer

from gpuvirt.transport import handshake as hs


class Held:
    """A session whose worker can be told to try something."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        for _ in range(20):  # also where a worker takes longer to start than a client waits
            self.sock, self.welcome, self.key = server.attach()
            if self.welcome.status == hs.WELCOME_OK:
                break
            self.sock.close()
        assert self.welcome.status == hs.WELCOME_OK, self.welcome.text
        self.sock.settimeout(100)

    def tries(self, what: str, argument: int | str) -> int | None:
        """The errno, None when the worker ended over it."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(f"{what}|{argument}\n".encode())
            answer = self.sock.recv(20)
            return int(answer) if answer else None
        return None

    def is_over(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return not self.sock.recv(1)
        return True

    def resumes(self, key: bytes | None = None) -> hs.Welcome:
        """What a client hears that wants to go on."""
        with self.server.connect() as connection:
            connection.say(key or self.key, hs.Hello(os.urandom(32), purpose=hs.HELLO_RESUME, session=self.welcome.session, epoch=1))
            return connection.welcome(key or self.key)
