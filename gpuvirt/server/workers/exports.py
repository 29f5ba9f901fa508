"""What sessions of one lease share: memory and events (IPC).

The session that has exported something keeps it, under a name that only it gives away. Whoever wants to open it names the session and the export;
here is decided whether it may: it has to be a session of the same lease. Names are not known here. The files that a software GPU's memory lies in
were made here, and are handed on from here. A daemon that is started anew has none of the former one's: what was exported before cannot be opened
then, and what was opened stays. Of a real GPU's memory the driver makes the file, in the exporting worker, which passes a descriptor each time: it
goes on to the worker that has asked, whose driver alone looks what it is.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuvirt.server import descriptors
from gpuvirt.server.lease import Membership
from gpuvirt.server.workers.worker_process import WorkerProcess

log = logging.getLogger("gpuvirt.server")

FILES = 1024  # that a session has for what it exports; its worker has 4,096 descriptors
IMPORTERS = 1024  # sessions that are told of one's end


class Sharing(Protocol):
    """A session, as far as it matters here."""

    @property
    def id(self) -> int: ...
    @property
    def label(self) -> str: ...

    membership: Membership
    worker: WorkerProcess


@dataclass(frozen=True)
class _File:
    fd: int
    size: int


class Exports:
    """Those of all sessions of one daemon.

    Args:
        get: a session by its id.
        most: bytes that the files of a session's exports may have together.
    """

    def __init__(self, get: Callable[[int], Sharing | None], most: Callable[[Membership], int]) -> None:
        self._get, self._most = get, most
        self._files: dict[int, dict[int, _File]] = {}  # by session, and by the number that its worker has for it
        self._numbers = itertools.count(1)
        self._importers: dict[int, set[int]] = {}  # by session: those that have opened something of it
        self._tasks: set[asyncio.Task[None]] = set()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.all_files = soft // 4  # of all sessions

    def serve(self, session: Sharing) -> None:
        """From now on its worker can ask for files and for what others have exported."""
        worker = session.worker
        worker.asks_file = lambda size: self._file(session, size)
        worker.file_over = lambda number: self._file_over(session, number)
        worker.asks_export = lambda exporter, name: self._open(session, exporter, name)

    def ended(self, session: Sharing) -> None:
        for file in self._files.pop(session.id, {}).values():
            os.close(file.fd)
        for importer in self._importers.pop(session.id, ()):
            if (other := self._get(importer)) is not None:
                other.worker.exporter_gone(session.id)
        for importers in self._importers.values():
            importers.discard(session.id)

    def _file(self, session: Sharing, size: int) -> None:
        files = self._files.setdefault(session.id, {})
        try:
            if len(files) >= FILES or sum(map(len, self._files.values())) >= self.all_files:
                raise OSError(f"there are {len(files)} such files of it already")
            if sum(file.size for file in files.values()) + size > self._most(session.membership):
                raise OSError("such files of it would have more than its memory")
            fd = _make(size)
        except OSError as error:
            log.warning("%s gets no file of %d bytes for what it exports: %s", session.label, size, error)
            session.worker.answer_export()
            return
        number = next(self._numbers)
        files[number] = _File(fd, size)
        session.worker.gave_file()
        session.worker.answer_export(bytes(16) + number.to_bytes(8, "little"), (fd,))  # as in struct gv_shared

    def _file_over(self, session: Sharing, number: int) -> None:
        if (file := self._files.get(session.id, {}).pop(number, None)) is not None:
            os.close(file.fd)

    def _open(self, session: Sharing, number: int, name: bytes) -> None:
        exporter = self._get(number)
        if exporter is None or exporter.membership.lease is not session.membership.lease:
            session.worker.answer_export()
            return
        task = asyncio.get_running_loop().create_task(self._hand_over(session, exporter, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, session: Sharing, exporter: Sharing, name: bytes) -> None:
        importers = self._importers.setdefault(exporter.id, set())
        if exporter is not session and len(importers) < IMPORTERS:
            importers.add(session.id)  # before it can have anything of it, so that it is told of the end of what it opens
        given = await exporter.worker.give_export(name)
        files, own = self._files.get(exporter.id, {}), iter(given.fds)
        found = [next(own) if number == 0 else files[number].fd for number in given.files if number == 0 or number in files]
        if given.what and len(found) == len(given.files) and self._get(exporter.id) is exporter:
            session.worker.answer_export(given.what, tuple(found))
        else:
            session.worker.answer_export()
        descriptors.discard(given.fds)


def _make(size: int) -> int:
    """A file of memory whose size nobody changes. A worker in its box makes none, for nobody would bound what it has.

    Raises:
        OSError: there is none to be had.
    """
    fd = os.memfd_create("gpuvirt-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd
