"""The worker process: hosts the worker library for one session. Forked before it is needed from a template, which the daemon has started
(`python -m gpuvirt.server.worker`; gpuvirt/server/workers).

It says `ready`, waits for its session, puts itself into its box (gpuvirt/server/box), runs the session in the main thread (inside the library; the
GIL is free meanwhile) and ends with it. A second thread listens to the daemon. When the daemon goes away, an idle worker ends and a busy one carries
on: a daemon that is started anew on the same address adopts it (gpuvirt/server/fdstore/kept_sessions.py).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import queue
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import memory_usage, messages
from gpuvirt.server.box import box
from gpuvirt.server.options import BOX_MODES, HOST_MEMORY
from gpuvirt.server.worker_library import ExportAsked, May, ParkSaid, RunEnding, SessionConfig, Worker, WorkerLibrary
from gpuvirt.server.workers import fork_server

CLOSE_LIMIT = 0.7  # seconds: however the session ended, its memory must be free within one

RESTORE_LIMIT = 600.0  # seconds until a session's image must have come whole; the daemon ends what lasts longer

CACHE_REFRESH = 0.25  # seconds between an idle worker's updates of its index of the module cache, to which other sessions add images


def main() -> int:
    """The template that workers are forked from."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="the socket to the daemon")
    parser.add_argument("--backend", choices=["soft", "cuda"], required=True)
    parser.add_argument("--box", choices=BOX_MODES, default="auto", help="off: none; else its parts that this kernel has")
    parser.add_argument("--helper-user", type=int, default=0, help="the user as which compilers run, 0: this one")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the daemon's terminal is the daemon's business
    daemon = socket.socket(fileno=args.fd)
    daemon.set_inheritable(False)
    try:
        library = WorkerLibrary()
        library.load_seal_library()
        if args.backend == "soft":
            _load_compiler(library)
        fork_server.serve(daemon, lambda own: _work(library, own, args.backend, args.box != "off", args.helper_user))
    except (GpuvirtError, ImportError) as error:
        _tell(daemon, {"op": "failed", "text": str(error)})
        return 1
    return 0


def _work(library: WorkerLibrary, daemon: socket.socket, backend: str, boxed: bool, helper_user: int) -> int:
    """What a worker does, from its fork to its session."""
    compiler = _Compiler(boxed, helper_user) if backend == "soft" else None
    row = memory_usage.reserve_row()
    if boxed:
        box.prepare(backend, row)
    _tell(daemon, {"op": "ready"})
    tenant = ""
    while True:
        while not select.select([daemon], [], [], CACHE_REFRESH)[0]:
            library.refresh_cache()
        received = messages.receive(daemon)
        if received is None:
            return 0
        message, fds = received
        if message["op"] == "session":
            return _run(library, compiler, daemon, message, fds, tenant, boxed, row)
        if message["op"] != "expect":
            return 1  # "adopted": its daemon ended before it gave the session to it
        tenant = message["tenant"]
        library.open_cache(_descriptor(fds[0]) / "images")  # which keeps a descriptor of its own
        os.close(fds[0])


def _descriptor(fd: int) -> Path:
    """A path to what a descriptor stands for, whoever may not enter the folders above it."""
    return Path(f"/proc/self/fd/{fd}")


def _load_compiler(library: WorkerLibrary) -> None:
    """The software GPU's compiler, once for all workers.

    Raises:
        GpuvirtError: it cannot work.
    """
    from gpuvirt.soft.codegen import target
    from gpuvirt.soft.host import ctypes_bridge, jit, module_registry, settings  # noqa: F401

    settings.check_settings()
    missing = jit.register_library(library.lib)
    if missing:
        raise GpuvirtError(f"the worker library lacks {', '.join(missing)}; build it again: make setup")
    module_registry.own_version()
    target.host()


class _Compiler:
    """A worker's own part of it; keeps alive what the C side points to."""

    def __init__(self, boxed: bool, helper_user: int) -> None:
        from gpuvirt.soft.host import compile_progress, compile_time, ctypes_bridge, kernel_log, module_registry, object_cache, precompile

        self.bridge: Any = ctypes_bridge.Bridge()
        self.address: int = self.bridge.address
        self.build = module_registry.own_version()
        self.keep_in = object_cache.use
        self.open_log = kernel_log.open_file
        self.bound_time = compile_time.WATCH.start
        self.tell_progress = compile_progress.PROGRESS.start
        if boxed:
            helpers = [module_registry.IMPROVER.helper, *([module_registry.PRECOMPILER.helper] if precompile.threads() else [])]
            for helper in helpers:
                helper.fork(box.helper(helper_user, HOST_MEMORY).close, box.no_more_processes)


