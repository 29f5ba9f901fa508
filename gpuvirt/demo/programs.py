"""The demo's programs: finding, building and starting them, reading their results."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from gpuvirt.demo import reference


class DemoError(Exception):
    """Something that the demo needs is missing; the text names a remedy."""


@dataclass(frozen=True)
class Program:
    """One example. `devices` is how many GPUs it uses."""

    name: str
    devices: int

    @property
    def device_label(self) -> str:
        return "soft 0" if self.devices == 1 else "soft 0+1"


PROGRAMS = tuple(Program(name, 2 if name == "cupy/two_devices.py" else 1) for name in reference.CHECKS)


def find_examples(given: Path | None) -> Path:
    """The examples' folder: the one given, or the checkout that this package is used from, or ./examples."""
    candidates = [given] if given else [Path(__file__).resolve().parents[2] / "examples", Path.cwd() / "examples"]
    for folder in candidates:
        if (folder / "cuda" / "tour.cu").is_file():
            return folder
    raise DemoError(f"no examples in {' or '.join(map(str, candidates))}; run this in a clone of the repository or set their folder with --examples")


def find_nvcc() -> Path:
    """nvcc from the wheel (nvidia-cuda-nvcc). A compiler on PATH is ignored, so that every machine builds with the same one.

    It lives in a folder of its own, ``<environment>/nvcc``: CuPy for CUDA 12 would take CUDA 13's headers if they were in its site-packages.
    """
    for folder in (Path(sys.prefix) / "nvcc", Path(sysconfig.get_paths()["purelib"])):
        nvcc = folder / "nvidia" / "cu13" / "bin" / "nvcc"
        if nvcc.is_file():
            break
    else:
        install = f"{sys.executable} -m pip install --target {Path(sys.prefix) / 'nvcc'} 'nvidia-cuda-nvcc>=13,<14' 'nvidia-cuda-cccl>=13,<14'"
        raise DemoError(f"nvcc's wheel is not installed; install it: {install}")
    if not shutil.which("g++"):
        raise DemoError("nvcc needs a C++ compiler; install one: sudo apt-get install g++")
    return nvcc


def build_cuda(source: Path, target: Path) -> None:
    """Compiles a CUDA C++ program with the static runtime and the compiler's default architecture (its PTX is what a software GPU runs)."""
    nvcc = find_nvcc()
    # A link called libcuda.so or the like is not needed: the static runtime opens libcuda.so.1 when the program first asks for a GPU.
    done = subprocess.run([str(nvcc), "-O2", "-cudart", "static", str(source), "-o", str(target)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"nvcc could not compile {source}:\n{done.stdout}{done.stderr}")


def command(program: Program, examples: Path, built: Path, seed: int, out: Path) -> list[str]:
    """The command line that runs the program. `built` holds the compiled CUDA programs."""
    if program.name.endswith(".cu"):
        return [str(built / Path(program.name).stem), str(seed), str(out)]
    return [sys.executable, str(examples / program.name), "--seed", str(seed), "--out", str(out)]


def output_name(program: Program) -> str:
    return Path(program.name).stem + (".bin" if program.name.endswith(".cu") else ".npz")


def check(program: Program, seed: int, out: Path) -> list[str]:
    """What is wrong with the program's output file, one line each."""
    if not out.is_file():
        return ["wrote no results"]
    if program.name.endswith(".cu"):
        arrays = reference.read_cuda_tour(out)
    else:
        try:
            with np.load(out) as stored:
                arrays = dict(stored)
        except (ValueError, OSError, EOFError, BadZipFile) as error:
            return [f"its results cannot be read: {error}"]
    return reference.CHECKS[program.name](seed, arrays)
