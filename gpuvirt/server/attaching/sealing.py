"""The server's side of sealing: which links are sealed, and the key exchange of their handshakes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.handshake import EXCHANGE_SIZE
from gpuvirt.transport.transport import Transport

CIPHERS = {1: "AES-256-GCM", 2: "ChaCha20-Poly1305"}
_TEXT = 512


class NotSealed(Exception):
    """No session: one end wants the link sealed and it cannot be; the text says what to do."""


@dataclass(frozen=True)
class Exchange:
    """A key exchange. said: the answer for the welcome; shared: what both ends share."""

    said: bytes
    shared: bytes = field(repr=False)

    @property
    def cipher(self) -> int:
        return self.said[0]


class SealLibrary:
    """The sealing functions of the worker library. Raises GpuvirtError where that does not load."""

    def __init__(self, path: Path | None = None) -> None:
        path = path or paths.library(paths.WORKER)
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise GpuvirtError(f"{path} cannot be loaded: {error}; build it anew: make setup") from None
        text = ctypes.c_char_p
        try:
            self._lib.worker_exchange_answer.argtypes, self._lib.worker_exchange_answer.restype = [text, text, text, text], ctypes.c_int
            self._lib.worker_seal_library.argtypes, self._lib.worker_seal_library.restype = [text], ctypes.c_int
        except AttributeError:
            raise GpuvirtError(f"{path} is of another version; build it anew: make setup") from None

    def version(self) -> str:
        """The preferred cipher and the library that has it.

        Raises:
            GpuvirtError: there is none on this machine; the text says what to do.
        """
        found = ctypes.create_string_buffer(_TEXT)
        if self._lib.worker_seal_library(found):
            raise GpuvirtError(found.value.decode("utf-8", "replace"))
        return found.value.decode("utf-8", "replace")

    def answer(self, heard: bytes) -> Exchange:
        """Answers a client's offer.

        Raises:
            GpuvirtError: there is no library, or the offer is none.
        """
        if len(heard) != EXCHANGE_SIZE:
            raise GpuvirtError("the client's key exchange is of another kind; install the same gpuvirt on both")
        said, shared, why = ctypes.create_string_buffer(EXCHANGE_SIZE), ctypes.create_string_buffer(32), ctypes.create_string_buffer(_TEXT)
        if self._lib.worker_exchange_answer(heard, said, shared, why):
            raise GpuvirtError(why.value.decode("utf-8", "replace"))
        exchange = Exchange(said.raw, shared.raw)
        ctypes.memset(shared, 0, 32)
        return exchange


class Sealing:
    """What a server does about sealing.

    Args:
        plain: clients may have links that are not sealed, if they ask for them.
    """

    def __init__(self, plain: bool = False) -> None:
        self._plain = plain
        self._library: SealLibrary | None = None

    def exchange(self, transport: Transport, offer: bytes) -> Exchange | None:
        """The key exchange of a session that is to begin; None: its link is not to be sealed.

        Args:
            offer: the hello's key_exchange.

        Raises:
            NotSealed: the client wants a plain link and this server does not, or the link cannot be sealed.
        """
        if not transport.seals:
            return None
        if not offer:
            if self._plain:
                return None
            raise NotSealed(
                f"this server seals links over {transport.name}, and the client wants a plain one; "
                "drop (plain) from --link, or start the server with `gpuvirt serve --plain`"
            )
        try:
            self._library = self._library or SealLibrary()
            return self._library.answer(offer)
        except GpuvirtError as error:
            raise NotSealed(f"the link cannot be sealed on the server: {error}") from None

    def check(self) -> str:
        """What the log says at the start.

        Raises:
            GpuvirtError: there is nothing to seal with; clients over a link that is sealed will be refused.
        """
        self._library = self._library or SealLibrary()
        return self._library.version()
