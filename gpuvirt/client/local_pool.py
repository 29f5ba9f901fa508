"""A private local pool for one program: a daemon on a free port of this machine, which ends when this process ends for any reason."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.pool import PoolAddress

START_LIMIT = 60.0
STOP_LIMIT = 5.0


class LocalPool:
    """Starts the pool; use it as a context manager or call `close`.

    Args:
        gpus: number of GPUs.
        memory: bytes of one software GPU; None: the daemon's default.
        verbose: print the daemon's log on stderr.

    Raises:
        GpuvirtError: the pool did not start; the text repeats the daemon's last line.
    """

    def __init__(self, gpus: int, memory: int | None = None, verbose: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuvirt-local-"))
        self._process: subprocess.Popen[bytes] | None = None
        # The daemon ends when the other end of this pipe closes; the kernel closes it even when this process is killed.
        parent, self._alive = os.pipe()
        ready, log = self._folder / "ready.json", self._folder / "log"
        line = [sys.executable, "-P", "-m", "gpuvirt", "serve", "--listen", "127.0.0.1:0", "--gpus", str(gpus), "--name", "private local pool"]
        line += ["--ready-file", str(ready), "--parent-fd", str(parent), "--private-folder", str(self._folder)]
        if memory is not None:
            line += ["--gpu-memory", str(memory)]
        env = {**os.environ, "GPUVIRT_STATE": str(self._folder / "state")}  # its own tokens, removed with the folder
        try:
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=2, stderr=None if verbose else out, pass_fds=[parent], start_new_session=True, env=env
                )
            self.address = self._wait(ready, log)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(parent)

    def _wait(self, ready: Path, log: Path) -> PoolAddress:
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").strip().splitlines()
                said = lines[-1].removeprefix("gpuvirt: ").removeprefix("gpuvirt serve: ") if lines else "its log is empty"
                raise GpuvirtError(f"the private local pool did not start: {said}")
            time.sleep(0.01)
        return PoolAddress("127.0.0.1", int(json.loads(ready.read_text())["port"]))

    def token(self) -> str:
        """The text of the pool's token.

        Raises:
            GpuvirtError: the pool's token file is not there; the pool is probably ending.
        """
        text = paths.find_local_token(self.address.port)
        if text is None:
            raise GpuvirtError("the private local pool left no token; is /tmp writable?")
        return text

    def close(self) -> None:
        """Ends the pool and its sessions."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
