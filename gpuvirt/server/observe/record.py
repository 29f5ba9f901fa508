"""The record of what users have had: sums by day and account, in an SQLite file of the server's state folder. It has no row for a session or a lease.

What is added is added to what the file has, so that several servers may share one. It survives a server that is killed: each addition is whole or
not there at all. Days older than `KEPT` go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.observe.accounts import COUNTERS, Sums

log = logging.getLogger("gpuvirt.server")

VERSION = 1
KEPT = 800  # days: two years and what is left of a month
BUSY = 2.0  # seconds that another server of this file may take
INTEGER_MOST = (1 << 63) - 1
COLUMNS = tuple(field.name for field in fields(Sums))
_TYPES = ", ".join(f"{field.name} {'REAL' if field.type == 'float' else 'INTEGER'} NOT NULL" for field in fields(Sums))
_TABLE = f"CREATE TABLE IF NOT EXISTS sums (day TEXT, account TEXT, {_TYPES}, PRIMARY KEY (day, account)) WITHOUT ROWID"
_GROWN = ", ".join([*(f"{name} = {name} + excluded.{name}" for name in COUNTERS), "peak_memory = max(peak_memory, excluded.peak_memory)"])
_ADD = f"INSERT INTO sums VALUES ({', '.join('?' * (2 + len(COLUMNS)))}) ON CONFLICT DO UPDATE SET {_GROWN}"
_OF_MONTH = (
    f"SELECT account, {', '.join(f'sum({name})' for name in COUNTERS)}, max(peak_memory) FROM sums "
    "WHERE day BETWEEN ? || '-01' AND ? || '-31' AND (? IS NULL OR account = ?) GROUP BY account ORDER BY account"
)


class RecordError(GpuvirtError):
    """The record cannot be used now."""


def record_file(folder: Path, host: str, port: int) -> Path:
    """Of the server that listens there: one file for each address. Servers that take any free port share one."""
    return folder / f"usage-{re.sub(r'[^0-9A-Za-z.-]', '_', host)}-{port}.sqlite"


class Record:
    """One record. May be used by several threads, one at a time.

    Args:
        file: made with mode 0600 if it is not there; one that is damaged is moved aside, with a line in the log.

    Raises:
        RecordError: the file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise self._unusable(error) from None
            aside = self._file.with_name(f"{self._file.name}.damaged")
            log.error("the record of use %s is damaged (%s); it is kept as %s, and a new one begins", self._file, error, aside.name)
            try:
                os.replace(self._file, aside)
                for suffix in ("-wal", "-shm"):
                    self._file.with_name(f"{self._file.name}{suffix}").unlink(missing_ok=True)
                return self._connect()
            except (OSError, sqlite3.DatabaseError) as again:
                raise self._unusable(again) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _connect(self) -> sqlite3.Connection:
        os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._file, timeout=BUSY, isolation_level=None, check_same_thread=False)
        try:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != ("ok",):
                raise sqlite3.DatabaseError(str(found[0]))
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise RecordError(f"the record of use {self._file} is of version {version}, and this server writes {VERSION}; move it away")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "PRAGMA synchronous = NORMAL"
            )  # whole after a crash of the server, and of the system, which may lose the last additions
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            return connection
        except BaseException:
            connection.close()
            raise

    def add(self, sums: Mapping[tuple[str, str], Sums]) -> None:
        """Adds sums, by day (YYYY-MM-DD) and account, all or none, and removes days that are too old.

        Raises:
            RecordError: nothing was added.
        """
        with self._lock:
            rows = [(*key, *(_stored(getattr(one, name)) for name in COLUMNS)) for key, one in sums.items()]
            try:
                self._write(rows)
            except sqlite3.OperationalError as error:
                raise self._unusable(error) from None
            except sqlite3.DatabaseError:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = self._open()
                try:
                    self._write(rows)
                except sqlite3.DatabaseError as error:
                    raise self._unusable(error) from None

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        latest = max((str(row[0]) for row in rows), default="")
        with self._transaction():
            self._connection.executemany(_ADD, rows)
            if latest:
                oldest = date.fromisoformat(latest) - timedelta(days=KEPT)
                self._connection.execute("DELETE FROM sums WHERE day < ?", (oldest.isoformat(),))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def month(self, month: str, account: str | None = None) -> dict[str, Sums]:
        """The sums of a month (YYYY-MM) by account; account: of this one only.

        Raises:
            RecordError: they cannot be read.
        """
        with self._lock:
            try:
                rows = self._connection.execute(_OF_MONTH, (month, month, account, account)).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._unusable(error) from None
        return {name: Sums(**dict(zip((*COUNTERS, "peak_memory"), values, strict=True))) for name, *values in rows}

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _unusable(self, error: Exception) -> RecordError:
        return RecordError(f"the record of use {self._file} cannot be used: {error}")


def month_of(wall: float) -> str:
    """The month, in UTC, of a time in seconds since the epoch."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m")


def _stored(value: float) -> float:
    return min(value, INTEGER_MOST) if isinstance(value, int) else value
