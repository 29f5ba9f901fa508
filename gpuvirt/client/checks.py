"""The checks of `gpuvirt doctor`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuvirt import paths
from gpuvirt.client import links
from gpuvirt.client.connect import ask
from gpuvirt.client.devices import fabric_of
from gpuvirt.client.fabric_view import port_rows, summary
from gpuvirt.client.link_choice import choose_link
from gpuvirt.client.settings import Settings, resolve
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.box.features import features
from gpuvirt.server.limits import host_memory
from gpuvirt.sizes import format_size
from gpuvirt.transport.fabric import Fabric
from gpuvirt.transport.fabric_inventory import inspect
from gpuvirt.transport.handshake import WIRE_VERSION
from gpuvirt.transport.pool import PoolAddress, PoolStatus, check_pool, greet
from gpuvirt.transport.table import NoTransport, named

OK, WARN, FAIL = "ok", "warn", "fail"
SHM_NEEDED = 64 << 20  # bytes: the rings of one session and a margin


@dataclass(frozen=True)
class Result:
    """The result of one check: its name, its status, what was found, and a remedy; ports: of RDMA devices (`fabric_view.port_rows`)."""

    name: str
    status: str
    text: str
    remedy: str = ""
    ports: list[dict[str, Any]] = field(default_factory=list)


def run_checks(pool: str | None) -> list[Result]:
    """Runs all checks, in an order in which the first failure explains later ones."""
    fabric = inspect()
    results = [*_libraries(), _compiler(), _sealing(), _shared_memory(), *_rdma("RDMA", fabric), *_places(), *_box()]
    try:
        settings = resolve({"pool": pool})
    except GpuvirtError as error:
        return [*results, Result("settings", FAIL, str(error))]
    return [*results, *_pool(settings, fabric)]


def _libraries() -> Iterator[Result]:
    for name in (paths.CUDA, paths.NVML, paths.WORKER):
        try:
            path = paths.library(name)
        except GpuvirtError as error:
            yield Result(name, FAIL, *_split(error))
            continue
        # In a separate process: a library cannot be unloaded again, and one that crashes would end this process.
        code = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)"
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            yield Result(name, FAIL, f"{path} does not load: {why}", "build it again: make setup")
        else:
            yield Result(name, OK, str(path))


def _compiler() -> Result:
    name = "software GPU's compiler"
    done = subprocess.run([sys.executable, "-P", "-c", "import gpuvirt.soft.host.ctypes_bridge"], capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Result(name, FAIL, f"cannot be imported: {why}", "install gpuvirt's requirements: make setup (in a clone) or pip install gpuvirt")
    return Result(name, OK, "importable")


def _sealing() -> Result:
    name = "sealed links"
    # In a separate process, as the libraries.
    code = "from gpuvirt.server.attaching.sealing import SealLibrary; print(SealLibrary().version())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("gpuvirt.errors.GpuvirtError: ")
        return Result(name, WARN, *_split(GpuvirtError(why)))
    return Result(name, OK, done.stdout.strip())


def _shared_memory() -> Result:
    # The rings are memfds, which /dev/shm's size does not limit; but a small /dev/shm shows that a container limits shared memory.
    try:
        free = shutil.disk_usage("/dev/shm").free
        os.close(os.memfd_create("gpuvirt-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        return Result("shared memory", WARN, f"not available: {error.strerror}", "use --link tcp")
    if free < SHM_NEEDED:
        return Result("shared memory", WARN, f"/dev/shm has {format_size(free)} free", "in a container: --shm-size=1g; or use --link tcp")
    return Result("shared memory", OK, f"memfd works, /dev/shm has {format_size(free)} free")


def _places() -> Iterator[Result]:
    for folder in paths.runtime_dirs()[:1]:
        try:
            paths.private_dir(folder)
        except (GpuvirtError, OSError) as error:
            yield Result("runtime folder", WARN, str(error), "your servers and clients on this host need GPUVIRT_TOKEN and use tcp")
        else:
            yield Result("runtime folder", OK, str(folder))


def _box() -> Iterator[Result]:
    """What a server on this machine would confine its workers by."""
    for feature in features():
        remedy = "give tokens only to people who may log in here, or use a kernel that has it" if feature.essential and not feature.there else ""
        yield Result(f"box: {feature.name}", OK if feature.there or not feature.essential else WARN, feature.text, remedy)
    bounded, text = host_memory.describe()
    remedy = "" if bounded else "as a service: packaging/gpuvirt.service; by hand: systemd-run --user --scope -p Delegate=yes gpuvirt serve"
    yield Result("workers' memory", OK if bounded else WARN, text, remedy)


def _rdma(name: str, fabric: Fabric) -> Iterator[Result]:
    """A host without RDMA, and one whose devices cannot be used, has other links: neither is a failure."""
    broken = fabric.obstacles and not fabric.usable()
    yield Result(name, WARN if broken else OK, summary(fabric), ports=port_rows(fabric))
    for obstacle in fabric.obstacles:
        yield Result(name, WARN, obstacle.text, obstacle.remedy)


def _pool(settings: Settings, here: Fabric) -> Iterator[Result]:
    if settings.pool is None:
        yield _port(PoolAddress("127.0.0.1", 7070))
        yield Result("pool", WARN, "none is set; `gpuvirt run` starts a private local one", "set one with --pool or GPUVIRT_POOL")
        return
    try:
        greeted = greet(settings.pool)
    except GpuvirtError as error:
        yield Result("pool", FAIL, *_split(error))
        return
    greeted.sock.close()
    yield Result("pool", OK, f"{settings.pool.url} answers; its name is {greeted.greeting.server_name}")
    yield Result("wire version", OK, f"{WIRE_VERSION} on both sides")
    try:
        status = check_pool(settings.pool, settings.token)
    except GpuvirtError as error:
        yield Result("token", FAIL, *_split(error))
        return
    yield Result("token", OK, "accepted; the server proved that it holds the same token")
    yield from _control(status)
    there = _server_fabric(status)
    if there is not None:
        yield from _rdma("server's RDMA", there)
    yield _link(status, settings, here, there)


def _port(address: PoolAddress) -> Result:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address.host, address.port))
        except OSError as error:
            text = f"{address.port} is taken: {error.strerror}"
            return Result("port", WARN, text, f"serve on another one with --listen, or use what runs there: --pool {address.url}")
    return Result("port", OK, f"{address.port} is free for `gpuvirt serve`")


def _control(status: PoolStatus) -> Iterator[Result]:
    port = status.greeting.control_port
    try:
        info = ask(status, "info")
    except GpuvirtError as error:
        yield Result("control channel", FAIL, str(error), f"open port {port} of {status.address.host}")
        return
    from gpuvirt import __version__

    text = f"port {port}, {info['backend']} backend, gpuvirt {info['version']}"
    if info["version"] != __version__:
        yield Result("control channel", WARN, f"{text}, and this is {__version__}", "install the same version on both")
    else:
        yield Result("control channel", OK, text)
    if bounded := info.get("host_memory"):
        yield Result("server's workers' memory", OK, bounded)
    if info.get("pageable_access"):
        remedy = "on the server load the driver's module nvidia-uvm with uvm_disable_hmm=1, if its tenants must not trust each other"
        yield Result("pageable access", WARN, "kernels on this server reach all memory of their own worker, not only the GPU's", remedy)
    elif info["backend"] == "cuda":
        yield Result("pageable access", OK, "kernels on this server reach the GPU's memory and what is pinned for it, nothing else")


def _server_fabric(status: PoolStatus) -> Fabric | None:
    try:
        return fabric_of(ask(status, "devices"))
    except GpuvirtError:
        return None  # _control has said why


def _link(status: PoolStatus, settings: Settings, here: Fabric, there: Fabric | None) -> Result:
    possible, why = status.links()
    asked = links.parse(settings.link)
    try:
        chosen = choose_link(asked, possible, why, here, there)
        auto = choose_link(links.Link(), possible, why, here, there)
    except NoTransport as error:
        return Result("link", FAIL, f"{settings.link} is set, but {error}", "use --link auto")
    if asked.kind == "auto":
        return Result("link", OK, f"auto takes {chosen.kind} ({_seals(chosen.kind, False)}): {chosen.reason}")
    reason = chosen.reason if chosen.rails else auto.reason
    return Result("link", OK, f"{settings.link} is set ({_seals(asked.kind, asked.plain)}); auto would take {auto.kind}: {reason}")


def _seals(link: str, plain: bool) -> str:
    row = named(link)
    if row is None or row.over_unix:
        return "stays on this host"
    return "sealed" if row.seals and not plain else "plain"


def _split(error: GpuvirtError) -> tuple[str, str]:
    """An error's text up to its first semicolon, and the remedy after it."""
    text, _, remedy = str(error).partition("; ")
    return text, remedy
