"""CUDA programs that Debian builds with PTX inside, unpacked into a folder of their own and run with their own loader; nothing is installed.

PyTorch's wheels hold machine code only; Debian's package has PTX of all its kernels, and so have the CUDA backends of llama.cpp's ggml.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

MIRROR = re.compile(r"https?://\S*/debian/?(?=\s|$)")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SECONDS = 3600.0


class Refused(Exception):
    """The packages cannot be had; the text says why."""


def _run(line: Sequence[str | Path]) -> None:
    done = subprocess.run([*map(str, line)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise Refused(f"{line[0]}: {(done.stderr.strip() or done.stdout.strip())[-500:]}")


def mirror() -> str:
    """Where this machine has Debian's packages from.

    Raises:
        Refused: it names none.
    """
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for source in sources:
        if source.is_file() and (found := MIRROR.search(source.read_text(errors="replace"))):
            return found[0]
    raise Refused("no mirror of Debian is in /etc/apt/sources.list; the machine needs Debian for x86-64")


def unpack(folder: Path, suite: str, packages: Sequence[str]) -> Path:
    """The tree with these packages of a suite and all that they need, down to the C library.

    Raises:
        Refused: apt cannot get them.
    """
    root, apt, done = folder / "root", folder / "apt", folder / "packages.txt"
    wanted = " ".join([suite, *packages])
    if done.exists() and done.read_text() == wanted:
        return root
    for made in (root, apt / "lists" / "partial", apt / "cache" / "archives" / "partial"):
        made.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "list").write_text(f"deb [signed-by={KEYS}] {mirror()} {suite} main contrib non-free\n")
    settings = {
        "Dir::State": apt, "Dir::State::lists": apt / "lists", "Dir::State::status": apt / "status", "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "list", "Dir::Etc::sourceparts": "/dev/null", "APT::Install-Recommends": "false",
        "Debug::NoLocking": "1", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
    }  # fmt: skip
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", *options, "update", "-qq"])
    _run(["apt-get", *options, "install", "-y", "-qq", "--download-only", *packages])
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", package, root])
        package.unlink()
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    done.write_text(wanted)
    return root


def command(root: Path, program: str, *more: Path) -> list[str]:
    """How to run a program of the tree. more: further folders with libraries."""
    libraries = root / LIBRARIES
    found = [libraries, *(libraries / name for name in ("blas", "lapack", "openblas-pthread", "llama", "ggml/backends0")), root / "usr/lib", *more]
    return [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", ":".join(map(str, found)), str(root / program)]
