"""Builds the conformance programs of both APIs, and a client library in which one function can be made to do nothing. Both stay in build-tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import c_build

from gpuvirt import paths

sys.path.insert(0, str(c_build.NATIVE / "api"))

import conformance_cases
from conformance_cases import Case

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
RUNTIME = HERE / "runtime"
FLAGS = ("-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-pthread")


def subjects() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.cpp"))


@cache
def cases() -> list[Case]:
    """Of all programs, read from their sources."""
    return conformance_cases.read(PROGRAMS)


WRONG = re.compile(r"\b(?:REFUSED|UNCHECKED_BY_THE_DRIVER|GONE)\((cu[A-Z]\w+?)(?:_v\d+|_ptsz|_ptds)?\(")


@cache
def refused() -> set[str]:
    """The functions that some case calls with wrong arguments (REFUSED and UNCHECKED_BY_THE_DRIVER), or of what is no more (GONE)."""
    return {function for path in PROGRAMS.glob("*.cpp") for function in WRONG.findall(path.read_text())}


@cache
def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert found, "no C++ compiler"
    return found


def runtime_cases(subject: str) -> list[str]:
    return re.findall(r"^(?:COLD_)?CASE\((\w+)\)", (RUNTIME / f"{subject}.cu").read_text(), re.MULTILINE)


def stored(target: Path, line: list[str]) -> Path:
    """What a compiler makes when "-o TARGET" is added to its command line; it stays for other runs."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*line, "-o", str(made)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        os.replace(made, target)  # two processes of a run may make the same
    os.utime(target)
    return target


def runtime_program(subject: str) -> Path:
    """The program of a subject of the runtime API, by the wheel's nvcc, with its runtime linked statically."""
    from gpuvirt.demo.programs import find_nvcc

    nvcc = find_nvcc()
    source = RUNTIME / f"{subject}.cu"
    line = [str(nvcc), "-O1", "-std=c++17", "-cudart", "static", str(source)]
    headers = [path.read_text() for path in (RUNTIME / "runtime.h", PROGRAMS / "cases.h")]
    stamp = f"{nvcc.stat().st_size} {nvcc.stat().st_mtime_ns}"
    identity = hashlib.sha256("\0".join([source.read_text(), *headers, stamp, *line]).encode()).hexdigest()[:16]
    return stored(c_build.STORE / "cuda" / f"runtime-{subject}-{identity}", line)


@cache
def shared_parts() -> str:
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    return "\0".join([version, c_build.cuda_headers(), *FLAGS, *(path.read_text() for path in sorted(PROGRAMS.glob("*.h")))])


@cache
def program(subject: str) -> Path:
    """The program of a subject, as it would be built on a machine with NVIDIA's driver. It names libcuda.so.1 and no folder."""
    source = PROGRAMS / f"{subject}.cpp"
    identity = hashlib.sha256("\0".join([source.read_text(), shared_parts()]).encode()).hexdigest()[:16]
    target = c_build.STORE / "cuda" / f"conformance-{subject}-{identity}"
    line = [compiler(), *FLAGS, "-isystem", c_build.cuda_headers(), str(source), f"-L{paths.unversioned_dir()}", "-lcuda"]
    return stored(target, line)


def programs() -> dict[str, Path]:
    with ThreadPoolExecutor(2) as compilers:
        return dict(zip(subjects(), compilers.map(program, subjects()), strict=True))


def driver(folder: Path, flags: Sequence[str] = (), instead: Mapping[Path, Path] | None = None) -> Path:
    """libcuda.so.1 of all its sources, or of others in the place of some."""
    native = c_build.NATIVE
    out = c_build.generated()
    parts = [native / part for part in ("shim/session", "shim/abi", "shim/objects", "wire", "transport")]
    sources = [source for part in parts for source in sorted(part.rglob("*.c"))]
    sources += [out / name for name in ("gv_stubs.c", "gv_proc_table.c", "gv_errors.c", "gv_commands.c")]
    sources = [(instead or {}).get(source, source) for source in sources]
    places = [out, *(native / part for part in ("api", "wire", "transport", "shim", "worker", "")), Path(c_build.cuda_headers())]
    all_flags = ["-fvisibility=hidden", *flags, *(f"-isystem{p}" if p == places[-1] else f"-I{p}" for p in places)]
    libraries = ["-Wl,--no-undefined", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-ldl", "-lm"]
    return c_build.library(folder / "libcuda.so.1", sources, flags=all_flags, libraries=libraries)


def breakable_driver(folder: Path) -> Path:
    """One in which the function that GV_BREAK_FUNCTION names answers CUDA_SUCCESS and does nothing."""
    return driver(folder, ["-DGV_BREAK_STUBS"])
