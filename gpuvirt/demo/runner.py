"""Runs the demo's programs on a pool of two software GPUs; one row per program and transport."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuvirt.demo import programs
from gpuvirt.demo.programs import DemoError, Program

START_TIMEOUT = 60.0  # seconds until the pool must be ready
RUN_TIMEOUT = 300.0  # seconds one program may take


@dataclass
class Row:
    """One row of the demo's table. waits: how often the program waited for the server; launches: counted by the worker."""

    program: str
    device: str
    transport: str
    ok: bool
    problems: list[str]
    calls: int | None
    waits: int | None
    launches: int | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@contextlib.contextmanager
def pool(gpus: int, folder: Path) -> Iterator[str]:
    """A private pool of software GPUs. Yields its URL; ends it afterwards."""
    ready = folder / "ready.json"
    log = folder / "serve.log"
    line = [sys.executable, "-P", "-m", "gpuvirt.cli", "serve", "--backend", "soft", "--gpus", str(gpus), "--listen", "127.0.0.1:0"]
    with log.open("wb") as out:
        server = subprocess.Popen([*line, "--ready-file", str(ready)], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the pool did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)
        yield str(json.loads(ready.read_text())["pool"])
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def run_one(program: Program, url: str, transport: str, examples: Path, built: Path, seed: int, folder: Path) -> Row:
    """Runs one program through `gpuvirt run` and checks what it wrote."""
    out = folder / f"{transport}-{programs.output_name(program)}"
    stats_file = folder / f"{transport}-{Path(program.name).stem}.json"
    line = [sys.executable, "-P", "-m", "gpuvirt.cli", "run", "--pool", url, "--link", transport, "--gpus", "2", f"--stats={stats_file}", "--"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*line, *programs.command(program, examples, built, seed, out)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        problems = [] if done.returncode == 0 else [f"exit code {done.returncode}: {_last_line(done.stderr)}"]
    except subprocess.TimeoutExpired:
        problems = [f"did not end within {RUN_TIMEOUT:.0f} s"]
    seconds = time.monotonic() - began
    if not problems:
        problems = programs.check(program, seed, out)
    stats: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        stats = json.loads(stats_file.read_text())
    if not problems and stats.get("transport") != transport:
        problems = [f"went over {stats.get('transport', 'an unknown transport')}, not {transport}"]
    return Row(
        program.name, program.device_label, transport, not problems, problems, stats.get("calls"), stats.get("waits"), stats.get("launches"), seconds
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "stderr is empty"


def run(seed: int, transports: tuple[str, ...], examples: Path | None = None, only: tuple[str, ...] = ()) -> Iterator[Row | str]:
    """Yields a line of text when a step begins, and a Row when a program has run."""
    folder_of_examples = programs.find_examples(examples)
    chosen = [p for p in programs.PROGRAMS if not only or p.name in only]
    unknown = set(only) - {p.name for p in programs.PROGRAMS}
    if unknown:
        raise DemoError(f"no such example: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="gpuvirt-demo-") as name:
        folder = Path(name)
        for program in chosen:
            if program.name.endswith(".cu"):
                yield f"compiling {program.name}"
                programs.build_cuda(folder_of_examples / program.name, folder / Path(program.name).stem)
        yield "starting two software GPUs"
        with pool(2, folder) as url:
            for transport in transports:
                for program in chosen:
                    yield f"{program.name} over {transport}"
                    yield run_one(program, url, transport, folder_of_examples, folder, seed, folder)
