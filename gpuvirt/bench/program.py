"""The measuring program (native/bench), one process per round: it reads commands and answers each with a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError

ANSWER_LIMIT = 120.0  # seconds for one measurement
END_LIMIT = 15.0
Figures = dict[str, Any]


class BenchProgram:
    """A running program; use it as a context manager.

    Args:
        bare: the bare transport to measure beside: shm, tcp or none.
        environment: the program's environment, with the variables of `gpuvirt run`.

    Attributes:
        about: its first answer: ``attach_ms``, ``device``.
        pid: its process id.
        stats: what it wrote to GPUVIRT_STATS; empty until it has ended.

    Raises:
        GpuvirtError: a measurement failed or took too long; the text repeats the program's last line.
    """

    def __init__(self, bare: str, environment: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuvirt-bench-"))
        self._errors = self._folder / "errors"
        self._stats = self._folder / "stats.json"
        self.stats: Figures = {}
        env = {**environment, "GPUVIRT_STATS": str(self._stats)}
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [str(paths.program(paths.BENCH)), bare], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, text=True
                )
        except BaseException:
            self._remove()
            raise
        self.pid = self._process.pid
        try:
            self.about = self._answer("attaching")
        except BaseException:
            self.close(kill=True)
            raise

    def ask(self, command: str) -> Figures:
        """Makes one measurement (native/bench/main.c lists them) and returns its figures."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._answer(command)

    def _answer(self, what: str) -> Figures:
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_LIMIT, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            late = not timer.is_alive()
            timer.cancel()
        if line.endswith("\n"):
            answer: Figures = json.loads(line)
            return answer
        if late:
            raise GpuvirtError(f"the measurement '{what}' did not end within {ANSWER_LIMIT:.0f} s")
        self._process.wait()
        said = [line for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        why = said[-1].removeprefix("gpuvirt: ") if said else f"exit code {self._process.returncode}"
        raise GpuvirtError(f"the measurement '{what}' failed: {why}")

    def close(self, kill: bool = False) -> None:
        """Ends the program (kill: at once) and reads its statistics."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if kill:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(OSError, ValueError):
            self.stats = json.loads(self._stats.read_text())
        self._remove()

    def _remove(self) -> None:
        for file in (self._errors, self._stats):
            with contextlib.suppress(OSError):
                file.unlink()
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)

    def __enter__(self) -> BenchProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(kill=kind is not None)
