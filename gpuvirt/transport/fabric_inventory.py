"""What RDMA devices this host has, and what stands in the way of using them: `inspect` tells it.

Devices are listed by pyverbs where that can be imported, else by the kernel's files. A library cannot be unloaded again, and one that crashes ends
its process; so libibverbs and pyverbs are loaded in another one, `python -m gpuvirt.transport.fabric_inventory`, which prints the fabric as JSON.

Variables: GPUVIRT_IBVERBS is the path of libibverbs, GPUVIRT_GID_INDEX names the GID of every port, GPUVIRT_SYSFS is where sysfs lies.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpuvirt.sizes import format_size
from gpuvirt.transport.fabric import CHANNEL_ADAPTER, ETHERNET, INFINIBAND, Device, Fabric, Obstacle, Port, candidates
from gpuvirt.transport.fabric_devices import devices_of_kernel, devices_of_pyverbs, text_of

LIBRARY = "libibverbs.so.1"
MEMLOCK = 64 << 20  # bytes of memory that a session over verbs registers, and the kernel counts as locked
TIME_LIMIT = 20.0  # seconds for the libraries to list the devices
CAP_IPC_LOCK = 14


def inspect(environment: Mapping[str, str] | None = None, boxed: bool = False) -> Fabric:
    """This host's RDMA devices, for programs with this environment (None: this process's).

    Args:
        boxed: those programs are a server's workers, which have no capabilities.
    """
    env = os.environ if environment is None else environment
    if not devices_of_kernel(_sysfs(env)) and importlib.util.find_spec("pyverbs") is None:
        return Fabric(gid_index=_gid_index(env)[0])
    line = [sys.executable, "-P", "-m", __spec__.name, *["--boxed"] * boxed]
    try:
        done = subprocess.run(line, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
        return Fabric.from_dict(json.loads(done.stdout.rstrip().rpartition("\n")[2]))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        why = "they did not answer in time" if isinstance(error, subprocess.TimeoutExpired) else "the process that asks them failed"
        remedy = f"see what `{Path(sys.executable).name} -m {__spec__.name}` prints"
        return Fabric(obstacles=(Obstacle(f"the RDMA devices cannot be listed: {why}", remedy, general=True),))


def look(sysfs: Path, dev: Path, environment: Mapping[str, str], boxed: bool) -> Fabric:
    """As `inspect`, in this process."""
    devices = devices_of_kernel(sysfs)
    listed, missing = _load(environment.get("GPUVIRT_IBVERBS") or LIBRARY, bool(environment.get("GPUVIRT_IBVERBS")))
    if missing is None and listed:
        devices = devices_of_pyverbs(devices)
    if not devices:
        return Fabric(gid_index=_gid_index(environment)[0])
    obstacles = [missing] if missing else []
    checked = []
    for device in devices:
        found = _unlisted(device, listed) if missing is None else None
        found = found or _device_file(device.name, sysfs, dev)
        obstacles += [found] if found else []
        checked.append(replace(device, opens=found is None))
    index, wrong = _gid_index(environment)
    obstacles += [wrong] if wrong else []
    obstacles += [*_ports(checked, index), *_locked_memory(boxed)]
    return Fabric(tuple(checked), tuple(obstacles), index)


def _load(path: str, named: bool) -> tuple[list[str], Obstacle | None]:
    """The names of the devices that libibverbs has; what prevents that it is used."""
    try:
        library = ctypes.CDLL(path)
        library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        library.ibv_get_device_name.restype = ctypes.c_char_p
        library.ibv_free_device_list.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    except (OSError, AttributeError) as error:
        if named:
            return [], Obstacle(f"GPUVIRT_IBVERBS cannot be loaded: {error}", f"set it to the path of {LIBRARY}, or unset it", general=True)
        remedy = "install rdma-core's library (Debian, Ubuntu: libibverbs1 and ibverbs-providers; Fedora, RHEL: libibverbs)"
        return [], Obstacle(f"the library {LIBRARY} is not installed", remedy, general=True)
    count = ctypes.c_int()
    found = library.ibv_get_device_list(ctypes.byref(count))
    if not found:  # without devices: ENOSYS
        return [], None
    names = [library.ibv_get_device_name(ctypes.c_void_p(found[i])).decode(errors="replace") for i in range(count.value)]
    library.ibv_free_device_list(found)
    return names, None


# ---- what stands in the way -----------------------------------------------------------------------------------------------------


def _unlisted(device: Device, listed: list[str]) -> Obstacle | None:
    if device.name in listed:
        return None
    remedy = "install its provider (Debian, Ubuntu: ibverbs-providers; Fedora, RHEL: libibverbs), and in a container pass /dev/infiniband into it"
    return Obstacle(f"{device.name}: libibverbs does not list it", remedy)


def _device_file(name: str, sysfs: Path, dev: Path) -> Obstacle | None:
    """Whether this user may open the device's file."""
    try:
        entries = sorted((sysfs / "class/infiniband_verbs").iterdir())
    except OSError:
        entries = []
    file = next((dev / "infiniband" / entry.name for entry in entries if text_of(entry / "ibdev") == name), None)
    if file is None:
        # A software device of the library has none at all.
        there = (sysfs / "class/infiniband" / name).exists()
        return Obstacle(f"{name}: the kernel has no device file for it", "load its module: modprobe ib_uverbs") if there else None
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))  # asking for rights is not enough: a container's may be less
    except FileNotFoundError:
        return Obstacle(f"{name}: {file} is not there", f"in a container: pass it in, --device {file}; else load the module: modprobe ib_uverbs")
    except OSError as error:
        remedy = f"in a container: --device {file}; else a udev rule that gives its users the right (rdma-core's: mode 0666)"
        return Obstacle(f"{name}: {file} cannot be opened: {error.strerror}", remedy)
    return None


