"""The daemon: starts its parts, runs until it is told to stop, cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuvirt import __version__, paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server import descriptors, sockets
from gpuvirt.server import listener as listening
from gpuvirt.server.attaching.sealing import Sealing
from gpuvirt.server.box.choice import Choice, choose
from gpuvirt.server.control import ControlServer
from gpuvirt.server.devices import Inventory, describe, take_inventory, works_in_box
from gpuvirt.server.fdstore.kept_sessions import SessionStore
from gpuvirt.server.fdstore.store import DescriptorStore
from gpuvirt.server.lease_requests import lease_requests
from gpuvirt.server.ledger.store import Ledger
from gpuvirt.server.limits import host_memory, tenant_disk
from gpuvirt.server.listener import Listener
from gpuvirt.server.memory_usage import BESIDE, MemoryUsage, describes
from gpuvirt.server.migration.carry import REST_LIMIT, REST_MOST
from gpuvirt.server.migration.departed import departed_file
from gpuvirt.server.observe.host_fabric import HostFabric
from gpuvirt.server.observe.keeper import Keeper
from gpuvirt.server.observe.observer import Observer
from gpuvirt.server.observe.record import Record, record_file
from gpuvirt.server.observe.requests import seeing_requests
from gpuvirt.server.options import ServeOptions
from gpuvirt.server.sessions import Sessions
from gpuvirt.server.tenants import PRIVATE, Tenant, Tenants
from gpuvirt.server.tokens import TokenEntry, TokenStore
from gpuvirt.server.workers.engine import EmbeddedEngine
from gpuvirt.server.workers.pool import WorkerPool
from gpuvirt.server.workers.template import WORKER_COMMAND
from gpuvirt.transport import announcer, fabric_inventory
from gpuvirt.transport.announcement import Announcement, pool_digest
from gpuvirt.transport.announcer import Announcer
from gpuvirt.transport.handshake import GREETING_SOFTWARE, NONCE_SIZE, WIRE_VERSION, Greeting
from gpuvirt.transport.table import TRANSPORTS

if TYPE_CHECKING:
    from gpuvirt.cluster.host import PoolHost

log = logging.getLogger("gpuvirt.server")

TOKENS_EVERY = 1.0  # seconds between two looks at the tokens of whoever has something


class Daemon:
    """One server: `start` it, then `run` it until `stop` is called; `run` ends all workers and removes all files.

    Args:
        worker_command: the command that starts a worker process; tests pass their own.
    """

    def __init__(self, options: ServeOptions, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
        self.options = options
        self.port = 0
        self.control_port = self.metrics_port = 0
        self._worker_command = worker_command
        self._stopping = asyncio.Event()
        self._undo = contextlib.AsyncExitStack()
        self._started = time.time()
        self._sessions: Sessions | None = None
        self._inventory: Inventory | None = None
        self._bounded = ""  # by what workers' memory is, for people

    @property
    def pool(self) -> str:
        """The URL for clients on this host; the loopback address when the server listens on all interfaces."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.options.host, self.options.host)
        return f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}"

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping.set()

    async def start(self) -> None:
        """Listens, starts the first worker and writes the ready file.

        Raises:
            GpuvirtError: a port, the driver, a worker or a file is not available. What was started is undone.
        """
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def run(self) -> None:
        """Serves until `stop` is called, then ends all workers."""
        try:
            await self._stopping.wait()
            log.info("stopping")
        finally:
            await self._undo.aclose()

    async def _start(self) -> None:
        options, undo = self.options, self._undo
        limit = descriptors.raise_limit()
        if options.announce:
            announcer.check_installed()
        # The port first: it fails most often, and at once. Clients that connect early wait in the backlog.
        tcp = undo.enter_context(sockets.listen_tcp(options.host, options.port))
        listens, self.port = tcp.getsockname()[:2]
        scraped = undo.enter_context(sockets.listen_tcp(*options.metrics, "--metrics")) if options.metrics is not None else None
        tokens, pooled = await self._join_pool()
        inventory = self._inventory = await asyncio.to_thread(take_inventory, options)
        if inventory.pageable_access:
            log.warning("kernels reach all memory of the worker that runs them (pageable access): only the box is between them and the rest")
        soft = inventory.backend == "soft"
        private = options.private_folder is not None
        # Before the first child process that stays: a cgroup with other processes in it is not the daemon's. Closed after all of them have ended.
        cgroups = host_memory.take_cgroups()
        self._bounded = "a cgroup for each worker" if cgroups else "the server ends workers above their bound, looking twice a second"
        if cgroups is not None:
            undo.callback(cgroups.close)
        kept = self._open_kept_sessions()
        memory_usage = self._open_memory_usage(inventory, kept)
        box = await asyncio.to_thread(self._choose_box, inventory, tokens)
        tenants = Tenants(users=box.users)
        undo.callback(tenants.close)
        ledger = None if kept is None else Ledger(tokens.folder, options.host, self.port)
        if ledger is not None:
            undo.callback(ledger.close)  # behind all that may write there

        def tenant_of(token: bytes) -> Tenant:
            return tenants.of(PRIVATE if private else token)

        workers = WorkerPool(inventory.backend, self._worker_command, box.worker_options(), inventory.driver_is_client, cgroups)
        undo.push_async_callback(workers.close)
        if cgroups is None:
            undo.callback(host_memory.Watch(lambda: workers.running).close)
        sealing = Sealing(options.plain)
        sessions = self._sessions = Sessions(
            EmbeddedEngine(inventory, workers),
            memory_usage,
            options.name,
            options.grace,
            options.sessions_per_token,
            options.memory_per_session,
            sealing=sealing,
            host_memory=options.host_memory_per_session,
            idle=options.idle,
            overrun=options.overrun,
            tenant_of=tenant_of,
            pool=pooled.policy if pooled else None,
            departed=departed_file(tokens.folder, options.host, self.port) if pooled else None,
        )
        undo.push_async_callback(sessions.close)
        if pooled is not None:
            pooled.serve(sessions)
        undo.callback(tenant_disk.Watch(options.disk_per_token, lambda: sessions).close)
        observer = Observer(options.name, inventory, memory_usage, sessions, tokens.account)
        keeper = await self._open_record(observer, tokens)
        undo.push_async_callback(observer.close)
        if kept is not None:
            sessions.adopt(kept, tokens.rights)
        if ledger is not None:
            sessions.named.keep(ledger, tokens.rights)
        workers.expect(tenant_of(tokens.default().id))
        workers.prestart()
        requests = {
            "info": self._info,
            "cluster_join": self._no_cluster,
            "move": self._move,
            "park": self._park,
            **seeing_requests(observer, keeper, HostFabric(partial(fabric_inventory.inspect, boxed=box.boxed))),
            **lease_requests(sessions, observer.facts),
        }
        if pooled:
            requests = pooled.requests(requests)
        control = ControlServer(tokens, requests)
        undo.push_async_callback(control.close)
        self.control_port = control.start(tcp.getsockname()[0], self.port + 1 if self.port < 65535 else 0, limit)

        offered = [row for row in TRANSPORTS if row.name in options.links and not row.missing()]
        if not offered:
            raise GpuvirtError("; ".join(f"no link over {row.name}: {row.missing()}" for row in TRANSPORTS if row.name in options.links))
        served, unix_path = [tcp], ""
        if any(row.over_unix for row in offered) and (unix := self._listen_unix()):
            served.append(unix)
            unix_path = unix.getsockname()
        greeting = Greeting(
            secrets.token_bytes(NONCE_SIZE),
            control_port=self.control_port,
            flags=GREETING_SOFTWARE if soft else 0,
            boot_id=listening.boot_id(),
            unix_path=unix_path,
            server_name=options.name,
        )
        if scraped is not None:
            from gpuvirt.server.observe.metrics_server import MetricsServer

            self.metrics_port = scraped.getsockname()[1]
            metrics = MetricsServer(observer, lambda: requests["metrics"]({"from": tokens.an_admin()}))
            undo.push_async_callback(metrics.close)
            await metrics.start(scraped, limit)
        await workers.wait_ready()
        self._leave_token(tokens)  # there before the first client is answered, until after the last one is
        listener = Listener(tokens, sessions, greeting, offered, descriptors.for_strangers(limit, listening.PENDING_TOTAL))
        undo.push_async_callback(listener.close)
        if pooled is not None:
            undo.push_async_callback(pooled.close)
            next_port = self.port + 2 if self.port < 65534 else 0
            await pooled.start(sessions, self.control_port, listens, next_port, limit)
        for sock in served:
            listener.serve(sock)
        watch = asyncio.create_task(self._watch_tokens(tokens, sessions))
        undo.callback(watch.cancel)
        self._watch_parent()
        if options.private_folder is not None:
            undo.callback(shutil.rmtree, options.private_folder, ignore_errors=True)
        if any(row.seals for row in offered):
            self._say_sealing(sealing)
        log.info("serving %s at %s (control port %d)", describe(inventory), self.pool, self.control_port)
        if options.announce:
            announcement = Announcement(options.name, (), pool_digest(tokens.public_key), len(inventory.devices), inventory.backend)
            own = Announcer(announcement, listens, self.port)
            undo.push_async_callback(own.close)
            await own.start()
        self._write_ready()

    async def _join_pool(self) -> tuple[TokenStore, PoolHost | None]:
        """The tokens of this server, and its part in a pool of many hosts, None: it is a pool by itself.

        Raises:
            GpuvirtError: it cannot join the pool.
        """
        options = self.options
        if options.join is None and not options.head and not options.ray:
            return TokenStore(), None
        from gpuvirt.cluster.joining import join_pool

        return await join_pool(options, self.port)

    def _open_kept_sessions(self) -> SessionStore | None:
        """None for a private local pool, which ends with its program."""
        if self.options.private_folder is not None:
            return None
        store = DescriptorStore(self.options.host, self.port)
        self._undo.callback(store.close)  # behind the workers: it ends when there are none
        return SessionStore(store)

    def _open_memory_usage(self, inventory: Inventory, kept: SessionStore | None) -> MemoryUsage:
        total, fd = [device.memory for device in inventory.devices], kept.memory_usage if kept else None
        if fd is not None and not describes(fd, total):
            os.close(fd)
            fd = None
        usage = MemoryUsage(total, fd, BESIDE if inventory.backend == "cuda" else 0)
        self._undo.callback(usage.close)
        if kept is not None:
            kept.keep_memory_usage(usage)
        return usage

    async def _open_record(self, observer: Observer, tokens: TokenStore) -> Keeper | None:
        """The record of use; None, with a warning, where there can be none, and for a private local pool."""
        if self.options.private_folder is not None:
            return None
        try:
            record = await asyncio.to_thread(Record, record_file(tokens.folder, self.options.host, self.options.port))
        except GpuvirtError as error:
            log.warning("what users have had is not kept: %s", error)
            return None
        keeper = Keeper(observer.accounts, record)
        observer.counted = keeper.soon
        self._undo.push_async_callback(keeper.close)
        return keeper

    @staticmethod
    async def _watch_tokens(tokens: TokenStore, sessions: Sessions) -> None:
        """They expire, and are revoked in a file that several servers share."""
        said = ""
        while True:
            await asyncio.sleep(TOKENS_EVERY)
            try:
                sessions.end_without_token(tokens.over)
                text = ""
            except GpuvirtError as error:
                text = str(error)
            if text and text != said:
                log.error("%s", text)
            said = text

    def _choose_box(self, inventory: Inventory, tokens: TokenStore) -> Choice:
        mode = self.options.box
        chosen = choose(mode, [tokens.folder, paths.cache_root(), *paths.runtime_dirs()], inventory.driver, inventory.driver_is_client)
        why = works_in_box(inventory) if chosen.boxed and inventory.driver is not None else None
        if why is None:
            return chosen
        if mode == "required":
            raise GpuvirtError(f"--box required: inside the box, {why}")
        log.warning("workers run without a box, because inside it %s; whoever has a token can do what this user can", why)
        return Choice(False)

    def _listen_unix(self) -> socket.socket | None:
        """The unix socket over which clients on this host get their rings; None when no folder can hold it."""
        try:
            unix, path = sockets.listen_unix(self.port)
        except GpuvirtError as error:
            log.warning("no shared memory for clients on this host: %s", error)
            return None
        self._undo.callback(sockets.remove_files, [path])
        return self._undo.enter_context(unix)

    def _leave_token(self, tokens: TokenStore) -> None:
        left = listening.LocalTokens(self.port, tokens.default().text())
        self._undo.callback(left.remove)
        if left.missing:
            log.warning(
                "the token file for your own clients is already another server's on port %d, or cannot be written; "
                "clients that are refused need GPUVIRT_TOKEN from `gpuvirt token show`",
                self.port,
            )

    def _say_sealing(self, sealing: Sealing) -> None:
        if self.options.plain:
            log.warning("clients that ask for a plain link get one: whoever is on the way can read and change what passes")
        try:
            sealing.check()
        except GpuvirtError as error:
            log.warning("links over tcp cannot be sealed, and clients that want that are refused: %s", error)

    def _write_ready(self) -> None:
        file = self.options.ready_file
        if file is None:
            return
        ready = {
            "pool": self.pool,
            "address": f"{self.options.host}:{self.port}",
            "port": self.port,
            "control_port": self.control_port,
            **({"metrics_port": self.metrics_port} if self.metrics_port else {}),
            "pid": os.getpid(),
        }
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps(ready) + "\n")
            fresh.replace(file)
        except OSError as error:
            raise GpuvirtError(f"the ready file {file} cannot be written: {error.strerror}") from None
        self._undo.callback(sockets.remove_files, [file])

    def _watch_parent(self) -> None:
        fd = self.options.parent_fd
        if fd is None:
            return
        loop = asyncio.get_running_loop()

        def readable() -> None:
            # Nothing is ever written to the pipe: readable means that its other end was closed, because its owner ended.
            loop.remove_reader(fd)
            self.stop()

        loop.add_reader(fd, readable)
        self._undo.callback(loop.remove_reader, fd)

    # ---- requests of the control channel ---------------------------------------------------------------------------------------

    async def _info(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._inventory is not None
        return {
            "name": self.options.name,
            "version": __version__,
            "wire_version": WIRE_VERSION,
            "pid": os.getpid(),
            "backend": self._inventory.backend,
            "pageable_access": self._inventory.pageable_access,
            "host_memory": self._bounded,
            "links": list(self.options.links),
            "started": self._started,
        }

    async def _no_cluster(self, message: dict[str, Any]) -> dict[str, Any]:
        raise GpuvirtError("this server is a pool by itself, which no host can join; start it with `gpuvirt serve --head`")

    async def _park(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._sessions is not None
        sender: TokenEntry = message["from"]
        return await self._sessions.park(str(message.get("session")), None if sender.admin else bytes.fromhex(sender.id))

    async def _move(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._sessions is not None
        sender: TokenEntry = message["from"]
        devices, limit = message.get("devices"), message.get("rest", REST_LIMIT)
        if not isinstance(devices, list) or not all(type(device) is int for device in devices):
            raise GpuvirtError("a session moves to GPUs that are numbers")
        if type(limit) not in (int, float) or not 0 < limit <= REST_MOST:
            raise GpuvirtError(f"a session has at most {REST_MOST:.0f} s to come to rest")
        return await self._sessions.move(str(message.get("session")), tuple(devices), limit, None if sender.admin else bytes.fromhex(sender.id))


def serve(options: ServeOptions, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
    """Runs a daemon in this process until SIGTERM, SIGINT or SIGHUP.

    Raises:
        GpuvirtError: it cannot start.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("gpuvirt serve: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False

    async def main() -> None:
        daemon = Daemon(options, worker_command)
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, daemon.stop)
        await daemon.start()
        await daemon.run()

    asyncio.run(main())


def ready_state(path: Path) -> dict[str, Any] | None:
    """What a daemon wrote into its ready file, None when it is not ready yet."""
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return state
