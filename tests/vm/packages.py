"""Debian's packages, downloaded and unpacked into one tree, not installed. What the host has is not downloaded again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

NEW = re.compile(r"^Inst (\S+) \((\S+)", re.MULTILINE)  # an upgrade has the old version in brackets before the new one's
MERGED = ("bin", "sbin", "lib", "lib64")  # links into usr, as in the system below which the tree is laid
DOWNLOAD_S = 400


class Missing(Exception):
    """Something that this host lacks; the text says what, and what to do."""


def _run(line: Sequence[str | Path], folder: Path | None = None, seconds: float = 60) -> str:
    try:
        done = subprocess.run([*map(str, line)], cwd=folder, capture_output=True, text=True, timeout=seconds, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{line[0]}: {error}") from None
    if done.returncode:
        raise Missing(f"{' '.join(map(str, line))}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


def kernel_package() -> str:
    """The package of the newest kernel that this release of Debian has."""
    found = re.search(r"Depends: (linux-image-\S+)", _run(["apt-cache", "depends", "linux-image-amd64"]))
    if not found:
        raise Missing("apt-cache knows no package linux-image-amd64: apt-get update; the machine needs Debian for x86-64")
    return found[1]


class Tree:
    """What is unpacked of packages, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.root, self._archives = folder / "root", folder / "archives"

    def add(self, names: Iterable[str], *, alone: bool = False) -> None:
        """Takes in the packages that are not installed on the host, and of those that they need, too, unless `alone`."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._archives.mkdir(exist_ok=True)
        for name in MERGED:
            (self.root / "usr" / name).mkdir(parents=True, exist_ok=True)
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(f"usr/{name}")
        for name in names:
            if (self._archives / f"{name}.all").exists():
                continue
            needed = [name] if alone else self._not_installed(name)
            for package in needed:
                self._unpack(package)
            (self._archives / f"{name}.all").touch()

    def program(self, name: str) -> Path:
        """A program of the tree, else of the host."""
        for folder in ("usr/bin", "usr/sbin"):
            if (self.root / folder / name).exists():
                return self.root / folder / name
        found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if not found:
            raise Missing(f"no program {name}, neither on this host nor in {self.root}")
        return Path(found)

    def environment(self) -> dict[str, str]:
        """For programs of the tree that run on the host."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.root / "usr/lib/x86_64-linux-gnu")}

    def _not_installed(self, name: str) -> list[str]:
        said = _run(["apt-get", "install", "--simulate", "--no-install-recommends", "-o", "Debug::NoLocking=1", name])
        return [package.partition(":")[0] for package, _ in NEW.findall(said)]

    def _unpack(self, package: str) -> None:
        if (self._archives / f"{package}.unpacked").exists():
            return
        for old in self._archives.glob(f"{package}_*.deb"):
            old.unlink()
        _run(["apt-get", "download", package], self._archives, DOWNLOAD_S)
        (archive,) = self._archives.glob(f"{package}_*.deb")
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as opened:
            line = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", self.root]
            unpacked = subprocess.run(line, stdin=opened.stdout, capture_output=True, text=True, timeout=DOWNLOAD_S)
        if unpacked.returncode or opened.returncode:
            raise Missing(f"{archive} cannot be unpacked: {unpacked.stderr.strip()[-500:]}")
        archive.unlink()
        (self._archives / f"{package}.unpacked").touch()
