"""NVIDIA's CUDA samples: built by their own CMake files, one at a time, and run as their own test_args.json says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import results
from .judging import WAIVED_EXIT, judge
from .results import Row
from .running import ENDING, Ended, Place
from .toolkit import Toolkit

EXECUTABLE = re.compile(r"^\s*add_executable\s*\(\s*([\w-]+)\s", re.M)
NEEDS = re.compile(r"find_(?:package|library)\s*\(\s*(\w+)")
EVERYWHERE = ("CUDAToolkit", "Threads", "OpenMP")
DISPLAYS = frozenset(("EGL", "X11", "Vulkan"))  # a sample that is built with one of these opens a window, or shares images with what does
BUILD_LIMIT_S = 1200.0
BUILDING = threading.Lock()  # a build folder is one ninja's at a time
# Libraries that a toolkit does not have: a sample that links one does not compile, and says which, where CMake would refuse all samples.
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(outside LANGUAGES C CXX CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CUDA_STANDARD 17)
foreach(library cufft cublas cublasLt curand cusolver cusparse nvrtc nvJitLink nvjpeg nvml cupti
                nppc nppial nppicc nppidei nppif nppig nppim nppist nppisu nppitc npps
                cufft_static cufft_static_nocallback cublas_static curand_static cusolver_static cusparse_static nvjpeg_static)
  if(NOT TARGET CUDA::${{library}})
    add_library(CUDA::${{library}} INTERFACE IMPORTED GLOBAL)
    set_target_properties(CUDA::${{library}} PROPERTIES INTERFACE_LINK_LIBRARIES "-l${{library}}")
  endif()
endforeach()
add_subdirectory({checkout}/Samples Samples)
"""


@dataclass(frozen=True)
class Sample:
    """One executable of the checkout. `folder`: its CMake file's, relative to the checkout."""

    name: str
    folder: Path


class SamplesError(Exception):
    """The checkout cannot be built at all; the text is what CMake said."""


def find(checkout: Path) -> list[Sample]:
    """All samples, by name; a name that two folders have is the first one's."""
    found: dict[str, Sample] = {}
    for file in sorted((checkout / "Samples").rglob("CMakeLists.txt")):
        for name in EXECUTABLE.findall(file.read_text(errors="replace")):
            found.setdefault(name, Sample(name, file.parent.relative_to(checkout)))
    return sorted(found.values(), key=lambda sample: (str(sample.folder), sample.name))


