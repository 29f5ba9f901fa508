"""The files that a worker needs: code to read, facts about the machine, the devices of a real driver."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from gpuvirt import paths
from gpuvirt.server.box.landlock import DEVICE, KEEP, READ, READ_FILE, REWRITE, WRITE_FILE, Ruleset

_SYSTEM = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/lib", "/lib64", "/usr/local/lib", "/nix/store", "/etc/ld.so.cache")
_FACTS = (
    "/etc/localtime", "/etc/machine-id", "/usr/share/zoneinfo", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/version",
    "/proc/sys/vm", "/proc/sys/kernel", "/sys/devices/system", "/sys/kernel/mm", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
_DRIVER_FACTS = ("/proc/driver/nvidia", "/proc/devices", "/proc/modules", "/sys", "/etc/nvidia", "/usr/share/nvidia", "/usr/local/nvidia")
_NAME_LOOKUP = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")


def code() -> list[Path]:
    """Folders of programs that a worker may load: Python, its packages, gpuvirt, the system's libraries."""
    found = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [*found, Path(paths.__file__).resolve().parent, paths.library_dir(), *map(Path, _SYSTEM)]


def allow_code(rules: Ruleset, pid: int) -> None:
    """What every worker reads."""
    rules.allow_all([*code(), *map(Path, _FACTS), Path(f"/proc/{pid}")], READ)
    rules.allow(Path("/dev/null"), READ_FILE | WRITE_FILE)


def allow_driver(rules: Ruleset, driver: Path, pid: int) -> None:
    """A real driver's library, devices and facts; and the names of the process's own threads, which the driver writes or else does not start."""
    rules.allow_all([driver.parent, driver.resolve().parent, *map(Path, _DRIVER_FACTS)], READ)
    rules.allow_all([*Path("/dev").glob("nvidia*"), Path("/dev/dxg")], DEVICE | READ)
    rules.allow(Path(f"/proc/{pid}/task"), REWRITE | READ)


def allow_client(rules: Ruleset) -> None:
    """What gpuvirt's own client library needs when it is the driver: the token of servers on this host, names of hosts, its cache."""
    rules.allow_all([*paths.runtime_dirs(), *map(Path, _NAME_LOOKUP)], READ)
    rules.allow(paths.cache_root() / "modules", KEEP)


def exposed(secret: list[Path]) -> list[str]:
    """Which of these folders lie inside one that workers may read."""
    readable = [folder.resolve() for folder in code()]
    return [str(folder) for folder in secret if any(folder.resolve().is_relative_to(r) for r in readable)]
