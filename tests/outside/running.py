"""Programs under `gpuvirt run` on one server of software GPUs, each with a time limit for it and all that it starts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.pools import clean_environment, pool

from .judging import End

TOLD = re.compile(r"^gpuvirt: software GPUs: setting .*\n?", re.M)  # what the launcher always says
TOLD_TO_END_S = 5.0  # from SIGTERM to SIGKILL


ENDING = threading.Event()  # set when the run is given up: programs under way are ended, and have no verdict


class Ended(Exception):
    """The run was given up meanwhile."""


class Servers:
    """One server of software GPUs at a time: another one where it is gone, which hours of programs are not to be lost for."""

    def __init__(self, work: Path, gpus: int, stack: contextlib.ExitStack) -> None:
        self._work, self._gpus, self._stack = work, gpus, stack
        self._lock = threading.Lock()
        self._url = ""

    def url(self) -> str:
        with self._lock:
            if not self._url or not answers(self._url):
                self._url = self._stack.enter_context(pool(self._work, "--gpus", str(self._gpus)))
            return self._url


def answers(url: str) -> bool:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # a server that is busy is there
        return True
    return True


@dataclass(frozen=True)
class Place:
    """Where programs run. `work` is a folder for what is built and written."""

    servers: Servers
    work: Path
    link: str
    gpus: int
    timeout: float

    def run(self, line: Sequence[str | Path], cwd: Path, more: Mapping[str, str] | None = None, alive: Callable[[], float] | None = None) -> End:
        """Runs a command with GPUs. alive: when (time.monotonic) it last did something, where the limit is for standing still."""
        url = self.servers.url()
        gpuvirt = [sys.executable, "-P", "-m", "gpuvirt", "run", "--pool", url, "--gpus", str(self.gpus), "--link", self.link, "-q", "--"]
        end = run_limited([*gpuvirt, *map(str, line)], cwd, clean_environment(**(more or {})), self.timeout, alive)
        if end.code != 0 and not answers(url):  # what it says is the server's end
            return self.run(line, cwd, more)
        return replace(end, err=TOLD.sub("", end.err))


@contextlib.contextmanager
def place(work: Path, link: str, gpus: int, timeout: float) -> Iterator[Place]:
    """A server of software GPUs for a run."""
    work.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        yield Place(Servers(work, gpus, stack), work, link, gpus, timeout)


def run_limited(
    line: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float, alive: Callable[[], float] | None = None
) -> End:
    """Runs a command in a process group of its own, which is ended as a whole: programs leave children behind that hold its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(line, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            code = _wait(process, timeout, alive)
        finally:
            _end_group(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return End(code, texts[0], texts[1], time.monotonic() - start)


def _wait(process: subprocess.Popen[bytes], timeout: float, alive: Callable[[], float] | None) -> int | None:
    last = time.monotonic()
    while not ENDING.is_set():
        left = last + timeout - time.monotonic()
        if left <= 0:
            return None
        try:
            return process.wait(min(left, 1.0))
        except subprocess.TimeoutExpired:
            last = max(last, alive()) if alive else last
    raise Ended


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for how, seconds in ((signal.SIGTERM, TOLD_TO_END_S), (signal.SIGKILL, None)):
        if process.poll() is None or how == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