def _ports(devices: list[Device], index: int | None) -> Iterator[Obstacle]:
    """What is wrong with ports. One that is not active is no obstacle while another one is: hosts have ports without a cable."""
    ports = [(device, port) for device in devices for port in device.ports]
    adapters = [(device, port) for device, port in ports if device.type == CHANNEL_ADAPTER]
    if not adapters:
        types = ", ".join(sorted({device.type or "unknown" for device in devices}))
        yield Obstacle(f"none of the RDMA devices is for InfiniBand or RoCE (they are: {types})", "links go over tcp here", general=True)
    any_active = any(port.active for _, port in adapters)
    for device, port in adapters:
        name = f"{device.name} port {port.number}"
        if not port.active:
            if not any_active:
                yield Obstacle(f"{name} is not active: it is {port.state or 'in an unknown state'}, {port.physical or 'unknown'}", _activate(port))
        elif not candidates(port, index):
            yield _no_gid(name, port, index)


def _activate(port: Port) -> str:
    if port.physical != "LinkUp":
        return "plug its cable in, and see that the switch's port is up" + ("; ip link set DEV up" if port.layer == ETHERNET else "")
    if port.layer == INFINIBAND:
        return "an InfiniBand subnet needs a subnet manager: start opensm on one of its hosts, or the switch's"
    return "ip link set DEV up, DEV being its network device (`rdma link` shows it)"


def _no_gid(name: str, port: Port, index: int | None) -> Obstacle:
    if index is not None:
        has = ", ".join(str(gid.index) for gid in port.gids) or "none"
        return Obstacle(f"{name} has no GID {index}, which GPUVIRT_GID_INDEX names; it has {has}", "set it to one of these, or unset it")
    netdev = next((gid.netdev for gid in port.gids if gid.netdev), "DEV")
    remedy = f"give its network device an address: ip addr add 10.0.0.1/24 dev {netdev}; if it has one, the driver speaks RoCE v1 only"
    return Obstacle(f"{name} has no GID of RoCE v2", remedy)


def _locked_memory(boxed: bool) -> Iterator[Obstacle]:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or limit >= MEMLOCK or (not boxed and _may_lock_memory()):
        return
    text = f"a process may lock {format_size(limit)} of memory (RLIMIT_MEMLOCK), and a session over verbs registers {format_size(MEMLOCK)}"
    remedy = f"allow that: LimitMEMLOCK={MEMLOCK >> 20}M (service), --ulimit memlock={MEMLOCK} (container), /etc/security/limits.conf (login)"
    yield Obstacle(text, remedy, general=True)


def _may_lock_memory(proc: Path = Path("/proc/self")) -> bool:
    """Whether the limit does not hold for this process: CAP_IPC_LOCK in the first user namespace."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", text_of(proc / "status"), re.MULTILINE)
    first = text_of(proc / "uid_map").split() == ["0", "0", str(0xFFFFFFFF)]
    return first and capabilities is not None and bool(int(capabilities[1], 16) >> CAP_IPC_LOCK & 1)


def _gid_index(environment: Mapping[str, str]) -> tuple[int | None, Obstacle | None]:
    text = environment.get("GPUVIRT_GID_INDEX") or ""
    if not text:
        return None, None
    if text.isdecimal() and int(text) < 4096:
        return int(text), None
    return None, Obstacle(f"GPUVIRT_GID_INDEX is {text[:40]!r}", "set it to an index of the ports' GID tables, such as 3, or unset it", general=True)


def _sysfs(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("GPUVIRT_SYSFS") or "/sys")


def main() -> None:
    fabric = look(_sysfs(os.environ), Path("/dev"), os.environ, "--boxed" in sys.argv[1:])
    print(json.dumps(fabric.to_dict()))


if __name__ == "__main__":
    main()
