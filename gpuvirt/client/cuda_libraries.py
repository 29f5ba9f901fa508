"""Where the CUDA libraries of a program's own Python are.

NVIDIA's wheels put each library into a folder of its own below `site-packages/nvidia`, where the dynamic linker does not look. PyTorch and CuPy load
them from there by themselves; TensorFlow does not find all of them, says so among many lines, and computes on the CPU. With the folders on
LD_LIBRARY_PATH, behind what the user has there, it finds them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_SHEBANG = 256  # bytes; the kernel reads as many
_ENV = "env"  # which a script may name to find its interpreter on PATH


def folders(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Folders with CUDA libraries that a command's Python has.

    Args:
        command: a Python, a script of one, or anything else, which may run the Python of the environment's PATH; [] as well.
    """
    python = _interpreter(command[0], environment) if command else None
    if python is None:
        python = _found("python3", environment) or _found("python", environment)
    roots = dict.fromkeys([*_listed(environment), *(_packages(python, environment) if python else [])])
    found = (folder for root in roots for folder in sorted((root / "nvidia").glob("*/lib")) if any(folder.glob("*.so*")))
    return [str(folder) for folder in found if ":" not in str(folder)]


def _interpreter(program: str, environment: Mapping[str, str]) -> Path | None:
    """The Python that runs a program, None: it is none of Python's."""
    path = _found(program, environment)
    if path is None or _PYTHON.fullmatch(path.name):
        return path
    try:
        with open(path, "rb") as file:
            first = file.read(_SHEBANG).partition(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == _ENV:
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    python = _found(words[0], environment) if words else None
    return python if python and _PYTHON.fullmatch(python.name) else None


def _found(program: str, environment: Mapping[str, str]) -> Path | None:
    found = shutil.which(program, path=environment.get("PATH"))
    return Path(os.path.abspath(found)) if found else None


def _listed(environment: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(os.path.abspath(entry)) for entry in environment.get("PYTHONPATH", "").split(":") if entry)


def _packages(python: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The folders of packages of a Python: of its virtual environment as it is named, the user's, the installation's."""
    prefix = python.parent.parent
    yield from sorted(prefix.glob("lib/python3*/site-packages"))
    if (prefix / "pyvenv.cfg").exists() and not _sees_the_system(prefix / "pyvenv.cfg"):
        return
    if home := environment.get("HOME"):
        yield from sorted(Path(home).glob(".local/lib/python3*/site-packages"))
    for installed in dict.fromkeys([python.resolve().parent.parent, Path("/usr/local"), Path("/usr")]):
        yield from sorted([*installed.glob("lib/python3*/*-packages"), *installed.glob("lib/python3/dist-packages")])


def _sees_the_system(config: Path) -> bool:
    try:
        return bool(re.search(r"^include-system-site-packages\s*=\s*true", config.read_text(), re.M | re.I))
    except (OSError, UnicodeDecodeError):
        return False
