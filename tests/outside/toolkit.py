"""A CUDA toolkit laid out from NVIDIA's wheels, whose nvcc makes PTX for compute_90 and nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuvirt import paths

# The options that choose an architecture are the caller's for real GPUs. A software GPU needs PTX, and making machine code takes longer.
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
exec "${0%/*}/nvcc.real" -gencode arch=compute_90,code=compute_90 -Wno-deprecated-gpu-targets "$@"
"""


class ToolkitError(Exception):
    """The wheels are not installed; the text names a remedy."""


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
    nvcc.write_text(NVCC)
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
