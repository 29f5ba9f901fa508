"""The worker library (native/worker/worker.h) through ctypes. The structures here mirror that header field by field."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError

CLOSE_WAIT = 0.3  # seconds
ERR_SIZE = 512
AT_REST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ROOM_ASKED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
TURN_SAID = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
EXPORT_ASKED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint8))
EXPORT_NAME = 16  # bytes
EXPORT_FILES = 6
PARK_SAID = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)


class RunEnding(IntEnum):
    """What worker_run returns, and what a worker says that ends without it."""

    GOODBYE = 0
    CLIENT_LOST = 1
    PROTOCOL_ERROR = 2
    COMPILED_TOO_LONG = 3

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


class ParkSaid(IntEnum):
    """enum worker_park_said"""

    PARKED = 1
    WANTS = 2
    BACK = 3


class ExportAsked(IntEnum):
    """enum worker_export_asked"""

    FILE = 1
    FILE_OVER = 2
    OPEN = 3


class WorkerConfig(ctypes.Structure):
    """struct worker_config"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("n_devices", ctypes.c_uint32),
        ("backend", ctypes.c_char_p),
        ("driver", ctypes.c_char_p),
        ("devices", ctypes.POINTER(ctypes.c_uint32)),
        ("memory", ctypes.c_uint64),
        ("device_memory", ctypes.c_uint64),
        ("capability", ctypes.c_uint32),
        ("strict", ctypes.c_uint32),
        ("memory_usage_slot", ctypes.c_uint32),
        ("grace", ctypes.c_uint32),
        ("memory_usage_fd", ctypes.c_int32),
        ("fd", ctypes.c_int32),
        ("transport", ctypes.c_char_p),
        ("descriptors", ctypes.POINTER(ctypes.c_int32)),
        ("n_descriptors", ctypes.c_uint32),
        ("blob_size", ctypes.c_uint32),
        ("blob", ctypes.c_char_p),
        ("session", ctypes.c_uint64),
        ("compiler", ctypes.c_void_p),
        ("server_name", ctypes.c_char_p),
        ("seal", ctypes.c_char_p),
        ("memory_row", ctypes.c_void_p),
        ("restored", ctypes.c_uint32),
        ("memory_file", ctypes.c_int32),
    ]


class May(IntEnum):
    """Whether a session's kernels may run on a device: gv_may of native/wire/turns.h."""

    ALWAYS = 0  # nobody shares it by turns
    NOW = 1  # it is its turn
    WAIT = 2


class TurnSaid(IntEnum):
    """What a session says of that: gv_turn_said."""

    WANTS = 1
    IDLE = 2
    STOPPED = 3
    STOPPED_WANTS = 4


