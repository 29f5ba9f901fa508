"""A CUDA toolkit laid out from NVIDIA's wheels, whose nvcc makes PTX for compute_90 and nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuvirt import paths

# The options that choose an architecture are the caller's for all GPUs. A software GPU needs PTX, and making machine code takes longer.
NVCC = """\
#!/bin/sh
next=
for given; do
    shift
    case "$next" in ?*) next=; continue;; esac
    case "$given" in
        -gencode|--generate-code|-arch|--gpu-architecture|-code|--gpu-code) next=1; continue;;
        -gencode=*|--generate-code=*|-arch=*|--gpu-architecture=*|-code=*|--gpu-code=*) continue;;
    esac
    set -- "$@" "$given"
done
exec "${0%/*}/nvcc.real" -gencode arch=compute_@ARCHITECTURE@,code=@CODE@ -Wno-deprecated-gpu-targets "$@"
"""


class ToolkitError(Exception):
    """The wheels are not installed; the text names a remedy."""


def nvcc_for(architecture: str, code: str) -> str:
    return NVCC.replace("@ARCHITECTURE@", architecture).replace("@CODE@", code)


@dataclass(frozen=True)
class Toolkit:
    """Its folders have the names of an installed toolkit's."""

    root: Path

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    @property
    def libraries(self) -> Path:
        return self.root / "lib64"


def find_wheels() -> Path:
    """The whole toolkit's folder; where it is not installed, that of nvcc alone, with which programs compile that use no library."""
    folders = [Path(sys.prefix) / name / "nvidia" / "cu13" for name in ("outside", "nvcc")]
    for folder in folders:
        if (folder / "bin" / "nvcc").is_file():
            return folder
    raise ToolkitError(f"NVIDIA's toolkit is not in {folders[0]}; install it: make {folders[0].parents[1]}/.installed")


def lay_out(work: Path, wheels: Path | None = None) -> Toolkit:
    """Links to the wheels' files, with the names that builds look for: libNAME.so beside libNAME.so.13, and lib64."""
    wheels = wheels or find_wheels()
    root = work / "toolkit"
    stamp = (wheels / "bin" / "nvcc").stat()
    made_of = f"{wheels}\n{stamp.st_size} {stamp.st_mtime_ns}\n{paths.library('libcuda.so.1')}\n{NVCC}"
    made = root / "made_of"
    if made.exists() and made.read_text() == made_of:
        return Toolkit(root)
    shutil.rmtree(root, ignore_errors=True)
    (root / "bin").mkdir(parents=True)
    (root / "lib64" / "stubs").mkdir(parents=True)
    (root / "nvvm").mkdir()
    for name in wheels.iterdir():
        if name.name not in ("bin", "lib", "nvvm"):
            (root / name.name).symlink_to(name)
    (root / "lib").symlink_to("lib64")
    for tool in (wheels / "bin").iterdir():
        if tool.name == "nvcc":
            shutil.copy2(tool, root / "bin" / "nvcc.real")  # a copy: it finds its toolkit beside itself
        elif tool.name == "nvcc.profile":
            shutil.copy2(tool, root / "bin" / "nvcc.profile")
        else:
            (root / "bin" / tool.name).symlink_to(tool)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(nvcc_for("90", "compute_90"))
    nvcc.chmod(0o755)
    for library in (wheels / "lib").iterdir():
        (root / "lib64" / library.name).symlink_to(library)
        unversioned = library.name.partition(".so.")[0] + ".so"
        if ".so." in library.name and not os.path.lexists(root / "lib64" / unversioned):
            (root / "lib64" / unversioned).symlink_to(library)
    for name in (wheels / "nvvm").iterdir():
        (root / "nvvm" / name.name).symlink_to(name)
    (root / "nvvm" / "include").symlink_to(wheels / "include")
    (root / "nvvm" / "lib64").symlink_to(root / "lib64")
    for folder in ("lib64", "lib64/stubs"):
        (root / folder / "libcuda.so").symlink_to(paths.library("libcuda.so.1"))
    made.write_text(made_of)
    return Toolkit(root)


COPIED = {"nvcc": "nvcc.real", "nvcc.profile": "nvcc.profile"}  # they find their toolkit beside themselves


def merge(work: Path, folders: Sequence[Path], architecture: str, code: str) -> Toolkit:
    """Links to the files of an installed toolkit, the first folder, and of libraries that lie elsewhere, the others.

    nvcc makes `code`, such as sm_90, for an architecture, such as 90.
    """
    root, base = work / "toolkit", folders[0].resolve()
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "include", "lib64/stubs"):
        (root / name).mkdir(parents=True)
    (root / "lib").symlink_to("lib64")
    for name in ("nvvm", "targets"):
        (root / name).symlink_to(base / name)
    for tool in (base / "bin").iterdir():
        if tool.name in COPIED:
            shutil.copy2(tool, root / "bin" / COPIED[tool.name])
        else:
            (root / "bin" / tool.name).symlink_to(tool)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(nvcc_for(architecture, code))
    nvcc.chmod(0o755)
    for folder in (base, *folders[1:]):
        for header in (folder / "include").glob("*"):
            _link(root / "include" / header.name, header)
        for library in (*(folder / "lib64").glob("*"), *(folder / "lib").glob("*")):
            _link(root / "lib64" / library.name, library)
            if ".so." in library.name:
                _link(root / "lib64" / (library.name.partition(".so.")[0] + ".so"), library)
    for name in ("lib64", "lib64/stubs"):
        _link(root / name / "libcuda.so", paths.library("libcuda.so.1"))
    return Toolkit(root)


def _link(at: Path, to: Path) -> None:
    """Where nothing is yet."""
    if not os.path.lexists(at):
        at.symlink_to(to)
