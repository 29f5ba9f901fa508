"""Sessions that have gone to other servers: where they are, for their clients, who ask here first.

Those whose clients have not asked yet are also in a file, from which a server that is started anew knows them: a client that is told that there is no
such session gives up. The file, which only this user can read, has the keys by which the clients prove who they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.recent import Recent

log = logging.getLogger("gpuvirt.server")

MOST = 4096  # that are remembered
ASKED_WITHIN = 600.0  # seconds after which a client that has not asked does not: its grace period is over


def departed_file(folder: Path, host: str, port: int) -> Path:
    """Of the server that listens there, whose state is in the folder."""
    return folder / f"departed-{host.replace('/', '_')}-{port}.json"


@dataclass
class Departed:
    """Attributes:
    url: where it is.
    label: of the session, for the log.
    left: when it went, seconds since 1970.
    sent_on: its client has been told.
    settled: done when it works there, None: it does.
    """

    id: int
    key: bytes = field(repr=False)
    url: str
    label: str
    left: float
    sent_on: bool = False
    settled: asyncio.Future[None] | None = None


class DepartedSessions:
    """Those of one server.

    Args:
        file: None: a server that is started anew knows nothing of them.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._all = Recent[int, Departed](MOST)
        for one in self._read():
            self._all[one.id] = one

    def get(self, session: int) -> Departed | None:
        return self._all.get(session)

    def add(self, one: Departed) -> None:
        self._all[one.id] = one
        self._write()

    def tell(self, one: Departed) -> None:
        """Its client is being told."""
        if not one.sent_on:
            one.sent_on = True
            self._write()

    def following(self, limit: float) -> int:
        """How many have left within so many seconds whose clients do not know where they are yet."""
        now = time.time()
        return sum(not one.sent_on and now - one.left < limit for one in self._all.values())

    def _read(self) -> list[Departed]:
        if self._file is None or not self._file.exists():
            return []
        try:
            said = json.loads(self._file.read_text())
            return [Departed(one["id"], bytes.fromhex(one["key"]), one["url"], one["label"], one["left"]) for one in said]
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("where sessions have gone from here is not known any more: %s: %s", self._file, error)
            return []

    def _write(self) -> None:
        if self._file is None:
            return
        now = time.time()
        kept = [one for one in self._all.values() if not one.sent_on and now - one.left < ASKED_WITHIN]
        said = [{"id": one.id, "key": one.key.hex(), "url": one.url, "label": one.label, "left": one.left} for one in kept]
        try:
            paths.write_private(self._file, json.dumps(said) + "\n")
        except (OSError, GpuvirtError) as error:
            log.warning("a server that is started anew will not know where sessions have gone: %s", error)