def _use_caches(library: WorkerLibrary, compiler: _Compiler | None, config: SessionConfig, folder: int, expected: str) -> None:
    """Takes the tenant's caches.

    Args:
        folder: the tenant's, which stays open; -1: it has none.
        expected: the tenant whose images have been looked at.
    """
    if folder < 0:
        library.close_cache()
    elif config.tenant != expected:
        library.open_cache(_descriptor(folder) / "images")
    if compiler is not None:
        compiler.keep_in(_descriptor(folder) / "kernels" if folder >= 0 else None, config.cache_key)
    elif folder >= 0:
        os.environ["CUDA_CACHE_PATH"] = str(_descriptor(folder) / "driver")  # what the driver compiles, which it would run as it finds it


def _memory_file(config: SessionConfig) -> int:
    """The file for device memory that is mapped more than once: twice the session's memory, as what is in it never moves."""
    fd = os.memfd_create("gpuvirt-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 2 * len(config.devices) * (config.memory or config.device_memory))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _close_box(compiler: _Compiler | None, config: SessionConfig, passed: dict[str, int], row: int) -> None:
    """From here on this process may do what its session needs and nothing else. What has to be opened once more is opened before."""
    if compiler is not None:
        compiler.open_log()
    box.Box(
        config.backend,
        driver=Path(config.driver) if config.driver else None,
        client=config.driver_is_client,
        user=config.user,
        folder=passed.get("cache", -1),
        file_bytes=box.FILE_BYTES if config.backend == "soft" else box.FILE_BYTES + config.device_memory * len(config.devices),
        data=config.host_memory + box.STACKS if config.host_memory and config.backend == "soft" else 0,
        fixed_page=row,
    ).close()


def _run(
    library: WorkerLibrary,
    compiler: _Compiler | None,
    daemon: socket.socket,
    message: dict[str, Any],
    fds: list[int],
    expected: str,
    boxed: bool,
    row: int,
) -> int:
    del message["op"]
    config = SessionConfig(**message)
    far: socket.socket | None = None
    if config.restored:  # its client comes when it has noticed the move: until then there is a connection that is cut when the session begins
        connection, far = socket.socketpair()
        fd = connection.detach()
    else:
        fd = fds.pop(0)
    descriptors = fds[: config.descriptors]
    passed = dict(zip(config.passed, fds[config.descriptors :], strict=True))
    memory_usage_fd = passed.get("memory_usage", -1)
    _use_caches(library, compiler, config, passed.get("cache", -1), expected)
    try:
        if "memory_row" in passed:
            memory_usage.map_row(passed["memory_row"], config.slot, row)
            os.close(passed.pop("memory_row"))
        memory_file = _memory_file(config) if boxed and config.backend == "soft" else 0
        if boxed:
            library.prepare_link(config.transport)
            _close_box(compiler, config, passed, row)
        address, build = (compiler.address, compiler.build) if compiler else (None, "")
        worker = library.open(config, fd, descriptors, memory_usage_fd, address, build, row if memory_usage_fd >= 0 else None, memory_file)
        if memory_usage_fd >= 0:
            os.close(memory_usage_fd)  # it is mapped
        if config.restored:
            worker.restore(passed["image"], RESTORE_LIMIT)
            os.close(passed["image"])
    except (GpuvirtError, OSError) as error:
        _tell(daemon, {"op": "failed", "text": str(error)})
        return 1
    _tell(daemon, {"op": "opened"})
    if compiler is not None:
        compiler.bound_time(lambda: _compiled_too_long(daemon))
        if config.notices:
            compiler.tell_progress(worker.notice)
    wish = _Wish(daemon)
    worker.ask_room(lambda device, bytes: wish.say({"op": "room", "device": device, "bytes": bytes}))
    worker.ask_exports(lambda what, number, name: _ask_export(daemon, wish, what, number, name))
    worker.watch_turns(lambda device, what, number: _tell(daemon, {"op": "turn", "device": device, "what": what, "number": number}))
    begins: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(daemon, worker, wish, begins, config.devices), name="daemon", daemon=True).start()
    if far is not None:
        if not begins.get():
            return 1  # the session stays where it was, or there is no daemon any more
        far.close()
        worker.begin()
    code, text = worker.run()
    _tell(daemon, {"op": "ended", "code": code, "text": text, **worker.figures()})
    # Closing stops kernels and waits for threads; what does not let itself be stopped must not keep the session's memory.
    timer = threading.Timer(CLOSE_LIMIT, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    worker.close()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to be torn down in order, and the interpreter's own end could wait for a compiler thread


def _compiled_too_long(daemon: socket.socket) -> None:
    """The session ends with its worker: a thread that compiles cannot be ended by itself."""
    _tell(daemon, {"op": "ended", "code": RunEnding.COMPILED_TOO_LONG, "text": ""})
    os._exit(0)


def _ask_export(daemon: socket.socket, wish: _Wish, what: ExportAsked, number: int, name: bytes) -> None:
    if what is ExportAsked.FILE_OVER:
        _tell(daemon, {"op": "file_over", "file": number})
    elif what is ExportAsked.FILE:
        wish.say({"op": "file", "bytes": number})
    else:
        wish.say({"op": "open", "session": number, "name": name})


def _give_export(daemon: socket.socket, worker: Worker, number: int, name: bytes) -> None:
    what, files, fds = worker.give_export(name)
    _tell(daemon, {"op": "given", "id": number, "what": what, "files": files}, tuple(fds))
    for fd in fds:
        os.close(fd)


class _Wish:
    """What the session waits for, until the daemon answers: a daemon that is started anew is told once more."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._message: dict[str, Any] | None = None

    def say(self, message: dict[str, Any]) -> None:
        self._message = message
        _tell(self._daemon, message)

    def answered(self) -> None:
        self._message = None

    def repeat(self) -> None:
        message = self._message
        if message is not None:
            _tell(self._daemon, message)


def _listen(daemon: socket.socket, worker: Worker, wish: _Wish, begins: queue.SimpleQueue[bool], devices: list[int]) -> None:
    """Does what the daemon says, until that is gone. Before a session that was restored begins it may be asked for figures as well.

    Args:
        begins: gets True when such a session may begin, False at the end.
        devices: of the session, pool ordinals.
    """
    while True:
        try:
            received = messages.receive(daemon)
        except OSError:
            received = None
        if received is None:
            begins.put(False)
        if received is None or received[0]["op"] == "alone":  # nobody grants turns any more
            for device in devices:
                worker.turn(device, May.ALWAYS, 0)
        if received is None:
            return
        message, fds = received
        if message["op"] == "begin":
            begins.put(True)
        elif message["op"] == "connection":
            # One thread for each connection: its ends first exchange sequence numbers, and a connection that is cut meanwhile must not delay others.
            threading.Thread(target=worker.add_connection, args=(message["which"], fds[0], message["epoch"]), daemon=True).start()
        elif message["op"] == "save":
            threading.Thread(target=_save, args=(daemon, worker, fds[0], message["limit"]), daemon=True).start()
        elif message["op"] == "park":
            threading.Thread(target=_park, args=(daemon, worker, wish, fds[0], message["finish"]), daemon=True).start()
        elif message["op"] == "adopted":
            worker.go_on()  # nobody knows of a move that was under way
            begins.put(True)
            wish.repeat()
        elif message["op"] == "room":
            wish.answered()
            worker.answer_room(message["granted"])
        elif message["op"] == "export":
            wish.answered()
            worker.answer_export(message["what"], fds)
        elif message["op"] == "give":
            _give_export(daemon, worker, message["id"], message["name"])
        elif message["op"] == "exporter_gone":
            worker.exporter_gone(message["session"])
        elif message["op"] == "turn":
            worker.turn(message["device"], May(message["may"]), message["number"])
        elif message["op"] == "go_on":
            worker.go_on()
        elif message["op"] == "gone":
            worker.client_gone()
        elif message["op"] == "figures":
            _tell(daemon, {"op": "figures", "id": message["id"], **worker.figures()})


def _save(daemon: socket.socket, worker: Worker, fd: int, limit: float) -> None:
    text = worker.save(fd, limit, lambda: _tell(daemon, {"op": "rests"}))
    os.close(fd)
    _tell(daemon, {"op": "saved", "text": text})


def _park(daemon: socket.socket, worker: Worker, wish: _Wish, fd: int, finish: float) -> None:
    def said(what: ParkSaid) -> None:
        if what is ParkSaid.BACK:
            os.close(fd)
        message = {"op": what.name.lower(), "text": ""}
        if what is ParkSaid.WANTS:
            wish.say(message)
        else:
            _tell(daemon, message)

    text = worker.park(fd, finish, said)
    if text:
        os.close(fd)
        _tell(daemon, {"op": "parked", "text": text})


def _tell(daemon: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """A daemon that is gone does not end the session."""
    with contextlib.suppress(OSError):
        messages.send(daemon, message, fds)


if __name__ == "__main__":
    sys.exit(main())
