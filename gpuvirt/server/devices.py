"""The devices of a server: software GPUs by its options, or those that the real driver reports."""

from __future__ import annotations

import json
import logging
import mmap
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.options import MAX_GPUS, ServeOptions
from gpuvirt.sizes import format_size, whole_units

log = logging.getLogger("gpuvirt.server")

DRIVER_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib",
)
PROBE_LIMIT = 60.0
_ALIGN = 64 << 20


@dataclass(frozen=True)
class Device:
    """One GPU of the server: name as the driver reports it, memory in bytes. pageable_access: kernels reach all memory of their worker (HMM)."""

    name: str
    memory: int
    pageable_access: bool = False


@dataclass(frozen=True)
class Inventory:
    """All GPUs of the server, and what a worker needs to open them.

    Attributes:
        driver: cuda: path of the driver library.
        driver_is_client: that is gpuvirt's own client library, which dials another server (chained).
        capability: soft: compute capability times 10, 0: the backend's default.
        strict: soft: imitate what a real driver is free to do.
    """

    backend: str
    devices: tuple[Device, ...]
    driver: Path | None = None
    capability: int = 0
    strict: bool = False
    driver_is_client: bool = False

    @property
    def pageable_access(self) -> bool:
        return any(device.pageable_access for device in self.devices)

    @property
    def title(self) -> str:
        count = len(self.devices)
        return f"{count} {'software GPU' if self.backend == 'soft' else 'GPU'}{'s' if count > 1 else ''}"


def take_inventory(options: ServeOptions) -> Inventory:
    """Chooses the backend and lists the devices.

    Raises:
        GpuvirtError: the chosen driver does not work, or has fewer GPUs than the options ask for.
    """
    if options.backend == "soft":
        return _soft(options)
    driver = options.driver or find_driver()
    if options.backend == "cuda":
        if driver is None:
            raise GpuvirtError("no NVIDIA driver (libcuda.so.1) was found; set its path with --driver, or serve software GPUs with --backend soft")
        return _cuda(options, driver)
    if driver is not None:
        try:
            return _cuda(options, driver)
        except GpuvirtError as error:
            log.warning("%s; serving software GPUs instead", error)
    return _soft(options)


def _soft(options: ServeOptions) -> Inventory:
    count = options.gpus or 1
    memory = options.gpu_memory
    if memory is None:
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = max(ram // 2 // count // _ALIGN * _ALIGN, _ALIGN)
    return Inventory("soft", (Device("gpuvirt software GPU", whole_units(memory)),) * count, capability=options.capability, strict=options.strict)


def _cuda(options: ServeOptions, driver: Path) -> Inventory:
    found = _probe(driver)
    wanted = options.gpus or min(len(found), MAX_GPUS)
    if len(found) < wanted:
        raise GpuvirtError(f"{wanted} GPUs were asked for and {driver} has {len(found)}; serve fewer with --gpus")
    return Inventory("cuda", tuple(found[:wanted]), driver=driver, driver_is_client=is_ours(driver))


def works_in_box(inventory: Inventory) -> str | None:
    """Why the real driver does not work inside a worker's box, None when it does."""
    assert inventory.driver is not None
    try:
        _probe(inventory.driver, "--client" if inventory.driver_is_client else "--boxed")
    except GpuvirtError as error:
        return str(error)
    return None


def _probe(driver: Path, *options: str) -> list[Device]:
    """Lists the driver's devices in a separate process: the daemon itself must never hold a CUDA context."""
    line = [sys.executable, "-P", "-m", "gpuvirt.server.probe", str(driver), *options]
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise GpuvirtError(f"the driver {driver} did not answer within {PROBE_LIMIT:.0f} s") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise GpuvirtError(f"the driver {driver} does not work: {why[0]}")
    return [Device(**device) for device in json.loads(done.stdout)]


def find_driver() -> Path | None:
    """The absolute path of the machine's real libcuda.so.1, never of the shim; None when there is none."""
    for folder in (*DRIVER_PLACES, *_ldconfig_folders()):
        path = Path(folder) / paths.CUDA
        if path.is_file() and not is_ours(path):
            return path
    return None


def _ldconfig_folders() -> list[str]:
    try:
        done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = (line.split("=>") for line in done.stdout.splitlines() if line.strip().startswith(f"{paths.CUDA} ") and "x86-64" in line)
    return [str(Path(parts[1].strip()).parent) for parts in lines if len(parts) == 2]


def is_ours(path: Path) -> bool:
    """Whether a libcuda.so.1 is a shim of gpuvirt: it contains gpuvirt's name, which a real driver does not."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"gpuvirt") >= 0 or content.find(b"GPUVIRT_") >= 0


def describe(inventory: Inventory) -> str:
    """The text of the start-up line: `2 software GPUs of 3.9 GiB`."""
    sizes = {device.memory for device in inventory.devices}
    names = sorted({device.name for device in inventory.devices})
    size = format_size(sizes.pop()) if len(sizes) == 1 else "different sizes"
    title = inventory.title if inventory.backend == "soft" else f"{inventory.title} ({', '.join(names)})"
    return f"{title} of {size}"
