"""The ledger's file: named leases that have their GPUs, one row each, written before their openers are told.

One SQLite file for each listening address, in the server's state folder beside its tokens, mode 0600: no worker's box reaches it. It holds no secret:
whoever knows a lease's id still needs the token. Commits survive the end of the daemon, however it ends; not always that of the machine, which ends
the programs as well.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuvirt.errors import GpuvirtError

log = logging.getLogger("gpuvirt.server")

VERSION = 4
_ADDED = {2: ("compute",), 3: ("priority", "preemptible"), 4: ("suspended",)}  # the columns that each version has more than the one before
_COLUMNS = "number, id, owner, devices, memory, holder, started, expires, compute, priority, preemptible, suspended"
_TABLE = """
    CREATE TABLE leases (number INTEGER PRIMARY KEY, id BLOB UNIQUE NOT NULL, owner BLOB NOT NULL, devices TEXT NOT NULL, memory INTEGER NOT NULL,
                         holder TEXT NOT NULL, started REAL NOT NULL, expires REAL NOT NULL, compute INTEGER NOT NULL,
                         priority INTEGER NOT NULL, preemptible INTEGER NOT NULL, suspended INTEGER NOT NULL) STRICT
"""


@dataclass(frozen=True)
class LeaseRow:
    """A named lease, as the ledger has it.

    Attributes:
        number, id, owner, devices, memory, holder, started, compute, priority, preemptible, suspended: as in `gpuvirt.server.leases.Lease`.
        expires: when it ends unless it is renewed, seconds since the epoch: the daemon's own clock does not outlive the machine.
    """

    number: int
    id: bytes = field(repr=False)
    owner: bytes
    devices: tuple[int, ...]
    memory: int
    holder: dict[str, Any]
    started: float
    expires: float
    compute: int = 0
    priority: int = 0
    preemptible: bool = False
    suspended: bool = False


class Ledger:
    """The ledger of one listening address; this process is its only user until `close`.

    Args:
        folder: of the server's state.

    Raises:
        GpuvirtError: another process has it, or the file cannot be made. One that is damaged, or of another version, is no error: it is put aside.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self.path = folder / f"ledger-{host.replace('/', '_')}-{port}.sqlite"
        self._said = ""  # why the last change could not be written
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    raise GpuvirtError(f"another server uses {self.path}; end it, or choose another port with --listen") from None
                raise GpuvirtError(f"the ledger {self.path} cannot be used: {error}; make room, or set another folder (GPUVIRT_STATE)") from None
            aside = self.path.with_name(f"{self.path.name}.{time.time_ns()}.damaged")
            self.path.rename(aside)
            for part in ("-wal", "-journal"):
                self.path.with_name(self.path.name + part).unlink(missing_ok=True)
            log.error("the ledger was damaged or of another version (%s) and is now %s; leases from before are forgotten", error, aside)
            self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            # Exclusive before WAL: the first look takes the lock, and no further file is shared.
            for line in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
                db.execute(f"PRAGMA {line}")
            db.execute("BEGIN EXCLUSIVE")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.execute(_TABLE)
            elif version > VERSION:
                raise sqlite3.DatabaseError(f"version {version}, this server has {VERSION}")
            else:
                for column in (column for added in range(version + 1, VERSION + 1) for column in _ADDED[added]):
                    db.execute(f"ALTER TABLE leases ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
            db.execute("SELECT count(*) FROM leases WHERE length(id) = 16").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def leases(self) -> Iterator[LeaseRow]:
        """All of them, oldest first. A row that makes no sense is logged and removed."""
        for row in self._db.execute(f"SELECT {_COLUMNS} FROM leases ORDER BY started").fetchall():
            number, id, owner, devices, memory, holder, started, expires, compute, priority, *flags = row
            try:
                listed, said = json.loads(devices), json.loads(holder)
                if not listed or not all(type(device) is int for device in listed) or not isinstance(said, dict):
                    raise ValueError("it has no GPUs or no holder")
            except (ValueError, TypeError) as error:
                log.error("lease %016x cannot be read from the ledger (%s); it has ended", number, error)
                self.erase(number)
                continue
            yield LeaseRow(number, id, owner, tuple(listed), memory, said, started, expires, compute, priority, *map(bool, flags))

    def write(self, row: LeaseRow) -> None:
        """Writes a lease, in the place of what there was of it. What cannot be written is logged and no error: what has GPUs keeps them."""
        known = row.number, row.id, row.owner, json.dumps(row.devices), row.memory, json.dumps(row.holder), row.started, row.expires
        values = (*known, row.compute, row.priority, row.preemptible, row.suspended)
        self._do(f"INSERT OR REPLACE INTO leases ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)

    def erase(self, number: int) -> None:
        """The lease has ended. One that is not there is no error; neither is, as for `write`, one that cannot be erased: it expires."""
        self._do("DELETE FROM leases WHERE number = ?", (number,))

    def _do(self, line: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(line, values)
            self._said = ""
        except sqlite3.Error as error:
            if self._said != str(error):
                log.error("the ledger %s cannot be written (%s): leases do not outlive this server until it can; make room there", self.path, error)
            self._said = str(error)

    def close(self) -> None:
        """Lets go of the file, and removes it when it holds nothing: a server on a port that the system chose does not come back to it."""
        (count,) = self._db.execute("SELECT count(*) FROM leases").fetchone()
        self._db.close()
        if not count:
            self.path.unlink(missing_ok=True)
