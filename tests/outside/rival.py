"""The rival's regression programs (lupine's test/*.cu): each one file, compiled as its own script does."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from . import results
from .judging import judge
from .results import Row
from .running import Place
from .toolkit import Toolkit

COMPILE_LIMIT_S = 600.0
INCLUDE = re.compile(r'^#include <(cudnn|mpi|nccl)\.h>', re.M)


def find(checkout: Path) -> dict[str, Path]:
    """The programs by name: a translation unit with a main() is one; the others are parts of a server's own tests."""
    folder = checkout / "test" if (checkout / "test").is_dir() else checkout
    sources = sorted(folder.glob("*.cu"))
    return {source.stem: source for source in sources if re.search(r"\bmain\s*\(", source.read_text(errors="replace"))}


def row(name: str, source: Path, place: Place, toolkit: Toolkit, given: Mapping[str, str] | None = None) -> Row:
    """Compiles one program, which is kept until its source changes, and runs it."""
    if needs := INCLUDE.search(source.read_text(errors="replace")):
        header = f"{needs[1]}.h"
        if not any((folder / header).exists() for folder in (toolkit.root / "include", Path("/usr/include"))):
            return Row(name, results.LEFT_OUT, f"{header} is not installed")
    folder = place.work / "rival"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / name
    if (not built.exists() or built.stat().st_mtime < source.stat().st_mtime) and (error := compile_program(source, built, toolkit)):
        return Row(name, results.UNBUILT, error)
    environment = {"LD_LIBRARY_PATH": str(toolkit.libraries), **(given or {})}
    end = place.run([built], source.parent, environment)
    verdict, cause = judge(end)
    return Row(name, verdict, cause, round(end.seconds, 2))


def compile_program(source: Path, built: Path, toolkit: Toolkit) -> str:
    """Returns what was wrong, "" for nothing."""
    libraries = ["-lcuda"]
    text = source.read_text(errors="replace")
    libraries += [f"-l{name}" for name in ("cublas", "cudnn") if name in text.lower()]
    line = [str(toolkit.nvcc), "--cudart=shared", "-std=c++17", str(source), "-o", str(built), f"-L{toolkit.libraries}", *libraries]
    try:
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=COMPILE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not compiled in {COMPILE_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return ""
    lines = [text for text in (done.stderr + done.stdout).splitlines() if re.search(r"error|undefined|cannot find", text, re.I)]
    return (lines or ["nvcc failed"])[0][:240]