class WorkerFigures(ctypes.Structure):
    """struct worker_figures"""

    _fields_ = [
        ("commands", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("bytes_in", ctypes.c_uint64),
        ("bytes_out", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("answers", ctypes.c_uint64),
        ("cut_ns", ctypes.c_uint64),
        ("rtt_ns", ctypes.c_uint64),
    ]


@dataclass(frozen=True)
class SessionConfig:
    """What the daemon tells a worker about the session it is to run; travels as msgpack, the descriptors beside it.

    Attributes:
        devices: pool ordinals.
        memory: bytes per device, 0: no limit of its own.
        transport: the name of the connection's transport.
        descriptors: how many of the descriptors are the transport's.
        blob: what the transport told the client.
        grace: seconds that the session outlives a cut of its connection, 0: none.
        driver_is_client: cuda: the driver is gpuvirt's own client library.
        user: the user and group as which the session runs, 0: the daemon's.
        tenant, cache_key: whose session it is (gpuvirt.server.tenants).
        passed: names of the descriptors behind the transport's: "cache", the tenant's folder; "memory_usage", the table of memory usage,
            and "memory_row", the same writable.
        host_memory: bytes of the host's memory that the worker may take, 0: no bound.
        seal: the link's secret (32 bytes) and its cipher (one byte), empty: the link is plain.
        restored: the session comes from another worker, in the image behind the descriptor "image".
        notices: the client shows notices to its user.
    """

    session: int
    backend: str
    driver: str | None
    devices: list[int]
    memory: int
    device_memory: int
    capability: int
    strict: bool
    slot: int
    transport: str
    descriptors: int
    blob: bytes
    server_name: str
    grace: int
    driver_is_client: bool = False
    user: int = 0
    tenant: str = ""
    cache_key: bytes = field(default=b"", repr=False)
    passed: list[str] = field(default_factory=list)
    host_memory: int = 0
    seal: bytes = field(default=b"", repr=False)
    restored: bool = False
    notices: bool = False


def _declare(lib: ctypes.CDLL) -> None:
    """The types of what is called.

    Raises:
        AttributeError: the library has not got it.
    """
    handle = ctypes.c_void_p
    lib.worker_open.argtypes, lib.worker_open.restype = [ctypes.POINTER(WorkerConfig), ctypes.c_char_p], handle
    lib.worker_add_channel.argtypes, lib.worker_add_channel.restype = [handle, ctypes.c_int32, ctypes.c_int32], ctypes.c_int
    lib.worker_resume.argtypes, lib.worker_resume.restype = [handle, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint32], ctypes.c_int
    lib.worker_client_gone.argtypes, lib.worker_client_gone.restype = [handle], None
    lib.worker_save.argtypes = [handle, ctypes.c_int32, ctypes.c_uint32, AT_REST, ctypes.c_void_p, ctypes.c_char_p]
    lib.worker_save.restype = ctypes.c_int
    lib.worker_continue.argtypes, lib.worker_continue.restype = [handle], None
    lib.worker_restore.argtypes, lib.worker_restore.restype = [handle, ctypes.c_int32, ctypes.c_uint32, ctypes.c_char_p], ctypes.c_int
    lib.worker_park.argtypes = [handle, ctypes.c_int32, ctypes.c_uint32, PARK_SAID, ctypes.c_void_p, ctypes.c_char_p]
    lib.worker_park.restype = ctypes.c_int
    lib.worker_ask_room.argtypes, lib.worker_ask_room.restype = [handle, ROOM_ASKED, ctypes.c_void_p], None
    lib.worker_answer_room.argtypes, lib.worker_answer_room.restype = [handle, ctypes.c_int32], None
    lib.worker_watch_turns.argtypes, lib.worker_watch_turns.restype = [handle, TURN_SAID, ctypes.c_void_p], None
    lib.worker_turn.argtypes, lib.worker_turn.restype = [handle, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32], ctypes.c_int
    lib.worker_ask_exports.argtypes, lib.worker_ask_exports.restype = [handle, EXPORT_ASKED, ctypes.c_void_p], None
    fds = ctypes.POINTER(ctypes.c_int32)
    lib.worker_answer_export.argtypes = [handle, ctypes.c_char_p, ctypes.c_uint32, fds, ctypes.c_uint32]
    lib.worker_answer_export.restype = None
    count = ctypes.POINTER(ctypes.c_uint32)
    lib.worker_give_export.argtypes = [handle, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), count, fds, count]
    lib.worker_give_export.restype = ctypes.c_uint32
    lib.worker_exporter_gone.argtypes, lib.worker_exporter_gone.restype = [handle, ctypes.c_uint64], None
    lib.worker_begin.argtypes, lib.worker_begin.restype = [handle], ctypes.c_int
    lib.worker_run.argtypes, lib.worker_run.restype = [handle, ctypes.c_char_p], ctypes.c_int
    lib.worker_notice.argtypes, lib.worker_notice.restype = [handle, ctypes.c_char_p], None
    lib.worker_get_figures.argtypes, lib.worker_get_figures.restype = [handle, ctypes.POINTER(WorkerFigures)], None
    lib.worker_close.argtypes, lib.worker_close.restype = [handle], None
    lib.worker_prepare_link.argtypes, lib.worker_prepare_link.restype = [ctypes.c_char_p], None
    lib.worker_open_cache.argtypes, lib.worker_open_cache.restype = [ctypes.c_char_p], handle
    lib.worker_close_cache.argtypes, lib.worker_close_cache.restype = [handle], None
    lib.worker_refresh_cache.argtypes, lib.worker_refresh_cache.restype = [handle], None
    lib.worker_use_cache.argtypes, lib.worker_use_cache.restype = [handle, handle, ctypes.c_char_p], None


class WorkerLibrary:
    """libgpuvirt_worker.so, loaded."""

    def __init__(self, path: Path | None = None) -> None:
        path = path or paths.library(paths.WORKER)
        try:
            lib = ctypes.CDLL(str(path))
            _declare(lib)
        except (OSError, AttributeError) as error:  # AttributeError: it has not got what this version calls
            raise GpuvirtError(f"{path} cannot be loaded: {error}; build it anew: make setup") from None
        self.lib = lib
        found = path.stat()
        self.build = f"{found.st_mtime_ns};{found.st_size}"
        self._images: int | None = None

    def load_seal_library(self) -> None:
        """Loads what seals links, where this machine has it, before a session comes and the files around are out of reach."""
        self.lib.worker_seal_library(ctypes.create_string_buffer(ERR_SIZE))

    def open_cache(self, folder: Path) -> None:
        """Indexes a tenant's module cache, in the place of another's; takes tens of milliseconds with thousands of images."""
        self.close_cache()
        self._images = self.lib.worker_open_cache(os.fsencode(folder))

    def close_cache(self) -> None:
        images, self._images = self._images, None
        self.lib.worker_close_cache(images)

    def refresh_cache(self) -> None:
        """Adds new images to the index, while no session has come; costs little when there are none."""
        self.lib.worker_refresh_cache(self._images)

    def prepare_link(self, transport: str) -> None:
        """Opens what a session over this transport needs, before the process is in its box."""
        self.lib.worker_prepare_link(transport.encode())

    def open(
        self,
        config: SessionConfig,
        fd: int,
        descriptors: list[int],
        memory_usage_fd: int,
        compiler: int | None,
        compiler_build: str = "",
        memory_row: int | None = None,
        memory_file: int = 0,
    ) -> Worker:
        """Takes over the descriptors and opens the backend.

        Args:
            compiler: address of a struct soft_compiler, None on cuda. Must outlive the worker.
            compiler_build: names its version; images that another version has accepted, or that carry another tenant's key, are not taken from
                the cache.
            memory_row: the address of the session's row of the table of memory usage; None: it is mapped from memory_usage_fd.
            memory_file: a memfd for device memory that is mapped more than once, 0: it is made when it is first needed.

        Raises:
            GpuvirtError: the backend did not open; the client has been told.
        """
        devices = (ctypes.c_uint32 * len(config.devices))(*config.devices)
        filled = WorkerConfig(
            struct_size=ctypes.sizeof(WorkerConfig),
            n_devices=len(config.devices),
            backend=config.backend.encode(),
            driver=None if config.driver is None else os.fsencode(config.driver),
            devices=devices,
            memory=config.memory,
            device_memory=config.device_memory,
            capability=config.capability,
            strict=config.strict,
            memory_usage_slot=config.slot,
            memory_usage_fd=memory_usage_fd,
            fd=fd,
            transport=config.transport.encode(),
            descriptors=(ctypes.c_int32 * len(descriptors))(*descriptors),
            n_descriptors=len(descriptors),
            blob_size=len(config.blob),
            blob=config.blob,
            session=config.session,
            compiler=compiler,
            server_name=config.server_name.encode(),
            grace=config.grace,
            seal=config.seal or None,
            memory_row=memory_row,
            memory_file=memory_file,
            restored=config.restored,
        )
        err = ctypes.create_string_buffer(ERR_SIZE)
        handle = self.lib.worker_open(ctypes.byref(filled), err)
        if not handle:
            raise GpuvirtError(err.value.decode("utf-8", "replace") or "the worker library gave no reason")
        self.lib.worker_use_cache(handle, self._images, f"{self.build};{compiler_build};{config.cache_key.hex()}".encode())
        return Worker(self.lib, handle, filled)


class Worker:
    """One session inside the library. `run` blocks; all else but `close` may come from other threads, also while the session closes."""

    def __init__(self, lib: ctypes.CDLL, handle: int, config: WorkerConfig) -> None:
        self._lib, self._handle, self._closed = lib, handle, False
        self._lock = threading.Lock()
        self._calls = 0  # that may take seconds, and that are under way
        self._returned = threading.Condition(self._lock)
        self._config = config  # the strings and arrays that it points to live as long as the worker

    @contextlib.contextmanager
    def _inside(self) -> Iterator[bool]:
        """A call that may take seconds: `close` waits for it. False: the session is closed, and the call must not be made."""
        with self._lock:
            open = not self._closed
            self._calls += open
        try:
            yield open
        finally:
            with self._lock:
                self._calls -= open
                self._returned.notify_all()

    def run(self) -> tuple[int, str]:
        """Runs the session to its end: the code of worker_run (`RunEnding`) and its text."""
        err = ctypes.create_string_buffer(ERR_SIZE)
        code = int(self._lib.worker_run(self._handle, err))
        return code, err.value.decode("utf-8", "replace")

    def save(self, fd: int, limit: float, at_rest: Callable[[], None]) -> str:
        """Writes the session's image to a descriptor, once the session is at rest, for which there are `limit` seconds.

        Args:
            at_rest: called then, on any thread. From there on the session takes no connections.

        Returns:
            Why it did not, and the session goes on; empty: it stands still until `go_on`.
        """
        err = ctypes.create_string_buffer(ERR_SIZE)
        with self._inside() as open:
            if not open:
                return "the session has ended"
            bad = int(self._lib.worker_save(self._handle, fd, int(limit * 1000), AT_REST(lambda _: at_rest()), None, err))
        return err.value.decode("utf-8", "replace") if bad else ""

    def go_on(self) -> None:
        """After `save`: the session goes on here."""
        with self._lock:
            if not self._closed:
                self._lib.worker_continue(self._handle)

    def park(self, fd: int, finish: float, said: Callable[[ParkSaid], None]) -> str:
        """Parks the session: its device memory goes to a file, which stays open until it is back.

        Args:
            finish: seconds that its GPU has to finish what it does, whatever the program wants next; 0: the session has to be idle.
            said: called on the thread of `run`.

        Returns:
            Why not; empty: it is parked.
        """
        err = ctypes.create_string_buffer(ERR_SIZE)
        with self._inside() as open:
            if not open:
                return "the session has ended"
            callback = PARK_SAID(lambda _, what: said(ParkSaid(what)))
            bad = int(self._lib.worker_park(self._handle, fd, int(finish * 1000), callback, None, err))
            if not bad:
                self._park_said = callback  # in the place of the last one, which is called until the session is parked again
        return err.value.decode("utf-8", "replace") if bad else ""

    def ask_room(self, asked: Callable[[int, int], None]) -> None:
        """Says, before `run`, whom to ask for room that other sessions have.

        Args:
            asked: called with the device and the bytes that an allocation needs; the session waits for `answer_room`.
        """
        self._room_asked = ROOM_ASKED(lambda _, device, bytes: asked(device, bytes))
        self._lib.worker_ask_room(self._handle, self._room_asked, None)

    def answer_room(self, granted: bool) -> None:
        """There is room for what it waits for, its memory or an allocation; or there is none for the allocation."""
        with self._lock:
            if not self._closed:
                self._lib.worker_answer_room(self._handle, granted)

    def ask_exports(self, asked: Callable[[ExportAsked, int, bytes], None]) -> None:
        """Says, before `run`, whom to ask for what sessions share.

        Args:
            asked: called with what the session asks for, a number (bytes of a file, the number of one that is over, or the session that has
                exported something) and the name of the export. It waits for `answer_export`, but after FILE_OVER.
        """

        def call(_: int, what: int, number: int, name: ctypes._Pointer[ctypes.c_uint8]) -> None:
            asked(ExportAsked(what), number, bytes(name[:EXPORT_NAME]) if name else b"")

        self._export_asked = EXPORT_ASKED(call)
        self._lib.worker_ask_exports(self._handle, self._export_asked, None)

    def answer_export(self, what: bytes, fds: list[int]) -> None:
        """A file, or what another session has exported under the name that was asked for; nothing: it is refused. The descriptors are taken over."""
        with self._lock:
            if self._closed:
                for fd in fds:
                    os.close(fd)
            else:
                self._lib.worker_answer_export(self._handle, what, len(what), (ctypes.c_int32 * len(fds))(*fds), len(fds))

    def give_export(self, name: bytes) -> tuple[bytes, list[int], list[int]]:
        """What the session has exported under a name; nothing: there is no such export.

        Returns:
            What another worker needs to hear; the numbers of the files in which it lies, 0 for one of the driver's; descriptors of those, which are
            the caller's.
        """
        what, files, n = ctypes.create_string_buffer(ERR_SIZE), (ctypes.c_uint64 * EXPORT_FILES)(), ctypes.c_uint32()
        fds, n_fds = (ctypes.c_int32 * EXPORT_FILES)(), ctypes.c_uint32()
        with self._lock:
            if self._closed or len(name) != EXPORT_NAME:
                return b"", [], []
            size = int(self._lib.worker_give_export(self._handle, name, what, files, ctypes.byref(n), fds, ctypes.byref(n_fds)))
        return what.raw[:size], list(files[: n.value]), list(fds[: n_fds.value])

    def exporter_gone(self, session: int) -> None:
        """A session whose exports this one may have opened has ended."""
        with self._lock:
            if not self._closed:
                self._lib.worker_exporter_gone(self._handle, session)

    def watch_turns(self, said: Callable[[int, int, int], None]) -> None:
        """Says, before `run`, who hears of turns.

        Args:
            said: called, on any thread, with the device, what becomes of its turn (`TurnSaid`), and the number of the word that this answers.
        """
        self._turn_said = TURN_SAID(lambda _, device, what, number: said(device, what, number))
        self._lib.worker_watch_turns(self._handle, self._turn_said, None)

    def turn(self, device: int, may: May, number: int) -> bool:
        """Whether kernels may run on a device of the pool from now on, by a word of that number. False: there are no turns here."""
        with self._lock:
            return not self._closed and int(self._lib.worker_turn(self._handle, device, may, number)) == 0

    def restore(self, fd: int, limit: float) -> None:
        """Takes the session over from its image, which has come whole within `limit` seconds.

        Raises:
            GpuvirtError: it cannot; only `close` can follow.
        """
        err = ctypes.create_string_buffer(ERR_SIZE)
        if int(self._lib.worker_restore(self._handle, fd, int(limit * 1000), err)):
            raise GpuvirtError(err.value.decode("utf-8", "replace"))

    def begin(self) -> None:
        """After `restore`, before `run`: the worker that had the session is dead.

        Raises:
            GpuvirtError: there are no threads to be had.
        """
        if int(self._lib.worker_begin(self._handle)):
            raise GpuvirtError("the worker has no threads to be had")

    def add_connection(self, which: int, fd: int, epoch: int) -> bool:
        """Hands over a connection: a bulk channel's first (epoch 0), or one in the place of one that was cut (which: -1, the main one).

        Waits until both ends have exchanged their sequence numbers, some seconds at most. False: it was refused or ended at once. The descriptor is
        the library's in any case.
        """
        with self._inside() as open:
            if not open:
                os.close(fd)
                return False
            if which >= 0 and epoch == 0:
                return int(self._lib.worker_add_channel(self._handle, which, fd)) == 0
            return int(self._lib.worker_resume(self._handle, which, fd, epoch)) == 0

    def client_gone(self) -> None:
        """The client's program has ended: the session is over as soon as nobody is connected."""
        with self._lock:
            if not self._closed:
                self._lib.worker_client_gone(self._handle)

    def notice(self, text: str) -> None:
        """Tells the client a line for its user. Waits while the link is full."""
        with self._inside() as open:
            if open:
                self._lib.worker_notice(self._handle, text.encode("utf-8", "replace"))

    def figures(self) -> dict[str, int]:
        found = WorkerFigures()
        with self._lock:
            if not self._closed:
                self._lib.worker_get_figures(self._handle, ctypes.byref(found))
        return {name: int(getattr(found, name)) for name, *_ in WorkerFigures._fields_}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if not self._returned.wait_for(lambda: self._calls == 0, CLOSE_WAIT):
                return  # somebody is still in there; the process is about to end
        self._lib.worker_close(self._handle)
