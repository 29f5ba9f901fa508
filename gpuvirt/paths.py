"""Paths: built libraries, a server's state, caches, configuration, runtime folders."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpuvirt.errors import GpuvirtError

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
WORKER = "libgpuvirt_worker.so"
SERVER = "libgpuvirt_server.so"
BENCH = "gpuvirt-bench"
COMPAT = "libgpuvirt_compat.so"
DEVICE_FILES = "libgpuvirt_device_files.so"
HOST_IO = "libgpuvirt_host_io.so"
COMPAT_PROGRAMS = "compat"  # a folder, so that it can be on PATH
PYTHON_COMPAT = Path(__file__).resolve().parent / "compat" / "python"


def library_dir() -> Path:
    """The folder of the built libraries: ``gpuvirt/lib``, or ``GPUVIRT_LIB_DIR`` when that is set."""
    override = os.environ.get("GPUVIRT_LIB_DIR")
    return Path(override).absolute() if override else Path(__file__).resolve().parent / "lib"


def library(name: str) -> Path:
    """The path of a built library (`CUDA`, `NVML`, `WORKER`).

    Raises:
        GpuvirtError: there is no such file; the text says how to build it.
    """
    path = library_dir() / name
    if not path.is_file():
        where = ", where GPUVIRT_LIB_DIR points" if os.environ.get("GPUVIRT_LIB_DIR") else ""
        raise GpuvirtError(f"{name} is not in {path.parent}{where}; build it: make setup (in a clone) or pip install --force-reinstall gpuvirt")
    return path


def program(name: str) -> Path:
    """The path of a built program or preloaded library: in the library folder, or in ``gpuvirt/lib`` if that folder has none.

    Raises:
        GpuvirtError: there is no such file; the text says how to build it.
    """
    beside = Path(__file__).resolve().parent / "lib" / name
    return beside if beside.is_file() and not (library_dir() / name).is_file() else library(name)


def unversioned_dir() -> Path:
    """A folder with ``libcuda.so``, the name that compilers link against: the library folder if the build made that link there, else (wheels cannot
    contain links) a folder in the user's cache, where it is made."""
    lib = library(CUDA)
    if (lib.parent / "libcuda.so").exists():
        return lib.parent
    folder = cache_dir() / "link"
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in (("libcuda.so", lib), ("libnvidia-ml.so", lib.parent / NVML)):
        link = folder / name
        if link.is_symlink() and os.readlink(link) == str(target):
            continue
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)
    return folder


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/gpuvirt``, by default ``~/.cache/gpuvirt``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuvirt"


def cache_root() -> Path:
    """The folder of all caches: ``GPUVIRT_CACHE``, by default `cache_dir`."""
    override = os.environ.get("GPUVIRT_CACHE")
    return Path(override).absolute() if override else cache_dir()


def config_file() -> Path:
    """``$XDG_CONFIG_HOME/gpuvirt/config.toml``, by default ``~/.config/gpuvirt/config.toml``."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuvirt" / "config.toml"


def state_dir() -> Path:
    """The folder of a server's key and tokens: ``GPUVIRT_STATE``, by default ``~/.local/state/gpuvirt``."""
    override = os.environ.get("GPUVIRT_STATE")
    if override:
        return Path(override).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gpuvirt"


def runtime_dirs() -> list[Path]:
    """Folders in which clients find servers of the same user on the same host, best first: ``$XDG_RUNTIME_DIR/gpuvirt``, ``/tmp/gpuvirt-UID``.

    They hold, for a server on TCP port PORT, its unix socket ``PORT.sock`` and, with mode 0600, ``PORT.token``: the text of a token that clients
    of the same user take when ``GPUVIRT_TOKEN`` is not set and the server is on their own host (see `find_local_token`). A server writes the token
    to both folders, because its clients may have another XDG_RUNTIME_DIR.
    """
    dirs = [Path(f"/tmp/gpuvirt-{os.getuid()}")]
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg:
        dirs.insert(0, Path(xdg) / "gpuvirt")
    return dirs


def private_dir(path: Path) -> Path:
    """Makes `path` a folder that belongs to this user and that no other user can enter.

    Raises:
        GpuvirtError: it cannot be made, is not a folder, or belongs to another user.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise GpuvirtError(f"the folder {path} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise GpuvirtError(f"{path} is not a folder of yours; remove it, or set another one")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def find_local_token(port: int) -> str | None:
    """The token text that this user's server on this host and TCP port left, or None.

    Takes the first ``PORT.token`` in `runtime_dirs` that is a regular file (not a link), is owned by this user and is not accessible to group and
    others. The shim follows the same rule.
    """
    for folder in runtime_dirs():
        try:
            fd = os.open(folder / f"{port}.token", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        with os.fdopen(fd) as file:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
                return file.read(4096).strip()
    return None


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600 atomically: a reader sees the old text or the new, never a part."""
    import tempfile  # brings every kind of archive with it

    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