def configure(checkout: Path, work: Path, toolkit: Toolkit) -> Path:
    """Runs CMake over all samples, which is done once; returns the build folder."""
    source, build = work / "samples-project", work / "samples-build"
    text = PROJECT.format(checkout=checkout)
    file = source / "CMakeLists.txt"
    if (build / "build.ninja").exists() and file.exists() and file.read_text() == text:
        return build
    source.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    tools = Path(sys.executable).parent
    line = [_tool(tools, "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool(tools, 'ninja')}", "-S", str(source), "-B", str(build)]
    line += [f"-DCMAKE_CUDA_COMPILER={toolkit.nvcc}", f"-DCUDAToolkit_ROOT={toolkit.root}", "-DCMAKE_BUILD_TYPE=Release"]
    for variable, name in (("NVJITLINK_LIB", "nvJitLink"), ("NVVM_LIB", "nvvm")):  # CMake would refuse all samples where one of these is not found
        library = toolkit.libraries / f"lib{name}.so"
        line.append(f"-D{variable}:FILEPATH={library}" if library.exists() else f"-D{variable}:STRING=-l{name}")
    done = subprocess.run(line, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    if done.returncode != 0:
        (build / "build.ninja").unlink(missing_ok=True)
        raise SamplesError(f"CMake could not set up the samples:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return build


def targets(build: Path) -> set[str]:
    """The executables that CMake made a target of, which are those whose needs are installed."""
    line = [_tool(Path(sys.executable).parent, "ninja"), "-C", str(build), "-t", "targets", "all"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return {line.partition(":")[0].rpartition("/")[2] for line in done.stdout.splitlines()}


def runs(arguments: Mapping[str, Any], name: str) -> list[list[str]] | None:
    """The command lines' arguments of a sample; None where the checkout says that it is not run by itself."""
    entry = arguments.get(name, {})
    if entry.get("skip"):
        return None
    listed = [run.get("args", []) for run in entry.get("runs", [{"args": entry.get("args", [])}]) if not run.get("skip")]
    return [list(map(str, given)) for given in listed] or [[]]


@dataclass(frozen=True)
class Samples:
    """What has to be known to run one of them."""

    checkout: Path
    build: Path
    place: Place | None
    toolkit: Toolkit
    built_by: frozenset[str]
    arguments: Mapping[str, Any]

    def row(self, sample: Sample) -> Row:
        given = runs(self.arguments, sample.name)
        if given is None:
            return Row(sample.name, results.LEFT_OUT, "test_args.json skips it")
        if display := DISPLAYS & set(self._needs(sample)):
            return Row(sample.name, results.LEFT_OUT, f"it needs a display: {', '.join(sorted(display))}")
        if sample.name not in self.built_by:
            return Row(sample.name, results.LEFT_OUT, f"its CMake file builds it with {', '.join(self._needs(sample)) or 'what is not installed'}")
        if error := self._build(sample):
            return Row(sample.name, results.UNBUILT, error)
        self._lay_beside(sample)
        seconds = 0.0
        for arguments in given:
            assert self.place is not None
            end = self.place.run([self._executable(sample), *arguments], self._executable(sample).parent, self._environment())
            seconds += end.seconds
            verdict, cause = judge(end, WAIVED_EXIT)
            if verdict != results.PASSED:
                return Row(sample.name, verdict, f"{' '.join(arguments)}: {cause}" if arguments else cause, round(seconds, 2))
        return Row(sample.name, results.PASSED, "", round(seconds, 2))

    def build_all(self, samples: Sequence[Sample], jobs: int, limit: float) -> None:
        """Builds what can be built within `limit` seconds; `executable` tells of each whether it was."""
        line = [_tool(Path(sys.executable).parent, "ninja"), "-C", str(self.build)]

        def complete(sample: Sample) -> bool:
            return subprocess.run([*line, "-n", sample.name], capture_output=True, check=False).returncode == 0

        with ThreadPoolExecutor(jobs) as threads:  # one that lacks a library would keep ninja from all others
            wanted = [sample.name for sample, whole in zip(samples, threads.map(complete, samples), strict=True) if whole]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*line, "-k", "0", "-j", str(jobs), *wanted], capture_output=True, timeout=limit, check=False)

    def commands(self, sample: Sample) -> list[list[str]]:
        """The command lines of a sample that has been built, for its folder and environment; none where it was not, or is not to be run by itself."""
        given = runs(self.arguments, sample.name)
        if given is None or sample.name not in self.built_by or DISPLAYS & set(self._needs(sample)) or not self._executable(sample).exists():
            return []
        self._lay_beside(sample)
        place = ["env", "-C", str(self._executable(sample).parent), *(f"{name}={value}" for name, value in self._environment().items())]
        return [[*place, str(self._executable(sample)), *arguments] for arguments in given]

    def _needs(self, sample: Sample) -> list[str]:
        text = (self.checkout / sample.folder / "CMakeLists.txt").read_text(errors="replace")
        return sorted(set(NEEDS.findall(text)) - set(EVERYWHERE))

    def _executable(self, sample: Sample) -> Path:
        return self.build / sample.folder / sample.name

    def _lay_beside(self, sample: Sample) -> None:
        """What the sample's folder has (data/ above all) is found beside its executable, as it would be in a build inside the checkout."""
        for path in (self.checkout / sample.folder).iterdir():
            beside = self._executable(sample).parent / path.name
            if not os.path.lexists(beside):
                beside.symlink_to(path)

    def _environment(self) -> dict[str, str]:
        """Libraries that a sample opens by name are found where an installed toolkit has them."""
        places = [str(self.toolkit.libraries), str(self.toolkit.root / "nvvm" / "lib64"), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, places)), "CUDA_HOME": str(self.toolkit.root), "CUDA_PATH": str(self.toolkit.root)}

    def _build(self, sample: Sample) -> str:
        line = [_tool(Path(sys.executable).parent, "ninja"), "-C", str(self.build), "-j", "2", sample.name]
        try:
            with BUILDING:
                if ENDING.is_set():
                    raise Ended
                done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=BUILD_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not built in {BUILD_LIMIT_S:.0f} s"
        if done.returncode == 0:
            return ""
        if ENDING.is_set():
            raise Ended
        lines = [text for text in done.stdout.splitlines() if re.search(r"error|cannot find|undefined|fatal", text, re.I)]
        return (lines or done.stdout.splitlines()[-1:] or ["ninja failed"])[0].strip()[:240]


def select(names: Iterable[str], only: Sequence[str]) -> Iterator[str]:
    """Those that match one of the patterns; all without patterns."""
    return (name for name in names if not only or any(fnmatch(name, pattern) for pattern in only))


def prepare(checkout: Path, work: Path, place: Place | None, toolkit: Toolkit) -> Samples:
    """place: where `row` runs programs."""
    build = configure(checkout, work, toolkit)
    file = checkout / "test_args.json"
    arguments = json.loads(file.read_text()) if file.exists() else {}
    return Samples(checkout, build, place, toolkit, frozenset(targets(build)), arguments)


def _tool(folder: Path, name: str) -> str:
    return str(folder / name) if (folder / name).exists() else name
