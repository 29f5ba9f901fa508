"""Builds the interpreter and runs programs by it, in batches; says which program failed, and how."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import c_build
from conformance.building import FLAGS, compiler
from e2e.harness import clean_environment
from random_programs.generate import Generator
from random_programs.lowering import Lowered, Op, lower

from gpuvirt import paths

HERE = Path(__file__).parent
LIBRARIES = paths.library("libcuda.so.1").parent
SILENT = 60  # seconds after which a program in which nothing moves is taken to hang


@dataclass
class Program:
    """What a seed stands for, or what is left of it."""

    seed: int
    threads: int
    own_context: bool
    ops: list[Op] = field(repr=False)
    without: tuple[str, ...] = ()

    def lowered(self, keep: bool = False) -> Lowered:
        return lower(str(self.seed), self.threads, self.own_context, self.ops, keep, frozenset(self.without))


def program_of(seed: int, length: int, without: frozenset[str] = frozenset()) -> Program:
    generator = Generator(seed, length, without)
    return Program(seed, generator.threads, generator.own_context, generator.program(), tuple(sorted(without)))


@dataclass(frozen=True)
class Target:
    """Where programs run: a server and a link to it, and whose libcuda.so.1."""

    interpreter: Path
    pool: str
    link: str
    libraries: Path = LIBRARIES
    lacks: frozenset[str] = frozenset()  # features that its devices do not have

    def environment(self) -> dict[str, str]:
        ours = {"LD_LIBRARY_PATH": str(self.libraries), "GPUVIRT_POOL": self.pool, "GPUVIRT_LINK": self.link, "GPUVIRT_GPUS": "1"}
        return clean_environment(**ours)


@dataclass
class Failure:
    seed: int
    line: int  # of the program, from 0; -1 where none is named
    text: str
    actual: bytes = b""


def interpreter() -> Path:
    """Built as the conformance programs are: it names libcuda.so.1 and no folder."""
    sources = sorted((HERE / "interpreter").iterdir())
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    flags = (*FLAGS, "-O2")
    parts = [version, c_build.cuda_headers(), *flags, *(source.read_text() for source in sources)]
    target = c_build.STORE / "cuda" / f"random-programs-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        line = [compiler(), *flags, "-isystem", c_build.cuda_headers(), str(HERE / "interpreter" / "run.cpp"), "-o", str(made)]
        done = subprocess.run([*line, f"-L{paths.unversioned_dir()}", "-lcuda"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        os.replace(made, target)
    os.utime(target)
    return target


def run(target: Target, texts: Iterable[str], repeat: int = 1, silent: int = SILENT, timeout: float = 500) -> tuple[int, Failure | None]:
    """Runs programs one after the other in one process. Returns how many steps were done, and what failed, if anything did."""
    with tempfile.TemporaryDirectory() as folder:
        line = [str(target.interpreter), "--repeat", str(repeat), "--timeout", str(silent)]
        process = subprocess.Popen(
            line,
            cwd=folder,
            env=target.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            said, _ = process.communicate("".join(texts), timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            said, _ = process.communicate()
            said += f"\nnot ended after {timeout:.0f} s"
        if process.returncode == 0 and (done := re.search(r"^(\d+) steps of", said, re.MULTILINE)):
            return int(done[1]), None
        found = re.search(r"^program (-?\d+): (.*)", said, re.MULTILINE)
        line_number = re.search(r"line (\d+)", found[2]) if found else None
        actual = Path(folder, "actual.bin")
        return 0, Failure(
            int(found[1]) if found else -1,
            int(line_number[1]) if line_number else -1,
            found[2] if found else f"exit {process.returncode}: {said[-800:]}",
            actual.read_bytes() if actual.exists() else b"",
        )
